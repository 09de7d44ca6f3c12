// SPDX-License-Identifier: GPL-2.0-or-later
// state_checker: the standby's GPU is a copy. At rest it equals the primary's; at a takeover it equals what
// the committed entries make of an empty GPU, computed by this checker alone, in the order of the log.
#pragma once

#include <string>

#include "sim/checkers/run_checker.hpp"
#include "sim/model_gpu.hpp"

namespace kagemusha::sim {

// `runs`: what arrived at the standby, up to its last commit.
inline std::string after_takeover(const run_checker& runs, const model_gpu& standby) {
    model_gpu expected(0x5eed);
    for (const auto& a : runs.arrived()) {
        const body& b = a.entry;
        if (b.meta.sequence > runs.committed()) {
            if (a.ran)
                return "entry " + std::to_string(b.meta.sequence) + " ran and lay beyond the last commit";
            continue;
        }
        if (!a.settled())
            return "entry " + std::to_string(b.meta.sequence) + " was committed and has not run";
        const bool failed = a.outcome_known && a.result != 0 && (b.meta.flags & mirror::entry_may_fail) == 0;
        if (a.canceled || failed)
            continue;
        switch (b.meta.kind) {
        case mirror::entry_kind::open_file:
            expected.open(b.meta.file);
            break;
        case mirror::entry_kind::close_file:
            expected.close(b.meta.file);
            break;
        case mirror::entry_kind::lose_session:
            expected.close(b.meta.file);
            expected.open(b.meta.file);
            break;
        case mirror::entry_kind::reset:
            expected.reset();
            break;
        case mirror::entry_kind::submit:
            expected.execute(b);
            break;
        }
    }
    return difference(expected, standby);
}

} // namespace kagemusha::sim
