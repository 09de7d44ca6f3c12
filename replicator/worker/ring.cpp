// SPDX-License-Identifier: GPL-2.0-or-later
// ring: see ring.hpp.
#include "worker/ring.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace kagemusha::worker {

namespace {

struct frame {
    std::uint32_t bytes; // of the record, without frame and padding
    record_type type;
};
static_assert(sizeof(frame) == ring_frame_bytes);

constexpr std::uint64_t padded(std::uint64_t bytes) {
    return (bytes + 7) & ~std::uint64_t{7};
}

} // namespace

std::size_t ring_writer::backlog() const {
    const std::uint64_t backlog = written_ - memory_.control->read.load(std::memory_order_acquire);
    return static_cast<std::size_t>(std::min<std::uint64_t>(backlog, memory_.data.size()));
}

ring_status ring_writer::write(record_type type, parts record) {
    const std::size_t bytes = total_bytes(record);
    const std::uint64_t needed = ring_frame_bytes + padded(bytes);
    if (bytes > UINT32_MAX || needed > memory_.data.size())
        std::abort(); // callers know the limits

    const std::uint64_t backlog = written_ - memory_.control->read.load(std::memory_order_acquire);
    if (backlog > memory_.data.size() || backlog % 8 != 0)
        return ring_status::broken;
    if (needed > memory_.data.size() - backlog)
        return ring_status::nothing;

    const frame head{static_cast<std::uint32_t>(bytes), type};
    copy_in(written_, bytes_of(head));
    std::uint64_t position = written_ + ring_frame_bytes;
    for (auto part : record) {
        copy_in(position, part);
        position += part.size();
    }
    written_ += needed;
    // In one total order with the three accesses below: either reader_needs_wake() sees the reader's
    // announcement, or the reader's second look in prepare_sleep() sees this record.
    memory_.control->written.store(written_, std::memory_order_seq_cst);
    return ring_status::ok;
}

bool ring_writer::reader_needs_wake() {
    return memory_.control->reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
           memory_.control->reader_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

void ring_writer::copy_in(std::uint64_t position, std::span<const std::byte> bytes) {
    if (bytes.empty())
        return; // an empty span's pointer may be null
    const std::size_t offset = position & (memory_.data.size() - 1);
    const std::size_t first = std::min(bytes.size(), memory_.data.size() - offset);
    std::memcpy(memory_.data.data() + offset, bytes.data(), first);
    if (first < bytes.size())
        std::memcpy(memory_.data.data(), bytes.data() + first, bytes.size() - first);
}

ring_reader::ring_reader(ring_memory memory, std::size_t max_record_bytes)
    : memory_(memory), max_record_bytes_(max_record_bytes) {
    if (!std::has_single_bit(memory.data.size()))
        std::abort();
}

ring_status ring_reader::read(record_type& type, std::span<const std::byte>& record) {
    const std::uint64_t available = memory_.control->written.load(std::memory_order_acquire) - read_;
    if (available == 0)
        return ring_status::nothing;
    if (available > memory_.data.size() || available % 8 != 0)
        return ring_status::broken;

    // Records are padded to 8 bytes and frames are 8 bytes long: a frame never wraps, and it is loaded in one
    // piece.
    const std::size_t mask = memory_.data.size() - 1;
    static_assert(sizeof(frame) == sizeof(std::uint64_t));
    auto* const word = reinterpret_cast<std::uint64_t*>(memory_.data.data() + (read_ & mask));
    const auto head = std::bit_cast<frame>(std::atomic_ref(*word).load(std::memory_order_relaxed));
    if (head.bytes > max_record_bytes_ || ring_frame_bytes + padded(head.bytes) > available)
        return ring_status::broken;

    if (copy_.size() * sizeof copy_[0] < head.bytes)
        copy_.resize(padded(head.bytes) / sizeof copy_[0]);
    auto* const out = reinterpret_cast<std::byte*>(copy_.data());
    const std::size_t offset = (read_ + ring_frame_bytes) & mask;
    const std::size_t first = std::min<std::size_t>(head.bytes, memory_.data.size() - offset);
    if (first != 0)
        std::memcpy(out, memory_.data.data() + offset, first);
    if (first < head.bytes)
        std::memcpy(out + first, memory_.data.data(), head.bytes - first);

    read_ += ring_frame_bytes + padded(head.bytes);
    memory_.control->read.store(read_, std::memory_order_release);
    type = head.type;
    record = {out, head.bytes};
    return ring_status::ok;
}

bool ring_reader::prepare_sleep() {
    memory_.control->reader_sleeps.store(1, std::memory_order_seq_cst);
    if (memory_.control->written.load(std::memory_order_seq_cst) == read_)
        return true;
    cancel_sleep();
    return false;
}

void ring_reader::cancel_sleep() {
    memory_.control->reader_sleeps.store(0, std::memory_order_relaxed);
}

} // namespace kagemusha::worker
