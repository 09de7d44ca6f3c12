// SPDX-License-Identifier: GPL-2.0-or-later
//
// The answer of a clGet…Info query with the size rules that all of them share: the size is given if asked
// for, the value if there is a place for it, and a place that is too small is CL_INVALID_VALUE.
#pragma once

#include "opencl_headers.hpp"

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace kagemusha::opencl {

class info_answer {
public:
    info_answer(std::size_t capacity, void* place, std::size_t* size_ret) noexcept
        : capacity_(capacity), place_(place), size_ret_(size_ret) {}

    cl_int bytes(const void* data, std::size_t size) const noexcept {
        if (place_) {
            if (capacity_ < size)
                return CL_INVALID_VALUE;
            if (size > 0)
                std::memcpy(place_, data, size);
        }
        if (size_ret_)
            *size_ret_ = size;
        return CL_SUCCESS;
    }

    template <class T>
    cl_int value(const T& value) const noexcept {
        static_assert(std::is_trivially_copyable_v<T>);
        return bytes(&value, sizeof value);
    }

    template <class T>
    cl_int array(std::span<const T> values) const noexcept {
        return bytes(values.data(), values.size_bytes());
    }

    // With the terminating 0.
    cl_int text(std::string_view text) const noexcept {
        if (place_) {
            if (capacity_ < text.size() + 1)
                return CL_INVALID_VALUE;
            std::memcpy(place_, text.data(), text.size());
            static_cast<char*>(place_)[text.size()] = 0;
        }
        if (size_ret_)
            *size_ret_ = text.size() + 1;
        return CL_SUCCESS;
    }

    std::size_t capacity() const noexcept { return capacity_; }
    void* place() const noexcept { return place_; }

private:
    std::size_t capacity_;
    void* place_;
    std::size_t* size_ret_;
};

} // namespace kagemusha::opencl
