// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: copies of pages of the window
 *
 * A driver that looks for what a program has stored into the window copies each
 * page and compares the copy with what was there before. A processor that is
 * emulated takes several times as long for that as this one, so the driver can
 * have it done here: it writes a list into its memory, asks by writing to the
 * device's configuration, and has the answers when the write is done, or finds
 * them in the list one after the other (proto/abi/vgpu_page_copy.h).
 *
 * Everything here is main: a vCPU with the BQL, and threads for which it waits,
 * at the latest when the VM stops (virtio-vgpu-copy-threads.c). The list is
 * read once, and all of it is checked before anything is written. Nothing but
 * RAM that the guest could write to by itself is read or written, so a list
 * that names a page twice, or the window, spoils only what is the guest's: also
 * when two threads write to it at once.
 */
#include "qemu/osdep.h"

#include "exec/memory.h"
#include "host/cpuinfo.h"
#include "virtio-vgpu.h"
#include "proto/abi/vgpu_page_copy.h"
#include "trace.h"

#define PAGE_BYTES VGPU_COPY_PAGE_BYTES
#define BLOCK_BYTES VGPU_COPY_BLOCK_BYTES

QEMU_BUILD_BUG_ON(PAGE_BYTES / BLOCK_BYTES != 64);

/*
 * The stretches of RAM that the list has met, each mapped as a whole: a PC has
 * two large ones. Where there are more, those met last are kept.
 */
typedef struct VirtIOVGPURam {
    MemoryRegionCache cache;
    hwaddr start;
} VirtIOVGPURam;

/* Pages that were found, so nothing can fail any more. */
typedef struct VirtIOVGPUCopy {
    const uint8_t *before;
    VirtIOVGPURam *ram; /* where the copy is */
    hwaddr offset;
} VirtIOVGPUCopy;

/* One question */
struct VirtIOVGPUCopier {
    VirtIODevice *vdev;
    VirtIOVGPURam ram[8];
    unsigned used;
    uint32_t pages;
    /* Where each answer goes as soon as there is one; NULL: all at the end */
    VirtIOVGPURam *answers;
    hwaddr answers_offset;
    struct vgpu_page_copy list[VGPU_MAX_COPIES]; /* read, checked, answered */
    VirtIOVGPUCopy copies[VGPU_MAX_COPIES];
};

static bool virtio_vgpu_ram_has(const VirtIOVGPURam *ram, hwaddr address,
                                hwaddr bytes)
{
    return address >= ram->start && address - ram->start < ram->cache.len &&
           ram->cache.len - (address - ram->start) >= bytes;
}

/* Maps the whole stretch of RAM that the page is in. */
static bool virtio_vgpu_map_ram(VirtIOVGPUCopier *copier, hwaddr address)
{
    AddressSpace *as = copier->vdev->dma_as;
    VirtIOVGPURam *ram = &copier->ram[copier->used];
    hwaddr bytes;

    if (address_space_cache_init(&ram->cache, as, address, PAGE_BYTES,
                                 true) < PAGE_BYTES || !ram->cache.ptr) {
        address_space_cache_destroy(&ram->cache);
        return false;
    }
    /* The page's place in its section tells where that begins. */
    ram->start = ram->cache.mrs.offset_within_address_space;
    bytes = int128_get64(ram->cache.mrs.size);
    address_space_cache_destroy(&ram->cache);
    address_space_cache_init(&ram->cache, as, ram->start, bytes, true);
    copier->used++;
    return ram->cache.ptr && virtio_vgpu_ram_has(ram, address, PAGE_BYTES);
}

static VirtIOVGPURam *virtio_vgpu_find_ram(VirtIOVGPUCopier *copier,
                                           hwaddr address)
{
    if (address % PAGE_BYTES) {
        return NULL;
    }
    for (unsigned i = 0; i < copier->used; i++) {
        if (virtio_vgpu_ram_has(&copier->ram[i], address, PAGE_BYTES)) {
            return &copier->ram[i];
        }
    }
    if (copier->used == ARRAY_SIZE(copier->ram) ||
        !virtio_vgpu_map_ram(copier, address)) {
        return NULL;
    }
    return &copier->ram[copier->used - 1];
}

/* Finds the pages of one entry. */
static bool virtio_vgpu_check_copy(VirtIOVGPUCopier *copier,
                                   const struct vgpu_page_copy *entry,
                                   VirtIOVGPUCopy *copy)
{
    VirtIOVGPU *s = VIRTIO_VGPU(copier->vdev);
    hwaddr before = le64_to_cpu(entry->before);
    VirtIOVGPURam *ram;

    if (le32_to_cpu(entry->page) >= s->window_bytes / PAGE_BYTES) {
        return false;
    }
    ram = virtio_vgpu_find_ram(copier, before);
    if (!ram) {
        return false;
    }
    copy->before = (uint8_t *)ram->cache.ptr + (before - ram->start);
    copy->ram = virtio_vgpu_find_ram(copier, le64_to_cpu(entry->copy));
    if (!copy->ram) {
        return false;
    }
    copy->offset = le64_to_cpu(entry->copy) - copy->ram->start;
    return true;
}

