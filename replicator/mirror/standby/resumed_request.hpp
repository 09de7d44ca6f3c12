// SPDX-License-Identifier: GPL-2.0-or-later
// resumed_request: a request that the guest made on a primary that has died, as its new device executes it.
// It is the guest's own, out of its memory at the last checkpoint, with three changes. The guest can be told
// that a command is over before the whole request is answered, and acts on that:
//
//   what its commands read    comes from the log where the log has it: the guest may have written over its
//                             memory since. What it has to wait for (VGPU_CMD_AWAIT) comes from there, too.
//   what they had written     stays as it is: a read whose payload was written becomes a marker, so that the
//                             guest's memory is not written again, and its event still exists.
//   what had been refused     is left out: the guest was told that it failed.
//
// Pure. Nothing of the request is believed: the device validates it like any of the guest's.
#pragma once

#include <kagemusha/device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/op.hpp"
#include "core/file_checkpoint.hpp"

namespace kagemusha::mirror {

class resumed_request {
public:
    // Copies what is valid only during a call of kagemusha_device_submit(). `progress`: at the checkpoint
    // that the guest goes on from.
    explicit resumed_request(const kagemusha_request& of_guest, const core::request_progress& progress = {});

    // The next entry that the log has of it: its stream, and for each payload of that stream where its
    // content lies (0 bytes: it has none). Where a command of the guest's reads memory and is otherwise equal
    // to one of the entry's, it reads the entry's content. In the order of the log, before request().
    void take_content(std::span<const std::byte> stream, std::span<const kagemusha_segment> content);

    // What the log says that the guest had waited for when it made the request.
    std::span<const codec::guest_id> awaited() const { return awaited_; }
    // Views of this object, with the guest's token.
    kagemusha_request request() const;
    std::uint32_t file() const { return request_.file; }
    std::span<const std::byte> stream() const { return std::as_bytes(std::span(stream_)); }

private:
    void leave_out(const core::request_progress& progress);

    kagemusha_request request_;
    std::vector<std::uint64_t> stream_;
    std::vector<kagemusha_payload> payloads_;
    std::vector<kagemusha_segment> segments_;
    std::vector<codec::guest_id> awaited_;
    std::size_t at_ = 0; // in the guest's stream: what lies before it was compared
};

} // namespace kagemusha::mirror
