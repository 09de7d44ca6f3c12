// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: guest memory
 *
 * The GPU's worker process maps blocks of guest RAM and the window through
 * their file descriptors; we tell it where in which block ("region") the data
 * of a request is. This file finds the blocks, translates guest-physical
 * ranges, and reports to the rest of QEMU what the worker wrote.
 *
 * Mapping discipline: a worker's access is a DMA mapping that we spell out,
 * because dma_memory_map() would hand out pointers and we need offsets.
 *   translate                 virtio_vgpu_translate(), within the RCU read lock
 *   keep the block alive      one reference per region, held by the device for
 *                             as long as workers may have it mapped
 *   unmap with access_len     virtio_vgpu_memory_written(), when the library
 *                             says that a worker has written the range
 * Without the last step, a checkpoint or migration loses the worker's writes
 * and TCG goes on executing stale translations.
 */
#include "qemu/osdep.h"

#include "exec/address-spaces.h"
#include "exec/ramblock.h"
#include "migration/vmstate.h"
#include "virtio-vgpu.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/memfd.h"
#include "qemu/rcu.h"
#include "system/hostmem.h"
#include "trace.h"

/* ---- regions ----------------------------------------------------------- */

/* Guest RAM: it has a memory backend. No ROM, no BAR of another device. */
static bool virtio_vgpu_is_guest_ram(MemoryRegion *mr)
{
    return memory_region_is_ram(mr) && !memory_region_is_ram_device(mr) &&
           !memory_region_is_rom(mr) && !memory_region_is_romd(mr) &&
           object_dynamic_cast(memory_region_owner(mr), TYPE_MEMORY_BACKEND);
}

static bool virtio_vgpu_can_share(MemoryRegion *mr)
{
    return qemu_ram_is_shared(mr->ram_block) &&
           qemu_ram_get_fd(mr->ram_block) >= 0;
}

static VirtIOVGPURegion *virtio_vgpu_find_region(VirtIOVGPU *s,
                                                 const MemoryRegion *mr)
{
    for (unsigned i = 0; i < ARRAY_SIZE(s->regions); i++) {
        if (s->regions[i].mr == mr) {
            return &s->regions[i];
        }
    }
    return NULL;
}

static bool virtio_vgpu_add_region(VirtIOVGPU *s, uint32_t number,
                                   MemoryRegion *mr, Error **errp)
{
    RAMBlock *block = mr->ram_block;
    VirtIOVGPURegion *region = &s->regions[number];
    uint64_t bytes = qemu_ram_get_used_length(block);
    void *base = qemu_ram_get_host_addr(block);
    char error[512] = "";
    int r;

    r = kagemusha_device_add_region(s->device, number, qemu_ram_get_fd(block),
                                    block->fd_offset, bytes, base,
                                    error, sizeof(error));
    if (r < 0) {
        error_setg(errp, "virtio-vgpu: memory '%s' can't be used: %s",
                   memory_region_name(mr), error);
        return false;
    }
    memory_region_ref(mr);
    region->mr = mr;
    region->base = base;
    region->bytes = bytes;
    trace_virtio_vgpu_region(s, number, memory_region_name(mr), bytes,
                             qemu_ram_get_fd(block));
    return true;
}

typedef struct VirtIOVGPUWalk {
    VirtIOVGPU *s;
    MemoryRegion *private_ram; /* guest RAM that no other process can map */
    unsigned found;
    bool add;
    Error *err;
} VirtIOVGPUWalk;

/* One range of guest-physical memory; several may lie in the same block. */
static bool virtio_vgpu_walk_cb(Int128 start, Int128 len,
                                const MemoryRegion *const_mr,
                                hwaddr offset_in_region, void *opaque)
{
    VirtIOVGPUWalk *walk = opaque;
    VirtIOVGPU *s = walk->s;
    MemoryRegion *mr = (MemoryRegion *)const_mr;

    if (!virtio_vgpu_is_guest_ram(mr)) {
        return false;
    }
    walk->found++;
    if (!s->in_process && !virtio_vgpu_can_share(mr)) {
        walk->private_ram = mr;
        return true;
    }
    if (!walk->add || virtio_vgpu_find_region(s, mr)) {
        return false;
    }
    for (unsigned i = 0; i < ARRAY_SIZE(s->regions); i++) {
        if (i != VIRTIO_VGPU_REGION_WINDOW && !s->regions[i].mr) {
            return !virtio_vgpu_add_region(s, i, mr, &walk->err);
        }
    }
    error_setg(&walk->err, "virtio-vgpu: more than %d blocks of guest RAM",
               VIRTIO_VGPU_MAX_REGIONS - 1);
    return true;
}

