// SPDX-License-Identifier: GPL-2.0-or-later
// record_queue: records that wait for the guest's event buffers, first in, first out, one behind the other in
// one block of memory that is used again. What bounds it is decided by who pushes (session_fsm).
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::core {

class record_queue {
public:
    bool empty() const { return head_ == words_.size(); }

    // A record is a multiple of 8 bytes long and says so itself.
    void push(std::span<const std::byte> record) {
        assert(record.size() >= sizeof(vgpu_record) && record.size() % 8 == 0);
        const std::size_t at = words_.size();
        words_.resize(at + record.size() / 8);
        std::memcpy(&words_[at], record.data(), record.size());
    }

    std::span<std::byte> front() {
        assert(!empty());
        const auto bytes = std::as_writable_bytes(std::span(words_)).subspan(head_ * 8);
        return bytes.first(reinterpret_cast<const vgpu_record*>(bytes.data())->bytes);
    }

    // Every record, first in first.
    template <class F>
    void for_each(F&& f) const {
        const auto bytes = std::as_bytes(std::span(words_));
        for (std::size_t at = head_ * 8; at < bytes.size();) {
            const auto record = bytes.subspan(at);
            const std::size_t length = reinterpret_cast<const vgpu_record*>(record.data())->bytes;
            f(record.first(length));
            at += length;
        }
    }

    void pop() {
        head_ += front().size() / 8;
        if (head_ == words_.size()) {
            words_.clear();
            head_ = 0;
        } else if (head_ > 4096 && head_ > words_.size() / 2) {
            words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(head_));
            head_ = 0;
        }
    }

private:
    std::vector<std::uint64_t> words_;
    std::size_t head_ = 0;
};

} // namespace kagemusha::core
