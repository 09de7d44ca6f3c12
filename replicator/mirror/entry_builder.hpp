// SPDX-License-Identifier: GPL-2.0-or-later
// entry_builder: puts commands behind each other into the stream of a log entry, with a payload table of its
// own. Internal to mirror_file.
#ifndef KAGEMUSHA_MIRROR_ENTRY_BUILDER_HPP
#define KAGEMUSHA_MIRROR_ENTRY_BUILDER_HPP

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "mirror/log_entry.hpp"

namespace kagemusha::mirror {

// Of the entry of a call.
inline std::uint32_t call_flags(std::uint16_t opcode) {
    const bool may_fail = opcode == VGPU_CMD_BUILD_PROGRAM || opcode == VGPU_CMD_COMPILE_PROGRAM ||
                          opcode == VGPU_CMD_LINK_PROGRAM;
    return may_fail ? entry_awaits_outcome | entry_may_fail : entry_awaits_outcome;
}

class entry_builder {
public:
    // `expected_bytes`: of the stream.
    void begin(std::size_t expected_bytes) {
        expected_words_ = expected_bytes / 8;
        expected_bytes_ = fetched_bytes_ = 0;
        entry_ = {};
    }

    // So many bytes are going to come next: their place is fetched for writing while the caller reads on. It
    // was used for an earlier request, whose bytes another processor has sent since.
    void expect(std::size_t bytes) {
        if (entry_.stream.capacity() == 0) {
            entry_.stream.reserve(expected_words_);
            expected_bytes_ = fetched_bytes_ = 0;
        }
        expected_bytes_ += bytes;
        const auto* begin = reinterpret_cast<const std::byte*>(entry_.stream.data());
        fetched_bytes_ = fetch_for_writing(begin, fetched_bytes_, expected_bytes_);
    }

    std::size_t stream_bytes() const { return entry_.stream.size() * 8; }

    void command(std::span<const std::byte> bytes) { commands(bytes, 1); }
    void commands(std::span<const std::byte> bytes, std::uint32_t count) {
        append(bytes.data(), bytes.size());
        entry_.meta.op_count += count;
    }

    // `reference_at`: where the command has its vgpu_payload_ref into the payload table.
    void command_with_payload(std::span<const std::byte> bytes, std::size_t reference_at,
                              std::uint64_t payload_bytes, byte_pieces content) {
        const std::size_t at = entry_.stream.size() * 8;
        command(bytes);
        auto* reference = reinterpret_cast<vgpu_payload_ref*>(
            reinterpret_cast<std::byte*>(entry_.stream.data()) + at + reference_at);
        assert(reference->bytes == payload_bytes);
        reference->index = static_cast<std::uint32_t>(entry_.payloads.size());
        entry_.payloads.push_back({payload_bytes, false});
        entry_.content_in_guest |= content.keep == nullptr;
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
        if (entry_.stream.empty()) {
            return;
        }
        entry_.meta.kind = entry_kind::submit;
        entry_.meta.flags = flags;
        entry_.meta.stream_bytes = entry_.stream.size() * 8;
        out.push_back(std::move(entry_));
        entry_ = {};
    }

private:
    // A processor that does not know the instruction takes it for none. Returns how far it came.
#if defined(__x86_64__)
    [[gnu::target("prfchw")]]
#endif
    static std::size_t fetch_for_writing(const std::byte* begin, std::size_t from, std::size_t to) {
        constexpr std::size_t line_bytes = 64;
        for (; from < to; from += line_bytes) {
            __builtin_prefetch(begin + from, 1, 3);
        }
        return from;
    }

    void append(const void* data, std::size_t bytes) {
        if (bytes == 0) {
            return;
        }
        if (entry_.stream.empty()) {
            entry_.stream.reserve(expected_words_);
        }
        // Words of a stream are aligned, so nothing is filled with zeros first.
        const auto* words = static_cast<const std::uint64_t*>(data);
        entry_.stream.insert(entry_.stream.end(), words, words + bytes / 8);
    }

    std::size_t expected_words_ = 0;
    std::size_t expected_bytes_ = 0, fetched_bytes_ = 0;
    log_entry entry_;
};

} // namespace kagemusha::mirror

#endif
