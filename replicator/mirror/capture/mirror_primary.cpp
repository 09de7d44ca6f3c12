// SPDX-License-Identifier: GPL-2.0-or-later
// Map of this file: log entries of the agents; one file; requests; guest memory in use; state transfer;
// digests; the public methods in the order of the header.
#include "mirror/capture/mirror_primary.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "codec/cl_numbers.hpp"
#include "mirror/capture/built_programs.hpp"
#include "mirror/capture/content_in_use.hpp"
#include "mirror/capture/late_writes.hpp"
#include "mirror/capture/told_in_order.hpp"

namespace kagemusha::mirror {

namespace {

// How often is looked whether a state transfer, or what an agent has begun, can go on, if nothing else
// happens.
constexpr std::uint32_t busy_tick_ms = 5;

constexpr const char* no_agent = "the guest has GPU memory whose content this host can't read for a standby; "
                                 "attach the standby before the guest uses the GPU";

} // namespace

struct mirror_primary::impl {
    impl(core::mirror_port& d, log_sink& l, agent_factory a, const std::vector<region_address>& r,
         const mirror_primary_options& o)
        : device(d), log(l), agents(std::move(a)), regions(r), options(o), built(d, l, o.built_memory) {
        budget.limit = o.catalog_bytes;
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
            if (compares) {
                owner.file_of_comparison[sequence] = number;
            }
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
            if (owner.notes.size() < max_notes) {
                owner.notes.push_back("file " + std::to_string(number) + ": " + what);
            }
        }
    };

    struct file {
        file(impl& owner, std::uint32_t n) : number(n), state(owner.new_state(n)), log(owner, n) {}

        const std::uint32_t number;
        mirror_mode mode = mirror_mode::off;
        bool lost = false;
        std::size_t contexts = 0; // that the agent has been told of
        std::unique_ptr<mirror_file> state;
        agent_log log;
        std::unique_ptr<file_agent> agent;                     // ends before what it uses
        std::unordered_map<std::uint64_t, log_sequence> calls; // without an outcome, by token
        content_in_use content;
        late_writes late;
        told_in_order told;
        std::uint64_t build_in_hand = 0; // the token of the request that is being handed on, if it builds
        bool read_in_hand = false; // the request that is being handed on ships what kernels wrote before it
        bool digest_due = false, digest_everything = false;
        std::optional<std::uint64_t> waits_since_ms; // nothing but its guest holds a state transfer up
    };

    core::mirror_port& device;
    log_sink& log;
    const agent_factory agents;
    const std::vector<region_address>& regions;
    const mirror_primary_options options;
    built_programs built;
    catalog_budget budget;
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

    void release(file& f, const told_in_order::released& r) {
        for (const std::uint64_t token : r.answers) {
            device.release_answer(f.number, token);
        }
        if (r.records && !f.content.holds_records()) {
            device.release_records(f.number);
        }
    }

    static bool reads(const worker::request_view& request) {
        return std::any_of(request.payloads.begin(), request.payloads.end(),
                           [](const kagemusha_payload& p) { return p.writable != 0; });
    }

    void note_failure(const std::string& why) {
        if (failure.empty()) {
            failure = why;
        }
    }

    void set_mode(mirror_mode next) {
        mode = next;
        set_tick();
    }

    void set_tick() {
        const bool busy = std::any_of(files.begin(), files.end(), [](const auto& f) {
            return f.second.agent && (f.second.digest_due || !f.second.agent->idle());
        });
        std::uint32_t tick_ms = 0;
        if (busy || mode == mirror_mode::syncing) {
            tick_ms = busy_tick_ms;
        } else if (mode == mirror_mode::on && options.digest_interval_ms != 0) {
            tick_ms = std::clamp<std::uint32_t>(options.digest_interval_ms / 4, 10, 250);
        }
        if (tick_ms != tick_wanted_ms) {
            tick_wanted_ms = tick_ms;
            device.set_tick_period(tick_ms);
        }
    }

