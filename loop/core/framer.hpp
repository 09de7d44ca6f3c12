// SPDX-License-Identifier: GPL-2.0-or-later
// framer: cuts what a client sends into the data of events: pieces as they come, or lines. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "loop/core/limits.hpp"

namespace kagemusha::loop {

class framer {
public:
    explicit framer(bool lines) : lines_(lines) {}

    // At most LOOP_DATA_BYTES at once, and only when next() gave nothing: so it never holds more than twice
    // of that.
    void put(std::span<const std::byte> data) { held_.insert(held_.end(), data.begin(), data.end()); }

    // A line without its '\n'; one that is too long comes in pieces.
    std::optional<std::vector<std::byte>> next() {
        if (!lines_)
            return held_.empty() ? std::nullopt : std::optional(take(held_.size(), 0));
        const auto window = std::min<std::size_t>(held_.size(), LOOP_DATA_BYTES + 1);
        const auto end =
            std::find(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(window), std::byte{'\n'});
        const auto bytes = static_cast<std::size_t>(end - held_.begin());
        if (bytes < window)
            return take(bytes, 1);
        if (window > LOOP_DATA_BYTES)
            return take(LOOP_DATA_BYTES, 0);
        return std::nullopt;
    }

private:
    std::vector<std::byte> take(std::size_t bytes, std::size_t and_drop) {
        bytes = std::min<std::size_t>(bytes, LOOP_DATA_BYTES);
        const auto end = held_.begin() + static_cast<std::ptrdiff_t>(bytes);
        std::vector<std::byte> out(held_.begin(), end);
        held_.erase(held_.begin(), end + static_cast<std::ptrdiff_t>(and_drop));
        return out;
    }

    const bool lines_;
    std::vector<std::byte> held_;
};

} // namespace kagemusha::loop
