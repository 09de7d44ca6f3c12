// SPDX-License-Identifier: GPL-2.0-or-later
//
// standby_fsm: the files that its guest was started from, when another release did that.
#include "control/ha/standby_fsm.hpp"

#include <utility>

namespace kagemusha::ha {

using mirror::supervision;

// What version 1 compares is computed of this host's own files; with others it fits nobody.
const std::string& standby_fsm::description() const {
    static const std::string none;
    return parts_ == config_.parts ? config_.description : none;
}

// With what the primary's description would fit. Version 1 names no files, so it gets this host's own.
std::optional<description_parts> standby_fsm::other_files_for(const supervision& m) const {
    std::optional<description_parts> parts;
    if (!m.parts.empty())
        parts = parts_beside(config_.parts, config_.kept_files, m.parts);
    else if (m.text == config_.description)
        parts = config_.parts;
    return parts && *parts != parts_ ? parts : std::nullopt;
}

void standby_fsm::use_files(description_parts parts) {
    const char* const why = "QEMU is started anew with the files that the primary's guest has";
    drop_link(mirror::goodbye_reason::other, why);
    if (files_wanted_)
        return; // what comes first is done first; the primary comes again
    note_refusal(why);
    files_wanted_ = std::move(parts);
    actions_.push_back(act_standby_use_files{*files_wanted_});
}

void standby_fsm::on_files_ready(const std::string& problem) {
    if (!files_wanted_ || over())
        return;
    auto parts = std::move(*std::exchange(files_wanted_, {}));
    if (!problem.empty()) {
        for (const auto& digest : guest_files_of(parts))
            if (!guest_files_of(config_.parts).contains(digest))
                config_.kept_files.erase(digest); // not again and again
        note_refusal(problem);
        return be_ready();
    }
    parts_ = std::move(parts);
    if (linked_) // it was told of the others
        drop_link(mirror::goodbye_reason::other, "QEMU is started anew with other files");
    const std::string why = parts_ == config_.parts
                                ? "the primary's guest has this release's files"
                                : "the primary's guest was started with files that this host has kept";
    if (state_ == standby_state::listening)
        return out_of_date(why);
    actions_.push_back(act_restart_qemu{why, ++qemu_}); // starting: the present one has the wrong ones
}

} // namespace kagemusha::ha