static bool virtio_vgpu_walk(VirtIOVGPU *s, bool add, Error **errp)
{
    ERRP_GUARD();
    VirtIOVGPUWalk walk = { .s = s, .add = add };

    WITH_RCU_READ_LOCK_GUARD() {
        FlatView *view = address_space_to_flatview(&address_space_memory);

        flatview_for_each_range(view, virtio_vgpu_walk_cb, &walk);
    }
    if (walk.err) {
        error_propagate(errp, walk.err);
        return false;
    }
    if (walk.private_ram) {
        error_setg(errp, "virtio-vgpu: the GPU's worker process can't map guest"
                   " memory '%s', because it is not shared",
                   memory_region_name(walk.private_ram));
    } else if (!walk.found) {
        error_setg(errp, "virtio-vgpu: the machine has no RAM that comes from a"
                   " memory backend");
    } else {
        return true;
    }
    error_append_hint(errp, "Give the machine shared memory, with SIZE as in"
                      " -m SIZE:\n"
                      "  -object memory-backend-memfd,id=ram,size=SIZE,share=on"
                      " -machine memory-backend=ram\n");
    return false;
}

/* Is the machine's memory fit for us? Tells the options to use if not. */
bool virtio_vgpu_check_ram(VirtIOVGPU *s, Error **errp)
{
    return virtio_vgpu_walk(s, false, errp);
}

/*
 * Registers what there is and was not registered yet. Called at realize, and
 * once more before the first file is opened, for DIMMs that were plugged in
 * between. The library takes no regions later; virtio_vgpu_translate() refuses
 * memory that is not registered.
 */
bool virtio_vgpu_add_regions(VirtIOVGPU *s, Error **errp)
{
    return virtio_vgpu_walk(s, true, errp);
}

void virtio_vgpu_put_regions(VirtIOVGPU *s)
{
    for (unsigned i = 0; i < ARRAY_SIZE(s->regions); i++) {
        if (s->regions[i].mr) {
            memory_region_unref(s->regions[i].mr);
        }
    }
    memset(s->regions, 0, sizeof(s->regions));
}

/*
 * The guest sees the window as memory, so a checkpoint carries it like guest
 * RAM; what workers write into it is marked dirty like guest RAM. The GPU's own
 * memory is not in it. (A device without replication is never migrated.)
 *
 * Sealed, because a worker has the descriptor too: a hostile one that
 * shortened the file would kill QEMU with SIGBUS.
 */
bool virtio_vgpu_create_window(VirtIOVGPU *s, Error **errp)
{
    int fd;

    if (!s->window_bytes) {
        return true;
    }
    fd = qemu_memfd_create("virtio-vgpu-window", s->window_bytes, false, 0,
                           F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL, errp);
    if (fd < 0) {
        return false;
    }
    if (!memory_region_init_ram_from_fd(&s->window, OBJECT(s),
                                        "virtio-vgpu.window", s->window_bytes,
                                        RAM_SHARED | RAM_NORESERVE, fd, 0,
                                        errp)) {
        close(fd);
        return false;
    }
    if (!virtio_vgpu_add_region(s, VIRTIO_VGPU_REGION_WINDOW, &s->window,
                                errp)) {
        return false;
    }
    if (s->replicated) {
        vmstate_register_ram(&s->window, DEVICE(s));
    }
    if (s->window_container) {
        memory_region_add_subregion(s->window_container, 0, &s->window);
    }
    return true;
}

