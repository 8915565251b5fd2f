/* cuGetProcAddress: which function a name means for a given CUDA version. */
#include "cuda_common.h"

#include <string.h>

typedef struct {
    const char *name;
    int since; /* the CUDA version that brought this variant */
    void *function;
} entry;

#define ENTRY(name, since, function) {#name, since, (void *)(function)}

/* Of the variants of a name, the oldest first. */
static const entry entries[] = {
    ENTRY(cuInit, 2000, cuInit),
    ENTRY(cuDriverGetVersion, 2020, cuDriverGetVersion),
    ENTRY(cuDeviceGetCount, 2000, cuDeviceGetCount),
    ENTRY(cuDeviceGet, 2000, cuDeviceGet),
    ENTRY(cuDeviceGetName, 2000, cuDeviceGetName),
    ENTRY(cuDeviceGetUuid, 9020, cuDeviceGetUuid),
    ENTRY(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
    ENTRY(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
    ENTRY(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute),
    ENTRY(cuGetErrorName, 6000, cuGetErrorName),
    ENTRY(cuGetErrorString, 6000, cuGetErrorString),
    ENTRY(cuCtxCreate, 2000, cuCtxCreate),
    ENTRY(cuCtxCreate, 3020, cuCtxCreate_v2),
    ENTRY(cuCtxCreate, 11040, cuCtxCreate_v3),
    ENTRY(cuCtxCreate, 12050, cuCtxCreate_v4),
    ENTRY(cuCtxDestroy, 4000, cuCtxDestroy_v2),
    ENTRY(cuCtxGetCurrent, 4000, cuCtxGetCurrent),
    ENTRY(cuCtxSetCurrent, 4000, cuCtxSetCurrent),
    ENTRY(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
    ENTRY(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
    ENTRY(cuCtxGetDevice, 2000, cuCtxGetDevice),
    ENTRY(cuCtxSynchronize, 2000, cuCtxSynchronize),
    ENTRY(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain),
    ENTRY(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease),
    ENTRY(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2),
    ENTRY(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset),
    ENTRY(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2),
    ENTRY(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState),
    ENTRY(cuMemAlloc, 3020, cuMemAlloc_v2),
    ENTRY(cuMemFree, 3020, cuMemFree_v2),
    ENTRY(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    ENTRY(cuGetProcAddress, 11030, cuGetProcAddress),
    ENTRY(cuGetProcAddress, 12000, cuGetProcAddress_v2),
};

/* A missing function is not an error here, only *status says so. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    ENTER(NULL);
    (void)flags;
    REQUIRE(name && function, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((uint64_t)version <= scenario_number(CUDA_VERSION, "cuda_version"),
            CUDA_ERROR_INVALID_VALUE);
    *function = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, name))
            continue;
        if (entries[i].since <= version) {
            *function = entries[i].function;
            result = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (!*function) {
            result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    if (status)
        *status = result;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    CUresult result = cuGetProcAddress_v2(name, function, version, flags, NULL);
    return result || *function ? result : CUDA_ERROR_NOT_FOUND;
}
