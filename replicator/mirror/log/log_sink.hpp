// SPDX-License-Identifier: GPL-2.0-or-later
// log_sink: where the device's side of the mirror puts what it decided; the thin layer (pair/primary_driver)
// implements it, tests record it.
//
// Threads: all of it on the device's thread. Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mirror/log/log_entry.hpp"
#include "mirror/log/packed_stream.hpp"

namespace kagemusha::mirror {

class log_sink {
public:
    // Takes the entry and gives it the next number. Entries may exceed the log's bound by what one request
    // can be: the device stops taking requests when the log is full (congested()).
    virtual log_sequence append(log_entry entry) = 0;
    // The same of an entry without payloads, whose stream is packed. Whoever sends it may not hear of it
    // before tell().
    virtual log_sequence append_packed(const entry_meta& meta, std::span<const std::uint64_t> packed) {
        log_entry entry;
        entry.meta = meta;
        entry.stream.resize(meta.stream_bytes / 8);
        unpack_stream(packed, entry.stream);
        return append(std::move(entry));
    }
    virtual void tell() {}
    virtual bool congested() const = 0;

    // Of an entry with entry_awaits_outcome: OpenCL's result on the primary; exactly once, unless its file is
    // closed or lost first.
    virtual void outcome(log_sequence entry, std::int32_t result) = 0;
    // A piece of late content, in order per payload; the pieces of a payload add up to its length, and each
    // but its last is a multiple of 8 bytes. Exactly once for each byte, unless canceled or the file ends.
    virtual void late_content(log_sequence entry, std::uint32_t payload, byte_pieces bytes) = 0;
    // The entry must not run any more (its file ended, or the agent gave up); what follows it may. Only for
    // an entry whose outcome or late content is still missing (else it may have run already), or whose
    // digests were not told (then no result of them follows).
    virtual void cancel(log_sequence entry) = 0;
    // The digests that the entry's reads gave on the primary, one after another in payload order.
    virtual void digests(log_sequence entry, std::vector<std::uint64_t> hashes) = 0;

    // The guest, or a command of it, is about to write over its memory. True: the log does not touch it any
    // more (was sent, or copied now). False: it is being sent at this moment;
    // primary_shadow::on_content_released() follows.
    virtual bool release_content(log_sequence entry) = 0;

    // The state transfer is complete with this entry: from the next one on everything is in the log.
    virtual void synced(log_sequence last) = 0;
    // The standby can't be brought up, or can't be kept: why, for a person. The mirror is off afterwards.
    virtual void failed(const std::string& why) = 0;
    // What the compiler has made of a file's programs, for the standby's; before the outcome of the call that
    // made it. May be left out.
    virtual void built(std::uint32_t, std::shared_ptr<const std::vector<std::byte>>) {}
    // Something that a person should know: memory that differs on the standby. At most a few for each
    // comparison.
    virtual void note(const std::string&) {}

protected:
    ~log_sink() = default;
};

} // namespace kagemusha::mirror