    // A program that does not set its user event holds a state transfer up: not for ever.
    void lose_who_waits_too_long(std::uint64_t now_ms) {
        // Where the transfer has other things to do, it is not held up.
        const bool held_up =
            mode == mirror_mode::syncing && std::all_of(files.begin(), files.end(), [](const auto& at) {
                const file& f = at.second;
                return f.mode != mirror_mode::syncing || !f.agent || f.agent->waits_for_guest() ||
                       f.agent->ready_to_finish();
            });
        std::vector<std::uint32_t> too_long;
        for (auto& [number, f] : files) {
            if (!held_up || f.mode != mirror_mode::syncing || !f.agent || !f.agent->waits_for_guest()) {
                f.waits_since_ms.reset();
            } else if (!f.waits_since_ms) {
                f.waits_since_ms = now_ms;
            } else if (options.transfer_wait_ms != 0 &&
                       now_ms - *f.waits_since_ms >= options.transfer_wait_ms) {
                too_long.push_back(number);
            }
        }
        for (const std::uint32_t number : too_long) { // on_lost() is called from inside
            device.lose_file(
                number, options.transfer_wait_ms,
                "a user event of the guest that is not set kept the standby's copy from becoming "
                "complete for " +
                    std::to_string(options.transfer_wait_ms) +
                    " ms (transfer-wait-ms), so its worker was killed");
        }
    }

    void turn_off() {
        built.stop();
        for (auto& [number, f] : files) {
            f.mode = mirror_mode::off;
            f.calls.clear();
            f.late.give_up();
            f.read_in_hand = false;
            f.build_in_hand = 0;
            release(f, f.told.release_all());
            f.digest_due = f.digest_everything = false;
            if (f.agent) {
                f.agent->stop();
            }
        }
        file_of_comparison.clear();
        failure.clear();
        set_mode(mirror_mode::off);
    }

    // Carries out what was found while something else was in hand. The one place where the mode of a transfer
    // moves on.
    void settle(file* changed) {
        if (mode == mirror_mode::off) {
            failure.clear();
            return;
        }
        if (failure.empty() && mode == mirror_mode::syncing) {
            if (changed) {
                finish_if_ready(*changed);
            } else {
                for (auto& [number, f] : files) {
                    finish_if_ready(f);
                }
            }
            const bool complete = std::all_of(files.begin(), files.end(),
                                              [](const auto& f) { return f.second.mode == mirror_mode::on; });
            if (failure.empty() && complete) {
                set_mode(mirror_mode::on);
                log.synced(last);
            }
        }
        if (!failure.empty()) {
            const std::string why = std::exchange(failure, {});
            turn_off();
            log.failed(why);
        }
    }

    // ---- one file

    std::unique_ptr<mirror_file> new_state(std::uint32_t number) {
        return std::make_unique<mirror_file>(&budget, options.hash_seed + number, &options.ship_kernels);
    }

    file* find(std::uint32_t number) {
        const auto at = files.find(number);
        return at == files.end() ? nullptr : &at->second;
    }

    bool make_agent(file& f) {
        if (!f.agent && agents) {
            f.agent = agents(f.number, *f.state, device, f.log);
        }
        return f.agent != nullptr;
    }

    // Nothing of the file is executed any more.
    void end_work(file& f) {
        built.end_file(f.number);
        if (f.agent) {
            f.agent->on_lost();
            add(of_closed_files, f.agent->counters());
            f.agent.reset();
        }
        const auto late = f.late.give_up();
        if (mode != mirror_mode::off) {
            for (const auto& [token, entry] : f.calls) {
                log.cancel(entry);
            }
            for (std::size_t i = 0; i < late.size(); ++i) {
                if (i == 0 || late[i].entry != late[i - 1].entry) { // once, also with several payloads
                    log.cancel(late[i].entry);
                }
            }
        }
        f.calls.clear();
        f.content.release_all(log);
        f.told = {}; // the device answers what was held
        f.read_in_hand = false;
        f.build_in_hand = 0;
        f.state = new_state(f.number);
    }

    static void add(agent_counters& to, const agent_counters& c) {
        to.digests += c.digests;
        to.chunks_compared += c.chunks_compared;
        to.chunks_different += c.chunks_different;
        to.chunks_repaired += c.chunks_repaired;
        to.memory_shipped += c.memory_shipped;
        to.content_bytes += c.content_bytes;
        to.final_round_ns = std::max(to.final_round_ns, c.final_round_ns);
    }

    // ---- requests

