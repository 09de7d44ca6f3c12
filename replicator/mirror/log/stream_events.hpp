// SPDX-License-Identifier: GPL-2.0-or-later
// for_each_event: the events that the commands of a stream make, in their order. Pure.
//
// The stream may be anybody's: nothing behind its first error is looked at. It has any alignment.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "codec/op.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::mirror {

template <class F>
void for_each_event(std::span<const std::byte> stream, F&& f) {
    // Every enqueued command begins alike, but WRITE_RUNS, which has no event.
    struct enqueued {
        vgpu_cmd cmd;
        vgpu_enqueue enqueue;
    };
    static_assert(offsetof(enqueued, enqueue) == offsetof(vgpu_cmd_launch, enqueue) &&
                  offsetof(enqueued, enqueue) == offsetof(vgpu_cmd_sync, enqueue) &&
                  offsetof(enqueued, enqueue) == offsetof(vgpu_cmd_transfer_buffer, enqueue));
    while (stream.size() >= sizeof(vgpu_cmd)) {
        vgpu_cmd head;
        std::memcpy(&head, stream.data(), sizeof(head));
        const std::uint32_t bytes = codec::command_bytes(head);
        if (bytes < sizeof(head) || bytes > stream.size())
            return;
        if (head.opcode >= VGPU_FIRST_ENQUEUE && head.opcode != VGPU_CMD_WRITE_RUNS &&
            bytes >= sizeof(enqueued)) {
            enqueued command;
            std::memcpy(&command, stream.data(), sizeof(command));
            if (command.enqueue.event != 0)
                f(codec::guest_id{command.enqueue.event});
        }
        stream = stream.subspan(bytes);
    }
}

} // namespace kagemusha::mirror
