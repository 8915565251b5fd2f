/* The fake libnvidia-ml.so.1: critical errors (Xid), told once to each process that listens. */
#include "nvml_common.h"

#include <string.h>

#define WHOLE 0xFFFFFFFFu

/* Who listens to what, and how many of the scenario's errors it has heard: one set per process. */
static struct {
    nvmlDevice_t device;
    int heard;
} watched[MAX_DEVICES];
static int watched_count;

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    static char one;
    ENTER_READY(NULL);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    *set = (nvmlEventSet_t)&one;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER_READY(NULL);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    watched_count = 0;
    return NVML_SUCCESS;
}

static int errors_of(const place *where)
{
    return (int)scenario_number(0, "%sxids.#", where->path);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set)
{
    ENTER_FIND_WHOLE(device, where);
    REQUIRE(set, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(types == nvmlEventTypeXidCriticalError, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(watched_count < MAX_DEVICES, NVML_ERROR_UNKNOWN);
    watched[watched_count].device = device; /* what was before is not told */
    watched[watched_count++].heard = errors_of(&where);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout)
{
    ENTER_READY(NULL);
    REQUIRE(set && out, NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(!timeout, NVML_ERROR_NOT_SUPPORTED); /* nobody waits here */
    for (int i = 0; i < watched_count; i++) {
        place where;
        if (!place_of(nvml_uuid(watched[i].device), &where) ||
            watched[i].heard >= errors_of(&where))
            continue;
        int next = watched[i].heard++;
        memset(out, 0, sizeof *out);
        out->device = watched[i].device;
        out->eventType = nvmlEventTypeXidCriticalError;
        out->eventData = scenario_number(0, "%sxids.%d", where.path, next);
        out->gpuInstanceId = out->computeInstanceId = WHOLE;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}
