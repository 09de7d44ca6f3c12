// SPDX-License-Identifier: GPL-2.0-or-later
// sequence_ring: values for consecutive log numbers, added at the back and removed at the front, found by
// number in constant time. Its memory follows its size both ways, so a long burst leaves nothing behind.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "mirror/log/log_entry.hpp"

namespace kagemusha::mirror {

template <class T>
class sequence_ring {
public:
    bool empty() const { return size_ == 0; }
    std::size_t size() const { return size_; }
    std::size_t capacity() const { return slots_.size(); }
    // The number of the first value; of an empty ring: the number that the next one gets.
    log_sequence first() const { return first_; }
    log_sequence end() const { return first_ + size_; }
    bool contains(log_sequence s) const { return s >= first_ && s - first_ < size_; }

    void restart(log_sequence first) {
        slots_ = {};
        size_ = head_ = 0;
        first_ = first;
    }

    void push_back(T value) {
        if (size_ == slots_.size())
            resize(size_ == 0 ? min_capacity : size_ * 2);
        slots_[(head_ + size_) & (slots_.size() - 1)] = std::move(value);
        ++size_;
    }

    void pop_front() {
        assert(size_ != 0);
        head_ = (head_ + 1) & (slots_.size() - 1);
        ++first_;
        --size_;
        if (slots_.size() > min_capacity && size_ < slots_.size() / 8)
            resize(slots_.size() / 2);
    }

    T& operator[](log_sequence s) {
        assert(contains(s));
        return slots_[(head_ + (s - first_)) & (slots_.size() - 1)];
    }
    const T& operator[](log_sequence s) const { return const_cast<sequence_ring&>(*this)[s]; }
    T& front() { return (*this)[first_]; }

private:
    static constexpr std::size_t min_capacity = 16;

    void resize(std::size_t capacity) {
        std::vector<T> bigger(capacity);
        for (std::size_t i = 0; i < size_; ++i)
            bigger[i] = std::move(slots_[(head_ + i) & (slots_.size() - 1)]);
        slots_ = std::move(bigger);
        head_ = 0;
    }

    std::vector<T> slots_; // a power of two of them
    std::size_t head_ = 0, size_ = 0;
    log_sequence first_ = 1;
};

} // namespace kagemusha::mirror
