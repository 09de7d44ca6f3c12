/* SPDX-License-Identifier: GPL-2.0-or-later */
/* In libcuda's place for host_reach_test: two GPUs that say what $KAGEMUSHA_FAKE_CUDA says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { pageable = 88, host_page_tables = 100, no_device = 100, unknown = 999 };

static int says(const char *word)
{
    const char *what = getenv("KAGEMUSHA_FAKE_CUDA");

    return what && strcmp(what, word) == 0;
}

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    if (says("crash"))
        abort();
    return says("error") ? unknown : says("no GPU") ? no_device : 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
    *count = 2;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 40;
    return 0;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device)
{
    snprintf(name, (size_t)bytes, "fake GPU %d", device - 40);
    return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = device == 41 && ((attribute == pageable && (says("hmm") || says("ats"))) ||
                              (attribute == host_page_tables && says("ats")));
    return 0;
}
