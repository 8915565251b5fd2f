/*
 * What the fake libcuda and the fake libnvidia-ml share: the scenario (a JSON file that a test
 * may change at any time) and the state (a table of who holds what, shared by all processes).
 *
 * A *place* is a device or a MIG instance of the scenario. Everything declared in the first two
 * parts is called between driver_enter() and driver_leave() only: one lock per process.
 */
#ifndef FAKEDRIVER_COMMON_H
#define FAKEDRIVER_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define UUID_SIZE 96
#define PATH_SIZE 192
#define MAX_DEVICES 64
#define MIB (1024ull * 1024)

/* ---- json.c: a JSON text, flattened ("devices.0.uuid" -> "GPU-...", "devices.#" -> "2") ---- */

typedef struct {
    char *path, *value;
} pair;

typedef struct {
    pair *pairs;
    size_t count, room;
} document;

bool json_flatten(const char *text, document *out);
const char *json_get(const document *doc, const char *path);
void json_free(document *doc);

/* ---- scenario.c ---- */

typedef struct {
    int device, mig;      /* positions in the scenario; mig is -1 for a whole device */
    char uuid[UUID_SIZE]; /* of the MIG instance, if it is one */
    char path[64];        /* its prefix in the scenario, with the final dot */
} place;

/* Take this process's lock, re-read the scenario if it changed, and carry out a fault that the
 * scenario wants in `function`: true, and the code to return in *fault, if there is one (the lock
 * is not held then). A fault may also be to hang or to crash, and then this never returns. */
bool driver_enter(const char *function, const char *uuid, int *fault);
void driver_leave(void);

bool scenario_loaded(void); /* false: no driver */
const char *scenario_text(const char *fallback, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t scenario_number(uint64_t fallback, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool scenario_is_null(const char *format, ...) __attribute__((format(printf, 1, 2)));

int device_count(void);
int mig_count(int device);
bool mig_enabled(int device);
bool place_at(int device, int mig, place *out); /* false: no such device */
bool place_of(const char *uuid, place *out);
bool place_lost(const place *where);

/* ---- state.c: the shared table ---- */

typedef struct { /* read by driver.py too: keep its format string in step */
    int32_t pid;
    uint32_t contexts; /* 0: the row is free */
    uint64_t start_ticks;
    uint64_t context_bytes, allocated;
    char uuid[UUID_SIZE];
} holding;

#define MAX_HOLDINGS 512

typedef struct {
    holding rows[MAX_HOLDINGS];
} table;

typedef struct {
    uint64_t total, reserved, used, free;
} memory;

const char *scenario_path(void);
uint64_t compute_mode(int device); /* as was set last, by NVML or by the scenario */
bool set_compute_mode(int device, uint64_t mode);
table *table_open(void); /* locked, dead processes' rows already freed; NULL: no state file */
void table_close(table *shared);
holding *table_row(table *shared, const char *uuid, bool create); /* this process's */
void table_forget_own(table *shared);
memory memory_of(const table *shared, const place *where);

#endif
