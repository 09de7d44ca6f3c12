// SPDX-License-Identifier: GPL-2.0-or-later
// log_lines: bytes that a worker wrote to its standard error, as lines for the host's log. The worker is
// hostile: lines are made printable, cut, and limited in number. Pure; the time is an argument.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/rate_limiter.hpp"
#include "worker/limits.hpp"

namespace kagemusha::worker {

class log_lines {
public:
    using output = std::function<void(const std::string&)>;

    explicit log_lines(output out) : out_(std::move(out)) {}

    void add(std::string_view bytes, std::uint64_t now_ms);
    // The rest without a newline, and how many lines were left out.
    void finish();

private:
    void line(std::uint64_t now_ms);
    void report_suppressed();

    output out_;
    std::string partial_; // at most max_log_line_bytes; the rest of a longer line is dropped
    std::uint64_t last_ms_ = 0;
    base::rate_limiter limiter_{log_burst_lines, 1000 / log_lines_per_second};
};

} // namespace kagemusha::worker
