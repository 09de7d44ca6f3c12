// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which of two hosts' disk images is newer: what a host knows of its own, and how two are compared. Pure.
//
// Each host has an image of its own of a VM's writable disk (docs/spec/takeover.md, section 6). What is
// known of an image is its *mark*: a state, and the *lineage* of its content.
//
// A *generation* is a stretch of the VM's life in which one supervisor alone decided what is on the disk. A
// new one begins when a VM is started, when a standby takes it over, and when a primary goes on without a
// standby that had all of the disk. It has a number, one more than the generation that it continues, and the
// random instance of its supervisor: "7.0123456789abcdef". A lineage is a generation with all that it
// continues, oldest first. So an image is older than another one if, and only if, its generation is one that
// the other one continues. If neither continues the other, they went different ways, and only a person can
// say which is wanted. Terms of an arbiter would not do: those of `lock` begin anew with each boot, and one
// that was restored from a backup goes back.
//
// Generations of one supervisor follow each other, so a lineage is kept as runs: instance, first and last
// number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::ha {

struct generation {
    std::uint32_t number = 0; // 0: none
    std::uint64_t instance = 0;
    friend bool operator==(const generation&, const generation&) = default;
};
std::string to_text(const generation& g);

class lineage {
public:
    // The oldest are forgotten beyond this. An image that is older than all of them is of unknown descent,
    // and a person has to say that it may be overwritten. So many fit into a message's text.
    static constexpr std::size_t most_runs = 24;

    struct run {
        std::uint64_t instance = 0;
        std::uint32_t first = 0, last = 0; // 1 <= first <= last
        friend bool operator==(const run&, const run&) = default;
    };

    bool empty() const { return runs_.empty(); }
    const std::vector<run>& runs() const { return runs_; }
    generation current() const;
    bool has(const generation& g) const; // it is the current one, or one that it continues

    void begin(std::uint64_t instance); // a generation that continues the current one
    void drop_current();                // as if it had never begun

    bool add(const run& next); // false: it can't follow what is there
    friend bool operator==(const lineage&, const lineage&) = default;

private:
    std::vector<run> runs_; // ascending, no number twice
};

enum class descent { same, newer, older, unrelated };
descent compare(const lineage& ours, const lineage& theirs); // newer: ours is

enum class disk_state {
    unmarked,   // never used, or by a release that had no marks: nothing is known
    waiting,    // the same, and a standby has waited here: the VM runs elsewhere
    newest,     // the VM ran here last, and nobody may have gone on with it
    protected_, // the same, but a standby may have gone on with this generation
    paired,     // a standby's; complete, and has not gone on with the VM
    copy,       // a standby's that was being overwritten. The lineage is of what was there before
};
const char* to_text(disk_state state);

struct disk_mark {
    disk_state state = disk_state::unmarked;
    lineage of; // empty: not known
    friend bool operator==(const disk_mark&, const disk_mark&) = default;
};

// "newest 0123456789abcdef:1-3 fedcba9876543210:4-4", at most 1024 characters: in files, and between hosts.
std::string to_text(const disk_mark& mark);
std::optional<disk_mark> parse_disk_mark(std::string_view text);

// Of several images of one VM: what is true of all.
disk_mark least(const std::vector<disk_mark>& marks);

// ---- decisions; a sentence that refuses, or nothing

// A VM is started from this image, without anybody to ask. `protected_` is refused, too.
std::string why_not_start(const disk_mark& ours, const std::string& image);
// The same after the standby has said what it has. `may_take_over`: it has the right to.
std::string why_not_start(const disk_mark& ours, const disk_mark& theirs, bool may_take_over);
// A standby's image is about to be overwritten with that of a VM that runs.
std::string why_not_overwrite(const disk_mark& ours, const disk_mark& theirs);
// The same for a primary of a release that does not tell its lineage.
std::string why_not_overwrite(const disk_mark& ours);

// ---- the next mark

disk_mark waits(const disk_mark& ours);                           // a standby's supervisor starts
disk_mark started(const disk_mark& ours, std::uint64_t instance); // a VM is started from it
disk_mark gone_on(const disk_mark& ours, std::uint64_t instance); // taken over, or alone from now on

} // namespace kagemusha::ha
