// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: threads that make copies of pages beside the vCPU that asks
 *
 * What takes the time of a copy is memory that no near cache has, and several
 * processors fetch several times as much of it at once: on the host of an H200
 * four of them copy and compare 2 MiB in a third of the time.
 *
 * A question is cut into parts. Whoever is free takes the next one, also the
 * vCPU once it has to wait, so it never waits for a thread to wake up, but at
 * most for the parts that others have begun. Threads run only where the host
 * has processors that this VM has no other use for, else they would take turns
 * with the vCPUs.
 */
#include "qemu/osdep.h"

#include "hw/boards.h"
#include "qapi/error.h"
#include "qemu/rcu.h"
#include "virtio-vgpu.h"

/* Pages of a part: some 10 us. */
#define PART_PAGES 16

/* For fewer pages a thread's wake-up takes longer than what it would save. */
#define MIN_PAGES (4 * PART_PAGES)

/* More of them share the memory's bandwidth, and none is there at once. */
#define DEFAULT_THREADS 7
#define MAX_THREADS 64

/* Constant but for `next` while anybody may take part */
typedef struct VirtIOVGPUCopyJob {
    VirtIOVGPUCopyPart *part;
    void *opaque;
    uint32_t pages;
    uint32_t next; /* atomic; page from which on nobody has begun */
} VirtIOVGPUCopyJob;

struct VirtIOVGPUCopyThreads {
    uint32_t count;
    QemuThread threads[MAX_THREADS];
    QemuMutex lock;
    QemuCond begin; /* there is a job, or the end */
    QemuCond left;  /* nobody takes part any more */
    VirtIOVGPUCopyJob job;
    /* lock */
    bool open;     /* the job is there, and others may still take part */
    uint64_t jobs; /* ever; each thread takes part once */
    uint32_t busy;
    bool end;
};

static void virtio_vgpu_take_part(VirtIOVGPUCopyJob *job)
{
    for (;;) {
        uint32_t first = qatomic_fetch_add(&job->next, PART_PAGES);

        if (first >= job->pages) {
            return;
        }
        job->part(job->opaque, first, MIN(first + PART_PAGES, job->pages));
    }
}

static void *virtio_vgpu_copy_thread(void *opaque)
{
    VirtIOVGPUCopyThreads *t = opaque;
    uint64_t seen = 0;

    rcu_register_thread();
    qemu_mutex_lock(&t->lock);
    while (!t->end) {
        if (!t->open || seen == t->jobs) {
            qemu_cond_wait(&t->begin, &t->lock);
            continue;
        }
        seen = t->jobs;
        t->busy++;
        qemu_mutex_unlock(&t->lock);
        virtio_vgpu_take_part(&t->job);
        qemu_mutex_lock(&t->lock);
        if (!--t->busy) {
            qemu_cond_signal(&t->left);
        }
    }
    qemu_mutex_unlock(&t->lock);
    rcu_unregister_thread();
    return NULL;
}

static VirtIOVGPUCopyThreads *virtio_vgpu_copy_threads_begin(uint32_t count)
{
    VirtIOVGPUCopyThreads *t = g_new0(VirtIOVGPUCopyThreads, 1);

    t->count = count;
    qemu_mutex_init(&t->lock);
    qemu_cond_init(&t->begin);
    qemu_cond_init(&t->left);
    for (uint32_t i = 0; i < count; i++) {
        qemu_thread_create(&t->threads[i], "vgpu-copy",
                           virtio_vgpu_copy_thread, t, QEMU_THREAD_JOINABLE);
    }
    return t;
}

/* Main, at realize. What the property says, or what the host has to spare */
bool virtio_vgpu_count_copy_threads(VirtIOVGPU *s, Error **errp)
{
    /* The GPU's worker needs one, too. */
    int64_t others = current_machine->smp.cpus + 1;

    if (s->copy_threads == VIRTIO_VGPU_COPY_THREADS_AUTO) {
        s->copy_threads = MIN(MAX(g_get_num_processors() - others, 0),
                              DEFAULT_THREADS);
    }
    if (s->copy_threads > MAX_THREADS) {
        error_setg(errp, "virtio-vgpu: copy-threads can be %d at most",
                   MAX_THREADS);
        return false;
    }
    return true;
}

/* Whether threads are to take part in a question for so many pages */
bool virtio_vgpu_copy_has_parts(const VirtIOVGPU *s, uint32_t pages)
{
    return s->copy_threads && pages >= MIN_PAGES;
}

/*
 * Main. What is begun here is done when virtio_vgpu_copy_wait() returns, at the
 * latest; no other one may begin before. There are threads for it.
 */
void virtio_vgpu_copy_begin(VirtIOVGPU *s, VirtIOVGPUCopyPart *part,
                            void *opaque, uint32_t pages)
{
    VirtIOVGPUCopyThreads *t;

    /* They begin with the first question that is large enough. */
    if (!s->copiers) {
        s->copiers = virtio_vgpu_copy_threads_begin(s->copy_threads);
    }
    t = s->copiers;
    t->job = (VirtIOVGPUCopyJob) {
        .part = part, .opaque = opaque, .pages = pages,
    };
    qemu_mutex_lock(&t->lock);
    t->open = true;
    t->jobs++;
    qemu_cond_broadcast(&t->begin);
    qemu_mutex_unlock(&t->lock);
}

/* Main. Takes part in what was begun, if it is not done. */
void virtio_vgpu_copy_wait(VirtIOVGPU *s)
{
    VirtIOVGPUCopyThreads *t = s->copiers;

    virtio_vgpu_take_part(&t->job);
    qemu_mutex_lock(&t->lock);
    t->open = false;
    while (t->busy) {
        qemu_cond_wait(&t->left, &t->lock);
    }
    qemu_mutex_unlock(&t->lock);
}

/* Main, when nobody asks any more */
void virtio_vgpu_end_copy_threads(VirtIOVGPU *s)
{
    VirtIOVGPUCopyThreads *t = g_steal_pointer(&s->copiers);

    if (!t) {
        return;
    }
    qemu_mutex_lock(&t->lock);
    t->end = true;
    qemu_cond_broadcast(&t->begin);
    qemu_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->count; i++) {
        qemu_thread_join(&t->threads[i]);
    }
    qemu_cond_destroy(&t->left);
    qemu_cond_destroy(&t->begin);
    qemu_mutex_destroy(&t->lock);
    g_free(t);
}
