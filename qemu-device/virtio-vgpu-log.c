// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-vgpu: the log of stores into the window
 *
 * A driver asks which pages of the window were stored into since it asked last,
 * by writing to the device's configuration, and has the answer when the write
 * is done (proto/abi/vgpu_store_log.h). It is QEMU's dirty log, of
 * the client that displays use: each client has bits of its own, so checkpoints
 * and migration neither lose any nor send more.
 *
 * Everything here is main: a vCPU with the BQL, which the log's listeners need.
 *
 * The log is switched on by the first question, because with KVM it costs the
 * guest's stores time. What was stored before is not in it, so the first answer
 * about a page is always "stored into". Nothing of this is in a checkpoint: the
 * standby's log begins with the guest's first question there.
 */
#include "qemu/osdep.h"

#include "exec/address-spaces.h"
#include "exec/ram_addr.h"
#include "qemu/bitmap.h"
#include "system/tcg.h"
#include "virtio-vgpu.h"
#include "proto/abi/vgpu_page_copy.h"
#include "trace.h"

/* The log copies and clears whole words of its bits. */
QEMU_BUILD_BUG_ON(VGPU_LOG_GROUP_PAGES % BITS_PER_LONG);

static void virtio_vgpu_begin_log(VirtIOVGPU *s)
{
    uint64_t groups = DIV_ROUND_UP(s->window_bytes, VGPU_LOG_PAGE_BYTES *
                                   VGPU_LOG_GROUP_PAGES);

    if (s->log.on) {
        return;
    }
    s->log.unasked = bitmap_new(groups);
    bitmap_set(s->log.unasked, 0, groups);
    memory_region_set_log(&s->window, true, DIRTY_MEMORY_VGA);
    s->log.on = true;
}

void virtio_vgpu_end_log(VirtIOVGPU *s)
{
    if (!s->log.on) {
        return;
    }
    memory_region_set_log(&s->window, false, DIRTY_MEMORY_VGA);
    g_clear_pointer(&s->log.unasked, g_free);
    s->log.on = false;
}

static bool virtio_vgpu_check_question(VirtIOVGPU *s, uint64_t offset,
                                       uint32_t pages)
{
    uint64_t bytes = (uint64_t)pages * VGPU_LOG_PAGE_BYTES;

    return pages <= VGPU_MAX_LOG_PAGES &&
           offset % (VGPU_LOG_PAGE_BYTES * VGPU_LOG_GROUP_PAGES) == 0 &&
           offset < s->window_bytes && bytes <= s->window_bytes - offset &&
           (pages % VGPU_LOG_GROUP_PAGES == 0 ||
            offset + bytes == s->window_bytes);
}

/*
 * The log, which is empty afterwards. memory_region_snapshot_and_clear_dirty()
 * waits for every emulated vCPU to end what it does, and releases the BQL for
 * that. Another vCPU would then get to this device in the middle of a question,
 * and QEMU drops such an access (mem_reentrancy_guard): half of that vCPU's own
 * question would be lost. The driver waits for the vCPUs itself, afterwards.
 */
static DirtyBitmapSnapshot *virtio_vgpu_take_log(VirtIOVGPU *s, uint64_t offset,
                                                 uint64_t bytes)
{
    if (tcg_enabled()) {
        return cpu_physical_memory_snapshot_and_clear_dirty(
            &s->window, offset, bytes, DIRTY_MEMORY_VGA);
    }
    return memory_region_snapshot_and_clear_dirty(&s->window, offset, bytes,
                                                  DIRTY_MEMORY_VGA);
}

/* The bits of `pages` pages; `bits` is empty. Returns how many are set. */
static uint32_t virtio_vgpu_read_log(VirtIOVGPU *s, uint64_t offset,
                                     uint32_t pages, uint8_t *bits)
{
    g_autofree DirtyBitmapSnapshot *snapshot =
        virtio_vgpu_take_log(s, offset, (uint64_t)pages * VGPU_LOG_PAGE_BYTES);
    uint64_t first_group = offset / VGPU_LOG_PAGE_BYTES / VGPU_LOG_GROUP_PAGES;
    uint32_t stored = 0;

    for (uint32_t i = 0; i < pages; i++) {
        uint64_t at = offset + (uint64_t)i * VGPU_LOG_PAGE_BYTES;

        if (test_bit(first_group + i / VGPU_LOG_GROUP_PAGES, s->log.unasked) ||
            memory_region_snapshot_get_dirty(&s->window, snapshot, at,
                                             VGPU_LOG_PAGE_BYTES)) {
            bits[i / 8] |= 1 << i % 8;
            stored++;
        }
    }
    bitmap_clear(s->log.unasked, first_group,
                 DIV_ROUND_UP(pages, VGPU_LOG_GROUP_PAGES));
    trace_virtio_vgpu_log_asked(s, offset, pages, stored);
    return stored;
}

static uint32_t virtio_vgpu_answer_question(VirtIOVGPU *s, uint64_t offset,
                                            uint32_t pages, uint64_t address)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    uint8_t bits[VGPU_MAX_LOG_PAGES / 8] = { 0 };
    MemTxAttrs only_memory = { .memory = true };

    if (!(vdev->status & VIRTIO_CONFIG_S_DRIVER_OK) ||
        !virtio_vdev_has_feature(vdev, VGPU_F_STORE_LOG) ||
        !virtio_vgpu_check_question(s, offset, pages)) {
        return VGPU_STATUS_MALFORMED;
    }
    virtio_vgpu_begin_log(s);
    virtio_vgpu_read_log(s, offset, pages, bits);
    if (address_space_write(vdev->dma_as, address, only_memory, bits,
                            DIV_ROUND_UP(pages, 8)) != MEMTX_OK) {
        /* These bits are lost: the driver takes it that all are set. */
        return VGPU_STATUS_MALFORMED;
    }
    return VGPU_STATUS_OK;
}

/* The driver has written to the configuration, maybe a question. */
void virtio_vgpu_ask_log(VirtIOVGPU *s)
{
    VirtIODevice *vdev = VIRTIO_DEVICE(s);
    uint8_t *place = vdev->config + VGPU_CONFIG_STORE_LOG;
    struct vgpu_store_log question;
    uint32_t result;

    memcpy(&question, place, sizeof(question));
    if (!question.pages) {
        return;
    }
    result = virtio_vgpu_answer_question(s, le64_to_cpu(question.offset),
                                         le32_to_cpu(question.pages),
                                         le64_to_cpu(question.address));
    /* The next write of another field asks nothing: a question has them all */
    question.pages = 0;
    question.offset = UINT64_MAX;
    question.result = cpu_to_le32(result);
    memcpy(place, &question, sizeof(question));
}
