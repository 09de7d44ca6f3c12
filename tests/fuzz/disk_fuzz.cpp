// SPDX-License-Identifier: GPL-2.0-or-later
// A disk's part of a checkpoint, which a standby's QEMU reads from the stream of the VM's state:
// qemu-device/checkpoint-disk-stream.c. What it takes lies within the disk and does not overlap, is the same
// when it is written again, and has cost no more memory than a small multiple of the bytes that were sent.
#include <algorithm>

#include "disk_stream.hpp"
#include "fuzz_input.hpp"
#include "peer_messages.hpp"

using namespace kagemusha;
using fuzz::require;

namespace {

// What a range costs its taker beside its data: docs/spec/replication.md, section 11.
constexpr std::size_t range_overhead_bytes = 64;

void require_ranges(const fuzz::disk_reader& taken, std::uint64_t size) {
    std::uint64_t from = 0;
    for (const fuzz::disk_range& r : taken.ranges()) {
        require(r.offset >= from && r.bytes != 0 && r.offset <= size && r.bytes <= size - r.offset,
                "ranges ascend within the disk");
        require(r.offset % CHECKPOINT_DISK_PART_BYTES == 0 &&
                    (r.bytes % CHECKPOINT_DISK_PART_BYTES == 0 || r.offset + r.bytes == size),
                "ranges are of whole parts");
        require(r.data.empty() || r.data.size() == r.bytes, "data is as long as its range");
        from = r.offset + r.bytes;
    }
}

// The same bytes as a copy's head, which comes beside checkpoints
void require_copy(std::span<const std::uint8_t> head, std::size_t data_bytes) {
    CheckpointDiskCopy copy{};
    if (checkpoint_disk_read_copy(head.data(), head.size(), data_bytes, &copy) != nullptr)
        return;
    const auto& r = copy.range;
    require(r.bytes != 0 && r.offset <= copy.size && r.bytes <= copy.size - r.offset,
            "a copy is within the disk");
    require(data_bytes == (r.data ? r.bytes : 0) && data_bytes <= CHECKPOINT_DISK_DATA_BYTES,
            "its data is as long as its range");
    std::vector<std::uint8_t> again(CHECKPOINT_DISK_MAX_COPY_BYTES);
    again.resize(checkpoint_disk_write_copy(again.data(), &copy));
    require(std::equal(again.begin(), again.end(), head.begin(), head.end()), "a copy there and back");
}

} // namespace

// The size of the image here (4 bytes, parts; and 2 bytes more), the stream
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::reader in(std::span(data, size));
    const std::uint64_t parts = in.value<std::uint32_t>();
    const std::uint64_t here = parts * CHECKPOINT_DISK_PART_BYTES + in.value<std::uint16_t>();
    const std::span<const std::uint8_t> stream = in.rest();
    fuzz::disk_reader taken(stream);
    require_copy(stream, 0);
    require_copy(stream, static_cast<std::size_t>(parts % (2 * CHECKPOINT_DISK_DATA_BYTES)));

    CheckpointDiskHead head{};
    const char* why = checkpoint_disk_read_head(taken.source(), &head);
    if (why == nullptr)
        why = checkpoint_disk_read_ranges(taken.source(), &head, here);
    // One range may be taken whose data does not come: COLO has all bytes before it is asked for them.
    require(taken.held_bytes() <= stream.size() + CHECKPOINT_DISK_DATA_BYTES, "data is what was sent");
    require(taken.ranges().size() * CHECKPOINT_DISK_RANGE_BYTES <= stream.size(), "so are ranges");
    require(taken.allocated_bytes() <= stream.size() + CHECKPOINT_DISK_DATA_BYTES +
                                           taken.ranges().size() * range_overhead_bytes +
                                           CHECKPOINT_DISK_PART_BYTES,
            "memory is bounded by what was sent");
    if (why != nullptr) {
        require(*why != '\0', "what is refused has a sentence");
        return 0;
    }
    require(head.n_ranges == taken.ranges().size(), "each range once");
    require_ranges(taken, here);
    const std::vector<std::uint8_t> again = fuzz::disk_stream(head.size, head.complete, taken.ranges());
    require(again.size() <= stream.size() && std::equal(again.begin(), again.end(), stream.begin()),
            "there and back");
    return 0;
}
