// SPDX-License-Identifier: GPL-2.0-or-later
// agent_digest: comparing what both sides hold, and what follows from a difference.
//
// A digest goes over its memory objects in parts, each at a point of the order of its own: a part is bounded
// by the memory that its results need. A mark "written since the last digest" is cleared at the point that
// the object is compared at, so what is written later is compared next time.
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/cl_numbers.hpp"
#include "mirror/sync/agent_impl.hpp"

namespace kagemusha::mirror {

namespace {

// What every device of OpenCL allows. With CUDA the most: programs have their memory in pieces of some MiB, whose
// few chunks must keep a GPU's memory busy.
constexpr std::uint64_t opencl_local_size = 64;
static_assert(opencl_local_size <= digest_max_local_size);

// What a new kernel is tried with: more than one chunk, the last one short and no multiple of 8.
constexpr std::uint64_t trial_bytes = 1003, trial_chunk_bytes = 256, trial_chunks = 4;
constexpr std::uint64_t trial_result_index = 1024;
static_assert((trial_result_index + trial_chunks) <= max_hashes_per_entry);
static_assert(trial_bytes <= trial_result_index * 8 && trial_bytes <= VGPU_MAX_INLINE_PAYLOAD_BYTES);

std::array<std::byte, trial_bytes> trial_data() {
    std::array<std::byte, trial_bytes> data;
    for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<std::byte>(i * 37 + i / 7);
    return data;
}

void append_launch(codec::stream_builder& stream, const codec::enqueue_ref& e, const agent_context& c,
                   guest_id memory, std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint64_t chunks,
                   std::uint64_t first, bool cuda) {
    const std::uint64_t local_size = cuda ? digest_max_local_size : opencl_local_size;
    codec::launch_size size;
    size.global[0] = chunks * local_size;
    size.local[0] = local_size;
    size.local[1] = size.local[2] = 1;
    stream.launch(e, c.kernel, size,
                  codec::argument_builder()
                      .memory(0, memory)
                      .scalar(1, bytes)
                      .scalar(2, chunk_bytes)
                      .memory(3, c.hashes)
                      .scalar(4, first));
}

constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
    return a / b + (a % b != 0);
}

std::uint64_t place_of(const piece& p) {
    return p.image ? p.origin.side[2] << 32 | p.origin.side[1] : p.offset;
}

} // namespace

// ---- the kernel

bool sync_agent::impl::prepare_digests() {
    bool prepared = true;
    for (const auto& c : contexts) {
        if (c->ready && c->way == digest_way::unprepared)
            prepare_digests(*c);
        prepared = prepared && c->ready && (c->way == digest_way::kernel || c->way == digest_way::host);
    }
    return prepared;
}

void sync_agent::impl::append_digest_program(codec::stream_builder& stream, const agent_context& c) const {
    const std::string_view text = options.cuda ? digest_kernel_ptx() : digest_kernel_source();
    stream
        .create_program(c.program, c.id, options.cuda ? VGPU_PROGRAM_BINARY : VGPU_PROGRAM_SOURCE,
                        {text.size(), VGPU_PAYLOAD_INLINE, 0})
        .text(text);
}

