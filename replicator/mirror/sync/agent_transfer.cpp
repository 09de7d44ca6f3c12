// SPDX-License-Identifier: GPL-2.0-or-later
// agent_transfer: content. In rounds (unordered: what is torn is dirty again), and as it is at one point of
// the order (the last round, repairs, memory that is shipped).
#include <algorithm>
#include <utility>

#include "codec/cl_numbers.hpp"
#include "mirror/sync/agent_impl.hpp"

namespace kagemusha::mirror {

namespace {

// What bytes of one piece take of a shadow: copies of images begin at a multiple of every element's size.
constexpr std::uint64_t shadow_room(std::uint64_t bytes) {
    return (bytes + 63) & ~std::uint64_t{63};
}

} // namespace

// ---- what is dirty

std::uint64_t sync_agent::impl::dirty_bytes() {
    std::uint64_t bytes = 0;
    state.for_each_memory([&](memory_info& m) {
        if (m.dirty_for_sync && object(m.id))
            bytes += content_bytes_of(m);
    });
    return bytes;
}

bool sync_agent::impl::dirty_out_of_reach() {
    bool found = false;
    state.for_each_memory([&](memory_info& m) {
        if (found || !m.dirty_for_sync)
            return;
        const core::object* o = object(m.id);
        if (!o)
            return; // the guest destroyed it
        const agent_context* c = context_of(*o);
        found = m.unconfirmed || !c || !c->ready;
    });
    return found;
}

std::vector<piece> sync_agent::impl::take_dirty() {
    std::vector<piece> pieces;
    state.for_each_memory([&](memory_info& m) {
        if (!m.dirty_for_sync || m.unconfirmed)
            return;
        const core::object* o = object(m.id);
        const agent_context* c = o ? context_of(*o) : nullptr;
        if (!c || !c->ready)
            return;
        m.dirty_for_sync = false;
        append_pieces(m, o->serial, options.content_chunk_bytes, pieces);
    });
    return pieces;
}

// ---- rounds

// What is enqueued now has run when the markers complete; what is enqueued later makes its memory dirty
// again. So after the markers memory can be read at any time: it is as it should be, or dirty.
void sync_agent::impl::begin_round() {
    ensure_contexts();
    if (!all_contexts_ready()) {
        phase = phase == sync_phase::off ? phase : sync_phase::preparing;
        return;
    }
    phase = sync_phase::marking;
    round_bytes = 0;
    for (batch_ptr& batch : batches_of(take_dirty())) {
        round_bytes += batch->bytes;
        reads.push_back(std::move(batch));
    }
    std::vector<agent_context*> list;
    for (const auto& c : contexts)
        if (std::any_of(reads.begin(), reads.end(),
                        [&](const batch_ptr& b) { return b->context_serial == c->serial; }))
            list.push_back(c.get());
    requests.arm(mark_all(list, [this](agent_step&) { phase = sync_phase::reading; }));
}

bool sync_agent::impl::is_futile(std::uint64_t dirty) const {
    return dirty >= round_bytes - round_bytes / 4;
}

// A launch of CUDA may write all memory of its program, so one that computes makes everything dirty again before
// a round has sent much. The rest of such a round is left for the last one, which has a copy of all.
void sync_agent::impl::drop_futile_round() {
    constexpr std::size_t batches_per_look = 16; // looking takes time where there are many objects
    if (!options.cuda || reads.empty() || reads.size() % batches_per_look != 0 || !is_futile(dirty_bytes()))
        return;
    for (const batch_ptr& batch : std::exchange(reads, {}))
        for (const read_unit& unit : batch->units)
            if (same_object(unit.what))
                state.find_memory(unit.what.memory)->dirty_for_sync = true;
    rounds = options.max_sync_rounds;
}

void sync_agent::impl::end_round() {
    ++rounds;
    const std::uint64_t dirty = dirty_bytes();
    futile_rounds = is_futile(dirty) ? futile_rounds + 1 : 0;
    if (futile_rounds >= max_futile_rounds)
        rounds =
            options.max_sync_rounds; // the guest writes as fast as the link sends: more of them are no help
    if (dirty > options.final_round_bytes && rounds < options.max_sync_rounds)
        begin_round();
    else {
        phase = sync_phase::ready;
        make_shadows();
    }
}

// ---- shadows

// Where more is dirty than can be read in a moment, GPU memory for a copy of it: if there is none, the last
// round takes longer. With CUDA there is no longer one, and each launch makes all memory dirty.
void sync_agent::impl::make_shadows() {
    std::map<std::uint64_t, std::uint64_t> bytes; // by context
    std::uint64_t total = 0;
    state.for_each_memory([&](memory_info& m) {
        const bool counts = (m.dirty_for_sync || options.cuda) && !m.unconfirmed;
        const core::object* o = counts ? object(m.id) : nullptr;
        if (!o)
            return;
        bytes[o->context] += shadow_room(content_bytes_of(m));
        total += content_bytes_of(m);
    });
    if (total <= options.final_round_bytes / 4)
        return;
    for (const auto& c : contexts) {
        const auto at = bytes.find(c->serial);
        if (!c->ready || at == bytes.end() || c->shadow_pending || c->shadow_bytes >= at->second)
            continue;
        if (c->shadow != 0)
            destroy_made(c->serial, std::exchange(c->shadow, 0));
        c->shadow_pending = true;
        c->shadow_bytes = at->second + at->second / 8; // a little more may be dirty by then
        const guest_id id = requests.new_id();
        const step_ptr made = requests.wait([this, id, serial = c->serial](agent_step& step) {
            agent_context* a = context(serial);
            if (!a)
                return;
            a->shadow_pending = false;
            if (step.error() == 0)
                a->shadow = id;
            else
                a->shadow_bytes = 0;
        });
        codec::stream_builder stream;
        stream.create_buffer(id, c->id, c->shadow_bytes);
        call(*c, stream, VGPU_OBJECT_MEMORY, id, made);
        requests.arm(made);
    }
}

bool sync_agent::impl::shadows_pending() const {
    return std::any_of(contexts.begin(), contexts.end(), [](const auto& c) { return c->shadow_pending; });
}

void sync_agent::impl::destroy_made(std::uint64_t context_serial, guest_id id) {
    agent_context* c = context(context_serial);
    if (!c || std::erase(c->made, std::pair{VGPU_OBJECT_MEMORY, id}) == 0)
        return;
    const step_ptr ended = requests.wait();
    codec::stream_builder stream;
    stream.destroy(VGPU_OBJECT_MEMORY, id);
    requests.inject(stream, ended);
    requests.arm(ended);
}

bool sync_agent::impl::reserve_shadow(read_batch& batch, std::map<std::uint64_t, std::uint64_t>& used) {
    const agent_context* c = context(batch.context_serial);
    std::uint64_t at = used[batch.context_serial];
    for (read_unit& unit : batch.units) {
        unit.shadow_offset = at;
        at += shadow_room(unit.what.bytes);
    }
    if (!c || c->shadow == 0 || at > c->shadow_bytes)
        return false;
    for (read_unit& unit : batch.units)
        unit.in_shadow = true;
    used[batch.context_serial] = at;
    return true;
}

// At their point of the order, of one context. Neighbours are copied together: what takes the time that the
// guest's queues are held is the number of commands. What could not be copied is read where it is, while the
// queues are held on.
void sync_agent::impl::copy_to_shadow(const std::vector<batch_ptr>& batches) {
    const agent_context* c = context(batches.front()->context_serial);
    const hold_ptr point = batches.front()->order->point;
    const step_ptr copied = requests.wait([this, batches, point](agent_step& step) {
        when_marked(point, [this, batches, error = step.error()](const hold& h) {
            for (const batch_ptr& batch : batches) {
                if ((error != 0 || h.shaky) && options.cuda)
                    return fail("the memory of a CUDA program could not be copied (error " +
                                std::to_string(error) + ")");
                if (error != 0 || h.shaky)
                    for (read_unit& unit : batch->units)
                        unit.in_shadow = false;
                else
                    end_holding(*batch->order, batch->units.size());
                reads.push_back(batch);
            }
        });
    });
    codec::stream_builder stream;
    struct {
        guest_id memory = 0;
        std::uint64_t from = 0, to = 0, bytes = 0;
    } run;
    const auto end_run = [&] {
        if (run.bytes == 0)
            return;
        const codec::enqueue_ref e{c->queue, requests.event(copied), {}};
        stream.copy_buffer(e, run.memory, c->shadow, run.from, run.to, run.bytes);
        stream.destroy(VGPU_OBJECT_EVENT, e.event);
        if (nearly_full(stream))
            requests.inject(stream, copied);
        run = {};
    };
    for (const batch_ptr& batch : batches) {
        for (const read_unit& unit : batch->units) {
            const piece& p = unit.what;
            if (!p.image && p.memory == run.memory && p.offset == run.from + run.bytes &&
                unit.shadow_offset == run.to + run.bytes) {
                run.bytes += p.bytes;
                continue;
            }
            end_run();
            if (!p.image) {
                run = {p.memory, p.offset, unit.shadow_offset, p.bytes};
                continue;
            }
            const codec::enqueue_ref e{c->queue, requests.event(copied), {}};
            stream.copy_image_buffer(true, e, p.memory, c->shadow, p.origin, p.region, unit.shadow_offset);
            stream.destroy(VGPU_OBJECT_EVENT, e.event);
            if (nearly_full(stream))
                requests.inject(stream, copied);
        }
    }
    end_run();
    requests.inject(stream, copied);
    requests.arm(copied);
}

// What is read later than at its point of the order may have been destroyed by the guest, while commands that
// were enqueued before that still use it: a sub-buffer of the agent keeps it. An image has no such thing.
void sync_agent::impl::keep_alive(read_batch& batch, std::map<guest_id, guest_id>& aliases) {
    agent_context* c = context(batch.context_serial);
    for (read_unit& unit : batch.units) {
        const core::object* o = object(unit.what.memory);
        if (unit.what.image || !o || o->sub_buffer)
            continue;
        guest_id& alias = aliases[unit.what.memory];
        if (alias == 0) {
            alias = requests.new_id();
            codec::stream_builder stream;
            stream.create_sub_buffer(alias, unit.what.memory, 0, o->bytes);
            const step_ptr made = requests.wait(); // if it fails the read through it does
            call(*c, stream, VGPU_OBJECT_MEMORY, alias, made);
            requests.arm(made);
            batch.order->aliases.emplace_back(c->serial, alias);
        }
        unit.alias = alias;
    }
}

// ---- reads

std::vector<batch_ptr> sync_agent::impl::batches_of(const std::vector<piece>& pieces) const {
    std::vector<batch_ptr> batches;
    std::unordered_map<std::uint64_t, batch_ptr> open; // by context
    for (const piece& p : pieces) {
        const core::object* o = object(p.memory);
        if (!o || o->serial != p.serial)
            continue;
        batch_ptr& batch = open[o->context];
        const bool full = batch && (batch->units.size() >= max_units_per_request ||
                                    batch->bytes + p.bytes > options.content_chunk_bytes);
        if (!batch || full) {
            batch = std::make_shared<read_batch>();
            batch->context_serial = o->context;
            batches.push_back(batch);
        }
        batch->units.push_back({p});
        batch->bytes += rounded_up(p.bytes);
    }
    return batches;
}

// An entry that waits for the batch's content.
void sync_agent::impl::log_late(read_batch& batch) {
    agent_context* c = context(batch.context_serial);
    agent_entry entry(file, entry_late_content);
    for (read_unit& unit : batch.units) {
        const vgpu_payload_ref data = entry.payload(unit.what.bytes, false);
        unit.payload = data.index;
        append_transfer(entry.stream, true, {c->queue}, unit.what, data);
    }
    const log_sequence sequence = append(entry);
    for (read_unit& unit : batch.units)
        unit.entry = sequence;
    c->wrote = true;
}

void sync_agent::impl::issue(const batch_ptr& batch) {
    const agent_context* c = context(batch->context_serial);
    const step_ptr read = requests.wait([this, batch](agent_step& w) {
        --reads_in_flight;
        if (!batch->order)
            return on_read(batch, w.error());
        when_marked(batch->order->point, [this, batch, error = w.error()](const hold& h) {
            const bool too_early = batch->chained && h.shaky;
            on_read(batch, error == 0 && too_early ? codec::cl_wait_list_error : error);
        });
    });
    ++reads_in_flight;
    read->keep.push_back(batch->block.keep);
    codec::stream_builder stream;
    std::uint64_t at = 0;
    for (const read_unit& unit : batch->units) {
        kagemusha_segment segment = batch->block.segment;
        segment.offset += at;
        segment.bytes = unit.what.bytes;
        at += rounded_up(unit.what.bytes);
        const guest_id event = requests.event(read);
        const vgpu_payload_ref data = stream.payload(true, {segment});
        if (unit.in_shadow)
            stream.read_buffer({c->queue, event}, c->shadow, unit.shadow_offset, data);
        else if (unit.alias != 0)
            stream.read_buffer({c->queue, event}, unit.alias, unit.what.offset, data);
        else
            append_transfer(stream, false, {c->queue, event}, unit.what, data);
        stream.destroy(VGPU_OBJECT_EVENT, event);
    }
    requests.inject(stream, read);
    requests.arm(read);
}

// In pieces that a message can carry.
byte_pieces sync_agent::impl::bytes_of(const agent_memory::block& block, std::uint64_t at,
                                       std::uint64_t bytes) const {
    byte_pieces out;
    for (std::uint64_t done = 0; done < bytes; done += content_piece_bytes)
        out.pieces.push_back(block.bytes.subspan(at + done, std::min(content_piece_bytes, bytes - done)));
    out.keep = block.keep;
    return out;
}

void sync_agent::impl::give_late(log_sequence entry, std::uint32_t payload, const byte_pieces& bytes) {
    for (const std::span<const std::byte> piece : bytes.pieces)
        log.late_content(entry, payload, {{piece}, bytes.keep});
}

void sync_agent::impl::on_read(const batch_ptr& batch, std::int32_t error) {
    const agent_memory::block block = std::exchange(batch->block, {});
    if (error != 0)
        return read_again(batch, error);
    const transfer_ptr order = batch->order;
    std::uint64_t at = 0;
    if (order) {
        for (const read_unit& unit : batch->units) {
            if (!order->canceled.contains(unit.entry)) {
                give_late(unit.entry, unit.payload, bytes_of(block, at, unit.what.bytes));
                if (order->final)
                    counters.content_bytes += unit.what.bytes;
                else if (order->repair)
                    ++counters.chunks_repaired;
            }
            at += rounded_up(unit.what.bytes);
            unit_ended(order, unit);
        }
        return;
    }
    agent_context* c = context(batch->context_serial);
    if (!c)
        return;
    const bool late = batch->bytes > max_inline_content_bytes;
    agent_entry entry(file, late ? std::uint32_t{entry_late_content} : 0);
    std::vector<byte_pieces> content;
    for (const read_unit& unit : batch->units) {
        byte_pieces bytes = bytes_of(block, at, unit.what.bytes);
        at += rounded_up(unit.what.bytes);
        if (!same_object(unit.what))
            continue; // destroyed meanwhile
        const vgpu_payload_ref data = entry.payload(unit.what.bytes, false, late ? byte_pieces{} : bytes);
        append_transfer(entry.stream, true, {c->queue}, unit.what, data);
        content.push_back(std::move(bytes));
        counters.content_bytes += unit.what.bytes;
    }
    if (content.empty())
        return;
    c->wrote = true;
    const log_sequence sequence = append(entry);
    if (late)
        for (std::uint32_t i = 0; i < content.size(); ++i)
            give_late(sequence, i, content[i]);
}

// Which of them failed is found out by reading them one by one.
void sync_agent::impl::read_again(const batch_ptr& batch, std::int32_t error) {
    const transfer_ptr order = batch->order;
    for (read_unit& unit : batch->units) {
        ++unit.attempts;
        const bool there = context(batch->context_serial) &&
                           (unit.in_shadow || unit.alias != 0 || same_object(unit.what)) &&
                           // else the guest has gone on: seal()
                           (!options.cuda || !order || unit.in_shadow);
        if (!there || unit.attempts >= max_read_attempts) {
            unit_failed(batch, unit, error);
            if (phase == sync_phase::off)
                return;
            continue;
        }
        auto alone = std::make_shared<read_batch>();
        alone->context_serial = batch->context_serial;
        alone->bytes = rounded_up(unit.what.bytes);
        alone->order = order;
        alone->units.push_back(unit);
        if (unit.attempts + 1 >= max_read_attempts)
            alone->units.back().alias = 0; // perhaps it was the sub-buffer that could not be made
        reads.push_front(std::move(alone));
    }
}

void sync_agent::impl::unit_failed(const batch_ptr& batch, const read_unit& unit, std::int32_t error) {
    const transfer_ptr order = batch->order;
    // An object that the guest destroyed has no content that anybody could miss, unless commands in flight
    // use it: those give a difference that a digest finds.
    if ((!order || order->final || order->exact) && same_object(unit.what) && context(batch->context_serial))
        return fail("the content of a memory object of " + std::to_string(unit.what.bytes) +
                    " bytes could not be read (OpenCL error " + std::to_string(error) + ")");
    if (!order)
        return;
    if (order->canceled.insert(unit.entry).second)
        log.cancel(unit.entry);
    unit_ended(order, unit);
}

void sync_agent::impl::end_holding(ordered_transfer& order, std::size_t units) {
    if ((order.holding -= units) == 0)
        end_use(order.point);
}

void sync_agent::impl::unit_ended(const transfer_ptr& order, const read_unit& unit) {
    if (!unit.in_shadow)
        end_holding(*order, 1);
    if (--order->left == 0)
        transfer_ended(*order);
}

void sync_agent::impl::pump_reads() {
    for (std::size_t i = 0; i < reads.size() && reads_in_flight < options.max_reads_in_flight;) {
        const batch_ptr batch = reads[i];
        const bool runnable = batch->order ? batch->order->point->marked : phase != sync_phase::marking;
        if (!runnable) {
            ++i;
            continue;
        }
        if (!context(batch->context_serial)) { // the guest destroyed it with everything in it
            reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(i));
            for (const read_unit& unit : batch->units)
                unit_failed(batch, unit, 0);
            continue;
        }
        if (!memory.allocate(batch->bytes, batch->block)) {
            out_of_memory = true;
            return;
        }
        reads.erase(reads.begin() + static_cast<std::ptrdiff_t>(i));
        issue(batch);
    }
}

