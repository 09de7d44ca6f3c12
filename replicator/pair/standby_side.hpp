// SPDX-License-Identifier: GPL-2.0-or-later
// standby_side: what a device that is a standby owns beside itself: the memory into which content is received
// (the region 0 of its workers), and one thread with the listener, the link and standby_fsm.
//
//   replication thread: link ─▶ standby_fsm ─▶ commands (inbox) ══▶ device's thread: standby_runner ─▶ device
//                                    ▲                                      │
//                                    └──────────────── results ◀────────────┘
//
// Streams are received into private memory, content into the arena. One primary at a time; another one is
// refused with a sentence.
#ifndef KAGEMUSHA_PAIR_STANDBY_SIDE_HPP
#define KAGEMUSHA_PAIR_STANDBY_SIDE_HPP

#include <kagemusha/device.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/device.hpp"
#include "mirror/standby_fsm.hpp"
#include "net/link.hpp"
#include "pair/arena.hpp"

namespace kagemusha::pair {

// The number of the arena on a standby's device.
inline constexpr std::uint32_t standby_region = 0;

class standby_side {
public:
    struct options {
        mirror::standby_config fsm;
        net::link_options listen;
        // On the device's thread, from dispatch().
        std::function<void(kagemusha_log_level, const std::string&)> log;
    };

    // Listens when it returns. Null with a sentence in `error`.
    static std::unique_ptr<standby_side> create(options o, std::string& error);
    // Ends after its device.
    virtual ~standby_side() = default;

    // ---- device's thread
    virtual arena& memory() = 0;
    virtual int event_fd() const = 0; // readable when dispatch() has something to do
    virtual void dispatch(core::device& device, std::uint64_t now_ms) = 0;
    // The device's callbacks.
    virtual void on_request_done(std::uint64_t token, const vgpu_response& response) = 0;
    virtual void on_record(std::span<const std::byte> record) = 0;

    // ---- any thread
    virtual mirror::standby_status status() const = 0;
    virtual const std::string& address() const = 0; // with the real port
};

} // namespace kagemusha::pair

#endif