// The context's kernel, tried on known bytes: a GPU that does not run it (or wrongly) has its content read
// and hashed on the host instead.
void sync_agent::impl::prepare_digests(agent_context& c) {
    const auto hashing = std::count_if(contexts.begin(), contexts.end(), [](const auto& other) {
        return other->way == digest_way::preparing || other->way == digest_way::kernel;
    });
    if (hashing >= max_hashing_contexts) {
        c.way = digest_way::host; // a standby has no memory for more (max_agent_bytes_per_file)
        return;
    }
    agent_memory::block block;
    if (!memory.allocate(trial_chunks * 8, block)) {
        out_of_memory = true;
        return;
    }
    std::memset(block.bytes.data(), 0, block.bytes.size());
    c.way = digest_way::preparing;
    c.program = requests.new_id();
    c.kernel = requests.new_id();
    c.hashes = requests.new_id();
    const step_ptr made = requests.wait(
        [this, serial = c.serial, block](agent_step& w) { digests_prepared(serial, block, w); });
    made->keep.push_back(block.keep);
    codec::stream_builder stream;
    append_digest_program(stream, c);
    call(c, stream, VGPU_OBJECT_PROGRAM, c.program, made);
    stream.build_program(c.program);
    requests.inject(stream, made);
    stream.create_kernel(c.kernel, c.program, digest_kernel_name);
    call(c, stream, VGPU_OBJECT_KERNEL, c.kernel, made);
    stream.create_buffer(c.hashes, c.id, max_hashes_per_entry * 8);
    call(c, stream, VGPU_OBJECT_MEMORY, c.hashes, made);

    const auto data = trial_data();
    const std::array<guest_id, 3> events{requests.event(made), requests.event(made), requests.event(made)};
    stream.write_buffer({c.queue, events[0]}, c.hashes, 0, data);
    append_launch(stream, {c.queue, events[1]}, c, c.hashes, trial_bytes, trial_chunk_bytes, trial_chunks,
                  trial_result_index, options.cuda);
    kagemusha_segment segment = block.segment;
    segment.bytes = trial_chunks * 8;
    stream.read_buffer({c.queue, events[2]}, c.hashes, trial_result_index * 8,
                       stream.payload(true, {segment}));
    for (const guest_id event : events)
        stream.destroy(VGPU_OBJECT_EVENT, event);
    requests.inject(stream, made);
    requests.arm(made);
}

void sync_agent::impl::digests_prepared(std::uint64_t serial, const agent_memory::block& block,
                                        const agent_step& w) {
    agent_context* c = live_context(serial);
    if (!c)
        return;
    c->way = digest_way::host;
    if (w.error() != 0)
        return;
    const auto data = trial_data();
    for (std::uint64_t i = 0; i < trial_chunks; ++i) {
        std::uint64_t hash;
        std::memcpy(&hash, block.bytes.data() + i * 8, sizeof(hash));
        const std::uint64_t at = i * trial_chunk_bytes;
        if (hash != chunk_hash(std::span(data).subspan(at, std::min(trial_chunk_bytes, trial_bytes - at))))
            return;
    }
    c->way = digest_way::kernel;
    log_call(*c, VGPU_OBJECT_PROGRAM, c->program,
             [&](codec::stream_builder& s) { append_digest_program(s, *c); });
    log_call(*c, VGPU_OBJECT_PROGRAM, 0, [&](codec::stream_builder& s) { s.build_program(c->program); });
    log_call(*c, VGPU_OBJECT_KERNEL, c->kernel,
             [&](codec::stream_builder& s) { s.create_kernel(c->kernel, c->program, digest_kernel_name); });
    log_call(*c, VGPU_OBJECT_MEMORY, c->hashes,
             [&](codec::stream_builder& s) { s.create_buffer(c->hashes, c->id, max_hashes_per_entry * 8); });
}

// ---- one part of a digest

namespace {

// The marks are of what comes after this point of the order.
void compare_from_here(compare_item& item, memory_info& m) {
    item.written = m.dirty_for_digest;
    m.dirty_for_digest = m.repaired = false;
}

} // namespace

// The entry of this context and kind that has room, or a new one; null: no more in this part.
sync_agent::impl::open_digest_entry* sync_agent::impl::digest_entry_with_room(digest_part& part,
                                                                              agent_context& c, bool host,
                                                                              std::uint64_t hashes,
                                                                              std::uint64_t bytes) {
    for (open_digest_entry& e : part) {
        const std::uint64_t used = e.entry.used_bytes;
        const bool room = host ? e.entry.targets.size() < max_units_per_request &&
                                     used + bytes <= e.entry.block.bytes.size()
                               : e.entry.targets.size() < max_targets_per_entry &&
                                     e.entry.hashes + hashes <= max_hashes_per_entry;
        if (e.context == &c && e.host == host && room)
            return &e;
    }
    if (part.size() >= max_entries_per_digest_part)
        return nullptr;
    open_digest_entry fresh{&c, host, {}};
    const std::uint64_t wanted =
        host ? std::max(options.content_chunk_bytes, bytes) : max_hashes_per_entry * 8;
    if (!memory.allocate(wanted, fresh.entry.block)) {
        out_of_memory = true;
        return nullptr;
    }
    fresh.entry.context_serial = c.serial;
    part.push_back(std::move(fresh));
    return &part.back();
}

