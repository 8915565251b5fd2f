/* The fake libnvidia-ml.so.1: what nvidia-smi asks besides. Whatever the scenario does not tell of
 * a device is what this card does not support. */
#include "nvml_common.h"

#include <stdio.h>
#include <string.h>

/* ---- one number each ---- */

#define READING(function, type, field)                                                             \
    nvmlReturn_t function(nvmlDevice_t device, type *out)                                          \
    {                                                                                              \
        unsigned int value;                                                                        \
        ENTER_FIND_WHOLE(device, where);                                                           \
        REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);                                                 \
        nvmlReturn_t result = nvml_reading(&where, field, &value);                                 \
        if (!result)                                                                               \
            *out = (type)value;                                                                    \
        return result;                                                                             \
    }

READING(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, "persistence_mode")
READING(nvmlDeviceGetDisplayMode, nvmlEnableState_t, "display_mode")
READING(nvmlDeviceGetDisplayActive, nvmlEnableState_t, "display_active")
READING(nvmlDeviceGetFanSpeed, unsigned int, "fan")
READING(nvmlDeviceGetPerformanceState, nvmlPstates_t, "pstate")
READING(nvmlDeviceGetPowerState, nvmlPstates_t, "pstate")
READING(nvmlDeviceGetPowerManagementLimit, unsigned int, "power_limit")
READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_limit")
READING(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, "power_management")
READING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie.generation_max")
READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, "pcie.generation_max")
READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie.generation")
READING(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie.width_max")
READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie.width")
READING(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
READING(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *out)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(out && counter < NVML_PCIE_UTIL_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    return nvml_reading(&where, counter == NVML_PCIE_UTIL_TX_BYTES ? "pcie.sent" : "pcie.received",
                        out);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(least && most, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = nvml_reading(&where, "power_min_limit", least);
    return result ? result : nvml_reading(&where, "power_max_limit", most);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *now,
                                  nvmlEnableState_t *pending)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(now && pending, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = nvml_reading(&where, "ecc_mode", now);
    *pending = *now;
    return result;
}

static nvmlReturn_t sampled(const place *where, const char *field, unsigned int *percent,
                            unsigned int *period)
{
    REQUIRE(percent && period, NVML_ERROR_INVALID_ARGUMENT);
    *period = 1000000;
    return nvml_reading(where, field, percent);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period)
{
    ENTER_FIND_WHOLE(device, where);
    return sampled(&where, "utilization.encoder", percent, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
                                             unsigned int *period)
{
    ENTER_FIND_WHOLE(device, where);
    return sampled(&where, "utilization.decoder", percent, period);
}

static nvmlReturn_t clock_of(const place *where, const char *group, nvmlClockType_t type,
                             unsigned int *mhz)
{
    static const char *const names[] = {"graphics", "sm", "memory", "video"};
    char field[64];
    REQUIRE(mhz && (size_t)type < sizeof names / sizeof *names, NVML_ERROR_INVALID_ARGUMENT);
    snprintf(field, sizeof field, "%s.%s", group, names[type]);
    return nvml_reading(where, field, mhz);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER_FIND_WHOLE(device, where);
    return clock_of(&where, "clocks", type, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
    ENTER_FIND_WHOLE(device, where);
    return clock_of(&where, "clocks_max", type, mhz);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(scenario_text(NULL, "%sbar1_total", where.path), NVML_ERROR_NOT_SUPPORTED);
    out->bar1Total = scenario_number(0, "%sbar1_total", where.path);
    out->bar1Used = scenario_number(0, "%sbar1_used", where.path);
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* ---- one text each ---- */

static nvmlReturn_t text(const place *where, const char *field, char *out, unsigned int size)
{
    const char *found = scenario_text(NULL, "%s%s", where->path, field);
    REQUIRE(found, NVML_ERROR_NOT_SUPPORTED);
    return nvml_copy(out, size, found);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned int size)
{
    ENTER_FIND_WHOLE(device, where);
    return text(&where, "serial", out, size);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned int size)
{
    ENTER_FIND_WHOLE(device, where);
    return text(&where, "vbios", out, size);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[64], line[4096] = "";
    ENTER_READY(NULL);
    REQUIRE(name && length, NVML_ERROR_INVALID_ARGUMENT);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    REQUIRE(file, NVML_ERROR_NOT_FOUND);
    size_t read = fread(line, 1, sizeof line - 1, file); /* the first word ends with a NUL */
    fclose(file);
    REQUIRE(read, NVML_ERROR_NOT_FOUND);
    snprintf(name, length, "%s", line);
    return NVML_SUCCESS;
}

/* ---- field values ---- */

static const char *const power_fields[] = {
    [NVML_FI_DEV_POWER_AVERAGE - NVML_FI_DEV_POWER_AVERAGE] = "power",
    [NVML_FI_DEV_POWER_INSTANT - NVML_FI_DEV_POWER_AVERAGE] = "power",
    [NVML_FI_DEV_POWER_MIN_LIMIT - NVML_FI_DEV_POWER_AVERAGE] = "power_min_limit",
    [NVML_FI_DEV_POWER_MAX_LIMIT - NVML_FI_DEV_POWER_AVERAGE] = "power_max_limit",
    [NVML_FI_DEV_POWER_DEFAULT_LIMIT - NVML_FI_DEV_POWER_AVERAGE] = "power_default_limit",
    [NVML_FI_DEV_POWER_CURRENT_LIMIT - NVML_FI_DEV_POWER_AVERAGE] = "power_limit",
    [NVML_FI_DEV_POWER_REQUESTED_LIMIT - NVML_FI_DEV_POWER_AVERAGE] = "power_limit",
};

static const char *power_field(const nvmlFieldValue_t *value)
{
    size_t number = value->fieldId - NVML_FI_DEV_POWER_AVERAGE; /* wraps for smaller ones */
    bool known = number < sizeof power_fields / sizeof *power_fields && value->scopeId == 0;
    return known ? power_fields[number] : NULL;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (nvmlFieldValue_t *value = values; value < values + count; value++) {
        const char *field = power_field(value);
        value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        value->nvmlReturn = field ? nvml_reading(&where, field, &value->value.uiVal)
                                  : NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
