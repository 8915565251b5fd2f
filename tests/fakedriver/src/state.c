/*
 * Who holds what, shared by all processes of a scenario: a table in a file, mapped and locked for
 * the time of one operation. The lock is flock on a descriptor opened for that operation, so a
 * killed process releases it and a forked one does not share it.
 */
#define _GNU_SOURCE
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(holding) == 128, "driver.py unpacks rows of 128 bytes");

static int descriptor = -1;

/* Start time of a process in clock ticks since boot; 0 if it is gone (a zombie holds nothing). */
static uint64_t start_ticks(pid_t pid)
{
    char path[64], text[1024], state;
    unsigned long long ticks;
    ssize_t length;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    char *name_end = strrchr(text, ')'); /* the name itself may contain anything */
    if (!name_end ||
        sscanf(name_end + 2,
               "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &ticks) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : ticks;
}

static const char *state_path(void)
{
    static char path[4200];
    const char *given = getenv("FAKEDRIVER_STATE");
    if (!*path) {
        if (given && *given)
            snprintf(path, sizeof path, "%s", given);
        else
            snprintf(path, sizeof path, "%s.state", scenario_path());
    }
    return path;
}

table *table_open(void)
{
    struct stat status;
    table *shared;

    descriptor = open(state_path(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || flock(descriptor, LOCK_EX) || fstat(descriptor, &status))
        goto failed;
    if ((size_t)status.st_size < sizeof *shared && ftruncate(descriptor, sizeof *shared))
        goto failed;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (shared == MAP_FAILED)
        goto failed;
    for (holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++)
        if (row->contexts && start_ticks(row->pid) != row->start_ticks)
            row->contexts = 0;
    return shared;
failed:
    fprintf(stderr, "fakedriver: cannot use the state file %s: %m\n", state_path());
    if (descriptor >= 0)
        close(descriptor);
    return NULL;
}

void table_close(table *shared)
{
    munmap(shared, sizeof *shared);
    close(descriptor);
}

holding *table_row(table *shared, const char *uuid, bool create)
{
    holding *free_row = NULL;
    for (holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++) {
        if (!row->contexts)
            free_row = free_row ? free_row : row;
        else if (row->pid == getpid() && !strcmp(row->uuid, uuid))
            return row;
    }
    if (!create || !free_row)
        return NULL;
    memset(free_row, 0, sizeof *free_row); /* the caller makes it live by counting a context */
    free_row->pid = getpid();
    free_row->start_ticks = start_ticks(getpid());
    snprintf(free_row->uuid, sizeof free_row->uuid, "%s", uuid);
    return free_row;
}

/* After an exec the process has the same identity, and nothing of what its former image held. */
void table_forget_own(table *shared)
{
    for (holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++)
        if (row->pid == getpid())
            row->contexts = 0;
}

static uint64_t used_at(const table *shared, const place *where)
{
    uint64_t used = scenario_number(0, "%smemory_external", where->path);
    int processes = (int)scenario_number(0, "%sprocesses.#", where->path);

    for (int i = 0; i < processes; i++) /* what a process of unknown use holds is "external" */
        used += scenario_number(0, "%sprocesses.%d.memory", where->path, i);
    for (const holding *row = shared->rows; row < shared->rows + MAX_HOLDINGS; row++)
        if (row->contexts && !strcmp(row->uuid, where->uuid))
            used += row->context_bytes + row->allocated;
    return used;
}

memory memory_of(const table *shared, const place *where)
{
    memory result = {
        .total = scenario_number(0, "%smemory_total", where->path),
        .reserved = scenario_number(0, "%smemory_reserved", where->path),
        .used = used_at(shared, where),
    };
    place instance;
    if (where->mig < 0)
        for (int i = 0; i < mig_count(where->device); i++)
            if (place_at(where->device, i, &instance))
                result.used += used_at(shared, &instance);
    uint64_t taken = result.reserved + result.used;
    result.free = taken < result.total ? result.total - taken : 0;
    return result;
}

/* One small file for each device whose mode was set: the driver keeps it whoever ends. */
static void mode_path(int device, char *path, size_t size)
{
    place where = {0};
    place_at(device, -1, &where);
    snprintf(path, size, "%s.mode.%s", scenario_path(), where.uuid);
}

uint64_t compute_mode(int device)
{
    char path[4400], digit = 0;
    mode_path(device, path, sizeof path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, &digit, 1) != 1)
            digit = 0;
        close(fd);
    }
    return digit ? (uint64_t)(digit - '0') : scenario_number(0, "devices.%d.compute_mode", device);
}

bool set_compute_mode(int device, uint64_t mode)
{
    char path[4400], digit = (char)('0' + mode);
    mode_path(device, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    bool written = pwrite(fd, &digit, 1, 0) == 1;
    close(fd);
    return written;
}
