// SPDX-License-Identifier: GPL-2.0-or-later
// mirror_tap: what a device tells whoever mirrors it, and what it lets him do (mirror_port). A device without
// a mirror has no tap and pays one comparison with null.
//
// Threads: the device's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/port.hpp"
#include "core/launch_run.hpp"
#include "core/object_table.hpp"

namespace kagemusha::core {

// What a mirror's log has of a request: the entries after `after` and up to `last`. The same number twice:
// none (a query); 0: there was no log.
struct log_range {
    std::uint64_t after = 0, last = 0;
};

class mirror_tap {
public:
    virtual void on_open(std::uint32_t file) = 0;
    virtual void on_close(std::uint32_t file) = 0; // by the guest
    virtual void on_lost(std::uint32_t file) = 0;  // its worker died, hung or broke a rule
    virtual void on_reset() = 0;

    // A request was validated and is handed to the file's port next. `request` has exactly the commands that
    // are executed (refused ones were cut out); its token is the device's own name for it. `objects` is the
    // table after this request. `repeats`: what validation found in the request's stream.
    virtual log_range on_submit(std::uint32_t file, const worker::request_view& request, launch_runs repeats,
                                const object_table& objects) = 0;
    // It was handed on: what is injected from here on comes after it.
    virtual void on_forwarded(std::uint32_t file) = 0;
    // The worker answered it. False: the guest's answer has to wait, because its memory is still in use;
    // mirror_port::release_answer() follows. Not called for requests that end with their file.
    virtual bool on_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) = 0;
    // A command of the guest with this event completed, or failed, and the guest is told next: then it may
    // use again what the command read, even before its request is answered. False: it must not yet, so this
    // and later records of the file wait until mirror_port::release_records().
    virtual bool on_completion(std::uint32_t file, guest_id event, bool failed) = 0;

    // Of requests that the mirror injected. A record is a COMPLETION whose event, or a QUEUE_ERROR whose
    // queue, has VGPU_HOST_ID_BIT; its length and fields have been checked, but not whether the id exists.
    virtual void on_agent_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) = 0;
    virtual void on_agent_record(std::uint32_t file, std::span<const std::byte> record) = 0;

    // As often as set_tick_period() said.
    virtual void on_tick(std::uint64_t now_ms) = 0;

protected:
    ~mirror_tap() = default;
};

// What the device offers to its tap.
class mirror_port {
public:
    // Puts a request between the guest's, at this point of the file's order: it reaches the worker after
    // everything that on_submit() told of, and before everything it will tell of. It may be called from
    // inside on_submit() (then it comes before that request), from every other call of the tap and between
    // dispatches. Not validated here: the caller is trusted, the worker decodes it again. `token` is the
    // caller's (< 2^62). False: the file has no worker (nothing was ever executed in it, or it was lost).
    virtual bool inject(std::uint32_t file, const worker::request_view& request) = 0;
    // The file's objects as they are now; null if there is no such file.
    virtual const object_table* objects(std::uint32_t file) const = 0;
    // After on_done() said false. Of a file that has ended meanwhile (its answers were given then) it does
    // nothing.
    virtual void release_answer(std::uint32_t file, std::uint64_t token) = 0;
    // After on_completion() said false.
    virtual void release_records(std::uint32_t file) = 0;
    // From inside on_submit(): neither this request nor what comes after it reaches the worker before
    // release_requests(), or the end of the file. Nothing for the watchdog: it is not the worker who waits.
    virtual void hold_requests(std::uint32_t file) = 0;
    virtual void release_requests(std::uint32_t file) = 0;
    // From inside on_close(), on_lost() or on_reset(): memory that what was injected may still be writing. It
    // is held until the file's worker is gone.
    virtual void keep_until_gone(std::uint32_t file, std::shared_ptr<const void> memory) = 0;
    // Ends the file's worker; the guest's process gets errors, and on_lost() is called from inside. Only from
    // on_tick(). A file that is lost already, or that there is not: nothing.
    virtual void lose_session(std::uint32_t file, std::uint32_t after_ms, const std::string& why) = 0;
    // 0: no ticks.
    virtual void set_tick_period(std::uint32_t period_ms) = 0;

protected:
    ~mirror_port() = default;
};

} // namespace kagemusha::core
