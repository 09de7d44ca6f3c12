// SPDX-License-Identifier: GPL-2.0-or-later
// guest_memory: see guest_memory.hpp. Ranges are checked by the executor when it builds a payload; what is
// out of range here is our own mistake and aborts.
#include "gpu/guest_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpu/copy_crew.hpp"

namespace kagemusha::gpu {

void guest_payload::append(std::byte* base, std::uint64_t bytes) {
    if (!runs_.empty() && runs_.back().base + runs_.back().bytes == base)
        runs_.back().bytes += bytes;
    else
        runs_.push_back({base, bytes, bytes_});
    bytes_ += bytes;
}

void guest_payload::assign_copy(std::span<const std::byte> bytes) {
    copy_.assign(bytes.begin(), bytes.end());
    bytes_ = bytes.size();
    runs_.assign(1, {copy_.data(), bytes_, 0});
}

// touch(piece in the payload, offset of the piece from `offset`, its bytes), in ascending order.
template <class Touch>
void guest_payload::walk(std::uint64_t offset, std::uint64_t bytes, Touch&& touch) const {
    if (bytes > bytes_ || offset > bytes_ - bytes)
        std::abort();
    if (bytes == 0)
        return;
    auto at = std::upper_bound(runs_.begin(), runs_.end(), offset,
                               [](std::uint64_t o, const run& r) { return o < r.offset; }) -
              1;
    for (std::uint64_t done = 0; done < bytes; ++at) {
        const std::uint64_t skip = offset + done - at->offset;
        const std::uint64_t n = std::min(bytes - done, at->bytes - skip);
        touch(at->base + skip, done, n);
        done += n;
    }
}

bool guest_payload::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    if (!gate_->enter())
        return false;
    copy_crew::common().share(bytes, [&](std::uint64_t begin, std::uint64_t end) {
        std::byte* const part = static_cast<std::byte*>(to) + begin;
        walk(offset + begin, end - begin, [&](const std::byte* piece, std::uint64_t at, std::uint64_t n) {
            std::memcpy(part + at, piece, n);
        });
    });
    gate_->leave();
    return true;
}

bool guest_payload::write(std::uint64_t offset, const void* from, std::uint64_t bytes) const {
    if (!gate_->enter())
        return false;
    copy_crew::common().share(bytes, [&](std::uint64_t begin, std::uint64_t end) {
        const std::byte* const part = static_cast<const std::byte*>(from) + begin;
        walk(offset + begin, end - begin,
             [&](std::byte* piece, std::uint64_t at, std::uint64_t n) { std::memcpy(piece, part + at, n); });
    });
    gate_->leave();
    return true;
}

template <class Row>
bool guest_payload::for_each_row(const box_shape& shape, const box_pitch& payload_pitch,
                                 const box_pitch& pitch, Row&& row) const {
    if (!gate_->enter())
        return false;
    for (std::uint64_t z = 0; z < shape.slices; ++z)
        for (std::uint64_t y = 0; y < shape.rows; ++y)
            row(z * payload_pitch.slice + y * payload_pitch.row, z * pitch.slice + y * pitch.row);
    gate_->leave();
    return true;
}

bool guest_payload::read_box(const box_shape& shape, const box_pitch& payload_pitch, std::byte* to,
                             const box_pitch& pitch, std::uint64_t offset) const {
    return for_each_row(shape, payload_pitch, pitch, [&](std::uint64_t row, std::uint64_t host) {
        walk(offset + row, shape.row_bytes, [&](const std::byte* piece, std::uint64_t at, std::uint64_t n) {
            std::memcpy(to + host + at, piece, n);
        });
    });
}

bool guest_payload::write_box(const box_shape& shape, const box_pitch& payload_pitch, const std::byte* from,
                              const box_pitch& pitch, std::uint64_t offset) const {
    return for_each_row(shape, payload_pitch, pitch, [&](std::uint64_t row, std::uint64_t host) {
        walk(offset + row, shape.row_bytes, [&](std::byte* piece, std::uint64_t at, std::uint64_t n) {
            std::memcpy(piece, from + host + at, n);
        });
    });
}

} // namespace kagemusha::gpu
