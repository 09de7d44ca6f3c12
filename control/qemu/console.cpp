// SPDX-License-Identifier: GPL-2.0-or-later
//
// See console.hpp. Text is never held back longer than needed: only a line that begins like one of ours waits
// for its end, and not beyond a bound, because the guest may write whatever it likes.
#include "control/qemu/console.hpp"

#include <charconv>
#include <optional>

namespace kagemusha::control {

namespace {

constexpr std::string_view marker = "KAGEMUSHA-";
constexpr std::size_t longest_marker_line = 64;

std::optional<console_event> parse_marker(std::string_view line) {
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r'))
        line.remove_suffix(1);
    line.remove_prefix(marker.size());
    if (line == "PROBE")
        return console_event{console_event::kind::probe_answered, {}, 0};
    if (line == "JOB")
        return console_event{console_event::kind::job_started, {}, 0};
    constexpr std::string_view exit = "EXIT ";
    if (line.substr(0, exit.size()) == exit) {
        line.remove_prefix(exit.size());
        int status = 0;
        const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), status);
        if (error == std::errc{} && end == line.data() + line.size() && status >= 0 && status <= 255)
            return console_event{console_event::kind::job_ended, {}, status};
    }
    return std::nullopt;
}

} // namespace

std::vector<console_event> console_parser::feed(std::string_view bytes) {
    std::vector<console_event> events;
    std::string text;
    const auto flush_text = [&] {
        if (!text.empty())
            events.push_back({console_event::kind::text, std::move(text), 0});
        text.clear();
    };
    const auto release_held = [&] {
        inside_line_ = held_.back() != '\n';
        text += held_;
        held_.clear();
    };
    for (const char c : bytes) {
        if (inside_line_) {
            text += c;
            inside_line_ = c != '\n';
            continue;
        }
        held_ += c;
        if (held_.size() <= marker.size()) {
            if (marker.substr(0, held_.size()) != held_)
                release_held();
        } else if (c == '\n') {
            if (auto event = parse_marker(held_)) {
                flush_text();
                events.push_back(std::move(*event));
                held_.clear();
            } else {
                release_held();
            }
        } else if (held_.size() > longest_marker_line) {
            release_held();
        }
    }
    flush_text();
    return events;
}

} // namespace kagemusha::control
