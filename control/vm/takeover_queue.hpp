// SPDX-License-Identifier: GPL-2.0-or-later
//
// takeover_queue: what the standbys of one host know of each other, so that they take over by priority
// (control/ha/takeover_order.hpp decides). Each has a page in a file of the runtime directory,
// takeovers/NAME, which it writes and all others read; its lock is held as long as it lives.
//
// Threads: one, the supervisor loop's, but for the constructor.
#pragma once

#include "control/base/process.hpp"
#include "control/ha/takeover_order.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

class takeover_queue {
public:
    // `directory`: takeovers/ is made in it. Without a page (`error` says why) it stands alone: it waits for nobody.
    takeover_queue(const std::string& directory, std::string name, std::uint32_t priority,
                   std::uint32_t heartbeat_ms, std::string& error);
    ~takeover_queue();
    takeover_queue(const takeover_queue&) = delete;
    takeover_queue& operator=(const takeover_queue&) = delete;

    void heard(std::uint64_t ns); // the primary, on CLOCK_BOOTTIME
    void enter(ha::takeover_phase phase);
    // Whether a takeover that was decided then may begin now.
    ha::takeover_turn turn(std::uint64_t decided_ns, std::uint64_t now_ns) const;

    std::vector<ha::other_standby> others() const;

private:
    struct page {
        std::atomic<std::uint64_t> magic;
        std::atomic<std::uint64_t> priority, phase, heard_ns, heartbeat_ns;
    };
    static constexpr std::uint64_t page_magic = 0x314f4b414b474154; // "TAGKAKO1": format 1

    const std::string directory_, name_;
    const std::uint32_t priority_;
    unique_fd file_;
    page* page_ = nullptr;
};

} // namespace kagemusha::control
