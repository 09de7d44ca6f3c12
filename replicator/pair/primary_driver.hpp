// SPDX-License-Identifier: GPL-2.0-or-later
// primary_driver: what a device that has a standby owns beside itself: the op log, the memory that its agents
// read into, one thread with the link and replication_primary_fsm, and one that copies guest memory ahead of
// the link (op_log.hpp). It decides nothing: the state machine's actions are carried out, either on the link
// or by the device.
//
//   device's thread                                  replication thread
//   primary_shadow ──log_sink──▶ op_log ══events══▶ replication_primary_fsm ─▶ link
//         ▲                                                   │
//         └─────────────── commands (inbox) ◀─────────────────┘
//
// What a stop of the mirror means for entries on their way is replication_primary_fsm's matter
// (on_mirror_stopped): the log tells it after the last of them.
#pragma once

#include <kagemusha/device.h>

#include <functional>
#include <memory>
#include <string>

#include "mirror/capture/primary_shadow.hpp"
#include "mirror/primary/replication_primary_fsm.hpp"
#include "net/link.hpp"
#include "pair/arena.hpp"
#include "pair/op_log.hpp"

namespace kagemusha::pair {

class primary_driver {
public:
    struct options {
        mirror::primary_config fsm;
        net::link_options link; // its address: see replicate_to()
        std::uint64_t agent_bytes = std::uint64_t{256} << 20;
        std::uint32_t agent_region = 0;
        // On the device's thread, from dispatch().
        std::function<void(kagemusha_log_level, const std::string&)> log;
        std::function<void()> room; // the device may take requests again
        // On the replication thread: a checkpoint is wanted soon.
        std::function<void()> epoch_wanted;
    };

    // Null with a sentence in `error`.
    static std::unique_ptr<primary_driver> create(options o, std::string& error);
    // The device, and whoever mirrors it, ended before.
    virtual ~primary_driver() = default;

    // ---- device's thread
    virtual op_log& log() = 0;
    virtual arena& memory() = 0;
    virtual int event_fd() const = 0; // readable when dispatch() has something to do
    virtual void dispatch(mirror::primary_shadow& mirror) = 0;
    virtual bool congested() const = 0;
    // Begins to look for a standby there, and goes on for ever. Another address later, while there is none
    // (false: there is one).
    virtual bool replicate_to(const std::string& address) = 0;

    // Checkpoints of the VM close epochs, or time does; while there is no complete copy time does anyway.
    virtual void use_checkpoints(bool on) = 0;
    struct closed {
        std::uint64_t epoch = 0;           // 0: not closed
        log_sequence checkpoints_from = 0; // what lies before it belongs to no checkpoint
        std::string why;                   // not closed
    };
    // Behind everything that the device has told the log. begin_close_epoch() wakes the thread that does it;
    // close_epoch() waits until it has, and begins first if nobody did.
    virtual void begin_close_epoch() = 0;
    virtual closed close_epoch() = 0;
    // Until the standby has all of the epoch. 0, or -ETIMEDOUT, -ENOTCONN, -ECANCELED with a sentence. Any
    // thread.
    virtual int wait_epoch(std::uint64_t epoch, std::uint32_t wait_ms, std::string& why) = 0;
    // Whoever waits for an epoch is told -ECANCELED, now and from now on. Any thread.
    virtual void end_waits() = 0;

    // ---- any thread
    // The state machine's, with sent_bytes as the link had them: less by what compression saved.
    virtual mirror::primary_status status() const = 0;
    virtual std::uint64_t compression_saved_bytes() const = 0; // ever
    virtual std::string address() const = 0;                   // empty: none yet
};

} // namespace kagemusha::pair