/* Two are a block. Processors that have no such registers take smaller ones. */
typedef uint8_t Bytes __attribute__((vector_size(32)));

/*
 * One walk copies and compares, because what takes the time is to fetch memory
 * that no cache of this processor has. Each byte of the window is read once:
 * what is compared is what was copied. The rule of "each byte differs" is that
 * of tracer/core/page.h.
 */
static inline QEMU_ALWAYS_INLINE void
virtio_vgpu_walk_inline(void *to, const void *now, const void *before,
                        struct vgpu_page_copy *entry)
{
    /* volatile: the guest stores while it is read, each byte is read once */
    const volatile Bytes *a = now;
    const Bytes *b = before;
    Bytes *copy = to;
    Bytes any_equal = { 0 };
    uint64_t changed = 0;
    uint64_t words[4];

    for (unsigned block = 0; block < 64; block++, a += 2, b += 2, copy += 2) {
        const Bytes low = a[0], high = a[1];
        const Bytes equal[2] = { (Bytes)(low == b[0]), (Bytes)(high == b[1]) };
        const Bytes both = equal[0] & equal[1];

        copy[0] = low;
        copy[1] = high;
        any_equal |= equal[0] | equal[1];
        memcpy(words, &both, sizeof(words));
        if ((words[0] & words[1] & words[2] & words[3]) != UINT64_MAX) {
            changed |= 1ULL << block;
        }
    }
    memcpy(words, &any_equal, sizeof(words));
    entry->changed = cpu_to_le64(changed);
    entry->answer = cpu_to_le32(words[0] | words[1] | words[2] | words[3]
                                ? VGPU_COPY_PARTS : VGPU_COPY_WHOLE);
}

#if defined(__x86_64__)
static void __attribute__((target("avx2")))
virtio_vgpu_walk_avx2(void *to, const void *now, const void *before,
                      struct vgpu_page_copy *entry)
{
    virtio_vgpu_walk_inline(to, now, before, entry);
}
#endif

static void virtio_vgpu_copy_page(VirtIOVGPU *s, const VirtIOVGPUCopy *copy,
                                  struct vgpu_page_copy *entry)
{
    const uint8_t *now = (uint8_t *)memory_region_get_ram_ptr(&s->window) +
                         (uint64_t)le32_to_cpu(entry->page) * PAGE_BYTES;
    uint8_t *to = (uint8_t *)copy->ram->cache.ptr + copy->offset;

#if defined(__x86_64__)
    if (cpuinfo & CPUINFO_AVX2) {
        virtio_vgpu_walk_avx2(to, now, copy->before, entry);
        return;
    }
#endif
    virtio_vgpu_walk_inline(to, now, copy->before, entry);
}

/* Memory was written to: one call for pages that follow on each other. */
static void virtio_vgpu_report_written(const VirtIOVGPUCopy *copies,
                                       uint32_t pages)
{
    uint32_t i = 0;

    while (i < pages) {
        const VirtIOVGPUCopy *first = &copies[i];
        hwaddr bytes = PAGE_BYTES;

        for (i++; i < pages && copies[i].ram == first->ram &&
                  copies[i].offset == first->offset + bytes; i++) {
            bytes += PAGE_BYTES;
        }
        address_space_cache_invalidate(&first->ram->cache, first->offset,
                                       bytes);
    }
}

/*
 * The driver looks at the answers from now on, so what they tell of is done,
 * and logged for whoever copies the VM's memory.
 */
static void virtio_vgpu_put_answers(VirtIOVGPUCopier *copier, uint32_t first,
                                    uint32_t end)
{
    VirtIOVGPURam *ram = copier->answers;
    hwaddr offset = copier->answers_offset + first * sizeof(copier->list[0]);
    struct vgpu_page_copy *to = (void *)((uint8_t *)ram->cache.ptr + offset);

    for (uint32_t i = first; i < end; i++, to++) {
        to->changed = copier->list[i].changed;
        qatomic_store_release(&to->answer, copier->list[i].answer);
    }
    address_space_cache_invalidate(&ram->cache, offset,
                                   (end - first) * sizeof(copier->list[0]));
}

/* In any thread */
static void virtio_vgpu_copy_pages(void *opaque, uint32_t first, uint32_t end)
{
    VirtIOVGPUCopier *copier = opaque;

    for (uint32_t i = first; i < end; i++) {
        virtio_vgpu_copy_page(VIRTIO_VGPU(copier->vdev), &copier->copies[i],
                              &copier->list[i]);
    }
    virtio_vgpu_report_written(copier->copies + first, end - first);
    if (copier->answers) {
        virtio_vgpu_put_answers(copier, first, end);
    }
}

static void virtio_vgpu_free_copier(VirtIOVGPUCopier *copier)
{
    for (unsigned i = 0; i < copier->used; i++) {
        address_space_cache_destroy(&copier->ram[i].cache);
    }
    g_free(copier);
}

