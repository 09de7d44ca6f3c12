// SPDX-License-Identifier: GPL-2.0-or-later
// log_lines: see log_lines.hpp.
#include "worker/log_lines.hpp"

#include <utility>

#include "worker/wire.hpp"

namespace kagemusha::worker {

void log_lines::add(std::string_view bytes, std::uint64_t now_ms) {
    last_ms_ = now_ms;
    for (const char c : bytes)
        if (c == '\n')
            line(now_ms);
        else if (partial_.size() < max_log_line_bytes)
            partial_ += c;
}

void log_lines::finish() {
    line(last_ms_);
    report_suppressed();
}

void log_lines::line(std::uint64_t now_ms) {
    const std::string text = std::exchange(partial_, {});
    if (text.empty() || !limiter_.allow(now_ms))
        return;
    report_suppressed();
    out_(escaped(text, max_log_line_bytes));
}

void log_lines::report_suppressed() {
    if (const std::uint64_t count = limiter_.take_suppressed(); count != 0)
        out_("(" + std::to_string(count) + " lines were left out)");
}

} // namespace kagemusha::worker
