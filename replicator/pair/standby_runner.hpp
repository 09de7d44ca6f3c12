// SPDX-License-Identifier: GPL-2.0-or-later
// standby_runner: executes entries of the log on a standby's device, which has no guest: entries become
// requests, and what a guest would hear is consumed here. Reads of digests are collected once the entry's
// last command is complete.
//
// Calls. A guest waits for its commands with reads, which a standby does not execute; so a call may come
// while launches run here that had ended there, and fail because of them: a program with kernels in use can't
// be built again, their memory is not free yet. A call that succeeded on the primary and fails here for such
// a reason is tried again for a while, and its file's later entries wait for it. So does a file that is
// opened while another one that was closed before it is still open here: files do not wait for each other.
//
// Threads: the device's thread only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device.hpp"
#include "mirror/standby/replay_request.hpp"
#include "mirror/standby/resumed_request.hpp"
#include "pair/arena.hpp"

namespace kagemusha::pair {

using mirror::log_sequence;

// The stream of an entry. Its bytes are counted in a sum as long as it lives.
struct counted_delete {
    std::shared_ptr<std::atomic<std::uint64_t>> sum;
    std::uint64_t bytes = 0;
    void operator()(const std::uint64_t* words) const {
        sum->fetch_sub(bytes);
        delete[] words;
    }
};
using stream_words = std::unique_ptr<std::uint64_t[], counted_delete>;

// An entry that a standby holds.
struct held_entry {
    mirror::entry_meta meta;
    std::vector<mirror::entry_payload> payloads;
    stream_words words;                 // null: the stream is empty
    mirror::agent_memory::block memory; // of all payloads; empty without
    mirror::replay_request request;     // where each of them lies in it
    bool failed_there = false;          // its call, on the primary
    // Not an entry, but the guest's own request, after a takeover; `own`: what the log had of it.
    std::unique_ptr<mirror::resumed_request> guest;
    std::vector<std::unique_ptr<held_entry>> own;
    std::uint64_t first_try_ms = 0; // of a call

    std::span<const std::byte> stream() const {
        return std::as_bytes(std::span(words.get(), words ? meta.stream_bytes / 8 : 0));
    }
    kagemusha_request as_request(std::uint64_t token) const {
        return request.request(meta.file, token, stream());
    }
    // Where payload number i lies in this process; it has bytes.
    std::span<std::byte> payload(std::size_t i) const {
        return memory.bytes.subspan(request.offset_of(i) - memory.segment.offset, payloads[i].bytes);
    }
};

// What the primary's compiler has made of a file's programs.
struct built_pack {
    std::uint32_t file = 0;
    mirror::agent_memory::block memory;
    std::uint64_t bytes = 0;
};

// What became of entries, and of packs.
struct run_result {
    enum class kind : std::uint8_t { executed, digests, file_lost, forgotten, retry, stored };
    kind what;
    log_sequence sequence = 0;
    std::uint32_t file = 0;
    std::int32_t result = 0; // of the entry's call
    std::vector<std::uint64_t> hashes = {};
    std::string why = {};
    std::uint64_t bytes = 0; // stored
};

class standby_runner {
public:
    using report_function = std::function<void(run_result)>;
    explicit standby_runner(report_function tell) : report_(std::move(tell)) {}

    // `executed` is told once for each.
    void run(core::device& device, std::unique_ptr<held_entry> entry, std::uint64_t now_ms);
    // What waited for calls that have ended meanwhile; after each dispatch of the device.
    void go_on(core::device& device);
    // Tries calls again; wanted soon after `retry` was told.
    void retry(core::device& device, std::uint64_t now_ms);
    // After a takeover: the guest's request, behind what was run of its file. Its memory in the arena is kept
    // until on_guest_request_done().
    void resume(core::device& device, std::unique_ptr<held_entry> request, std::uint64_t now_ms);
    void on_guest_request_done(std::uint64_t token) { resumed_.erase(token); }
    // Tokens of the guest's requests that wait behind a call; they are given up.
    std::vector<std::uint64_t> forget_waiting_guest();
    // Nothing waits behind a call.
    bool all_begun() const { return calling_.empty(); }
    // Streams that are executed from now on, of the log and resumed: told before the device has them.
    void watch(std::function<void(std::uint32_t file, std::span<const std::byte> stream)> f) {
        watch_ = std::move(f);
    }
    // What the mirror of the last primary left behind in the files: nobody will name it again.
    void destroy_agents_objects(core::device& device, std::uint64_t now_ms);

    // Tokens of the runner's own requests, so that they are none of a guest's.
    static constexpr std::uint64_t token_bit = std::uint64_t{1} << 63;

    // A pack for the file's worker. Before the file has one it waits; it reaches the worker before the file's
    // next entry. `stored` is told once for each, unless it is forgotten.
    void store(core::device& device, std::uint32_t file, built_pack pack, std::uint64_t now_ms);

    // Ends every file. Nothing of what ran before is told after `forgotten`.
    void forget_all(core::device& device);

    // The device's callbacks.
    void on_request_done(std::uint64_t token, const vgpu_response& response);
    void on_record(std::span<const std::byte> record);

    // What a request uses of the arena, for core::device::set_memory_keeper().
    std::shared_ptr<const void> memory_of(std::uint64_t token) const;

    std::size_t running() const { return running_.size(); }

private:
    struct running_entry {
        std::shared_ptr<held_entry> entry; // shared with memory_of()
        codec::guest_id last_event = 0;    // of a compare entry, until it is complete
        bool answered = false;
    };
    using event_name = std::pair<std::uint32_t, codec::guest_id>; // file, event

    // A file whose last entry is a call without an answer, or with one that is to be tried again.
    struct calling_file {
        log_sequence call = 0;
        bool again = false;
        std::deque<std::unique_ptr<held_entry>> waiting; // at most what the state machine lets run
    };

    void begin(core::device& device, std::unique_ptr<held_entry> entry);
    void begin_guest(core::device& device, std::unique_ptr<held_entry> entry);
    void open(core::device& device, const held_entry& e);
    void submit(core::device& device, running_entry& r);
    void end_calls(std::uint32_t file);
    bool to_be_tried_again(const running_entry& r, const vgpu_response& response);
    void end(log_sequence sequence, std::int32_t result);
    void end_waiting(std::uint32_t file);
    void collect(const held_entry& entry);
    void lose(std::uint32_t file, std::string why);
    void give_packs(core::device& device, std::uint32_t file);
    void drop_packs(std::uint32_t file);

    const report_function report_;
    std::unordered_map<log_sequence, running_entry> running_;
    std::map<event_name, log_sequence> waiting_; // compare entries
    std::map<std::uint32_t, calling_file> calling_;
    std::unordered_map<std::uint64_t, std::shared_ptr<held_entry>> resumed_; // by the guest's token
    std::map<std::uint32_t, std::vector<built_pack>> packs_;                 // for files without a worker
    std::map<std::uint64_t, std::shared_ptr<built_pack>> storing_;           // by token
    std::uint64_t last_pack_ = 0;
    std::function<void(std::uint32_t, std::span<const std::byte>)> watch_;
    std::vector<std::uint32_t> answered_; // files whose call has ended: their waiting entries are next
    bool busy_ = false;
    std::uint64_t now_ms_ = 0;
};

} // namespace kagemusha::pair
