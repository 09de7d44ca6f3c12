// SPDX-License-Identifier: GPL-2.0-or-later
// replication: what a device of the C interface has more if it is a primary or a standby: it joins
// core::device with replicator/pair, on the device's thread, and tells others how it stands.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/device.hpp"

namespace kagemusha::ffi {

class replication {
public:
    static void init(kagemusha_device_config& config); // defaults
    static bool wanted(const kagemusha_device_config& config);
    // Why the configuration can't be used; empty if it can.
    static std::string complaint(const kagemusha_device_config& config);

    // Before the core device exists: changes its configuration and adds a region to the workers. Null with a
    // sentence in `error`.
    static std::unique_ptr<replication> create(const kagemusha_device_config& config,
                                               kagemusha_device& device, core::device_config& core,
                                               std::string& error);
    // The core device exists now. Empty, or a sentence.
    virtual std::string attach() = 0;
    // The core device ended before.
    virtual ~replication() = default;

    virtual bool standby() const = 0;
    virtual bool reserved(std::uint32_t region) const = 0;
    virtual void add_region(std::uint32_t region, void* base, std::uint64_t bytes) = 0;
    virtual int poll_fd() const = 0;
    virtual void dispatch(std::uint64_t now_ms) = 0;
    // A standby before a takeover: it has no guest.
    virtual void refuse_guest(std::uint64_t token) = 0;
    // False: the request goes to the core device as always.
    virtual bool take_request(const kagemusha_request& request) = 0;
    // The guest has room for records. False: not for those that come first.
    virtual bool event_space() = 0;
    virtual void reset() = 0;

    // Checkpoints: kagemusha/device.h. 0 or a negative errno with a sentence.
    virtual int use_checkpoints(bool on, std::string& error) = 0;
    virtual int begin_close_epoch(std::string& error) = 0;
    virtual int close_epoch(std::uint32_t wait_ms, std::string& error) = 0;
    virtual int wait_epoch(std::uint32_t wait_ms, std::string& error) = 0;
    virtual void end_waits() = 0; // any thread
    virtual std::span<const std::byte> save_state() = 0;
    virtual int check_state(std::span<const std::byte> state, std::string& error) = 0;
    virtual int commit_state(std::span<const std::byte> state, std::string& error) = 0;
    virtual int take_over(std::string& error) = 0;
    virtual bool congested() const = 0;
    // A standby has everything up to the VM's last checkpoint, and checkpoints go on.
    virtual bool protects() const = 0;
    // Somebody looks after the VM: a standby keeps the copy that a checkpoint belongs to.
    virtual void keep_copy(bool) {}
    virtual int replicate_to(const std::string& address, std::string& error) = 0;
    virtual int request_digest(bool everything) = 0;
    virtual void status(kagemusha_replication_status& out) const = 0; // any thread
    virtual const char* standby_address() const = 0;
};

} // namespace kagemusha::ffi
