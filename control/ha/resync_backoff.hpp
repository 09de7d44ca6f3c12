// SPDX-License-Identifier: GPL-2.0-or-later
//
// resync_backoff: when a standby that failed gets the VM's state again. Pure; times are arguments.
//
// A state transfer costs the link all that it has and holds the VM's output, so a standby that fails each
// time (a bad block in its image, a build that cannot load the state, a cable that flaps) must not get one
// after the other. The first failure after a time of protection is taken for an accident: the next transfer
// begins at once. Every further one doubles the wait. Protection that lasted for `stable_ms` makes the next
// failure the first one again; so does a person (`kage protect`).
#pragma once

#include <algorithm>
#include <cstdint>

namespace kagemusha::ha {

struct resync_config {
    std::uint32_t first_ms = 1000;     // after the second failure
    std::uint32_t longest_ms = 120000; // a bound of docs/spec/takeover.md: protection is back after that
    std::uint32_t stable_ms = 60000;
    std::uint32_t settle_ms = 100; // QEMU first ends what it sent to the one before
};

class resync_backoff {
public:
    explicit resync_backoff(resync_config config) : config_(config) {}

    void protecting(std::uint64_t now) {
        since_ = now;
        protecting_ = true;
    }
    void failed(std::uint64_t now) {
        if (protecting_ && now >= since_ + config_.stable_ms)
            failures_ = 0;
        protecting_ = false;
        not_before_ = failures_ == 0 ? now : now + wait_ms(failures_ - 1);
        failures_ = std::min(failures_ + 1, most_doublings);
    }
    void settle(std::uint64_t now) { not_before_ = std::max(not_before_, now + config_.settle_ms); }
    void forget() { failures_ = 0, not_before_ = 0; }

    std::uint64_t not_before() const { return not_before_; }
    unsigned failures() const { return failures_; } // since protection last held

private:
    static constexpr unsigned most_doublings = 32;
    std::uint64_t wait_ms(unsigned doublings) const {
        return std::min(std::uint64_t{config_.first_ms} << doublings, std::uint64_t{config_.longest_ms});
    }
    resync_config config_;
    bool protecting_ = false;
    unsigned failures_ = 0;
    std::uint64_t since_ = 0, not_before_ = 0;
};

} // namespace kagemusha::ha
