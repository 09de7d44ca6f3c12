// SPDX-License-Identifier: GPL-2.0-or-later
// standby_driver: what a device that is a standby owns beside itself: the memory into which content is received
// (the region 0 of its workers), and one thread with the listener, the link and replication_standby_fsm.
//
//   replication thread                                     device's thread
//   link ─▶ replication_standby_fsm ─▶ commands (inbox) ══▶ standby_runner ─▶ device
//                    ▲                                            │
//                    └────────────────── results ◀────────────────┘
//
// Streams are received into private memory, content into the arena. One primary at a time; another one is
// refused with a sentence.
#pragma once

#include <kagemusha/device.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "mirror/standby/replication_standby_fsm.hpp"
#include "mirror/standby/vm_state.hpp"
#include "net/link.hpp"
#include "pair/arena.hpp"
#include "worker/limits.hpp"

namespace kagemusha::pair {

// The number of the arena on a standby's device: guest memory begins at 0, the last one is the agents'.
inline constexpr std::uint32_t standby_region = worker::max_regions - 2;

// Tokens of requests that the side gives to the device; a guest's have it not.
inline constexpr std::uint64_t standby_token_bit = std::uint64_t{1} << 63;

class standby_driver {
public:
    struct options {
        mirror::standby_config fsm;
        net::link_options listen;
        // On the device's thread, from dispatch().
        std::function<void(kagemusha_log_level, const std::string&)> log;
        // After a takeover: everything of the log was given to the device, and so were the requests that the
        // guest had made; new ones may follow.
        std::function<void()> live;
    };

    // Whose a record of the device is.
    enum class record_owner : std::uint8_t { side, nobody, guest };

    // Listens when it returns. Null with a sentence in `error`.
    static std::unique_ptr<standby_driver> create(options o, std::string& error);
    // Ends after its device.
    virtual ~standby_driver() = default;

    // ---- device's thread
    virtual arena& memory() = 0;
    virtual int event_fd() const = 0; // readable when dispatch() has something to do
    virtual void dispatch(core::device& device, std::uint64_t now_ms) = 0;
    // The device's callbacks.
    virtual void on_request_done(std::uint64_t token, const vgpu_response& response) = 0;
    virtual std::shared_ptr<const void>
    memory_of(std::uint64_t token) const = 0; // core::device::memory_keeper
    // nobody: the guest knows already what it says. guest: it has to be told, then told().
    virtual record_owner on_record(std::span<const std::byte> record) = 0;
    virtual void told(std::span<const std::byte> record) = 0;

    // Checkpoints of the VM, on the device's thread. Whether this state can be committed (empty, or a
    // sentence); it was applied; the primary is dead.
    virtual std::string check(const mirror::vm_state& state) const = 0;
    virtual void commit(mirror::vm_state state) = 0;
    // The VM has a state that does not fit: until the next commit() there is nothing to go on with.
    virtual void misfit() = 0;
    // mirror::replication_standby_fsm::keep_copy().
    virtual void keep_copy(bool on) = 0;
    // Empty: the device is the guest's from here on; congested until live(). Else why there is nothing to go
    // on with.
    virtual std::string take_over(core::device& device) = 0;
    // A request of the guest's after that. False: it is a new one, to be given to the device when it is live.
    virtual bool resume(const kagemusha_request& request) = 0;
    virtual bool live() const = 0;
    // Records that the guest must get first, in order; told() for each.
    virtual std::span<const std::byte> first_record() const = 0; // empty: none
    // After a takeover, while this VM is checkpointed itself: takes from its files' checkpoints the events that the
    // guest knows of although their commands have not ended here, and adds records that it has not got.
    virtual void amend(std::vector<core::file_checkpoint>& files) const = 0;
    // The guest resets its device: tokens of its requests that the device does not have yet, for an answer.
    virtual std::vector<std::uint64_t> forget_guest() = 0;

    // ---- any thread
    virtual mirror::standby_status status() const = 0;
    virtual const std::string& address() const = 0; // with the real port
};

} // namespace kagemusha::pair