// All of the memory at once: its GPU makes the hashes. False: the part has no room for it.
bool sync_agent::impl::add_hashed_by_kernel(digest_part& part, compare_item& item, memory_info& m,
                                            agent_context& c) {
    digest_target target;
    target.whole = {m.id, item.serial, c.id, false, m.bytes, 0, {}, {}, 0, 0};
    target.chunk_bytes =
        std::max(options.digest_chunk_bytes, rounded_up(divide_up(m.bytes, max_hashes_per_entry)));
    target.chunks = divide_up(m.bytes, target.chunk_bytes);
    open_digest_entry* e = digest_entry_with_room(part, c, false, target.chunks, 0);
    if (!e)
        return false;
    compare_from_here(item, m);
    target.written = item.written;
    target.first = e->entry.hashes;
    e->entry.hashes += target.chunks;
    e->entry.targets.push_back(target);
    return true;
}

// Piece by piece: the content is read and hashed here. False: the part has no room for the rest.
bool sync_agent::impl::add_hashed_by_host(digest_part& part, compare_item& item, memory_info& m,
                                          agent_context& c) {
    std::vector<piece> pieces;
    append_pieces(m, item.serial, options.digest_chunk_bytes, pieces);
    while (item.next_piece < pieces.size()) {
        const piece& p = pieces[item.next_piece];
        open_digest_entry* e = digest_entry_with_room(part, c, true, 1, rounded_up(p.bytes));
        if (!e)
            return false;
        // What the guest writes between two parts is for the next digest.
        if (item.next_piece == 0)
            compare_from_here(item, m);
        e->entry.targets.push_back({p, 0, e->entry.hashes++, 1, item.written});
        e->entry.used_bytes += rounded_up(p.bytes);
        ++item.next_piece;
    }
    return true;
}

// False: not now; nothing has happened then.
bool sync_agent::impl::next_digest_part() {
    if (!backlog.empty() && user_events_unset())
        return false;
    digest_part part;
    while (!backlog.empty()) {
        compare_item& item = backlog.front();
        memory_info* m = state.find_memory(item.memory);
        const core::object* o = object(item.memory);
        agent_context* c = o ? context_of(*o) : nullptr;
        if (!m || m->id != item.memory || !o || o->serial != item.serial || !c || !c->ready ||
            (c->way != digest_way::kernel && c->way != digest_way::host)) {
            backlog.pop_front(); // destroyed, or of a context that is newer than this digest
            continue;
        }
        const bool host = c->way == digest_way::host || m->bytes == 0;
        if (!(host ? add_hashed_by_host(part, item, *m, *c) : add_hashed_by_kernel(part, item, *m, *c)))
            break;
        backlog.pop_front();
    }
    if (!part.empty()) {
        start_digest_part(part);
        return true;
    }
    if (!backlog.empty())
        return false;
    digest_running = false;
    ++counters.digests;
    std::erase_if(differed, [&](const auto& d) {
        const core::object* o = object(d.second.memory);
        return !o || o->serial != d.first;
    });
    return true;
}

void sync_agent::impl::start_digest_part(digest_part& part) {
    std::vector<agent_context*> list;
    for (const open_digest_entry& e : part)
        if (std::find(list.begin(), list.end(), e.context) == list.end())
            list.push_back(e.context);
    const hold_ptr point = begin_hold(list, false);
    for (agent_context* c : list) {
        log_before(*c);
        for (open_digest_entry& e : part) {
            if (e.context != c)
                continue;
            ++point->uses;
            if (e.host)
                start_host_entry(*c, std::move(e.entry), point);
            else
                start_kernel_entry(*c, std::move(e.entry), point);
        }
        log_after(*c);
    }
    seal(*point);
}

