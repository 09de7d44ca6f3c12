// SPDX-License-Identifier: GPL-2.0-or-later
// A disk's part of a checkpoint for tests: made by QEMU's own writer, and taken from memory by its own reader
// (qemu-device/checkpoint-disk-stream.h). Shared by disk_fuzz, make_corpus and checkpoint_disk_stream_test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

#include "../../qemu-device/checkpoint-disk-stream.h"

namespace kagemusha::fuzz {

struct disk_range {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::vector<std::uint8_t> data; // empty: zeroes
    bool operator==(const disk_range&) const = default;
};

inline void append_head(std::vector<std::uint8_t>& out, const CheckpointDiskHead& head) {
    std::uint8_t bytes[CHECKPOINT_DISK_HEAD_BYTES];
    checkpoint_disk_write_head(bytes, &head);
    out.insert(out.end(), std::begin(bytes), std::end(bytes));
}

inline void append_range(std::vector<std::uint8_t>& out, const CheckpointDiskRange& range) {
    std::uint8_t bytes[CHECKPOINT_DISK_RANGE_BYTES];
    checkpoint_disk_write_range(bytes, &range);
    out.insert(out.end(), std::begin(bytes), std::end(bytes));
}

inline std::vector<std::uint8_t> disk_stream(std::uint64_t size, bool complete,
                                             std::span<const disk_range> ranges) {
    std::vector<std::uint8_t> out;
    append_head(out, {size, complete, static_cast<std::uint32_t>(ranges.size())});
    for (const disk_range& r : ranges) {
        append_range(out, {r.offset, r.bytes, !r.data.empty()});
        out.insert(out.end(), r.data.begin(), r.data.end());
    }
    return out;
}

// A source over bytes in memory, which keeps what was taken.
class disk_reader {
public:
    explicit disk_reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
    disk_reader(const disk_reader&) = delete;
    disk_reader& operator=(const disk_reader&) = delete;

    const CheckpointDiskSource* source() const { return &source_; }
    const std::vector<disk_range>& ranges() const { return ranges_; }
    // Of the data of all ranges
    std::size_t held_bytes() const { return held_bytes_; }
    // As QEMU allocates it: aligned to a page, in whole pages
    std::size_t allocated_bytes() const { return allocated_bytes_; }

private:
    static bool get(void* opaque, void* buffer, std::size_t bytes) {
        auto& self = *static_cast<disk_reader*>(opaque);
        if (bytes > self.rest_.size())
            return false;
        std::memcpy(buffer, self.rest_.data(), bytes);
        self.rest_ = self.rest_.subspan(bytes);
        return true;
    }
    static bool add(void* opaque, const CheckpointDiskRange* range, std::uint8_t** data) {
        auto& self = *static_cast<disk_reader*>(opaque);
        self.ranges_.push_back({range->offset, range->bytes, {}});
        if (range->data) {
            self.ranges_.back().data.resize(range->bytes);
            *data = self.ranges_.back().data.data();
            self.held_bytes_ += range->bytes;
            self.allocated_bytes_ += (range->bytes + 4095) / 4096 * std::size_t{4096};
        }
        return true;
    }

    std::span<const std::uint8_t> rest_;
    CheckpointDiskSource source_{this, get, add};
    std::vector<disk_range> ranges_;
    std::size_t held_bytes_ = 0;
    std::size_t allocated_bytes_ = 0;
};

} // namespace kagemusha::fuzz