    // Where a payload lies in this process.
    guest_memory memory_of(const worker::request_view& request, std::uint32_t index) const {
        const kagemusha_payload& payload = request.payloads[index];
        guest_memory out;
        for (const kagemusha_segment& s :
             request.segments.subspan(payload.first_segment, payload.segment_count)) {
            assert(s.region < regions.size() && s.offset + s.bytes <= regions[s.region].bytes);
            const std::span<const std::byte> piece(regions[s.region].base + s.offset, s.bytes);
            if (!out.empty() && out.back().data() + out.back().size() == piece.data()) {
                out.back() = {out.back().data(), out.back().size() + piece.size()};
            } else {
                out.push_back(piece);
            }
        }
        return out;
    }

    static byte_pieces copied(const guest_memory& memory) {
        auto copy = std::make_shared<std::vector<std::byte>>();
        std::size_t bytes = 0;
        for (const auto& piece : memory) {
            bytes += piece.size();
        }
        copy->reserve(bytes);
        for (const auto& piece : memory) {
            copy->insert(copy->end(), piece.begin(), piece.end());
        }
        return {{std::span<const std::byte>(*copy)}, copy};
    }

    // Pieces of guest memory; little of it is copied at once, so that nobody has to wait for it.
    byte_pieces content_of(file& f, const worker::request_view& request, std::uint32_t index,
                           bool may_come_late) {
        guest_memory memory = memory_of(request, index);
        if (may_come_late && f.late.is_read_into(memory)) {
            return {std::move(memory), nullptr, index};
        }
        return request.payloads[index].bytes <= copy_content_bytes ? copied(memory)
                                                                   : byte_pieces{std::move(memory), nullptr};
    }

    void submit(file& f, const worker::request_view& request, core::launch_runs repeats,
                const core::object_table& objects) {
        entries.clear();
        payloads_read.clear();
        // A read that waits for a user event may wait for ever, and a checkpoint, which needs the content,
        // with it. The next digest finds what is old then.
        const bool may_come_late = f.mode == mirror_mode::on && objects.unset_user_events() == 0;
        const struct { // one reference, for which a std::function needs no memory
            impl& self;
            file& f;
            const worker::request_view& request;
            bool may_come_late;
        } in_hand{*this, f, request, may_come_late};
        f.state->make_over(
            request, f.mode,
            [&in_hand](std::uint32_t index) {
                return in_hand.self.content_of(in_hand.f, in_hand.request, index, in_hand.may_come_late);
            },
            entries, {true, repeats},
            [&in_hand](std::uint32_t index) {
                in_hand.f.late.reads_into(in_hand.request.token,
                                          in_hand.self.memory_of(in_hand.request, index));
                in_hand.self.payloads_read.push_back(index);
            });
        bool in_guest = false;
        for (log_entry& entry : entries) {
            const bool is_late = (entry.meta.flags & entry_late_content) != 0;
            const bool in_guest_memory = entry.content_in_guest && !is_late;
            const bool is_call = (entry.meta.flags & entry_awaits_outcome) != 0;
            if ((entry.meta.flags & entry_may_fail) != 0) { // what a compiler does
                f.build_in_hand = request.token;
            }
            std::vector<byte_pieces> late;
            if (is_late) {
                late = std::exchange(entry.content, {});
                entry.content_in_guest = false;
            }
            memory_ranges used;
            if (in_guest_memory) {
                for (const byte_pieces& c : entry.content) {
                    if (!c.keep) {
                        used.add(c.pieces);
                    }
                }
            }
            log_sequence sequence = 0;
            if (!entry.packed.empty()) {
                entry.meta.file = f.number;
                last = sequence = log.append_packed(entry.meta, entry.packed);
            } else {
                sequence = append(f.number, std::move(entry));
            }
            for (std::uint32_t i = 0; i < late.size(); ++i) {
                if (late[i].to_come) {
                    f.late.add(
                        {request.token, *late[i].to_come, sequence, i, std::move(late[i].pieces), {}, 0, {}});
                } else if (!late[i].pieces.empty()) {
                    log.late_content(sequence, i, late[i].keep ? late[i] : copied(late[i].pieces));
                }
            }
            if (is_call) {
                f.calls[request.token] = sequence;
            }
            if (in_guest_memory) {
                f.content.add(request.token, sequence, std::move(used));
                in_guest = true;
            }
        }
        if (in_guest || !f.content.empty()) {
            f.content.note_events(request.stream);
        }
        bool is_free = true;
        for (std::size_t i = 0; i < payloads_read.size() && !f.content.empty(); ++i) {
            is_free &= f.content.on_overwrite(memory_of(request, payloads_read[i]), log);
        }
        if (!is_free) {
            device.hold_requests(f.number);
        }
        if (!f.late.empty()) {
            f.late.note_events(request.token, request.stream, request.payloads,
                               [&](guest_id queue) { return f.state->queue_is_in_order(queue); });
        }
        if (f.state->failure()) {
            note_failure(f.state->failure());
        }
    }

