// SPDX-License-Identifier: GPL-2.0-or-later
// sync_agent: the public face and what goes on when; agent_impl.hpp has the map of the other files.
#include "mirror/sync/sync_agent.hpp"

#include <algorithm>
#include <cstring>

#include "mirror/sync/agent_impl.hpp"

namespace kagemusha::mirror {

namespace {

// Several pieces must fit into the memory at once, whatever was configured.
agent_options fitting(agent_options o, const agent_memory& memory) {
    const std::uint64_t quarter = std::max<std::uint64_t>(memory.capacity() / 4 / 8 * 8, 4096);
    o.content_chunk_bytes = std::clamp<std::uint64_t>(o.content_chunk_bytes / 8 * 8, 8, quarter);
    o.digest_chunk_bytes = std::clamp<std::uint64_t>(o.digest_chunk_bytes / 8 * 8, 8, o.content_chunk_bytes);
    o.max_reads_in_flight = std::max<std::uint32_t>(o.max_reads_in_flight, 1);
    o.differences_before_shipping = std::max<std::uint32_t>(o.differences_before_shipping, 1);
    return o;
}

} // namespace

sync_agent::impl::impl(std::uint32_t f, session_shadow& s, core::mirror_port& d, log_sink& l, agent_memory& m,
                       const agent_options& o)
    : file(f)
    , state(s)
    , device(d)
    , log(l)
    , memory(m)
    , options(fitting(o, m))
    , requests(f, d, o.now_ns, o.first_id) {}

sync_agent::sync_agent(std::uint32_t file, session_shadow& state, core::mirror_port& device, log_sink& log,
                       agent_memory& memory, const agent_options& options)
    : impl_(std::make_unique<impl>(file, state, device, log, memory, options)) {}

sync_agent::~sync_agent() = default;

// ---- contexts

agent_context* sync_agent::impl::context(std::uint64_t serial) {
    for (const auto& c : contexts)
        if (c->serial == serial)
            return c.get();
    return nullptr;
}

bool sync_agent::impl::lives(const agent_context& c) const {
    const core::object_table* table = device.objects(file);
    const core::object* o = table ? table->find(c.id, VGPU_OBJECT_CONTEXT) : nullptr;
    return o && o->serial == c.serial;
}

// For what the log is to be told now: the guest may have destroyed the context, and the log knows it.
agent_context* sync_agent::impl::live_context(std::uint64_t serial) {
    agent_context* c = context(serial);
    return c && lives(*c) ? c : nullptr;
}

const core::object* sync_agent::impl::object(guest_id id) const {
    const core::object_table* table = device.objects(file);
    return table ? table->find(id, VGPU_OBJECT_MEMORY) : nullptr;
}

bool sync_agent::impl::same_object(const piece& p) const {
    const core::object* o = object(p.memory);
    return o && o->serial == p.serial;
}

bool sync_agent::impl::user_events_unset() const {
    const core::object_table* table = device.objects(file);
    return table && table->unset_user_events() != 0;
}

// A call that makes an object on the primary; its answer is waited for.
void sync_agent::impl::call(agent_context& c, codec::stream_builder& stream, vgpu_object_kind kind,
                            guest_id id, const step_ptr& by) {
    c.made.emplace_back(kind, id);
    requests.inject(stream, by);
}

// The same on the standby, after it succeeded here. `id` 0: it makes nothing.
void sync_agent::impl::log_call(agent_context& c, vgpu_object_kind kind, guest_id id,
                                const std::function<void(codec::stream_builder&)>& fill) {
    agent_entry entry(file);
    fill(entry.stream);
    append(entry);
    if (id != 0)
        c.logged.emplace_back(kind, id);
}

// In order. With CUDA it does not wait for the legacy stream, nor that for it: the agent orders both itself.
void sync_agent::impl::append_queue(codec::stream_builder& stream, const agent_context& c) const {
    stream.create_queue(c.queue, c.id, options.cuda ? VGPU_QUEUE_NON_BLOCKING : 0);
}

// The agent's queue in every context that lives.
void sync_agent::impl::ensure_contexts() {
    const core::object_table* table = device.objects(file);
    if (!table)
        return;
    for (const guest_id id : state.contexts()) {
        const core::object* o = table->find(id, VGPU_OBJECT_CONTEXT);
        if (!o || context(o->serial))
            continue;
        contexts.push_back(std::make_unique<agent_context>());
        agent_context& c = *contexts.back();
        c.id = id;
        c.serial = o->serial;
        c.queue = requests.new_id();
        const step_ptr made = requests.wait([this, serial = c.serial](agent_step& w) {
            agent_context* at = live_context(serial);
            if (!at)
                return;
            at->failed = w.error() != 0;
            at->ready = !at->failed;
            if (at->ready)
                log_call(*at, VGPU_OBJECT_QUEUE, at->queue,
                         [&](codec::stream_builder& s) { append_queue(s, *at); });
            else
                fail("a command queue of the replication could not be made in the guest's context (OpenCL "
                     "error " +
                     std::to_string(w.error()) + ")");
        });
        codec::stream_builder stream;
        append_queue(stream, c);
        call(c, stream, VGPU_OBJECT_QUEUE, c.queue, made);
        requests.arm(made);
    }
}

void sync_agent::impl::destroy_objects(agent_context& c, bool in_log) {
    codec::stream_builder stream;
    for (auto at = c.made.rbegin(); at != c.made.rend(); ++at)
        stream.destroy(at->first, at->second);
    const step_ptr ended = requests.wait();
    requests.inject(stream, ended);
    requests.arm(ended);
    if (in_log && !c.logged.empty()) {
        agent_entry entry(file);
        for (auto at = c.logged.rbegin(); at != c.logged.rend(); ++at)
            entry.stream.destroy(at->first, at->second);
        append(entry);
    }
}

// The guest destroyed a context: what the agent has in it must not keep it alive.
void sync_agent::impl::drop_dead_contexts() {
    std::erase_if(contexts, [&](const std::unique_ptr<agent_context>& c) {
        if (lives(*c))
            return false;
        destroy_objects(*c, true);
        return true;
    });
}

bool sync_agent::impl::all_contexts_ready() const {
    return std::all_of(contexts.begin(), contexts.end(), [](const auto& c) { return c->ready; });
}

// ---- what goes on

void sync_agent::impl::fail(const std::string& why) {
    if (phase == sync_phase::off)
        return;
    phase = sync_phase::off; // the sink may call stop() from inside, or later
    log.failed(why);
}

// A file that had no content when the standby came.
void sync_agent::impl::begin_without_sync() {
    if (phase == sync_phase::off) {
        phase = sync_phase::on;
        seen_queues = state.queues_created();
    }
}

void sync_agent::impl::forget_everything() {
    contexts.clear();
    for (const hold_ptr& h : holds)
        h->then.clear(); // they name the hold
    holds.clear();
    reads.clear();
    reads_in_flight = 0;
    backlog.clear();
    digests.clear();
    digest_running = false;
    repairs.clear();
    repairs_in_flight = 0;
    differed.clear();
    shipped.clear();
    ships_in_flight = 0;
    out_of_memory = false;
    phase = sync_phase::off;
}

void sync_agent::impl::lost() {
    requests.clear();
    forget_everything();
}

void sync_agent::impl::pump() {
    if (phase == sync_phase::off)
        return;
    if (requests.worker_gone())
        return lost(); // the device tells the file's loss itself
    drop_dead_contexts();
    if (phase == sync_phase::preparing)
        begin_round();
    else if (phase == sync_phase::ready)
        ensure_contexts();
    if (phase == sync_phase::reading)
        drop_futile_round();
    if (phase == sync_phase::reading || phase == sync_phase::finishing || !reads.empty())
        pump_reads();
    if (phase == sync_phase::reading && reads.empty() && reads_in_flight == 0)
        end_round();
    if (phase == sync_phase::on) {
        if (prepare_contexts)
            prepare_digests();
        if (digest_running && digests.empty())
            next_digest_part();
        pump_repairs();
        ship();
    }
}

// ---- the public face

void sync_agent::start_sync() {
    impl& self = *impl_;
    if (self.phase != sync_phase::off)
        stop();
    self.phase = sync_phase::preparing;
    self.rounds = self.futile_rounds = 0;
    self.seen_queues = self.state.queues_created();
    self.state.for_each_memory([](memory_info& m) { m.dirty_for_sync = true; });
    self.pump();
}

bool sync_agent::ready_to_finish() const {
    impl& self = *impl_;
    return self.phase == sync_phase::ready && !self.user_events_unset() && self.all_contexts_ready() &&
           !self.shadows_pending() && !self.dirty_out_of_reach();
}

void sync_agent::finish_sync() {
    impl& self = *impl_;
    if (self.phase != sync_phase::ready)
        return;
    self.phase = sync_phase::finishing;
    auto order = std::make_shared<ordered_transfer>();
    order->final = true;
    if (!self.start_ordered(self.take_dirty(), order))
        return self.fail(
            "a standby gets a CUDA program's memory through a copy of it on the GPU, which has no room "
            "for one: free some of its memory");
    self.pump();
}

void sync_agent::stop() {
    impl& self = *impl_;
    self.requests.forget();
    for (const hold_ptr& h : self.holds)
        self.release(*h);
    // Behind what was released, so that nothing of it is destroyed before it was used.
    for (const auto& c : self.contexts)
        self.destroy_objects(*c, false);
    self.forget_everything();
}

void sync_agent::prepare() {
    impl& self = *impl_;
    self.begin_without_sync();
    self.prepare_contexts = true;
    if (self.phase == sync_phase::on)
        self.ensure_contexts();
    self.pump();
}

bool sync_agent::take_digest(bool everything) {
    impl& self = *impl_;
    self.begin_without_sync();
    if (self.phase != sync_phase::on || self.digest_running || self.user_events_unset())
        return false;
    self.drop_dead_contexts();
    self.ensure_contexts();
    if (!self.prepare_digests())
        return false;
    self.backlog.clear();
    self.state.for_each_memory([&](memory_info& m) {
        if (m.unconfirmed || !(everything || m.dirty_for_digest || m.repaired))
            return;
        if (const core::object* o = self.object(m.id))
            self.backlog.push_back({m.id, o->serial});
    });
    self.digest_running = true;
    if (!self.next_digest_part()) {
        self.digest_running = false;
        self.backlog.clear();
        return false;
    }
    return true;
}

void sync_agent::before_submit() {
    if (impl_->phase != sync_phase::off && impl_->seen_queues != impl_->state.queues_created())
        impl_->order_new_queues();
}

void sync_agent::after_submit() {
    if (impl_->phase == sync_phase::on && !impl_->shipped.empty())
        impl_->ship();
}

void sync_agent::after_read() {
    if (impl_->phase == sync_phase::on && ships()) {
        impl_->ship_all();
        impl_->pump();
    }
}

bool sync_agent::ships() const {
    return impl_->options.ship || !impl_->shipped.empty() || impl_->state.launched_named();
}

void sync_agent::on_done(std::uint64_t token, const vgpu_response& response) {
    impl_->requests.on_done(token, response);
    impl_->pump();
}

void sync_agent::on_record(std::span<const std::byte> record) {
    vgpu_record header;
    if (record.size() < sizeof(header))
        return;
    std::memcpy(&header, record.data(), sizeof(header));
    if (header.type == VGPU_RECORD_COMPLETION && record.size() >= sizeof(vgpu_record_completion)) {
        vgpu_record_completion completion;
        std::memcpy(&completion, record.data(), sizeof(completion));
        impl_->requests.on_completion(completion.event, completion.status);
    } // every command of the agent has an event, so nothing else tells it anything
    impl_->pump();
}

void sync_agent::on_lost() {
    impl_->lost();
}

void sync_agent::on_tick() {
    impl& self = *impl_;
    self.out_of_memory = false;
    // Looking takes time where there are many objects.
    constexpr std::uint32_t ticks_per_look = 16;
    if (self.phase == sync_phase::ready && self.rounds < self.options.max_sync_rounds &&
        ++self.ticks % ticks_per_look == 0 && self.dirty_bytes() > self.options.final_round_bytes)
        self.begin_round();
    self.pump();
}

bool sync_agent::waits_for_guest() const {
    const impl& self = *impl_;
    return (self.phase == sync_phase::ready || self.phase == sync_phase::marking) && self.user_events_unset();
}

std::string sync_agent::waiting() const {
    const impl& self = *impl_;
    if (self.phase == sync_phase::off)
        return {};
    if (waits_for_guest() || (self.user_events_unset() && !self.repairs.empty()))
        return "a user event of the guest is not set";
    if (self.out_of_memory)
        return "memory for content is full: the link is slower than what is to be sent";
    return {};
}

bool sync_agent::idle() const {
    const impl& self = *impl_;
    return self.requests.idle() && self.reads.empty() && !self.digest_running && self.repairs.empty();
}

const agent_counters& sync_agent::counters() const {
    return impl_->counters;
}

} // namespace kagemusha::mirror
