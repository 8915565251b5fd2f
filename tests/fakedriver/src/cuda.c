/* The fake libcuda.so.1: initialisation, devices, entry points. Contexts are in context.c. */
#include "cuda_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE_SIZE 4096

static char visible[MAX_DEVICES][UUID_SIZE];
static int visible_count;
static pid_t ready_in; /* the process in which cuInit succeeded */

void cuda_leave(int *scope)
{
    (void)scope;
    driver_leave();
}

bool cuda_ready(void) { return ready_in == getpid(); }

const char *cuda_uuid(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : NULL;
}

/* A variable as it was at the first cuInit, whatever it is now; NULL if it was not set. Whether
 * a real driver reads it again after a cuInit that failed is unknown: the scenario decides. */
static const char *frozen(const char *name, char *kept, int *known)
{
    const char *now = getenv(name);
    if (!*known || scenario_number(0, "cuinit_rereads")) {
        *known = now ? 1 : -1;
        snprintf(kept, VARIABLE_SIZE, "%s", now ? now : "");
    }
    return *known > 0 ? kept : NULL;
}

CUresult cuInit(unsigned int flags)
{
    static char devices[VARIABLE_SIZE], order[VARIABLE_SIZE];
    static int devices_known, order_known;
    table *shared;

    ENTER(NULL);
    REQUIRE(!flags, CUDA_ERROR_INVALID_VALUE);
    if (cuda_ready())
        return CUDA_SUCCESS;
    REQUIRE(!ready_in, CUDA_ERROR_NOT_INITIALIZED); /* a fork of an initialised process */
    const char *chosen = frozen("CUDA_VISIBLE_DEVICES", devices, &devices_known);
    const char *sorted = frozen("CUDA_DEVICE_ORDER", order, &order_known);
    REQUIRE(scenario_loaded(), CUDA_ERROR_NO_DEVICE);
    visible_count = visible_devices(chosen, sorted, visible);
    REQUIRE(visible_count, CUDA_ERROR_NO_DEVICE);
    REQUIRE(shared = table_open(), CUDA_ERROR_OPERATING_SYSTEM);
    table_forget_own(shared);
    table_close(shared);
    mps_join();
    ready_in = getpid();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER(NULL);
    REQUIRE(version, CUDA_ERROR_INVALID_VALUE);
    *version = (int)scenario_number(CUDA_VERSION, "cuda_version");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    ENTER_READY(NULL);
    REQUIRE(count, CUDA_ERROR_INVALID_VALUE);
    *count = visible_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER_READY(cuda_uuid(ordinal));
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuda_uuid(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

/* The place of an ordinal; CUDA_ERROR_UNKNOWN once the device has gone. */
static CUresult find(CUdevice device, place *where)
{
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(place_of(cuda_uuid(device), where) && !place_lost(where), CUDA_ERROR_UNKNOWN);
    return CUDA_SUCCESS;
}

#define FIND(device, where)                                                                        \
    place where;                                                                                   \
    CUresult found_ = find(device, &where);                                                        \
    if (found_)                                                                                    \
    return found_

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(name && length > 0, CUDA_ERROR_INVALID_VALUE);
    FIND(device, where);
    snprintf(name, (size_t)length, "%s", scenario_text("", "%sname", where.path));
    return CUDA_SUCCESS;
}

static void uuid_bytes(const char *text, CUuuid *out)
{
    unsigned byte;
    memset(out, 0, sizeof *out);
    text = strchr(text, '-');
    for (size_t i = 0; text && i < sizeof out->bytes; i++, text += 2) {
        text += strspn(text, "-");
        if (sscanf(text, "%2x", &byte) != 1)
            return;
        out->bytes[i] = (char)byte;
    }
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) /* of the whole device, also under MIG */
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
    FIND(device, where);
    uuid_bytes(scenario_text("", "devices.%d.uuid", where.device), uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(uuid, CUDA_ERROR_INVALID_VALUE);
    FIND(device, where);
    uuid_bytes(where.uuid, uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(bytes, CUDA_ERROR_INVALID_VALUE);
    FIND(device, where);
    *bytes = scenario_number(0, "%smemory_total", where.path) -
             scenario_number(0, "%smemory_reserved", where.path);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(value, CUDA_ERROR_INVALID_VALUE);
    FIND(device, where);
    int on = where.device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = (int)scenario_number(9, "devices.%d.compute_capability.0", on);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = (int)scenario_number(0, "devices.%d.compute_capability.1", on);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = (int)mps_multiprocessors(scenario_number(128, "%smultiprocessors", where.path));
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *value = (int)compute_mode(on);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = on + 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

typedef struct {
    CUresult code;
    const char *name, *text;
} error_text;

static const error_text *error_of(CUresult code)
{
    static const error_text known[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
        {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
         "CUDA-capable device(s) is/are busy or unavailable"},
        {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
        {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
        {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
        {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
         "OS call failed or operation not supported on this OS"},
        {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
         "context is destroyed"},
        {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code)
            return &known[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    const error_text *found = error_of(code);
    REQUIRE(name, CUDA_ERROR_INVALID_VALUE);
    *name = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    const error_text *found = error_of(code);
    REQUIRE(text, CUDA_ERROR_INVALID_VALUE);
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