    void give(const late_writes::write& w) { log.late_content(w.entry, w.payload, copied(w.from)); }

    // ---- state transfer

    void start_sync(bool with_built) {
        assert(mode == mirror_mode::off);
        set_mode(mirror_mode::syncing);
        built.start(with_built);
        append(0, entry_kind::reset);
        for (auto& [number, f] : files) {
            open(f);
            built.take_everything(number);
        }
        settle(nullptr);
    }

    // The file as it is now, for a standby that has nothing of it.
    void open(file& f) {
        append(f.number, entry_kind::open_file);
        f.mode = mirror_mode::on;
        if (f.lost) {
            append(f.number, entry_kind::lose_file);
            return;
        }
        const core::object_table* objects = device.objects(f.number);
        if (!objects) {
            return;
        }
        if (f.state->failure()) {
            note_failure(f.state->failure());
            return;
        }
        std::vector<recreated_call> calls;
        entries.clear();
        f.state->recreate(*objects, entries, calls);
        auto call = calls.begin();
        for (std::size_t i = 0; i < entries.size(); ++i) {
            const log_sequence sequence = append(f.number, std::move(entries[i]));
            if (call == calls.end() || call->entry != i) {
                continue;
            }
            if (call->pending) {
                f.calls[call->token] = sequence;
            } else {
                log.outcome(sequence, call->result);
            }
            ++call;
        }
        entries.clear();
        bool has_memory = f.state->memory_is_pending();
        f.state->for_each_memory([&](memory_info& m) {
            m.dirty_for_sync = m.dirty_for_digest = true;
            has_memory = true;
        });
        if (!has_memory) {
            return;
        }
        f.mode = mirror_mode::syncing;
        if (make_agent(f)) {
            f.agent->start_sync();
        }
    }

    void finish_if_ready(file& f) {
        if (f.mode != mirror_mode::syncing || f.state->memory_is_pending() || !failure.empty()) {
            return;
        }
        if (f.agent) {
            if (f.agent->ready_to_finish()) {
                f.agent->finish_sync();
                f.mode = mirror_mode::on;
            }
            return;
        }
        bool dirty = false;
        f.state->for_each_memory([&](memory_info& m) { dirty |= m.dirty_for_sync; });
        if (dirty) {
            note_failure(no_agent);
        } else {
            f.mode = mirror_mode::on;
        }
    }

    // ---- digests

    void take_digests() {
        if (mode != mirror_mode::on) {
            return;
        }
        for (auto& [number, f] : files) {
            if (!f.digest_due || f.lost || !make_agent(f)) {
                continue;
            }
            if (f.agent->take_digest(f.digest_everything)) {
                f.digest_due = f.digest_everything = false;
            }
        }
    }

    // After a call that succeeded: it may have made a context.
    void prepare(file& f) {
        if (mode != mirror_mode::on || f.mode != mirror_mode::on ||
            (options.digest_interval_ms == 0 && !options.ship && options.ship_kernels.empty())) {
            return;
        }
        const std::size_t contexts = f.state->contexts().size();
        if (contexts > f.contexts && make_agent(f)) {
            f.agent->prepare();
            set_tick();
        }
        f.contexts = contexts;
    }

    void digests_are_due(bool everything) {
        for (auto& [number, f] : files) {
            f.digest_due = true;
            f.digest_everything |= everything;
        }
        take_digests();
    }
};