/* Reads the list, and finds all that it names; NULL if that is not all there */
static VirtIOVGPUCopier *virtio_vgpu_read_list(VirtIOVGPU *s, uint64_t address,
                                               uint32_t pages)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    MemTxAttrs only_memory = { .memory = true };
    VirtIOVGPUCopier *copier;

    if (!(vdev->status & VIRTIO_CONFIG_S_DRIVER_OK) ||
        !virtio_vdev_has_feature(vdev, VGPU_F_PAGE_COPY) ||
        pages > VGPU_MAX_COPIES) {
        return NULL;
    }
    copier = g_new(VirtIOVGPUCopier, 1);
    copier->vdev = vdev;
    copier->used = 0;
    copier->pages = pages;
    copier->answers = NULL;
    if (address_space_read(vdev->dma_as, address, only_memory, copier->list,
                           pages * sizeof(copier->list[0])) != MEMTX_OK) {
        goto fail;
    }
    for (uint32_t i = 0; i < pages; i++) {
        if (!virtio_vgpu_check_copy(copier, &copier->list[i],
                                    &copier->copies[i])) {
            trace_virtio_vgpu_bad_copy(s, i, pages);
            goto fail;
        }
    }
    return copier;

fail:
    virtio_vgpu_free_copier(copier);
    return NULL;
}

static bool virtio_vgpu_write_list(VirtIOVGPUCopier *copier, uint64_t address)
{
    MemTxAttrs only_memory = { .memory = true };

    return address_space_write(copier->vdev->dma_as, address, only_memory,
                               copier->list,
                               copier->pages * sizeof(copier->list[0])) ==
           MEMTX_OK;
}

/* Where the answers go while threads make the copies, if that is possible */
static bool virtio_vgpu_find_answers(VirtIOVGPUCopier *copier, uint64_t address)
{
    VirtIOVGPURam *ram;

    ram = virtio_vgpu_find_ram(copier, address & ~(uint64_t)(PAGE_BYTES - 1));
    if (!ram || address % sizeof(uint64_t) ||
        !virtio_vgpu_ram_has(ram, address,
                             copier->pages * sizeof(copier->list[0]))) {
        return false;
    }
    copier->answers = ram;
    copier->answers_offset = address - ram->start;
    return true;
}

/* Threads do it, and nobody waits for them. */
static bool virtio_vgpu_begin_copies(VirtIOVGPU *s, VirtIOVGPUCopier *copier,
                                     uint64_t address)
{
    if (!virtio_vgpu_find_answers(copier, address)) {
        return false;
    }
    for (uint32_t i = 0; i < copier->pages; i++) {
        copier->list[i].answer = cpu_to_le32(VGPU_COPY_PENDING);
    }
    if (!virtio_vgpu_write_list(copier, address)) {
        copier->answers = NULL;
        return false;
    }
    virtio_vgpu_copy_begin(s, virtio_vgpu_copy_pages, copier, copier->pages);
    s->copier = copier;
    return true;
}

/*
 * All that was begun is done. The VM may be copied then, the device reset, or
 * the next question asked.
 */
void virtio_vgpu_finish_copies(VirtIOVGPU *s)
{
    if (s->copier) {
        virtio_vgpu_copy_wait(s);
        virtio_vgpu_free_copier(g_steal_pointer(&s->copier));
    }
}

static uint32_t virtio_vgpu_make_copies(VirtIOVGPU *s, uint64_t address,
                                        uint32_t pages, bool begin)
{
    const bool parts = virtio_vgpu_copy_has_parts(s, pages);
    VirtIOVGPUCopier *copier;
    uint32_t result;

    virtio_vgpu_finish_copies(s);
    copier = virtio_vgpu_read_list(s, address, pages);
    if (!copier) {
        return VGPU_STATUS_MALFORMED;
    }
    trace_virtio_vgpu_copies(s, pages);
    if (parts && begin && virtio_vgpu_begin_copies(s, copier, address)) {
        return VGPU_STATUS_OK;
    }
    if (parts) {
        virtio_vgpu_copy_begin(s, virtio_vgpu_copy_pages, copier, pages);
        virtio_vgpu_copy_wait(s);
    } else {
        virtio_vgpu_copy_pages(copier, 0, pages);
    }
    result = virtio_vgpu_write_list(copier, address) ? VGPU_STATUS_OK
                                                     : VGPU_STATUS_MALFORMED;
    virtio_vgpu_free_copier(copier);
    return result;
}

/* The driver has written to the configuration, maybe a question. */
void virtio_vgpu_ask_copies(VirtIOVGPU *s)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    uint8_t *place = vdev->config + VGPU_CONFIG_PAGE_COPIES;
    struct vgpu_page_copies question;
    uint32_t result, pages;

    memcpy(&question, place, sizeof(question));
    if (!question.pages) {
        return;
    }
    pages = le32_to_cpu(question.pages);
    result = virtio_vgpu_make_copies(s, le64_to_cpu(question.address),
                                     pages & ~VGPU_COPIES_BEGIN,
                                     pages & VGPU_COPIES_BEGIN);
    /* The next write of another field asks nothing: a question has them all */
    question.pages = 0;
    question.address = UINT64_MAX;
    question.result = cpu_to_le32(result);
    memcpy(place, &question, sizeof(question));
}
