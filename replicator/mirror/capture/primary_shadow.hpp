// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow: the device's side of the mirror, of all files together. It is the device's tap: what the
// device did goes through session_shadow into the log; what the standby needs or found comes back and is given
// to the files' agents. Pure: time is an argument, the log is an interface.
//
//   off ──start_sync()──▶ syncing ──all agents ready: last round──▶ on
//    ▲                       │                                     │
//    └────────── stop() / log_sink::failed() ◀─────────────────────┘
//
// The guest's memory. Large content of a request is sent from where it lies. The guest may use that memory
// again when it hears of the request's answer or of a completion; so both wait for the log where it can't let
// go of the content at once (log_sink::release_content).
//
// Ordering contract
//   1. Entries are appended in the order of the device's requests; the entries of one request are neighbours.
//   2. The first entry of a state transfer is a reset; then open_file and restored objects per file.
//   3. synced(q): state transfer + entries up to q give the standby exactly what the primary's GPU had at q.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/mirror_tap.hpp"
#include "mirror/log/limits.hpp"
#include "mirror/log/log_sink.hpp"
#include "mirror/shadow/session_shadow.hpp"
#include "mirror/sync/session_agent.hpp"

namespace kagemusha::mirror {

// Where guest memory is in this process; index = region number.
struct region_address {
    const std::byte* base = nullptr;
    std::uint64_t bytes = 0;
};

struct primary_shadow_options {
    std::uint32_t digest_interval_ms = 1000; // 0: never
    std::uint64_t registry_bytes = max_registry_bytes;
    std::uint64_t hash_seed = 0; // random
    // agent_options::ship of its agents: each file gets its agent at once.
    bool ship = false;
    // Kernels whose results are shipped from their first launch on; each file gets its agent at once, too.
    std::vector<std::string> ship_kernels = {};
    std::uint32_t transfer_wait_ms = default_transfer_wait_ms; // limits.hpp; 0: for ever
    agent_memory* built_memory = nullptr; // built_programs.hpp; null: what compilers make is not taken
};

class primary_shadow final : public core::mirror_tap {
public:
    // All outlive this. `regions` may grow until the first file is opened. `agents` makes the agent of a file
    // (make_agent_factory()); without it nothing can be mirrored that has content which did not come through
    // the log, so a standby must be there before the guest has memory objects.
    primary_shadow(core::mirror_port& device, log_sink& log, agent_factory agents,
                   const std::vector<region_address>& regions, const primary_shadow_options& options);
    ~primary_shadow();

    // From the thin layer, on the device's thread, never from inside a call of log_sink.
    // A standby is there and empty; not while one is there already. `built`: it has use for what compilers make.
    void start_sync(bool built = false);
    void stop(); // it is gone
    void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different);
    void on_content_released(log_sequence entry);
    // Takes digests of all files at the next possible point (`kage` asks, or a test); everything: also what
    // was not written since the last ones.
    void request_digest(bool everything);
    // Of a request that has no answer at a checkpoint: the guest knows nothing of it, also not of what was
    // written into its memory. Whoever executes it again does all of it.
    bool guest_knows_nothing_of(std::uint32_t file, core::log_range entries) const;
    mirror_mode mode() const;
    // Why a state transfer or repairs do not go on right now, for a person; empty: they do, or there are
    // none.
    std::string waiting() const;
    agent_counters counters() const; // of all files, also closed ones
    // What happened since the last call that a person should know (log_sink::note()), at most max_notes
    // sentences.
    std::vector<std::string> take_notes();
    static constexpr std::size_t max_notes = 16;
    std::uint64_t registry_bytes() const;

    // core::mirror_tap
    void on_open(std::uint32_t file) override;
    void on_close(std::uint32_t file) override;
    void on_lost(std::uint32_t file) override;
    void on_reset() override;
    core::log_range on_submit(std::uint32_t file, const worker::request_view& request,
                              core::launch_runs repeats, const core::object_table& objects) override;
    void on_forwarded(std::uint32_t file) override;
    bool on_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) override;
    bool on_completion(std::uint32_t file, guest_id event, bool failed) override;
    void on_agent_done(std::uint32_t file, std::uint64_t token, const vgpu_response& response) override;
    void on_agent_record(std::uint32_t file, std::span<const std::byte> record) override;
    void on_tick(std::uint64_t now_ms) override;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::mirror