// `read` brings what the hashes are made of: once it has, and the point is known to hold, they go to the log.
void sync_agent::impl::hashes_follow(agent_entry& logged, digest_entry entry, const step_ptr& read,
                                     const hold_ptr& point, bool host) {
    const log_sequence sequence = append(logged);
    read->keep.push_back(entry.block.keep);
    digests.emplace(sequence, std::move(entry));
    read->then = [this, sequence, point, host](agent_step& w) {
        when_marked(point, [this, sequence, host, failed = w.error() != 0](const hold& h) {
            if (failed || h.broken || h.shaky)
                cancel_digest(sequence, h);
            else
                digest_read(sequence, host);
        });
        if (host)
            end_use(point); // a kernel's hashes are read after the guest went on
    };
}

void sync_agent::impl::start_kernel_entry(agent_context& c, digest_entry entry, const hold_ptr& point) {
    agent_entry logged(file, entry_compare);
    codec::stream_builder stream;
    // The guest goes on once the hashes are made; they are read afterwards.
    const step_ptr read = requests.wait();
    const step_ptr launched = requests.wait([this, point, read](agent_step& w) {
        read->event_error = w.error();
        end_use(point);
        requests.arm(read);
    });
    for (const digest_target& t : entry.targets) {
        const piece& p = t.whole;
        const guest_id event = requests.event(launched);
        append_launch(stream, {c.queue, event}, c, p.memory, p.bytes, t.chunk_bytes, t.chunks, t.first,
                      options.cuda);
        append_launch(logged.stream, {c.queue}, c, p.memory, p.bytes, t.chunk_bytes, t.chunks, t.first,
                      options.cuda);
        stream.destroy(VGPU_OBJECT_EVENT, event);
        if (nearly_full(stream))
            requests.inject(stream, launched);
    }
    requests.inject(stream, launched);
    kagemusha_segment segment = entry.block.segment;
    segment.bytes = entry.hashes * 8;
    const guest_id event = requests.event(read);
    stream.read_buffer({c.queue, event}, c.hashes, 0, stream.payload(true, {segment}));
    stream.destroy(VGPU_OBJECT_EVENT, event);
    logged.stream.read_buffer({c.queue}, c.hashes, 0, logged.payload(segment.bytes, true));
    hashes_follow(logged, std::move(entry), read, point, false);
    requests.inject(stream, read);
    requests.arm(launched); // which arms `read`
}

void sync_agent::impl::start_host_entry(agent_context& c, digest_entry entry, const hold_ptr& point) {
    agent_entry logged(file, entry_compare | entry_hash_content);
    codec::stream_builder stream;
    const step_ptr read = requests.wait();
    std::uint64_t at = 0;
    for (const digest_target& t : entry.targets) {
        kagemusha_segment segment = entry.block.segment;
        segment.offset += at;
        segment.bytes = t.whole.bytes;
        at += rounded_up(t.whole.bytes);
        const guest_id event = requests.event(read);
        append_transfer(stream, false, {c.queue, event}, t.whole, stream.payload(true, {segment}));
        append_transfer(logged.stream, false, {c.queue}, t.whole, logged.payload(segment.bytes, true));
        stream.destroy(VGPU_OBJECT_EVENT, event);
    }
    hashes_follow(logged, std::move(entry), read, point, true);
    requests.inject(stream, read);
    requests.arm(read);
}

void sync_agent::impl::digest_read(log_sequence sequence, bool host) {
    const auto at = digests.find(sequence);
    if (at == digests.end())
        return;
    digest_entry& entry = at->second;
    std::vector<std::uint64_t> hashes(entry.hashes);
    std::uint64_t offset = 0;
    for (const digest_target& t : entry.targets) {
        if (host) {
            hashes[t.first] = chunk_hash(entry.block.bytes.subspan(offset, t.whole.bytes));
            offset += rounded_up(t.whole.bytes);
        } else {
            std::memcpy(hashes.data() + t.first, entry.block.bytes.data() + t.first * 8, t.chunks * 8);
        }
    }
    entry.block = {};
    entry.told = true;
    log.digests(sequence, std::move(hashes));
}

