// SPDX-License-Identifier: GPL-2.0-or-later
// standby_runner: executes entries of the log on a standby's device, which has no guest: entries become
// requests, and what a guest would hear is consumed here. Reads of digests are collected once the entry's
// last command is complete.
//
// Threads: the device's thread only.
#ifndef KAGEMUSHA_PAIR_STANDBY_RUNNER_HPP
#define KAGEMUSHA_PAIR_STANDBY_RUNNER_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device.hpp"
#include "mirror/replay_request.hpp"
#include "pair/arena.hpp"

namespace kagemusha::pair {

using mirror::log_sequence;

// An entry that a standby holds.
struct held_entry {
    mirror::entry_meta meta;
    std::vector<mirror::entry_payload> payloads;
    std::shared_ptr<const std::vector<std::uint64_t>> streams; // of all entries of one message
    std::size_t first_word = 0;
    mirror::agent_memory::block memory; // of all payloads; empty without
    mirror::replay_request request;     // where each of them lies in it

    std::span<const std::byte> stream() const {
        return std::as_bytes(std::span(*streams).subspan(first_word, meta.stream_bytes / 8));
    }
    // Where payload number i lies in this process; it has bytes.
    std::span<std::byte> payload(std::size_t i) const {
        return memory.bytes.subspan(request.offset_of(i) - memory.segment.offset, payloads[i].bytes);
    }
};

// What became of entries.
struct run_result {
    enum class kind : std::uint8_t { executed, digests, file_lost, forgotten };
    kind what;
    log_sequence sequence = 0;
    std::uint32_t file = 0;
    std::int32_t result = 0; // of the entry's call
    std::vector<std::uint64_t> hashes = {};
    std::string why = {};
};

class standby_runner {
public:
    using tell_function = std::function<void(run_result)>;
    explicit standby_runner(tell_function tell) : tell_(std::move(tell)) {}

    // `executed` is told once for each.
    void run(core::device& device, std::unique_ptr<held_entry> entry, std::uint64_t now_ms);
    // Ends every file. Nothing of what ran before is told after `forgotten`.
    void forget_all(core::device& device);

    // The device's callbacks.
    void on_request_done(std::uint64_t token, const vgpu_response& response);
    void on_record(std::span<const std::byte> record);

    std::size_t running() const { return running_.size(); }

private:
    struct running_entry {
        std::unique_ptr<held_entry> entry;
        codec::guest_id last_event = 0; // of a compare entry, until it is complete
        bool answered = false;
    };
    using event_name = std::pair<std::uint32_t, codec::guest_id>; // file, event

    void submit(core::device& device, running_entry& r, std::uint64_t now_ms);
    void end(log_sequence sequence, std::int32_t result);
    void end_waiting(std::uint32_t file);
    void collect(const held_entry& entry);
    void lose(std::uint32_t file, std::string why);

    const tell_function tell_;
    std::unordered_map<log_sequence, running_entry> running_;
    std::map<event_name, log_sequence> waiting_; // compare entries
};

} // namespace kagemusha::pair

#endif
