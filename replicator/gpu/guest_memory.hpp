// SPDX-License-Identifier: GPL-2.0-or-later
// guest_memory: the bytes of a transfer as they lie in guest memory (runs of scattered pages) or in a private
// copy, and the gate that ends every access of ours when an executor is destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kagemusha::gpu {

// Lets callers in until it is closed; close() waits for those inside. What happens inside must be short and
// must not depend on the guest.
class rundown_gate {
public:
    bool enter() {
        if ((state_.fetch_add(1, std::memory_order_acquire) & closed_bit) == 0)
            return true;
        leave();
        return false;
    }
    void leave() {
        if (state_.fetch_sub(1, std::memory_order_release) == (closed_bit | 1))
            state_.notify_all();
    }
    void close() {
        std::uint32_t seen = state_.fetch_or(closed_bit, std::memory_order_acq_rel) | closed_bit;
        while (seen != closed_bit) {
            state_.wait(seen, std::memory_order_acquire);
            seen = state_.load(std::memory_order_acquire);
        }
    }

private:
    static constexpr std::uint32_t closed_bit = 0x8000'0000;
    std::atomic<std::uint32_t> state_ = 0;
};

// `slices` of `rows` of `row_bytes`, in two memories with pitches of their own.
struct box_shape {
    std::uint64_t row_bytes = 0, rows = 1, slices = 1;
};
struct box_pitch {
    std::uint64_t row = 0, slice = 0;
};

class guest_payload {
public:
    struct run {
        std::byte* base;
        std::uint64_t bytes;
        std::uint64_t offset; // of its first byte in the payload
    };

    explicit guest_payload(std::shared_ptr<rundown_gate> gate) : gate_(std::move(gate)) {}
    guest_payload(const guest_payload&) = delete;
    guest_payload& operator=(const guest_payload&) = delete;

    // Building: either guest memory, run by run (adjacent ones are joined), or one private copy.
    void append(std::byte* base, std::uint64_t bytes);
    void assign_copy(std::span<const std::byte> bytes);

    std::uint64_t bytes() const { return bytes_; }
    std::span<const run> runs() const { return runs_; }
    bool in_guest_memory() const { return copy_.empty(); }
    // Its place in the request's table, if the GPU writes into it.
    void set_written_as(std::uint32_t index) { written_as_ = index; }
    std::optional<std::uint32_t> written_as() const { return written_as_; }
    std::byte* contiguous() const { return runs_.size() == 1 ? runs_[0].base : nullptr; }

    // Between the payload and one piece of host memory. False, with nothing touched, when the gate is closed.
    bool read(std::uint64_t offset, void* to, std::uint64_t bytes) const;
    bool write(std::uint64_t offset, const void* from, std::uint64_t bytes) const;

    // The same for boxes: the box begins at `offset` in the payload, and only its own bytes are touched.
    bool read_box(const box_shape& shape, const box_pitch& payload_pitch, std::byte* to,
                  const box_pitch& pitch, std::uint64_t offset = 0) const;
    bool write_box(const box_shape& shape, const box_pitch& payload_pitch, const std::byte* from,
                   const box_pitch& pitch, std::uint64_t offset = 0) const;

private:
    template <class Touch>
    void walk(std::uint64_t offset, std::uint64_t bytes, Touch&& touch) const;
    template <class Row>
    bool for_each_row(const box_shape& shape, const box_pitch& payload_pitch, const box_pitch& pitch,
                      Row&& row) const;

    std::shared_ptr<rundown_gate> gate_;
    std::vector<run> runs_;
    std::vector<std::byte> copy_;
    std::uint64_t bytes_ = 0;
    std::optional<std::uint32_t> written_as_;
};

} // namespace kagemusha::gpu
