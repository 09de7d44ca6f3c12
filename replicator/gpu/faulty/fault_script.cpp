// SPDX-License-Identifier: GPL-2.0-or-later
// fault_script: see fault_script.hpp.
#include "gpu/faulty/fault_script.hpp"

#include <charconv>
#include <string_view>

namespace kagemusha::gpu {

namespace {

struct point_name {
    std::string_view name;
    fault_point point;
};
constexpr point_name point_names[] = {
    {"create", fault_point::create}, {"build", fault_point::build},   {"info", fault_point::info},
    {"write", fault_point::write},   {"read", fault_point::read},     {"copy", fault_point::copy},
    {"fill", fault_point::fill},     {"launch", fault_point::launch}, {"sync", fault_point::sync},
};

struct action_name {
    std::string_view name;
    fault_action action;
    std::int64_t lowest, highest; // of its number; both 0: it has none
};
constexpr action_name action_names[] = {
    {"error", fault_action::error, -9999, -1},  {"fail", fault_action::fail, -9999, -1},
    {"delay", fault_action::delay, 0, 600'000}, {"hang", fault_action::hang, 0, 0},
    {"stall", fault_action::stall, 0, 0},       {"lost", fault_action::lost, 0, 0},
    {"crash", fault_action::crash, 1, 64},      {"exit", fault_action::exit, 0, 255},
};

template <class T>
bool number_of(std::string_view text, T& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// "a:b" -> a, b; b is empty where there is no colon.
std::pair<std::string_view, std::string_view> halves(std::string_view text) {
    const auto colon = text.find(':');
    return colon == text.npos ? std::pair(text, std::string_view())
                              : std::pair(text.substr(0, colon), text.substr(colon + 1));
}

} // namespace

bool fault_script::parse_on(const std::string& text, rule& out, std::string& error) const {
    const auto [what, when] = halves(text);
    bool known = false;
    for (const point_name& p : point_names) {
        const bool enqueued = p.point >= fault_point::write;
        if (p.name == what || what == "any" || (what == "command" && enqueued)) {
            out.points[static_cast<std::size_t>(p.point)] = true;
            known = true;
        }
    }
    bool counted = true;
    if (when == "*") {
        out.step = 1;
    } else if (when.ends_with('+')) {
        out.step = 1;
        counted = number_of(when.substr(0, when.size() - 1), out.first);
    } else if (when.starts_with('%')) {
        counted = number_of(when.substr(1), out.first);
        out.step = out.first;
    } else if (!when.empty()) {
        counted = number_of(when, out.first);
    }
    if (known && counted && out.first != 0)
        return true;
    error = "the fault script's 'on=" + text +
            "' is not on=WHAT or on=WHAT:WHEN; WHAT is create, build, info, write, read, "
            "copy, fill, launch, sync, command or any; WHEN is N, N+, %N or *";
    return false;
}

bool fault_script::parse_do(const std::string& text, rule& out, std::string& error) const {
    const auto [name, number] = halves(text);
    for (const action_name& a : action_names) {
        if (a.name != name)
            continue;
        out.what.action = a.action;
        if (a.lowest == a.highest && number.empty())
            return true;
        if (a.lowest != a.highest && number_of(number, out.what.number) && out.what.number >= a.lowest &&
            out.what.number <= a.highest)
            return true;
    }
    error = "the fault script's 'do=" + text +
            "' is not one of error:CODE, fail:CODE (CODE is negative), delay:MS, hang, "
            "stall, lost, crash:SIGNAL, exit:CODE";
    return false;
}

bool fault_script::parse(backend_options& options, std::string& error) {
    backend_options rest;
    std::optional<rule> open;
    for (auto& [key, value] : options) {
        if (key == "on" && !open) {
            open.emplace();
            if (!parse_on(value, *open, error))
                return false;
        } else if (key == "do" && open) {
            if (!parse_do(value, *open, error))
                return false;
            rules_.push_back(*open);
            open.reset();
        } else if (key == "on" || key == "do") {
            error = "in a fault script each 'on=' is followed by one 'do=', as in on=launch:3,do=error:-5";
            return false;
        } else {
            rest.emplace_back(std::move(key), std::move(value));
        }
    }
    if (open) {
        error = "the fault script's last 'on=' has no 'do='";
        return false;
    }
    options = std::move(rest);
    return true;
}

std::optional<fault> fault_script::next(fault_point point) {
    std::optional<fault> out;
    for (rule& r : rules_) {
        if (!r.points[static_cast<std::size_t>(point)])
            continue;
        const std::uint64_t n = ++r.seen;
        const bool fits = n == r.first || (r.step != 0 && n > r.first && (n - r.first) % r.step == 0);
        if (fits && !out)
            out = r.what;
    }
    return out;
}

} // namespace kagemusha::gpu
