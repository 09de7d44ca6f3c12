// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/standby_marks.hpp"

#include "mirror/log/limits.hpp"

namespace kagemusha::mirror {

std::string standby_marks::on_marker(const marker& m, log_sequence received) {
    if (m.epoch <= last_.epoch || m.sequence < last_.sequence) {
        return "epoch " + std::to_string(m.epoch) + " was closed at entry " + std::to_string(m.sequence) +
               " after epoch " + std::to_string(last_.epoch) + " at entry " + std::to_string(last_.sequence);
    }
    if (m.sequence == 0 || m.sequence > received)
        return "it closed an epoch at entry " + std::to_string(m.sequence) + ", which was not sent";
    if (pending() >= max_pending_markers)
        return "too many epochs are open";
    last_ = m;
    open_.push_back(m);
    return {};
}

std::uint64_t standby_marks::complete_before(log_sequence first_incomplete) {
    std::uint64_t by_itself = 0;
    while (!open_.empty() && open_.front().sequence < first_incomplete) {
        const marker m = open_.front();
        complete_epoch_ = m.epoch;
        (m.checkpoint ? complete_checkpoint_ : by_itself) = m.epoch;
        complete_.push_back(m);
        open_.pop_front();
    }
    return by_itself;
}

std::optional<log_sequence> standby_marks::commit(std::uint64_t epoch) {
    std::optional<log_sequence> up_to;
    while (!complete_.empty() && complete_.front().epoch <= epoch) {
        const marker& m = complete_.front();
        committed_epoch_ = m.epoch;
        committed_checkpoint_ = m.checkpoint ? m.epoch : 0;
        up_to = m.sequence;
        complete_.pop_front();
    }
    return up_to;
}

void standby_marks::drop_uncommitted() {
    open_.clear();
    complete_.clear();
}

} // namespace kagemusha::mirror
