// SPDX-License-Identifier: GPL-2.0-or-later
// file_checkpoint: what a guest knows and does not know of one open file at an instant: which of its requests
// have no answer, which completions it has not been told. With the log of what was executed
// (replicator/mirror) it is enough to go on with the guest elsewhere. Guest ids only: nothing of the host is
// in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/op.hpp"
#include "core/mirror_tap.hpp"

namespace kagemusha::core {

// What is over of a request although it has no answer: the guest may know of it, and whoever executes the
// request again leaves it out. Both ascend.
struct request_progress {
    std::vector<std::uint32_t> written; // payloads: they are in guest memory, and may be the guest's again
    std::vector<std::uint32_t> refused; // commands, by their place in the guest's stream: never executed
    friend bool operator==(const request_progress&, const request_progress&) = default;
};

struct file_checkpoint {
    // A request that was submitted and not answered.
    struct request {
        std::uint64_t token = 0; // the guest's
        log_range entries;
        request_progress progress = {};
        friend bool operator==(const request& a, const request& b) {
            return a.token == b.token && a.entries.after == b.entries.after &&
                   a.entries.last == b.entries.last && a.progress == b.progress;
        }
    };
    // An event whose command was refused: no worker knows it.
    struct refused_event {
        codec::guest_id id = 0, context = 0;
        std::int32_t status = 0;
        friend bool operator==(const refused_event&, const refused_event&) = default;
    };

    std::uint32_t file = 0;
    bool lost = false;
    std::vector<request> requests;
    std::vector<codec::guest_id> unreported; // events whose completion the guest has not taken
    std::vector<refused_event> refused;
    std::vector<std::byte> records; // others that it has not taken: errors of queues, text, the loss

    friend bool operator==(const file_checkpoint&, const file_checkpoint&) = default;
};

} // namespace kagemusha::core