mirror_primary::mirror_primary(core::mirror_port& device, log_sink& log, agent_factory agents,
                               const std::vector<region_address>& regions,
                               const mirror_primary_options& options)
    : impl_(std::make_unique<impl>(device, log, std::move(agents), regions, options)) {}
mirror_primary::~mirror_primary() = default;

void mirror_primary::start_sync(bool built) {
    impl_->start_sync(built);
}

void mirror_primary::stop() {
    if (impl_->mode != mirror_mode::off) {
        impl_->turn_off();
    }
}

void mirror_primary::on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) {
    const auto at = impl_->file_of_comparison.find(entry);
    if (at == impl_->file_of_comparison.end()) {
        return; // its file was closed, or a peer that invents entries
    }
    impl::file* f = impl_->find(at->second);
    impl_->file_of_comparison.erase(at);
    if (f && f->agent) {
        f->agent->on_digest_result(entry, different);
        impl_->settle(f);
    }
}

void mirror_primary::on_content_released(log_sequence entry) {
    for (auto& [number, f] : impl_->files) {
        const content_in_use::released r = f.content.on_released(entry);
        if (r.answer && f.told.on_done(r.token)) {
            impl_->device.release_answer(number, r.token);
        }
        impl_->release(f, f.told.take_released());
        if (r.records && !f.told.holds_records()) {
            impl_->device.release_records(number);
        }
        if (r.requests) {
            impl_->device.release_requests(number);
        }
        if (r.found) {
            return;
        }
    }
}

void mirror_primary::request_digest(bool everything) {
    impl_->digests_are_due(everything);
    impl_->settle(nullptr);
    impl_->set_tick();
}

bool mirror_primary::guest_knows_nothing_of(std::uint32_t number, core::log_range entries) const {
    const impl::file* f = impl_->find(number);
    return f && f->told.knows_nothing_of(entries);
}

mirror_mode mirror_primary::mode() const {
    return impl_->mode;
}

std::string mirror_primary::waiting() const {
    for (const auto& [number, f] : impl_->files) {
        if (std::string why = f.agent ? f.agent->waiting() : std::string(); !why.empty()) {
            return why;
        }
    }
    return {};
}

agent_counters mirror_primary::counters() const {
    agent_counters sum = impl_->of_closed_files;
    for (const auto& [number, f] : impl_->files) {
        if (f.agent) {
            impl::add(sum, f.agent->counters());
        }
    }
    return sum;
}

std::vector<std::string> mirror_primary::take_notes() {
    return std::exchange(impl_->notes, {});
}

std::uint64_t mirror_primary::catalog_bytes() const {
    return impl_->budget.used;
}

void mirror_primary::on_open(std::uint32_t number) {
    impl::file& f = impl_->files.try_emplace(number, *impl_, number).first->second;
    if (impl_->mode != mirror_mode::off) {
        // Nothing of it has to be transferred, so it is mirrored at once, also while others are synced.
        impl_->append(number, entry_kind::open_file);
        f.mode = mirror_mode::on;
    }
}

void mirror_primary::on_close(std::uint32_t number) {
    impl::file* f = impl_->find(number);
    assert(f);
    impl_->end_work(*f);
    impl_->files.erase(number);
    if (impl_->mode != mirror_mode::off) {
        impl_->append(number, entry_kind::close_file);
    }
    impl_->settle(nullptr);
}

void mirror_primary::on_lost(std::uint32_t number) {
    impl::file* f = impl_->find(number);
    assert(f);
    impl_->end_work(*f);
    f->lost = true;
    if (impl_->mode != mirror_mode::off) {
        impl_->append(number, entry_kind::lose_file);
        f->mode = mirror_mode::on;
    }
    impl_->settle(nullptr);
}

void mirror_primary::on_reset() {
    for (auto& [number, f] : impl_->files) {
        impl_->end_work(f);
    }
    impl_->files.clear();
    impl_->file_of_comparison.clear();
    if (impl_->mode != mirror_mode::off) {
        impl_->append(0, entry_kind::reset);
    }
    impl_->settle(nullptr);
}

