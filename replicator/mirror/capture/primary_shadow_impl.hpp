// SPDX-License-Identifier: GPL-2.0-or-later
// primary_shadow_impl: what the files of the primary's shadow share.
//   primary_shadow.cpp           the log, when a mode changes, one file, the public face
//   primary_shadow_requests.cpp  what a request becomes in the log, guest memory in use
//   primary_shadow_sync.cpp      state transfer, who holds it up, digests
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mirror/capture/built_programs.hpp"
#include "mirror/capture/content_in_use.hpp"
#include "mirror/capture/late_writes.hpp"
#include "mirror/capture/primary_shadow.hpp"
#include "mirror/capture/reported_in_order.hpp"

namespace kagemusha::mirror {

struct primary_shadow::impl {
    impl(core::mirror_port& d, log_sink& l, agent_factory a, const std::vector<region_address>& r,
         const primary_shadow_options& o)
        : device(d), log(l), agents(std::move(a)), regions(r), options(o), built(d, l, o.built_memory) {
        budget.limit = o.registry_bytes;
    }

    struct file;

    // The log as an agent sees it: what it appends is of its file.
    struct agent_log final : log_sink {
        agent_log(impl& o, std::uint32_t f) : owner(o), number(f) {}
        impl& owner;
        const std::uint32_t number;

        log_sequence append(log_entry entry) override {
            const bool compares = (entry.meta.flags & entry_compare) != 0;
            const log_sequence sequence = owner.append(number, std::move(entry));
            if (compares)
                owner.file_of_comparison[sequence] = number;
            return sequence;
        }
        bool congested() const override { return owner.log.congested(); }
        void outcome(log_sequence entry, std::int32_t result) override { owner.log.outcome(entry, result); }
        void late_content(log_sequence entry, std::uint32_t payload, byte_pieces bytes) override {
            owner.log.late_content(entry, payload, std::move(bytes));
        }
        void cancel(log_sequence entry) override { owner.log.cancel(entry); }
        void digests(log_sequence entry, std::vector<std::uint64_t> hashes) override {
            owner.log.digests(entry, std::move(hashes));
        }
        bool release_content(log_sequence entry) override { return owner.log.release_content(entry); }
        void synced(log_sequence) override { assert(!"an agent knows one file only"); }
        void failed(const std::string& why) override { owner.note_failure(why); }
        void note(const std::string& what) override {
            if (owner.notes.size() < max_notes)
                owner.notes.push_back("file " + std::to_string(number) + ": " + what);
        }
    };

    struct file {
        file(impl& owner, std::uint32_t n) : number(n), state(owner.new_state(n)), log(owner, n) {}

        const std::uint32_t number;
        mirror_mode mode = mirror_mode::off;
        bool lost = false;
        std::size_t contexts = 0; // that the agent has been told of
        std::unique_ptr<session_shadow> state;
        agent_log log;
        std::unique_ptr<session_agent> agent;                  // ends before what it uses
        std::unordered_map<std::uint64_t, log_sequence> calls; // without an outcome, by token
        content_in_use content;
        late_writes late;
        reported_in_order told;
        std::uint64_t build_in_hand = 0; // the token of the request that is being handed on, if it builds
        bool read_in_hand = false; // the request that is being handed on ships what kernels wrote before it
        bool digest_due = false, digest_everything = false;
        std::optional<std::uint64_t> waits_since_ms; // nothing but its guest holds a state transfer up
    };

    core::mirror_port& device;
    log_sink& log;
    const agent_factory agents;
    const std::vector<region_address>& regions;
    const primary_shadow_options options;
    built_programs built;
    registry_budget budget;
    std::map<std::uint32_t, file> files; // in order, so that a transfer is the same in each run
    mirror_mode mode = mirror_mode::off;
    log_sequence last = 0; // appended
    std::string failure;   // found inside of something; carried out by settle()
    std::unordered_map<log_sequence, std::uint32_t> file_of_comparison;
    agent_counters of_closed_files;
    std::vector<std::string> notes;
    std::uint64_t last_digest_ms = 0;
    std::uint32_t tick_wanted_ms = 0;
    // Of the request in hand; members so that their memory is used again.
    std::vector<log_entry> entries;
    std::vector<std::uint32_t> payloads_read;

    // ---- log

    log_sequence append(std::uint32_t number, log_entry entry) {
        entry.meta.file = number;
        last = log.append(std::move(entry));
        return last;
    }

    log_sequence append(std::uint32_t number, entry_kind kind) {
        log_entry entry;
        entry.meta.kind = kind;
        return append(number, std::move(entry));
    }
    void release(file& f, const reported_in_order::released& r);

    static bool reads(const worker::request_view& request) {
        return std::any_of(request.payloads.begin(), request.payloads.end(),
                           [](const kagemusha_payload& p) { return p.writable != 0; });
    }

    void note_failure(const std::string& why) {
        if (failure.empty())
            failure = why;
    }

    void set_mode(mirror_mode next) {
        mode = next;
        set_tick();
    }
    void set_tick();

    // A program that does not set its user event holds a state transfer up: not for ever.
    void lose_who_waits_too_long(std::uint64_t now_ms);
    void turn_off();

    // Carries out what was found while something else was in hand. The one place where the mode of a transfer
    // moves on.
    void settle(file* changed);

    // ---- one file

    std::unique_ptr<session_shadow> new_state(std::uint32_t number) {
        return std::make_unique<session_shadow>(&budget, options.hash_seed + number, &options.ship_kernels);
    }

    file* find(std::uint32_t number) {
        const auto at = files.find(number);
        return at == files.end() ? nullptr : &at->second;
    }

    bool make_agent(file& f) {
        if (!f.agent && agents)
            f.agent = agents(f.number, *f.state, device, f.log);
        return f.agent != nullptr;
    }

    // Nothing of the file is executed any more.
    void end_work(file& f);
    static void add(agent_counters& to, const agent_counters& c);

    // ---- requests

    // Where a payload lies in this process.
    guest_memory memory_of(const worker::request_view& request, std::uint32_t index) const;
    static byte_pieces copied(const guest_memory& memory);

    // Pieces of guest memory; little of it is copied at once, so that nobody has to wait for it.
    byte_pieces content_of(file& f, const worker::request_view& request, std::uint32_t index,
                           bool may_come_late);
    void submit(file& f, const worker::request_view& request, core::launch_runs repeats,
                const core::object_table& objects);

    void give(const late_writes::write& w) { log.late_content(w.entry, w.payload, copied(w.from)); }

    // ---- state transfer
    void start_sync(bool with_built);

    // The file as it is now, for a standby that has nothing of it.
    void open(file& f);
    void finish_if_ready(file& f);

    // ---- digests
    void take_digests();

    // After a call that succeeded: it may have made a context.
    void prepare(file& f);
    void digests_are_due(bool everything);
};

} // namespace kagemusha::mirror
