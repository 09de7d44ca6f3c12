// SPDX-License-Identifier: GPL-2.0-or-later
// entry_builder: puts commands behind each other into the stream of a log entry, with a payload table of its
// own, or packed. Internal to session_shadow.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <utility>

#include "mirror/log/log_entry.hpp"
#include "mirror/log/packed_stream.hpp"

namespace kagemusha::mirror {

// Of the entry of a call.
inline std::uint32_t call_flags(std::uint16_t opcode) {
    const bool may_fail = opcode == VGPU_CMD_BUILD_PROGRAM || opcode == VGPU_CMD_COMPILE_PROGRAM ||
                          opcode == VGPU_CMD_LINK_PROGRAM;
    return may_fail ? entry_awaits_outcome | entry_may_fail : entry_awaits_outcome;
}

class entry_builder {
public:
    // `expected_bytes`: of the stream. `pack`: entries have packed streams, until the next begin().
    void begin(std::size_t expected_bytes, bool pack = false) {
        expected_words_ = expected_bytes / 8;
        entry_ = {};
        to_come_ = false;
        pack_ = pack;
        packers_used_ = 0;
        if (pack_)
            next_packer();
    }

    bool packs() const { return pack_; }
    std::size_t stream_bytes() const {
        return pack_ ? packer().stream_words() * 8 : entry_.stream.size() * 8;
    }

    // While it packs: the launches of a run; `first_like`: where in the entry's stream the launch begins that
    // the first of them repeats.
    void launches(const core::launch_run& run, std::uint32_t first_like,
                  std::span<const std::uint64_t> commands) {
        packer().add_run(run, static_cast<std::uint32_t>(packer().stream_words()) - first_like, commands);
        entry_.meta.op_count += run.count;
    }

    void command(std::span<const std::byte> bytes) { commands(bytes, 1); }
    void commands(std::span<const std::byte> bytes, std::uint32_t count) {
        append(bytes.data(), bytes.size());
        entry_.meta.op_count += count;
    }

    // `reference_at`: where the command has its vgpu_payload_ref into the payload table.
    void command_with_payload(std::span<const std::byte> bytes, std::size_t reference_at,
                              std::uint64_t payload_bytes, byte_pieces content) {
        assert(!pack_);
        const std::size_t at = entry_.stream.size() * 8;
        command(bytes);
        auto* reference = reinterpret_cast<vgpu_payload_ref*>(
            reinterpret_cast<std::byte*>(entry_.stream.data()) + at + reference_at);
        assert(reference->bytes == payload_bytes);
        reference->index = static_cast<std::uint32_t>(entry_.payloads.size());
        entry_.payloads.push_back({payload_bytes, false});
        entry_.content_in_guest |= content.keep == nullptr && !content.to_come;
        to_come_ |= content.to_come.has_value();
        entry_.content.push_back(std::move(content));
        entry_.meta.content_bytes += rounded_up(payload_bytes);
    }

    void marker(const vgpu_enqueue& enqueue, codec::id_list waits) {
        vgpu_cmd_sync marker{};
        marker.cmd.opcode = VGPU_CMD_MARKER;
        marker.cmd.bytes = static_cast<std::uint32_t>(sizeof(marker) + waits.size_bytes());
        marker.enqueue = enqueue;
        append(&marker, sizeof(marker));
        append(waits.data(), waits.size_bytes());
        ++entry_.meta.op_count;
    }

    void await(codec::id_list events) {
        for (; !events.empty();
             events = events.subspan(std::min<std::size_t>(events.size(), VGPU_MAX_WAIT_COUNT))) {
            const codec::id_list some =
                events.first(std::min<std::size_t>(events.size(), VGPU_MAX_WAIT_COUNT));
            vgpu_cmd_await await{};
            await.cmd.opcode = VGPU_CMD_AWAIT;
            await.cmd.bytes = static_cast<std::uint32_t>(sizeof(await) + some.size_bytes());
            await.event_count = static_cast<std::uint32_t>(some.size());
            append(&await, sizeof(await));
            append(some.data(), some.size_bytes());
            ++entry_.meta.op_count;
        }
    }

    // Nothing is appended if there is no command. What follows goes into the next entry.
    void finish(std::vector<log_entry>& out, std::uint32_t flags = 0) {
        if (stream_bytes() == 0)
            return;
        entry_.meta.kind = entry_kind::submit;
        entry_.meta.flags = flags | (std::exchange(to_come_, false) ? entry_late_content : 0u);
        entry_.meta.stream_bytes = stream_bytes();
        if (pack_) {
            entry_.packed = packer().packed();
            next_packer();
        }
        out.push_back(std::move(entry_));
        entry_ = {};
    }

private:
    void append(const void* data, std::size_t bytes) {
        if (bytes == 0)
            return;
        // Words of a stream are aligned, so nothing is filled with zeros first.
        const auto* words = static_cast<const std::uint64_t*>(data);
        if (pack_)
            return packer().add_literal({words, bytes / 8});
        if (entry_.stream.empty())
            entry_.stream.reserve(expected_words_);
        entry_.stream.insert(entry_.stream.end(), words, words + bytes / 8);
    }

    // Each entry of a request has its own, because all of them are there until the next request.
    void next_packer() {
        if (packers_used_ == packers_.size())
            packers_.emplace_back();
        packers_[packers_used_++].begin();
    }
    stream_packer& packer() { return packers_[packers_used_ - 1]; }
    const stream_packer& packer() const { return packers_[packers_used_ - 1]; }

    std::size_t expected_words_ = 0;
    bool pack_ = false;
    std::deque<stream_packer> packers_;
    std::size_t packers_used_ = 0;
    bool to_come_ = false; // some content of the entry
    log_entry entry_;
};

} // namespace kagemusha::mirror