// It could not be taken here: the next digest sees the same memory again. But where the guest's queues can't
// be held no digest will ever be taken, and a copy that nobody compares is not to be trusted.
void sync_agent::impl::cancel_digest(log_sequence sequence, const hold& point) {
    const auto at = digests.find(sequence);
    if (at == digests.end())
        return;
    for (const digest_target& t : at->second.targets)
        if (memory_info* m = same_object(t.whole) ? state.find_memory(t.whole.memory) : nullptr)
            (t.written ? m->dirty_for_digest : m->repaired) = true;
    digests.erase(at);
    log.cancel(sequence);
    if (point.broken)
        fail("the guest's queues could not be held for a comparison");
}

// ---- what the standby found

void sync_agent::on_digest_result(log_sequence sequence, std::span<const std::uint64_t> different) {
    impl& self = *impl_;
    const auto at = self.digests.find(sequence);
    if (at == self.digests.end() || !at->second.told)
        return; // of an earlier state transfer, or of nothing
    const digest_entry entry = std::move(at->second);
    self.digests.erase(at);

    // The peer's word: indices beyond the entry are nonsense, one index may come twice.
    std::vector<bool> differs(entry.hashes, false);
    for (const std::uint64_t index : different)
        if (index < differs.size())
            differs[index] = true;
    self.counters.chunks_compared += entry.hashes;
    struct compared {
        guest_id memory;
        bool written;
        std::uint64_t bytes = 0, chunks = 0, different = 0;
        std::string text() const {
            return "GPU memory (object " + std::to_string(memory) + ", " + std::to_string(bytes) + " bytes)";
        }
    };
    std::map<std::uint64_t, compared> objects; // by serial
    for (const digest_target& t : entry.targets) {
        compared& object =
            objects.try_emplace(t.whole.serial, compared{t.whole.memory, t.written}).first->second;
        object.bytes += t.whole.bytes;
        object.chunks += t.chunks;
        for (std::uint64_t i = 0; i < t.chunks; ++i) {
            if (!differs[t.first + i])
                continue;
            ++object.different;
            ++self.counters.chunks_different;
            piece p = t.whole;
            if (t.chunk_bytes != 0) {
                p.offset = i * t.chunk_bytes;
                p.bytes = std::min(t.chunk_bytes, t.whole.bytes - p.offset);
            }
            if (self.repairs.size() < self.options.max_repairs)
                self.repairs.insert_or_assign({p.serial, place_of(p)}, p);
            else
                self.compare_again(p);
        }
    }
    for (const auto& [serial, found] : objects) {
        // Whether a repair holds says nothing about the kernels that write there.
        if (!found.written) {
            if (found.different != 0)
                self.log.note(found.text() + " differs on the standby although nothing has written it since "
                                             "it was repaired: the memory of one of the GPUs may be faulty");
            continue;
        }
        if (found.different == 0) {
            self.differed.erase(serial);
            continue;
        }
        auto& difference = self.differed[serial];
        difference.memory = found.memory;
        if (++difference.in_a_row == 1)
            self.log.note(found.text() + " differs on the standby in " + std::to_string(found.different) +
                          " of " + std::to_string(found.chunks) + " compared chunks, which are sent again");
        // With `ship` it is what the guest has not read yet.
        if (difference.in_a_row < self.options.differences_before_shipping || self.options.ship)
            continue;
        self.differed.erase(serial);
        // What does not fit at once stays with repairs of the chunks that differ.
        const memory_info* m = self.state.find_memory(found.memory);
        const std::uint64_t limit = std::min(self.options.final_round_bytes, self.memory.capacity() / 2);
        if (!m || m->id != found.memory || content_bytes_of(*m) > limit)
            continue;
        if (self.shipped.emplace(serial, found.memory).second) {
            ++self.counters.memory_shipped;
            self.log.note(found.text() + " differed again and again, and is sent after each launch that may "
                                         "write it from here on");
        }
    }
    self.pump();
}

