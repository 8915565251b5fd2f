/* Which devices a process sees: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the driver reads
 * them. MIG, by NVIDIA's MIG guide: one compute instance per process, and no whole device with it. */
#include "cuda_common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    place at[MAX_DEVICES];
    int count;
} selection;

static uint64_t speed(const place *where) { return scenario_number(0, "%sspeed", where->path); }

/* All devices that answer, in the order that ordinals count them: the fastest first, else by bus. */
static void enumerate(selection *all, bool by_bus)
{
    place next;
    all->count = 0;
    for (int i = 0; i < device_count() && all->count < MAX_DEVICES; i++) {
        if (!place_at(i, -1, &next) || place_lost(&next))
            continue;
        int slot = all->count++;
        for (; !by_bus && slot > 0 && speed(&all->at[slot - 1]) < speed(&next); slot--)
            all->at[slot] = all->at[slot - 1];
        all->at[slot] = next;
    }
}

/* The old name of an instance: MIG-GPU-<uuid>/<gpu instance>/<compute instance>. */
static bool has_old_name(const char *text, const place *instance, const place *parent)
{
    char name[UUID_SIZE + 32];
    snprintf(name, sizeof name, "MIG-%s/%d/%d", parent->uuid,
             (int)scenario_number(0, "%sgpu_instance", instance->path),
             (int)scenario_number(0, "%scompute_instance", instance->path));
    return !strcmp(text, name);
}

/* The one place whose UUID begins with `text`; false if there is none or more than one. */
static bool find_prefix(const selection *all, const char *text, place *found)
{
    int matches = 0;
    bool mig = !strncmp(text, "MIG-", 4);
    place next;

    for (int i = 0; i < all->count; i++) {
        int device = all->at[i].device;
        for (int m = mig ? 0 : -1; m < (mig ? mig_count(device) : 0); m++) {
            if (!place_at(device, m, &next))
                continue;
            if (!strncmp(next.uuid, text, strlen(text)) ||
                (mig && has_old_name(text, &next, &all->at[i]))) {
                *found = next;
                matches++;
            }
        }
    }
    return matches == 1;
}

static bool resolve(const selection *all, const char *text, place *found)
{
    char *end;
    long ordinal;

    text += strspn(text, " \t");
    if (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4))
        return find_prefix(all, text, found);
    ordinal = strtol(text, &end, 10); /* what follows the digits is ignored: "1gpu2" is 1 */
    if (end == text || ordinal < 0 || ordinal >= all->count)
        return false;
    *found = all->at[ordinal];
    return true;
}

/* The devices that the variable names, up to its first invalid entry; none if one is named twice. */
static void choose(const selection *all, const char *variable, selection *chosen)
{
    char copy[4096], *rest = copy, *entry;

    chosen->count = 0;
    snprintf(copy, sizeof copy, "%s", variable);
    while ((entry = strsep(&rest, ",")) && chosen->count < MAX_DEVICES) {
        place *next = &chosen->at[chosen->count];
        if (!resolve(all, entry, next))
            return;
        for (int i = 0; i < chosen->count; i++)
            if (!strcmp(chosen->at[i].uuid, next->uuid)) {
                chosen->count = 0;
                return;
            }
        chosen->count++;
    }
}

int visible_devices(const char *visible, const char *order, char out[][UUID_SIZE])
{
    selection all, chosen;
    place instance;
    int count = 0;

    enumerate(&all, order && !strcmp(order, "PCI_BUS_ID"));
    if (visible)
        choose(&all, visible, &chosen);
    else
        chosen = all;
    for (int i = 0; i < chosen.count; i++) {
        place *where = &chosen.at[i];
        if (where->mig < 0 && !mig_enabled(where->device)) {
            snprintf(out[count++], UUID_SIZE, "%s", where->uuid);
            continue;
        }
        if (where->mig < 0 && !place_at(where->device, 0, &instance))
            continue; /* in MIG mode without an instance: nothing to run on */
        snprintf(out[0], UUID_SIZE, "%s", where->mig < 0 ? instance.uuid : where->uuid);
        return 1;
    }
    return count;
}
