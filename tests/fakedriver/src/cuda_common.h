/* What the files of the fake libcuda share. */
#ifndef FAKEDRIVER_CUDA_COMMON_H
#define FAKEDRIVER_CUDA_COMMON_H

#include "common.h"

#define __CUDA_API_VERSION_INTERNAL /* declares the older versions of the functions as well */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

/* Begin an entry point: injected faults first, then this process's lock until the function's end. */
#define ENTER(uuid)                                                                                \
    int fault_;                                                                                    \
    if (driver_enter(__func__, uuid, &fault_))                                                     \
        return (CUresult)fault_;                                                                   \
    __attribute__((cleanup(cuda_leave), unused)) int scope_ = 0

/* As ENTER, for a function that needs cuInit before it. */
#define ENTER_READY(uuid)                                                                          \
    ENTER(uuid);                                                                                   \
    if (!cuda_ready())                                                                             \
    return CUDA_ERROR_NOT_INITIALIZED

#define REQUIRE(condition, otherwise)                                                              \
    if (!(condition))                                                                              \
    return (otherwise)

void cuda_leave(int *scope);
bool cuda_ready(void);                      /* cuInit succeeded, in this process, not its parent */
const char *cuda_uuid(CUdevice ordinal);    /* NULL: no such ordinal */
void mps_join(void);                        /* called by cuInit */
uint64_t mps_room(const holding *own, uint64_t room); /* what of the room is for this process */
uint64_t mps_multiprocessors(uint64_t all);
int visible_devices(const char *visible, const char *order, char out[][UUID_SIZE]);

#endif