void sync_agent::impl::pump_repairs() {
    if (repairs.empty() || repairs_in_flight != 0 || user_events_unset())
        return;
    std::vector<piece> pieces;
    std::uint64_t bytes = 0;
    const std::uint64_t limit = std::min(options.final_round_bytes, memory.capacity() / 2);
    for (auto at = repairs.begin(); at != repairs.end() && bytes < limit;) {
        if (!same_object(at->second)) {
            at = repairs.erase(at);
            continue;
        }
        pieces.push_back(at->second);
        bytes += at->second.bytes;
        ++at;
    }
    if (pieces.empty())
        return;
    auto order = std::make_shared<ordered_transfer>();
    order->repair = true;
    ++repairs_in_flight;
    if (!start_ordered(pieces, order)) {
        --repairs_in_flight;
        out_of_memory = true;
        return;
    }
    for (const piece& p : pieces) {
        repairs.erase({p.serial, place_of(p)});
        compare_again(p);
    }
}

// The next digest is of a later point of the order than the repairs that were begun until now.
void sync_agent::impl::compare_again(const piece& p) {
    if (memory_info* m = same_object(p) ? state.find_memory(p.memory) : nullptr)
        m->repaired = true;
}

// What is to be shipped: memory that differed again and again, and with `computed` what has that mark.
void sync_agent::impl::add_shipped(bool computed, std::vector<piece>& pieces,
                                   std::vector<memory_info*>& objects) {
    const auto add = [&](memory_info& m, const core::object& o) {
        append_pieces(m, o.serial, options.content_chunk_bytes, pieces);
        objects.push_back(&m);
    };
    if (computed) {
        state.for_each_memory([&](memory_info& m) {
            const core::object* o = m.computed && !m.unconfirmed ? object(m.id) : nullptr;
            const agent_context* c = o ? context_of(*o) : nullptr;
            if (c && c->ready)
                add(m, *o);
        });
    }
    for (auto at = shipped.begin(); at != shipped.end();) {
        const core::object* o = object(at->second);
        memory_info* m = o && o->serial == at->first ? state.find_memory(at->second) : nullptr;
        if (!m || m->id != at->second) {
            at = shipped.erase(at);
            continue;
        }
        if (m->dirty_for_sync && !m->unconfirmed && !(computed && m->computed))
            add(*m, *o);
        ++at;
    }
}

// Memory that re-execution does not get right is sent after each request that may have written it. While that
// is not possible (the link is slow, a user event is unset) it stays marked and is sent at the next chance.
void sync_agent::impl::ship() {
    if (shipped.empty() || ships_in_flight != 0 || user_events_unset())
        return;
    std::vector<piece> pieces;
    std::vector<memory_info*> objects;
    add_shipped(false, pieces, objects);
    if (pieces.empty())
        return;
    ++ships_in_flight;
    if (!start_ordered(pieces, std::make_shared<ordered_transfer>())) {
        --ships_in_flight;
        out_of_memory = true;
        return;
    }
    for (memory_info* m : objects)
        m->dirty_for_sync = false;
}

// Here and now, however much is in flight: the guest waits where there is no memory.
void sync_agent::impl::ship_all() {
    if (user_events_unset())
        return;
    std::vector<piece> pieces;
    std::vector<memory_info*> objects;
    add_shipped(options.ship || state.launched_named(), pieces, objects);
    if (pieces.empty())
        return;
    auto order = std::make_shared<ordered_transfer>();
    order->exact = true;
    ++ships_in_flight;
    if (!start_ordered(pieces, order))
        return fail(
            "there is no memory for what kernels wrote, which has to be shipped here: give the replication "
            "more of it, or ship the results of fewer kernels");
    for (memory_info* m : objects)
        m->dirty_for_sync = m->computed = false;
    state.note_shipped();
}

} // namespace kagemusha::mirror
