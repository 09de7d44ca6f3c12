/*
 * virtio-vgpu: how long the IOThread stays awake
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A program that waits for each small read goes through this thread twice: its
 * request, and the answer. To wake it costs 10 us and more each time. So it
 * stays awake for a while after something came, as long as the next thing comes
 * so soon; the rule is that of replicator/base/look_window.hpp, which is the
 * one of QEMU's own polling. That can't be used: the library's descriptor has
 * nothing to poll, and a queue that is polled has its notifications off, which
 * a checkpoint would keep and a standby would start with.
 *
 * Awake means a bottom half that is scheduled again and again: the thread's
 * loop looks at its descriptors each time, and does not sleep. Not where there
 * are few processors, nor where the IOThread has poll-max-ns=0.
 */
#include "qemu/osdep.h"
#include "qemu/timer.h"
#include "virtio-vgpu.h"

#define AWAKE_MOST_NS   100000
#define AWAKE_FIRST_NS  10000
#define AWAKE_PROCESSORS 8

static void virtio_vgpu_awake_bh(void *opaque)
{
    VirtIOVGPU *s = opaque;

    if (get_clock() < s->awake.until_ns) {
        qemu_bh_schedule(s->awake.bh);
    }
}

void virtio_vgpu_awake_init(VirtIOVGPU *s)
{
    s->awake.bh = aio_bh_new(s->ctx, virtio_vgpu_awake_bh, s);
    s->awake.most_ns =
        g_get_num_processors() >= AWAKE_PROCESSORS ? AWAKE_MOST_NS : 0;
}

/* In the IOThread. */
void virtio_vgpu_awake_cleanup(VirtIOVGPU *s)
{
    qemu_bh_delete(s->awake.bh);
    s->awake.bh = NULL;
}

/* In the IOThread: something came. */
void virtio_vgpu_awake(VirtIOVGPU *s)
{
    int64_t now = get_clock();
    int64_t waited = now - s->awake.came_ns;
    int64_t most = s->ctx->poll_max_ns ? s->awake.most_ns : 0;

    s->awake.came_ns = now;
    if (waited > most) {
        s->awake.look_ns = 0;
    } else if (waited > s->awake.look_ns) {
        s->awake.look_ns = MIN(most, MAX(AWAKE_FIRST_NS,
                                         2 * s->awake.look_ns));
    }
    if (s->awake.look_ns) {
        s->awake.until_ns = now + s->awake.look_ns;
        qemu_bh_schedule(s->awake.bh);
    }
}
