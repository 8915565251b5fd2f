/* The fake libnvidia-ml.so.1: initialisation, devices, what they are. Use is in nvml_usage.c. */
#include "nvml_common.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The devices are enumerated by the first nvmlInit and by no later call: one that is plugged in
 * afterwards shows up after nvmlShutdown and nvmlInit only, one that is taken out is "lost". */
static struct nvmlDevice_st {
    char uuid[UUID_SIZE];
    bool mig;
} handles[MAX_DEVICES * 8];
static int handle_count, enumerated;
static unsigned initialised;

void nvml_leave(int *scope)
{
    (void)scope;
    driver_leave();
}

bool nvml_ready(void) { return initialised > 0; }

bool nvml_valid(nvmlDevice_t device) { return device >= handles && device < handles + handle_count; }

const char *nvml_uuid(nvmlDevice_t device) { return nvml_valid(device) ? device->uuid : NULL; }

nvmlReturn_t nvml_find(nvmlDevice_t device, place *where)
{
    REQUIRE(nvml_valid(device), NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(place_of(device->uuid, where), NVML_ERROR_GPU_IS_LOST);
    REQUIRE(!place_lost(where), NVML_ERROR_GPU_IS_LOST);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_copy(char *out, unsigned int size, const char *text)
{
    REQUIRE(out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(strlen(text) < size, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(out, text);
    return NVML_SUCCESS;
}

static nvmlDevice_t handle_of(const place *where)
{
    for (int i = 0; i < handle_count; i++)
        if (!strcmp(handles[i].uuid, where->uuid))
            return &handles[i];
    if (handle_count == sizeof handles / sizeof *handles)
        return NULL;
    snprintf(handles[handle_count].uuid, UUID_SIZE, "%s", where->uuid);
    handles[handle_count].mig = where->mig >= 0;
    return &handles[handle_count++];
}

static nvmlReturn_t initialise(void)
{
    place where;
    REQUIRE(scenario_loaded(), NVML_ERROR_DRIVER_NOT_LOADED);
    if (initialised++)
        return NVML_SUCCESS;
    handle_count = 0;
    for (int i = 0; i < device_count(); i++)
        if (place_at(i, -1, &where))
            handle_of(&where);
    enumerated = handle_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    ENTER(NULL);
    return initialise();
}

#undef nvmlInit /* in the header another name of nvmlInit_v2; in the library, a function that PyTorch calls */
__attribute__((visibility("default"))) nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    ENTER(NULL);
    (void)flags;
    return initialise();
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER_READY(NULL);
    initialised--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires restart", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client",
        "Insufficient Memory", "No data"};
    return (size_t)code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER_READY(NULL);
    return nvml_copy(version, length, scenario_text("615.71.05", "driver_version"));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[96];
    ENTER_READY(NULL);
    snprintf(text, sizeof text, "13.%s", scenario_text("615.71.05", "driver_version"));
    return nvml_copy(version, length, text);
}

static nvmlReturn_t cuda_version(int *version)
{
    REQUIRE(version, NVML_ERROR_INVALID_ARGUMENT);
    *version = (int)scenario_number(13050, "cuda_version");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(NULL); /* needs no nvmlInit */
    return cuda_version(version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(NULL);
    return cuda_version(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER_READY(NULL);
    REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = (unsigned)enumerated; /* lost ones are counted */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    place where;
    ENTER_READY(index < (unsigned)enumerated ? handles[index].uuid : NULL);
    REQUIRE(device && index < (unsigned)enumerated, NVML_ERROR_INVALID_ARGUMENT);
    *device = &handles[index];
    return nvml_find(*device, &where);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    place where;
    ENTER_READY(uuid);
    REQUIRE(uuid && device, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < enumerated; i++)
        if (!strcmp(handles[i].uuid, uuid)) {
            *device = &handles[i];
            return nvml_find(*device, &where);
        }
    REQUIRE(place_of(uuid, &where) && where.mig >= 0, NVML_ERROR_NOT_FOUND);
    REQUIRE(!place_lost(&where), NVML_ERROR_GPU_IS_LOST);
    *device = handle_of(&where);
    return *device ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static void bus_id(const place *where, char *out, size_t size, const char *format)
{
    snprintf(out, size, format, 0, where->device + 1);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    char own[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
    place where;
    ENTER_READY(NULL);
    REQUIRE(id && device, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < enumerated; i++) {
        if (!place_of(handles[i].uuid, &where))
            continue;
        bus_id(&where, own, sizeof own, "%08X:%02X:00.0");
        if (!strcmp(own, id) || !strcmp(own + 4, id)) {
            *device = &handles[i];
            return nvml_find(*device, &where);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_FIND(device, where);
    return nvml_copy(uuid, length, where.uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_FIND(device, where);
    return nvml_copy(name, length, scenario_text("", "%sname", where.path));
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER_FIND(device, where);
    REQUIRE(index, NVML_ERROR_INVALID_ARGUMENT);
    *index = where.mig < 0 ? (unsigned)(device - handles) : (unsigned)where.mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(minor, NVML_ERROR_INVALID_ARGUMENT);
    *minor = (unsigned)scenario_number((uint64_t)where.device, "%sminor", where.path);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_FIND(device, where);
    REQUIRE(pci, NVML_ERROR_INVALID_ARGUMENT);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)where.device + 1;
    pci->pciDeviceId = 0x233010DE;
    bus_id(&where, pci->busId, sizeof pci->busId, "%08X:%02X:00.0");
    bus_id(&where, pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(mode, NVML_ERROR_INVALID_ARGUMENT);
    *mode = (nvmlComputeMode_t)compute_mode(where.device);
    return NVML_SUCCESS;
}

/* For root alone; and in some containers not even for root, which the scenario says. */
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(mode < NVML_COMPUTEMODE_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(mode != NVML_COMPUTEMODE_EXCLUSIVE_THREAD, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(!geteuid() && scenario_number(1, "may_administer"), NVML_ERROR_NO_PERMISSION);
    REQUIRE(set_compute_mode(where.device, mode), NVML_ERROR_UNKNOWN);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_FIND(device, where);
    REQUIRE(major && minor, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)scenario_number(9, "devices.%d.compute_capability.0", where.device);
    *minor = (int)scenario_number(0, "devices.%d.compute_capability.1", where.device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(now && pending, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(mig_enabled(where.device) || scenario_number(1, "%smig_capable", where.path),
            NVML_ERROR_NOT_SUPPORTED);
    *now = *pending = mig_enabled(where.device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(count, NVML_ERROR_INVALID_ARGUMENT);
    *count = scenario_number(1, "%smig_capable", where.path) ? 7 : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *instance)
{
    place below;
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(instance, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(mig_enabled(where.device), NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(place_at(where.device, (int)index, &below), NVML_ERROR_NOT_FOUND);
    *instance = handle_of(&below);
    return *instance ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_READY(nvml_uuid(device));
    REQUIRE(nvml_valid(device) && is_mig, NVML_ERROR_INVALID_ARGUMENT);
    *is_mig = device->mig;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                          nvmlDevice_t *device)
{
    place parent;
    ENTER_FIND(instance, where);
    REQUIRE(device && where.mig >= 0, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(place_at(where.device, -1, &parent), NVML_ERROR_NOT_FOUND);
    *device = handle_of(&parent);
    return NVML_SUCCESS;
}

static nvmlReturn_t instance_number(const place *where, const char *field, unsigned int *id)
{
    REQUIRE(id && where->mig >= 0, NVML_ERROR_INVALID_ARGUMENT);
    *id = (unsigned)scenario_number(0, "%s%s", where->path, field);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_FIND(device, where);
    return instance_number(&where, "gpu_instance", id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_FIND(device, where);
    return instance_number(&where, "compute_instance", id);
}