/*
 * Takes it out of the guest's sight. A vCPU may still be using it: the memory
 * itself goes with the last reference to this device.
 */
void virtio_vgpu_remove_window(VirtIOVGPU *s)
{
    if (!s->window_bytes) {
        return;
    }
    if (s->window_container) {
        memory_region_del_subregion(s->window_container, &s->window);
    }
    if (s->replicated) {
        vmstate_unregister_ram(&s->window, DEVICE(s));
    }
}

/* ---- translation ------------------------------------------------------- */

/* A stretch of guest-physical addresses that is contiguous in one region. */
typedef struct VirtIOVGPUSpan {
    hwaddr start;
    hwaddr end;
    uint64_t offset; /* of start, into the region */
    uint32_t region;
} VirtIOVGPUSpan;

/*
 * The stretches that the current request has met. A PC has two large ones (RAM
 * below and above 4 GiB). A lookup yields what lies from an address on, so the
 * lowest address seen so far decides, and after a few of the thousands of
 * scattered pages of a large buffer everything is found here.
 */
typedef struct VirtIOVGPUSpanCache {
    VirtIOVGPUSpan span[4];
    unsigned used;
    unsigned next;
} VirtIOVGPUSpanCache;

static bool virtio_vgpu_lookup(VirtIOVGPU *s, hwaddr address,
                               VirtIOVGPUSpan *span)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    VirtIOVGPURegion *region;
    hwaddr offset, bytes = (hwaddr)1 << 62;
    MemoryRegion *mr;

    mr = address_space_translate(vdev->dma_as, address, &offset, &bytes, true,
                                 MEMTXATTRS_UNSPECIFIED);
    region = memory_region_is_ram(mr) ? virtio_vgpu_find_region(s, mr) : NULL;
    if (!region) {
        if (virtio_vgpu_is_guest_ram(mr)) {
            warn_report_once("virtio-vgpu: memory '%s' was plugged after the"
                             " GPU was first used; programs can't use it for"
                             " GPU transfers until the VM is started with it",
                             memory_region_name(mr));
        }
        return false;
    }
    if (offset >= region->bytes) {
        return false;
    }
    span->start = address;
    span->end = address + MIN(bytes, region->bytes - offset);
    span->offset = offset;
    span->region = region - s->regions;
    return true;
}

static const VirtIOVGPUSpan *virtio_vgpu_span(VirtIOVGPU *s,
                                              VirtIOVGPUSpanCache *cache,
                                              hwaddr address)
{
    VirtIOVGPUSpan found;

    for (unsigned i = 0; i < cache->used; i++) {
        if (address >= cache->span[i].start && address < cache->span[i].end) {
            return &cache->span[i];
        }
    }
    if (!virtio_vgpu_lookup(s, address, &found)) {
        return NULL;
    }
    for (unsigned i = 0; i < cache->used; i++) {
        VirtIOVGPUSpan *known = &cache->span[i];

        if (known->end == found.end && known->region == found.region) {
            *known = found; /* the same stretch, from a lower address on */
            return known;
        }
    }
    if (cache->used < ARRAY_SIZE(cache->span)) {
        cache->next = cache->used++;
    } else {
        cache->next = (cache->next + 1) % ARRAY_SIZE(cache->span);
    }
    cache->span[cache->next] = found;
    return &cache->span[cache->next];
}

/* Adds a range to the payload that began with segment `first`. */
static bool virtio_vgpu_append(VirtIOVGPU *s, uint32_t first, uint32_t region,
                               uint64_t offset, uint64_t bytes)
{
    kagemusha_segment segment = {
        .region = region, .offset = offset, .bytes = bytes,
    };

    if (s->segments->len > first) {
        kagemusha_segment *last = &g_array_index(s->segments, kagemusha_segment,
                                                 s->segments->len - 1);

        if (last->region == region && last->offset + last->bytes == offset) {
            last->bytes += bytes;
            return true;
        }
    }
    if (s->segments->len >= s->limits.max_segments) {
        return false;
    }
    g_array_append_val(s->segments, segment);
    return true;
}

