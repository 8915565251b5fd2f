/* What the fake libcuda does of MPS, for tests of what we set up and tell. A process joins where a
 * daemon listens when cuInit is called, and goes on without a word where none does, as NVIDIA's man
 * page has it; its cap is then kept as NVIDIA's guide has it: `free` is capped and `total` is not.
 * It is no client of the daemon, which the daemon tells: that is what a bypass looks like. */
#include "cuda_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t cap;     /* bytes on the one device; 0: none */
static uint64_t percent; /* of the multiprocessors; 0: all */

static bool listens(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int size = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory);
    if (size < 0 || (size_t)size >= sizeof address.sun_path)
        return false;
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool found = sock >= 0 && !connect(sock, (struct sockaddr *)&address, sizeof address);
    if (sock >= 0)
        close(sock);
    return found;
}

void mps_join(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    const char *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    unsigned long amount;
    char unit;

    cap = percent = 0;
    if (!directory || !listens(directory))
        return;
    if (limit && sscanf(limit, "0=%lu%c", &amount, &unit) == 2)
        cap = amount * (unit == 'G' ? 1024 * MIB : unit == 'M' ? MIB : 0);
    if (threads)
        percent = strtoul(threads, NULL, 10);
}

uint64_t mps_room(const holding *own, uint64_t room)
{
    if (!cap)
        return room;
    uint64_t used = own ? own->context_bytes + own->allocated : 0;
    uint64_t left = cap > used ? cap - used : 0;
    return left < room ? left : room;
}

uint64_t mps_multiprocessors(uint64_t all)
{
    uint64_t part = percent ? all * percent / 100 : all;
    return part ? part : 1;
}
