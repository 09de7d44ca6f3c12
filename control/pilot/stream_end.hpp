// SPDX-License-Identifier: GPL-2.0-or-later
//
// How the stream to a standby that is gone is brought to its end.
//
// QEMU has two ways to give a stream up, and each works in one part of its life only: `migrate_cancel` until the
// first copy is through, `x-colo-lost-heartbeat` from then on. The part is QEMU's to say (query-migrate), because
// its event may still be on its way. A stream that is not ended refuses every later one: "There's a migration
// process in progress". QEMU's states: qapi/migration.json, MigrationStatus.
#pragma once

#include <string_view>

namespace kagemusha::control {

enum class stream_step {
    none,     // it has ended, or there was none
    wait,     // it is ending, or about to begin its checkpoints: look again
    fail_over // it takes checkpoints: x-colo-lost-heartbeat, then look again
};

// `status`: query-migrate's; empty when it says none. After `migrate_cancel`.
inline stream_step end_of_stream(std::string_view status) {
    if (status == "colo")
        return stream_step::fail_over;
    for (const std::string_view over : {"", "none", "completed", "failed", "cancelled"})
        if (status == over)
            return stream_step::none;
    return stream_step::wait;
}

} // namespace kagemusha::control