static VirtIOVGPUSpanResult
virtio_vgpu_translate_one(VirtIOVGPU *s, VirtIOVGPUSpanCache *cache,
                          uint32_t first, const struct vgpu_segment *segment)
{
    uint64_t address = le64_to_cpu(segment->address);
    uint64_t bytes = le64_to_cpu(segment->bytes);
    uint32_t flags = le32_to_cpu(segment->flags);

    if (!bytes || address + bytes < address || segment->pad ||
        (flags & ~VGPU_SEGMENT_WINDOW)) {
        return VIRTIO_VGPU_SPAN_BAD_ADDRESS;
    }
    if (flags & VGPU_SEGMENT_WINDOW) {
        if (address + bytes > s->window_bytes) {
            return VIRTIO_VGPU_SPAN_BAD_ADDRESS;
        }
        return virtio_vgpu_append(s, first, VIRTIO_VGPU_REGION_WINDOW, address,
                                  bytes)
               ? VIRTIO_VGPU_SPAN_OK : VIRTIO_VGPU_SPAN_TOO_MANY;
    }
    while (bytes) {
        const VirtIOVGPUSpan *span = virtio_vgpu_span(s, cache, address);
        uint64_t part;

        if (!span) {
            trace_virtio_vgpu_bad_address(s, address, bytes);
            return VIRTIO_VGPU_SPAN_BAD_ADDRESS;
        }
        part = MIN(bytes, span->end - address);
        if (!virtio_vgpu_append(s, first, span->region,
                                span->offset + (address - span->start), part)) {
            return VIRTIO_VGPU_SPAN_TOO_MANY;
        }
        address += part;
        bytes -= part;
    }
    return VIRTIO_VGPU_SPAN_OK;
}

/*
 * Fills s->payloads and s->segments from the guest's tables (private copies,
 * little-endian; the caller has checked that each payload's segments are inside
 * the table and that no more than the table's length are named altogether).
 */
VirtIOVGPUSpanResult virtio_vgpu_translate(VirtIOVGPU *s,
                                           const struct vgpu_payload *payloads,
                                           uint32_t n_payloads,
                                           const struct vgpu_segment *segments)
{
    VirtIOVGPUSpanCache cache = { 0 };

    RCU_READ_LOCK_GUARD();

    g_array_set_size(s->segments, 0);
    for (uint32_t i = 0; i < n_payloads; i++) {
        uint32_t first = s->segments->len;
        const struct vgpu_segment *segment =
            segments + le32_to_cpu(payloads[i].first_segment);
        bool writable = le32_to_cpu(payloads[i].flags) & VGPU_PAYLOAD_WRITE;

        for (uint32_t n = le32_to_cpu(payloads[i].segment_count); n; n--) {
            VirtIOVGPUSpanResult result =
                virtio_vgpu_translate_one(s, &cache, first, segment++);

            if (result != VIRTIO_VGPU_SPAN_OK) {
                return result;
            }
        }
        s->payloads[i] = (kagemusha_payload) {
            .bytes = le64_to_cpu(payloads[i].bytes),
            .first_segment = first,
            .segment_count = s->segments->len - first,
            .writable = writable,
        };
    }
    return VIRTIO_VGPU_SPAN_OK;
}

/* ---- dirty memory ------------------------------------------------------ */

/*
 * Library callback; thread as virtio_vgpu_request_done(). Before the guest is
 * told of what was written, so a checkpoint that has the one has the other. The
 * window is marked too: TCG may have translated code in it.
 */
void virtio_vgpu_memory_written(void *opaque, const kagemusha_segment *ranges,
                                size_t count)
{
    VirtIOVGPU *s = opaque;
    VirtIODevice *vdev = VIRTIO_DEVICE(s);

    for (size_t i = 0; i < count; i++) {
        VirtIOVGPURegion *region = &s->regions[ranges[i].region];

        /* address_space_unmap() drops the reference of its map */
        memory_region_ref(region->mr);
        address_space_unmap(vdev->dma_as, region->base + ranges[i].offset,
                            ranges[i].bytes, true, ranges[i].bytes);
    }
}