core::log_range mirror_primary::on_submit(std::uint32_t number, const worker::request_view& request,
                                          core::launch_runs repeats, const core::object_table& objects) {
    impl::file* f = impl_->find(number);
    assert(f);
    if (f->agent) {
        f->agent->before_submit();
    }
    const log_sequence after = impl_->last;
    impl_->submit(*f, request, repeats, objects);
    const core::log_range entries =
        f->mode == mirror_mode::off ? core::log_range{} : core::log_range{after, impl_->last};
    // An unset user event may hold anything up until the guest, which may wait for an answer, sets it.
    if (f->mode == mirror_mode::on && objects.unset_user_events() == 0) {
        const bool ships = f->agent && f->agent->ships();
        f->told.submitted(request.token, entries, ships);
        f->read_in_hand = ships && impl::reads(request);
    }
    return entries;
}

void mirror_primary::on_forwarded(std::uint32_t number) {
    if (impl_->mode == mirror_mode::off) {
        return;
    }
    impl::file* f = impl_->find(number);
    if (const std::uint64_t token = std::exchange(f->build_in_hand, 0)) {
        impl_->built.on_build(number, token);
    }
    if (f->agent && f->mode == mirror_mode::on) {
        if (std::exchange(f->read_in_hand, false)) {
            f->agent->after_read();
        }
        f->agent->after_submit();
        if (impl_->tick_wanted_ms != busy_tick_ms && !f->agent->idle()) {
            impl_->set_tick();
        }
    }
    if (impl_->mode == mirror_mode::syncing || !impl_->failure.empty()) {
        impl_->settle(f);
    }
    impl_->log.tell();
}

bool mirror_primary::on_done(std::uint32_t number, std::uint64_t token, const vgpu_response& response) {
    impl::file* f = impl_->find(number);
    assert(f);
    const std::int32_t result =
        response.status == VGPU_STATUS_OK ? response.result : codec::cl_out_of_host_memory;
    f->state->on_done(token, result);
    if (!f->calls.empty()) {
        if (const auto call = f->calls.extract(token)) {
            if (!impl_->built.hold_outcome(number, token, call.mapped(), result)) {
                impl_->log.outcome(call.mapped(), result);
            }
            if (result == 0) {
                impl_->prepare(*f);
            }
        }
    }
    f->late.on_done(token, [this](const late_writes::write& w) { impl_->give(w); });
    const bool answer =
        (f->content.empty() || f->content.on_done(token, impl_->log)) && f->told.on_done(token);
    impl_->release(*f, f->told.take_released());
    if (impl_->mode == mirror_mode::syncing) {
        impl_->settle(f);
    }
    return answer;
}

bool mirror_primary::on_completion(std::uint32_t number, guest_id event, bool failed) {
    impl::file* f = impl_->find(number);
    assert(f);
    f->state->on_completion(event, failed);
    f->late.on_completion(event, [this](const late_writes::write& w) { impl_->give(w); });
    const bool in_turn = f->told.on_completion();
    return (f->content.empty() || f->content.on_completion(event, impl_->log)) && in_turn;
}

void mirror_primary::on_agent_done(std::uint32_t number, std::uint64_t token, const vgpu_response& response) {
    if (impl_->built.on_done(number, token, response)) {
        return;
    }
    if (impl::file* f = impl_->find(number); f && f->agent) {
        f->agent->on_done(token, response);
        impl_->settle(f);
    }
}

void mirror_primary::on_agent_record(std::uint32_t number, std::span<const std::byte> record) {
    if (impl::file* f = impl_->find(number); f && f->agent) {
        f->agent->on_record(record);
        impl_->settle(f);
    }
}

void mirror_primary::on_tick(std::uint64_t now_ms) {
    if (impl_->mode == mirror_mode::on) {
        const std::uint32_t interval_ms = impl_->options.digest_interval_ms;
        if (interval_ms != 0 && now_ms - impl_->last_digest_ms >= interval_ms) {
            impl_->last_digest_ms = now_ms;
            impl_->digests_are_due(false);
        } else {
            impl_->take_digests(); // what could not be taken when it was asked for
        }
    }
    for (auto& [n, f] : impl_->files) {
        if (f.agent) {
            f.agent->on_tick();
        }
    }
    impl_->lose_who_waits_too_long(now_ms);
    impl_->settle(nullptr);
    impl_->set_tick();
}

} // namespace kagemusha::mirror