// ---- at one point of the order

// False: not now (no memory); nothing has happened then. A last round, and what must arrive, go on without
// memory, more slowly; but not with CUDA.
bool sync_agent::impl::start_ordered(const std::vector<piece>& pieces, transfer_ptr order) {
    std::vector<batch_ptr> batches = batches_of(pieces);
    std::map<std::uint64_t, std::uint64_t> shadow_used;
    for (const batch_ptr& batch : batches) {
        batch->order = order;
        order->left += batch->units.size();
        if (order->final && reserve_shadow(*batch, shadow_used))
            continue;
        batch->chained = memory.allocate(batch->bytes, batch->block);
        if (!batch->chained && (options.cuda || (!order->final && !order->exact)))
            return false; // the blocks so far go back by themselves
    }
    order->holding = order->left;
    std::vector<agent_context*> list;
    for (const auto& c : contexts)
        if (std::any_of(batches.begin(), batches.end(),
                        [&](const batch_ptr& b) { return b->context_serial == c->serial; }))
            list.push_back(c.get());

    if (!batches.empty()) {
        order->point = begin_hold(list, order->final);
        ++order->point->uses;
    }
    // In a state transfer the standby's queues have run nothing that writes memory: nothing to wait for.
    if (!order->final)
        for (agent_context* c : list)
            log_before(*c);
    std::map<guest_id, guest_id> aliases;
    std::map<std::uint64_t, std::vector<batch_ptr>> copied; // by context
    for (const batch_ptr& batch : batches)
        if (batch->units.front().in_shadow)
            copied[batch->context_serial].push_back(batch);
    for (const auto& [serial, list_of_context] : copied)
        copy_to_shadow(list_of_context);
    for (const batch_ptr& batch : batches) {
        log_late(*batch);
        if (batch->units.front().in_shadow) {
            continue;
        } else if (batch->chained) {
            issue(batch);
        } else {
            keep_alive(*batch, aliases);
            reads.push_back(batch);
        }
    }
    for (const auto& c : contexts)
        log_after(*c);
    if (order->point)
        seal(*order->point);
    if (batches.empty())
        transfer_ended(*order);
    return true;
}

void sync_agent::impl::transfer_ended(ordered_transfer& order) {
    if (order.point && order.point->broken && order.final)
        return fail("the guest's queues could not be held for the last round of a state transfer");
    for (const auto& [serial, alias] : order.aliases)
        destroy_made(serial, alias);
    if (order.final) {
        for (const auto& c : contexts) {
            if (const guest_id shadow = std::exchange(c->shadow, 0); shadow != 0)
                destroy_made(c->serial, shadow);
            c->shadow_bytes = 0;
        }
        if (phase == sync_phase::finishing)
            phase = sync_phase::on;
    } else if (order.repair) {
        --repairs_in_flight;
    } else {
        --ships_in_flight;
    }
}

} // namespace kagemusha::mirror
