/* The scenario: where it lies, when it changed, what it says, and the faults it asks for. */
#define _GNU_SOURCE
#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static document current;
static bool readable;
static struct stat seen;

/* FAKEDRIVER_SCENARIO, or scenario.json beside this library (a process may have scrubbed its
 * environment). Decided once, so that a later putenv cannot move the state. */
const char *scenario_path(void)
{
    static char path[4096];
    const char *given = getenv("FAKEDRIVER_SCENARIO");
    Dl_info self;

    if (*path)
        return path;
    if (given && *given) {
        snprintf(path, sizeof path, "%s", given);
    } else if (dladdr((void *)scenario_path, &self) && self.dli_fname) {
        const char *slash = strrchr(self.dli_fname, '/');
        int folder = slash ? (int)(slash - self.dli_fname) : 0;
        snprintf(path, sizeof path, "%.*s/scenario.json", folder, self.dli_fname);
    }
    return path;
}

static char *read_file(const char *path, struct stat *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    if (fd < 0)
        return NULL;
    if (!fstat(fd, status) && (text = malloc((size_t)status->st_size + 1))) {
        ssize_t length = read(fd, text, (size_t)status->st_size);
        text[length > 0 ? length : 0] = 0;
    }
    close(fd);
    return text;
}

static bool changed(const struct stat *now)
{
    return now->st_ino != seen.st_ino || now->st_size != seen.st_size ||
           now->st_mtim.tv_sec != seen.st_mtim.tv_sec ||
           now->st_mtim.tv_nsec != seen.st_mtim.tv_nsec;
}

/* An unreadable scenario is "no driver", said on stderr: a test must not pass by accident. */
static void refresh(void)
{
    struct stat now;
    document fresh;
    char *text;

    if (stat(scenario_path(), &now)) {
        if (readable || !seen.st_ino)
            fprintf(stderr, "fakedriver: no scenario at %s\n", scenario_path());
        readable = false;
        seen.st_ino = (ino_t)-1;
        return;
    }
    if (!changed(&now))
        return;
    text = read_file(scenario_path(), &seen);
    json_free(&current);
    readable = text && json_flatten(text, &fresh);
    if (readable)
        current = fresh;
    else
        fprintf(stderr, "fakedriver: %s is not JSON\n", scenario_path());
    free(text);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void)
{
    /* Otherwise a fork during another thread's call leaves the child a lock nobody releases. */
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* As a call stuck in the kernel: no signal but SIGKILL ends it. */
static void hang(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;)
        pause();
}

static const char *fault_for(const char *function, const char *uuid)
{
    char base[96];
    const char *names[2] = {function, base}, *found = NULL;
    place where;
    char *suffix;

    snprintf(base, sizeof base, "%s", function);
    suffix = strrchr(base, '_'); /* "nvmlDeviceGetMemoryInfo" stands for all its versions */
    if (suffix && suffix[1] == 'v')
        *suffix = 0;
    for (int i = 0; i < 2 && !found; i++) {
        if (uuid && place_of(uuid, &where))
            found = scenario_text(NULL, "%sfail.%s", where.path, names[i]);
        if (!found)
            found = scenario_text(NULL, "fail.%s", names[i]);
    }
    return found;
}

bool driver_enter(const char *function, const char *uuid, int *fault)
{
    const char *wanted;
    pthread_mutex_lock(&lock);
    refresh();
    wanted = fault_for(function, uuid);
    if (!wanted)
        return false;
    *fault = atoi(wanted);
    if (!strcmp(wanted, "crash")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    bool stuck = !strcmp(wanted, "hang");
    pthread_mutex_unlock(&lock);
    if (stuck)
        hang();
    return true;
}

void driver_leave(void) { pthread_mutex_unlock(&lock); }

static const char *look_up(const char *format, va_list arguments)
{
    char path[PATH_SIZE];
    if (!readable || vsnprintf(path, sizeof path, format, arguments) >= (int)sizeof path)
        return NULL;
    return json_get(&current, path);
}

const char *scenario_text(const char *fallback, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(format, arguments);
    va_end(arguments);
    return found && strcmp(found, "null") ? found : fallback;
}

uint64_t scenario_number(uint64_t fallback, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(format, arguments);
    va_end(arguments);
    if (!found || !strcmp(found, "null"))
        return fallback;
    if (!strcmp(found, "true") || !strcmp(found, "false"))
        return found[0] == 't';
    return strtoull(found, NULL, 10);
}

bool scenario_is_null(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *found = look_up(format, arguments);
    va_end(arguments);
    return found && !strcmp(found, "null");
}

bool scenario_loaded(void)
{
    return readable && scenario_number(1, "driver_loaded");
}

int device_count(void) { return (int)scenario_number(0, "devices.#"); }

int mig_count(int device) { return (int)scenario_number(0, "devices.%d.mig.#", device); }

bool mig_enabled(int device)
{
    return scenario_number(mig_count(device) > 0, "devices.%d.mig_enabled", device);
}

bool place_at(int device, int mig, place *out)
{
    if (device < 0 || device >= device_count() || mig >= mig_count(device))
        return false;
    out->device = device;
    out->mig = mig;
    if (mig < 0)
        snprintf(out->path, sizeof out->path, "devices.%d.", device);
    else
        snprintf(out->path, sizeof out->path, "devices.%d.mig.%d.", device, mig);
    snprintf(out->uuid, sizeof out->uuid, "%s", scenario_text("", "%suuid", out->path));
    return true;
}

bool place_of(const char *uuid, place *out)
{
    for (int device = 0; device < device_count(); device++)
        for (int mig = -1; mig < mig_count(device); mig++)
            if (place_at(device, mig, out) && !strcmp(out->uuid, uuid))
                return true;
    return false;
}

bool place_lost(const place *where)
{
    return scenario_number(0, "devices.%d.lost", where->device);
}
