// SPDX-License-Identifier: GPL-2.0-or-later
// checked: arithmetic on lengths that a hostile guest chose. A sum or product that does not fit is nothing,
// never a small number.
#pragma once

#include <cstdint>
#include <optional>

namespace kagemusha::base {

// A 64-bit number that remembers whether any step overflowed, so that a formula reads as a formula.
class checked_u64 {
public:
    constexpr checked_u64(std::uint64_t value) : value_(value) {}

    constexpr bool ok() const { return ok_; }
    constexpr std::optional<std::uint64_t> value() const {
        return ok_ ? std::optional<std::uint64_t>(value_) : std::nullopt;
    }
    // Whether the number is valid and at most `limit`.
    constexpr bool within(std::uint64_t limit) const { return ok_ && value_ <= limit; }

    friend constexpr checked_u64 operator+(checked_u64 a, checked_u64 b) {
        checked_u64 r(0);
        r.ok_ = !__builtin_add_overflow(a.value_, b.value_, &r.value_) && a.ok_ && b.ok_;
        return r;
    }
    friend constexpr checked_u64 operator*(checked_u64 a, checked_u64 b) {
        checked_u64 r(0);
        r.ok_ = !__builtin_mul_overflow(a.value_, b.value_, &r.value_) && a.ok_ && b.ok_;
        return r;
    }

private:
    std::uint64_t value_;
    bool ok_ = true;
};

// Whether [offset, offset + bytes) lies inside an object of `size` bytes.
constexpr bool range_inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

} // namespace kagemusha::base
