/* The fake libnvidia-ml.so.1: memory, processes, utilisation: what changes while it is used. */
#include "nvml_common.h"

#include <string.h>

#define NOT_AVAILABLE 0xFFFFFFFFu
#define MAX_LISTED 1024

static nvmlReturn_t memory_now(const place *where, memory *out)
{
    table *shared = table_open();
    REQUIRE(shared, NVML_ERROR_OPERATING_SYSTEM);
    *out = memory_of(shared, where);
    table_close(shared);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    memory now;
    ENTER_FIND(device, where);
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = memory_now(&where, &now);
    REQUIRE(!result, result);
    out->total = now.total;
    out->free = now.free;
    out->used = now.total - now.free; /* this version counts the reserve as used */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    memory now;
    ENTER_FIND(device, where);
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(out->version == nvmlMemory_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t result = memory_now(&where, &now);
    REQUIRE(!result, result);
    out->total = now.total;
    out->reserved = now.reserved;
    out->free = now.free;
    out->used = now.used;
    return NVML_SUCCESS;
}

typedef struct {
    nvmlProcessInfo_t entries[MAX_LISTED];
    unsigned count;
} listing;

static void add(listing *list, const place *where, unsigned pid, unsigned long long bytes)
{
    bool mig = where->mig >= 0;
    if (list->count == MAX_LISTED)
        return;
    list->entries[list->count++] = (nvmlProcessInfo_t){
        .pid = pid,
        .usedGpuMemory = bytes,
        .gpuInstanceId =
            mig ? (unsigned)scenario_number(0, "%sgpu_instance", where->path) : NOT_AVAILABLE,
        .computeInstanceId =
            mig ? (unsigned)scenario_number(0, "%scompute_instance", where->path) : NOT_AVAILABLE,
    };
}

/* Processes of one kind at one place: those of the scenario, and who holds a context. */
static void list_at(listing *list, const table *shared, const place *where, const char *kind)
{
    int processes = (int)scenario_number(0, "%sprocesses.#", where->path);
    unsigned shift = (unsigned)scenario_number(0, "pid_shift");

    for (int i = 0; i < processes; i++) {
        if (strcmp(scenario_text("compute", "%sprocesses.%d.kind", where->path, i), kind))
            continue;
        bool unknown = scenario_is_null("%sprocesses.%d.memory", where->path, i);
        add(list, where, (unsigned)scenario_number(0, "%sprocesses.%d.pid", where->path, i),
            unknown ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE
                    : scenario_number(0, "%sprocesses.%d.memory", where->path, i));
    }
    if (strcmp(kind, "compute"))
        return;
    for (const holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++)
        if (row->contexts && !strcmp(row->uuid, where->uuid))
            add(list, where, (unsigned)row->pid + shift, row->context_bytes + row->allocated);
}

static nvmlReturn_t processes(const place *where, const char *kind, unsigned int *count,
                              nvmlProcessInfo_t *out)
{
    listing list = {.count = 0};
    place instance;

    REQUIRE(count && (out || !*count), NVML_ERROR_INVALID_ARGUMENT);
    table *shared = table_open();
    REQUIRE(shared, NVML_ERROR_OPERATING_SYSTEM);
    if (scenario_number(1, "list_processes")) { /* false: as in a container of its own pids */
        list_at(&list, shared, where, kind);
        if (where->mig < 0)
            for (int i = 0; i < mig_count(where->device); i++)
                if (place_at(where->device, i, &instance))
                    list_at(&list, shared, &instance, kind);
    }
    table_close(shared);
    unsigned room = *count;
    *count = list.count;
    REQUIRE(list.count <= room, NVML_ERROR_INSUFFICIENT_SIZE);
    if (list.count)
        memcpy(out, list.entries, list.count * sizeof *out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *out)
{
    ENTER_FIND(device, where);
    return processes(&where, "compute", count, out);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *out)
{
    ENTER_FIND(device, where);
    return processes(&where, "graphics", count, out);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *out)
{
    ENTER_FIND(device, where);
    return processes(&where, "mps", count, out);
}

/* A reading that the scenario gives or the card cannot tell. */
static nvmlReturn_t reading(const place *where, const char *field, unsigned long long *out)
{
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(scenario_text(NULL, "%s%s", where->path, field), NVML_ERROR_NOT_SUPPORTED);
    *out = scenario_number(0, "%s%s", where->path, field);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_reading(const place *where, const char *field, unsigned int *out)
{
    unsigned long long wide;
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = reading(where, field, &wide);
    if (!result)
        *out = (unsigned)wide;
    return result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(!mig_enabled(where.device), NVML_ERROR_NOT_SUPPORTED);
    nvmlReturn_t result = nvml_reading(&where, "utilization.gpu", &out->gpu);
    return result ? result : nvml_reading(&where, "utilization.memory", &out->memory);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(sensor == NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
    return nvml_reading(&where, "temperature", celsius);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    unsigned int celsius;
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(out && out->sensorType == NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = nvml_reading(&where, "temperature", &celsius);
    if (!result)
        out->temperature = (int)celsius;
    return result;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER_FIND_WHOLE(device, where);
    return nvml_reading(&where, "power", milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    ENTER_FIND_WHOLE(device, where);
    return nvml_reading(&where, "power_limit", milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                         nvmlEccCounterType_t counter, unsigned long long *errors)
{
    ENTER_FIND_WHOLE(device, where);
    (void)counter;
    return reading(&where, error == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? "ecc.uncorrected"
                                                                       : "ecc.corrected",
                   errors);
}
