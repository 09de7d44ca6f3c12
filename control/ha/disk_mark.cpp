// SPDX-License-Identifier: GPL-2.0-or-later
//
// See disk_mark.hpp.
#include "control/ha/disk_mark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace kagemusha::ha {

namespace {

constexpr const char* state_names[] = {"unmarked", "waiting", "newest", "protected", "paired", "copy"};
constexpr std::size_t instance_digits = 16, longest_text = 1024;
constexpr std::uint32_t most_generations = 1'000'000'000;

// All of `text`, without signs or blanks.
template <class T>
bool number(std::string_view text, T& out, int base) {
    if (text.empty())
        return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
    return error == std::errc() && end == text.data() + text.size();
}

// INSTANCE:FIRST-LAST
bool parse_run(std::string_view text, lineage::run& out) {
    const auto colon = text.find(':'), dash = text.find('-');
    return colon == instance_digits && dash != std::string_view::npos && dash > colon &&
           number(text.substr(0, colon), out.instance, 16) &&
           number(text.substr(colon + 1, dash - colon - 1), out.first, 10) &&
           number(text.substr(dash + 1), out.last, 10);
}

} // namespace

std::string to_text(const generation& g) {
    return g.number == 0 ? std::string("unknown") : fmt::format("{}.{:016x}", g.number, g.instance);
}

generation lineage::current() const {
    return empty() ? generation{} : generation{runs_.back().last, runs_.back().instance};
}

bool lineage::has(const generation& g) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const run& r) {
        return r.instance == g.instance && r.first <= g.number && g.number <= r.last;
    });
}

void lineage::begin(std::uint64_t instance) {
    const auto next = current().number + 1;
    if (!empty() && runs_.back().instance == instance) {
        runs_.back().last = next;
        return;
    }
    runs_.push_back({instance, next, next});
    if (runs_.size() > most_runs)
        runs_.erase(runs_.begin());
}

void lineage::drop_current() {
    if (empty())
        return;
    if (runs_.back().first == runs_.back().last)
        runs_.pop_back();
    else
        --runs_.back().last;
}

bool lineage::add(const run& next) {
    if (runs_.size() == most_runs || next.first == 0 || next.last < next.first ||
        next.last > most_generations || next.first <= current().number)
        return false;
    runs_.push_back(next);
    return true;
}

descent compare(const lineage& ours, const lineage& theirs) {
    if (ours.empty() || theirs.empty())
        return descent::unrelated;
    if (ours.current() == theirs.current())
        return descent::same;
    if (ours.has(theirs.current()))
        return descent::newer;
    return theirs.has(ours.current()) ? descent::older : descent::unrelated;
}

const char* to_text(disk_state state) {
    return state_names[static_cast<std::size_t>(state)];
}

std::string to_text(const disk_mark& mark) {
    std::string text = to_text(mark.state);
    for (const auto& r : mark.of.runs())
        text += fmt::format(" {:016x}:{}-{}", r.instance, r.first, r.last);
    return text;
}

std::optional<disk_mark> parse_disk_mark(std::string_view text) {
    if (text.size() > longest_text)
        return std::nullopt;
    const auto word = [&] {
        const auto end = std::min(text.find(' '), text.size());
        const auto found = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        return found;
    };
    const auto state = word();
    const auto* const name = std::find(std::begin(state_names), std::end(state_names), state);
    if (name == std::end(state_names))
        return std::nullopt;
    disk_mark mark;
    mark.state = static_cast<disk_state>(name - std::begin(state_names));
    while (!text.empty()) {
        lineage::run r;
        if (!parse_run(word(), r) || !mark.of.add(r))
            return std::nullopt;
    }
    return mark;
}

// Marks are written one image after the other, before what they allow is done: of two, the one that allows
// less is true of all. An image that is new beside others says nothing.
disk_mark least(const std::vector<disk_mark>& marks) {
    disk_mark out;
    for (const auto& m : marks)
        if (m.state > out.state || (m.state == out.state && m.of.current().number < out.of.current().number))
            out = m;
    return out;
}

// ---- decisions

