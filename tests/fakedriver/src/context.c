/* The fake libcuda.so.1: contexts and memory. What a context costs and what is allocated is
 * charged to the shared table, where NVML and the other processes see it. */
#include "cuda_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_DEPTH 32

struct CUctx_st {
    CUdevice device;
    char uuid[UUID_SIZE];
    uint64_t cost;
    bool live;
    struct CUctx_st *next;
};

typedef struct allocation {
    CUdeviceptr address;
    uint64_t bytes;
    CUcontext context;
    struct allocation *next;
} allocation;

static CUcontext contexts; /* never freed: a stale handle must stay recognisable */
static allocation *allocations;

static struct {
    CUcontext context;
    unsigned retained;
} primaries[MAX_DEVICES];

static __thread CUcontext stack[STACK_DEPTH];
static __thread int depth;

static CUcontext top(void) { return depth ? stack[depth - 1] : NULL; }

static bool known(CUcontext context)
{
    for (CUcontext each = contexts; each; each = each->next)
        if (each == context)
            return true;
    return false;
}

static CUresult check(CUcontext context)
{
    REQUIRE(context && known(context), CUDA_ERROR_INVALID_CONTEXT);
    return context->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* 0 default, 2 prohibited, 3 one process at a time. */
static bool may_open_context(const table *shared, const place *where)
{
    uint64_t mode = compute_mode(where->device);
    if (mode != CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
        return mode != CU_COMPUTEMODE_PROHIBITED;
    for (const holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++)
        if (row->contexts && row->pid != getpid() && !strcmp(row->uuid, where->uuid))
            return false;
    return true;
}

static CUresult charge_to(table *shared, const place *where, uint64_t context, uint64_t bytes)
{
    REQUIRE(!context || may_open_context(shared, where), CUDA_ERROR_DEVICE_UNAVAILABLE);
    uint64_t room = mps_room(table_row(shared, where->uuid, false), memory_of(shared, where).free);
    REQUIRE(room >= context + bytes, CUDA_ERROR_OUT_OF_MEMORY);
    holding *row = table_row(shared, where->uuid, context > 0);
    REQUIRE(row, CUDA_ERROR_OUT_OF_MEMORY);
    row->allocated += bytes;
    row->context_bytes += context;
    row->contexts += context > 0;
    return CUDA_SUCCESS;
}

/* Take memory for a context of that cost, or for an allocation. */
static CUresult charge(const char *uuid, uint64_t context, uint64_t bytes)
{
    place where;
    REQUIRE(place_of(uuid, &where) && !place_lost(&where), CUDA_ERROR_UNKNOWN);
    table *shared = table_open();
    REQUIRE(shared, CUDA_ERROR_OPERATING_SYSTEM);
    CUresult result = charge_to(shared, &where, context, bytes);
    table_close(shared);
    return result;
}

static void discharge(const char *uuid, uint64_t context, uint64_t bytes)
{
    table *shared = table_open();
    holding *row = shared ? table_row(shared, uuid, false) : NULL;
    if (row) {
        row->allocated -= bytes;
        row->context_bytes -= context;
        row->contexts -= context > 0;
    }
    if (shared)
        table_close(shared);
}

static CUresult open_context(CUcontext *out, CUdevice device)
{
    uint64_t cost = scenario_number(300 * MIB, "context_bytes");
    REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    cost = cost ? cost : 1; /* a row counts contexts by their cost */
    CUresult result = charge(cuda_uuid(device), cost, 0);
    if (result)
        return result;
    CUcontext context = calloc(1, sizeof *context);
    REQUIRE(context, CUDA_ERROR_OUT_OF_MEMORY);
    context->device = device;
    context->cost = cost;
    context->live = true;
    snprintf(context->uuid, sizeof context->uuid, "%s", cuda_uuid(device));
    context->next = contexts;
    *out = contexts = context;
    return CUDA_SUCCESS;
}

static void close_context(CUcontext context)
{
    uint64_t bytes = 0;
    for (allocation **link = &allocations; *link;) {
        allocation *each = *link;
        if (each->context != context) {
            link = &each->next;
            continue;
        }
        bytes += each->bytes;
        *link = each->next;
        free(each);
    }
    context->live = false;
    discharge(context->uuid, context->cost, bytes);
}

static CUresult push(CUcontext context)
{
    REQUIRE(depth < STACK_DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, CUdevice device)
{
    CUresult result = open_context(out, device);
    return result ? result : push(*out);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                        unsigned int flags, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    (void)affinity, (void)count, (void)flags;
    return create(context, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                        CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    (void)parameters, (void)flags;
    return create(context, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER_READY(context && known(context) ? context->uuid : NULL);
    CUresult valid = check(context);
    if (valid)
        return valid;
    for (int i = 0; i < MAX_DEVICES; i++) /* a primary context is released, not destroyed */
        REQUIRE(primaries[i].context != context, CUDA_ERROR_INVALID_CONTEXT);
    close_context(context);
    if (top() == context)
        depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER_READY(NULL);
    REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
    *context = top();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER_READY(NULL);
    depth -= depth > 0;
    if (!context)
        return CUDA_SUCCESS;
    CUresult valid = check(context);
    return valid ? valid : push(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER_READY(NULL);
    CUresult valid = check(context);
    return valid ? valid : push(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER_READY(NULL);
    REQUIRE(depth, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = stack[--depth];
    if (context)
        *context = popped;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER_READY(NULL);
    CUresult valid = check(top());
    if (valid)
        return valid;
    REQUIRE(device, CUDA_ERROR_INVALID_VALUE);
    *device = top()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    place where;
    ENTER_READY(top() ? top()->uuid : NULL);
    CUresult valid = check(top());
    if (valid)
        return valid;
    return place_of(top()->uuid, &where) && !place_lost(&where) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_UNKNOWN;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(context, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    if (!primaries[device].context) {
        CUresult result = open_context(&primaries[device].context, device);
        if (result)
            return result;
    }
    primaries[device].retained++;
    *context = primaries[device].context;
    return CUDA_SUCCESS;
}

static void drop_primary(CUdevice device)
{
    if (primaries[device].context)
        close_context(primaries[device].context);
    primaries[device].context = NULL;
    primaries[device].retained = 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(primaries[device].retained, CUDA_ERROR_INVALID_CONTEXT);
    if (!--primaries[device].retained)
        drop_primary(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    drop_primary(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER_READY(cuda_uuid(device));
    REQUIRE(cuda_uuid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(flags && active, CUDA_ERROR_INVALID_VALUE);
    *flags = 0;
    *active = primaries[device].context != NULL;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    static CUdeviceptr next = 0x7f0000000000;
    ENTER_READY(top() ? top()->uuid : NULL);
    CUresult result = check(top());
    if (result)
        return result;
    REQUIRE(address && bytes, CUDA_ERROR_INVALID_VALUE);
    allocation *fresh = calloc(1, sizeof *fresh);
    REQUIRE(fresh, CUDA_ERROR_OUT_OF_MEMORY);
    result = charge(top()->uuid, 0, bytes);
    if (result) {
        free(fresh);
        return result;
    }
    *fresh = (allocation){next, bytes, top(), allocations};
    allocations = fresh;
    *address = next;
    next += (bytes + 511) & ~(CUdeviceptr)511;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER_READY(top() ? top()->uuid : NULL);
    if (!address)
        return CUDA_SUCCESS;
    for (allocation **link = &allocations; *link; link = &(*link)->next) {
        allocation *each = *link;
        if (each->address != address)
            continue;
        *link = each->next;
        discharge(each->context->uuid, 0, each->bytes);
        free(each);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    place where;
    ENTER_READY(top() ? top()->uuid : NULL);
    CUresult valid = check(top());
    if (valid)
        return valid;
    REQUIRE(free_bytes && total, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(place_of(top()->uuid, &where) && !place_lost(&where), CUDA_ERROR_UNKNOWN);
    table *shared = table_open();
    REQUIRE(shared, CUDA_ERROR_OPERATING_SYSTEM);
    memory now = memory_of(shared, &where);
    *free_bytes = mps_room(table_row(shared, where.uuid, false), now.free);
    table_close(shared);
    *total = now.total - now.reserved;
    return CUDA_SUCCESS;
}
