// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: copies of pages of the window
 *
 * A driver that looks for what a program has stored into the window copies each
 * page and compares the copy with what was there before. A processor that is
 * emulated takes several times as long for that as this one, so the driver can
 * have it done here: it writes a list into its memory, asks by writing to the
 * device's configuration, and has the answers when the write is done
 * (proto/abi/vgpu_page_copy.h).
 *
 * Everything here is main: a vCPU with the BQL. The list is read once, and all
 * of it is checked before anything is written. Nothing but RAM that the guest
 * could write to by itself is read or written, so a list that names a page
 * twice, or the window, spoils only what is the guest's.
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

typedef struct VirtIOVGPUCopier {
    VirtIODevice *vdev;
    VirtIOVGPURam ram[8];
    unsigned used;
    VirtIOVGPUCopy copies[VGPU_MAX_COPIES];
} VirtIOVGPUCopier;

static bool virtio_vgpu_ram_has(const VirtIOVGPURam *ram, hwaddr address)
{
    return address >= ram->start && address - ram->start < ram->cache.len &&
           ram->cache.len - (address - ram->start) >= PAGE_BYTES;
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
    return ram->cache.ptr && virtio_vgpu_ram_has(ram, address);
}

static VirtIOVGPURam *virtio_vgpu_find_ram(VirtIOVGPUCopier *copier,
                                           hwaddr address)
{
    if (address % PAGE_BYTES) {
        return NULL;
    }
    for (unsigned i = 0; i < copier->used; i++) {
        if (virtio_vgpu_ram_has(&copier->ram[i], address)) {
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
static void virtio_vgpu_tell_written(const VirtIOVGPUCopy *copies,
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

static uint32_t virtio_vgpu_make_copies(VirtIOVGPU *s, uint64_t address,
                                        uint32_t pages)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    MemTxAttrs only_memory = { .memory = true };
    uint32_t result = VGPU_STATUS_MALFORMED;
    g_autofree struct vgpu_page_copy *list = NULL;
    g_autofree VirtIOVGPUCopier *copier = NULL;
    uint32_t i;

    if (!(vdev->status & VIRTIO_CONFIG_S_DRIVER_OK) ||
        !virtio_vdev_has_feature(vdev, VGPU_F_PAGE_COPY) ||
        pages > VGPU_MAX_COPIES) {
        return result;
    }
    list = g_new(struct vgpu_page_copy, pages);
    copier = g_new(VirtIOVGPUCopier, 1);
    copier->vdev = vdev;
    copier->used = 0;
    if (address_space_read(vdev->dma_as, address, only_memory, list,
                           pages * sizeof(*list)) != MEMTX_OK) {
        return result;
    }
    for (i = 0; i < pages; i++) {
        if (!virtio_vgpu_check_copy(copier, &list[i], &copier->copies[i])) {
            trace_virtio_vgpu_bad_copy(s, i, pages);
            break;
        }
    }
    if (i == pages) {
        for (i = 0; i < pages; i++) {
            virtio_vgpu_copy_page(s, &copier->copies[i], &list[i]);
        }
        virtio_vgpu_tell_written(copier->copies, pages);
        if (address_space_write(vdev->dma_as, address, only_memory, list,
                                pages * sizeof(*list)) == MEMTX_OK) {
            result = VGPU_STATUS_OK;
        }
        trace_virtio_vgpu_copies(s, pages);
    }
    for (i = 0; i < copier->used; i++) {
        address_space_cache_destroy(&copier->ram[i].cache);
    }
    return result;
}

/* The driver has written to the configuration, maybe a question. */
void virtio_vgpu_ask_copies(VirtIOVGPU *s)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    uint8_t *place = vdev->config + VGPU_CONFIG_PAGE_COPIES;
    struct vgpu_page_copies question;
    uint32_t result;

    memcpy(&question, place, sizeof(question));
    if (!question.pages) {
        return;
    }
    result = virtio_vgpu_make_copies(s, le64_to_cpu(question.address),
                                     le32_to_cpu(question.pages));
    /* The next write of another field asks nothing; a question has all fields. */
    question.pages = 0;
    question.address = UINT64_MAX;
    question.result = cpu_to_le32(result);
    memcpy(place, &question, sizeof(question));
}
