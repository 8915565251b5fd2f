/* What the files of the fake libnvidia-ml share. */
#ifndef FAKEDRIVER_NVML_COMMON_H
#define FAKEDRIVER_NVML_COMMON_H

#include "common.h"

#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#define REQUIRE(condition, otherwise)                                                              \
    if (!(condition))                                                                              \
    return (otherwise)

/* Count a call: of all processes together, in the file beside the scenario, if there is one. */
void nvml_count(void);

/* Begin an entry point: injected faults first, then this process's lock until the function's end. */
#define ENTER(uuid)                                                                                \
    nvml_count();                                                                                  \
    int fault_;                                                                                    \
    if (driver_enter(__func__, uuid, &fault_))                                                     \
        return (nvmlReturn_t)fault_;                                                               \
    __attribute__((cleanup(nvml_leave), unused)) int scope_ = 0

#define ENTER_READY(uuid)                                                                          \
    ENTER(uuid);                                                                                   \
    REQUIRE(nvml_ready(), NVML_ERROR_UNINITIALIZED)

/* ... and find what the handle means now. */
#define ENTER_FIND(device, where)                                                                  \
    place where;                                                                                   \
    ENTER_READY(nvml_uuid(device));                                                                \
    nvmlReturn_t found_ = nvml_find(device, &where);                                               \
    REQUIRE(!found_, found_)

/* ... for what a MIG instance cannot be asked. */
#define ENTER_FIND_WHOLE(device, where)                                                            \
    ENTER_FIND(device, where);                                                                     \
    REQUIRE(where.mig < 0, NVML_ERROR_NOT_SUPPORTED)

void nvml_leave(int *scope);
bool nvml_ready(void);
bool nvml_valid(nvmlDevice_t device);
const char *nvml_uuid(nvmlDevice_t device); /* NULL: not a handle of ours */
nvmlReturn_t nvml_find(nvmlDevice_t device, place *where);
nvmlReturn_t nvml_copy(char *out, unsigned int size, const char *text);

/* A number that the scenario gives, or that the card cannot tell. */
nvmlReturn_t nvml_reading(const place *where, const char *field, unsigned int *out);

#endif