std::string why_not_start(const disk_mark& ours, const std::string& image) {
    const auto g = to_text(ours.of.current());
    switch (ours.state) {
    case disk_state::unmarked:
    case disk_state::newest:
        return {};
    case disk_state::waiting:
        return fmt::format("the VM ran elsewhere while {} was new here, so nothing is known of this image. "
                           "Start the VM there; --force-new starts it from this image",
                           image);
    case disk_state::protected_:
        return fmt::format(
            "the VM had a standby when it ended here (generation {}), which may have gone on "
            "with newer disks than {}. Start it where it ran last; if that was here: --force-new",
            g, image);
    case disk_state::paired:
    case disk_state::copy:
        break;
    }
    return fmt::format("{} is the copy of a standby (generation {}): the VM ran elsewhere last. Start it "
                       "there; --force-new starts it from this copy",
                       image, g);
}

std::string why_not_start(const disk_mark& ours, const disk_mark& theirs, bool may_take_over) {
    if (may_take_over)
        return "the standby has the VM's last state, and may take it over";
    const auto mine = to_text(ours.of.current()), other = to_text(theirs.of.current());
    switch (compare(ours.of, theirs.of)) {
    case descent::same:
        // Who goes on with a VM begins a generation before a word of it leaves: this one did not.
        if (theirs.state == disk_state::paired || theirs.state == disk_state::copy)
            return {};
        break;
    case descent::older:
        return fmt::format("the standby's host has newer disks: generation {}, and {} here. Start the VM "
                           "there with `kage run`; this host can be its standby",
                           other, mine);
    case descent::newer:
        return fmt::format("the disks here are of generation {} and had another standby, which may have gone "
                           "on with them; the one that answers has {}. Start the VM where it ran last; if "
                           "that was here: --force-new",
                           mine, other);
    case descent::unrelated:
        break;
    }
    return fmt::format("which disks are newer is not known: generation {} here, and {} ({}) at the standby. "
                       "Start the VM where it ran last; if that was here: --force-new",
                       mine, other, to_text(theirs.state));
}

std::string why_not_overwrite(const disk_mark& ours, const disk_mark& theirs) {
    if (ours.state <= disk_state::waiting || ours.state == disk_state::copy || ours.of.empty())
        return {};
    const auto mine = to_text(ours.of.current()), other = to_text(theirs.of.current());
    switch (compare(ours.of, theirs.of)) {
    case descent::same:
    case descent::older:
        return {};
    case descent::newer:
        return fmt::format(
            "the standby's disks are newer: generation {}, and {} at the primary. Stop the VM "
            "and start it on the standby's host; or start the standby with --discard-replica, and "
            "what its disks have is gone",
            mine, other);
    case descent::unrelated:
        break;
    }
    return fmt::format(
        "the disks of both hosts went different ways: generation {} at the standby, and {} at "
        "the primary. If the primary's are wanted, start the standby with --discard-replica, and "
        "what its disks have is gone",
        mine, other);
}

std::string why_not_overwrite(const disk_mark& ours) {
    if (ours.state != disk_state::newest)
        return {};
    return fmt::format("the standby's disks are the newest that it knows of (generation {}), and the primary "
                       "is of a release that does not say what its own are. Start the standby with "
                       "--discard-replica, and what its disks have is gone",
                       to_text(ours.of.current()));
}

// ---- the next mark

disk_mark waits(const disk_mark& ours) {
    return ours.state == disk_state::unmarked ? disk_mark{disk_state::waiting, {}} : ours;
}

// A copy is no generation of its own. One that was complete may lack what the primary wrote later: that
// primary's disks must not count as older.
disk_mark started(const disk_mark& ours, std::uint64_t instance) {
    disk_mark next = ours;
    if (ours.state == disk_state::copy)
        next.of = {};
    if (ours.state == disk_state::paired)
        next.of.drop_current();
    return gone_on(next, instance);
}

disk_mark gone_on(const disk_mark& ours, std::uint64_t instance) {
    disk_mark next{disk_state::newest, ours.of};
    next.of.begin(instance);
    return next;
}

} // namespace kagemusha::ha
