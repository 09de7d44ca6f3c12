// SPDX-License-Identifier: GPL-2.0-or-later
// worker_starts: when the next worker of a VM may be started. A start costs the host 50 to 280 ms of
// processor time outside of the vCPUs' share, and a program in the guest that opens, computes and closes in a
// loop causes one each time. So starts have a rate, and what is beyond it waits in the order in which it was
// asked for. Files whose workers run notice nothing of it. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace kagemusha::core {

class worker_starts {
public:
    // `burst` starts at once, then `per_second`; a burst of 0: no bound.
    worker_starts(std::uint32_t burst, std::uint32_t per_second)
        : burst_(burst), per_second_(per_second), credit_(std::uint64_t{burst} * start_cost) {}

    // Whether the worker of this file may be started now. Otherwise the file waits until due() names it, or
    // until forget().
    bool ask(std::uint32_t file, std::uint64_t now_ms) {
        if (burst_ == 0 || (waiting_.empty() && take(now_ms)))
            return true;
        waiting_.push_back(file); // bounded: by the files that are open
        return false;
    }

    // A file that waited and whose worker is to be started now; nothing: none yet.
    std::optional<std::uint32_t> due(std::uint64_t now_ms) {
        if (waiting_.empty() || !take(now_ms))
            return std::nullopt;
        const std::uint32_t file = waiting_.front();
        waiting_.pop_front();
        return file;
    }

    void forget(std::uint32_t file) { std::erase(waiting_, file); }
    std::size_t waiting() const { return waiting_.size(); }
    // How often due() is worth asking while a file waits.
    std::uint32_t period_ms() const { return std::max<std::uint32_t>(start_cost / per_second_, 1); }

private:
    // A millisecond gives `per_second` of credit.
    static constexpr std::uint32_t start_cost = 1000;

    bool take(std::uint64_t now_ms) {
        const std::uint64_t most = std::uint64_t{burst_} * start_cost;
        if (now_ms > last_ms_) {
            const std::uint64_t fills_it_ms = most / per_second_ + 1; // and bounds the product
            credit_ = std::min(most, credit_ + std::min(now_ms - last_ms_, fills_it_ms) * per_second_);
            last_ms_ = now_ms;
        }
        if (credit_ < start_cost)
            return false;
        credit_ -= start_cost;
        return true;
    }

    std::uint32_t burst_, per_second_;
    std::uint64_t credit_;
    std::uint64_t last_ms_ = 0;
    std::deque<std::uint32_t> waiting_;
};

} // namespace kagemusha::core
