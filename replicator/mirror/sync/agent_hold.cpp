// SPDX-License-Identifier: GPL-2.0-or-later
// agent_hold: points of the order; see agent_impl.hpp.
#include <algorithm>

#include "mirror/sync/agent_impl.hpp"

namespace kagemusha::mirror {

namespace {

// Of one stream: far below what fits, so that wait lists do too.
constexpr std::size_t queues_per_step = 512;
static_assert(queues_per_step <= VGPU_MAX_WAIT_COUNT);

// Markers on `queues`, a command on the agent's queue that waits for them, and no event left behind. `flush`
// is called wherever the stream may be cut.
template <class NewEvent, class Flush>
void append_marks(codec::stream_builder& stream, guest_id agent_queue, const std::vector<guest_id>& queues,
                  NewEvent&& new_event, Flush&& flush) {
    for (std::size_t at = 0; at < queues.size(); at += queues_per_step) {
        std::vector<std::uint64_t> events;
        const guest_id gate = new_event();
        for (std::size_t i = at; i < std::min(queues.size(), at + queues_per_step); ++i) {
            events.push_back(new_event());
            stream.marker({queues[i], events.back()});
        }
        stream.barrier({agent_queue, gate, events});
        events.push_back(gate);
        for (const guest_id event : events)
            stream.destroy(VGPU_OBJECT_EVENT, event);
        flush();
    }
}

} // namespace

// Waits until everything that was enqueued before now has run, and holds nothing up.
step_ptr sync_agent::impl::mark_all(const std::vector<agent_context*>& list,
                                    std::function<void(agent_step&)> then) {
    const step_ptr marks = requests.wait(std::move(then));
    codec::stream_builder stream;
    for (const agent_context* c : list) {
        for (const guest_id queue : state.queues(c->id)) {
            const guest_id event = requests.event(marks);
            stream.marker({queue, event}).destroy(VGPU_OBJECT_EVENT, event);
            if (nearly_full(stream))
                requests.inject(stream, marks);
        }
    }
    requests.inject(stream, marks);
    return marks;
}

// The caller enqueues what must see this point next, on the agent's queue of each context.
hold_ptr sync_agent::impl::begin_hold(const std::vector<agent_context*>& list, bool final) {
    auto h = std::make_shared<hold>();
    h->uses = 1; // the markers
    const auto begin_ns = std::make_shared<std::uint64_t>(0);
    const step_ptr marks = requests.wait([this, h, begin_ns](agent_step& w) {
        h->marked = true;
        h->broken = w.call_error != 0;
        h->shaky = w.event_error != 0;
        *begin_ns = w.first_event_ns;
        for (const auto& f : std::exchange(h->then, {}))
            f(*h);
        end_use(h);
    });
    h->freed = requests.wait([this, final, begin_ns](agent_step&) {
        if (final && *begin_ns != 0)
            counters.final_round_ns = std::max(counters.final_round_ns, requests.now_ns() - *begin_ns);
    });
    for (const agent_context* c : list) {
        hold::part part{c->id, options.cuda ? 0 : requests.new_id(), {}};
        codec::stream_builder stream;
        if (!options.cuda) {
            stream.create_user_event(part.user_event, c->id);
            requests.inject(stream, marks);
        }
        const std::vector<guest_id> queues = state.queues(c->id);
        append_marks(
            stream, c->queue, queues, [&] { return requests.event(marks); },
            [&] {
                if (nearly_full(stream))
                    requests.inject(stream, marks);
            });
        for (const guest_id queue : queues) {
            if (options.cuda)
                continue; // seal()
            part.queues.insert(queue);
            const guest_id event = requests.event(h->freed);
            stream.barrier({queue, event, {part.user_event}}).destroy(VGPU_OBJECT_EVENT, event);
            if (nearly_full(stream))
                requests.inject(stream, marks);
        }
        requests.inject(stream, marks);
        h->parts.push_back(std::move(part));
    }
    holds.push_back(h);
    requests.arm(marks);
    return h;
}

void sync_agent::impl::append_order(codec::stream_builder& stream, const agent_context& c,
                                    const std::vector<guest_id>& queues,
                                    const std::function<guest_id()>& event,
                                    const std::function<void()>& flush) {
    const guest_id done = requests.new_id();
    stream.marker({c.queue, done});
    for (const guest_id queue : queues) {
        const guest_id over = event();
        stream.barrier({queue, over, {done}});
        if (over != 0)
            stream.destroy(VGPU_OBJECT_EVENT, over);
        flush();
    }
    stream.destroy(VGPU_OBJECT_EVENT, done);
}

void sync_agent::impl::seal(hold& h) {
    if (!options.cuda)
        return;
    for (const hold::part& part : h.parts) {
        const auto at = std::find_if(contexts.begin(), contexts.end(),
                                     [&](const auto& c) { return c->id == part.context && lives(*c); });
        if (at == contexts.end())
            continue;
        codec::stream_builder stream;
        append_order(
            stream, **at, state.queues(part.context), [&] { return requests.event(h.freed); },
            [&] {
                if (nearly_full(stream))
                    requests.inject(stream, h.freed);
            });
        requests.inject(stream, h.freed);
    }
}

void sync_agent::impl::when_marked(const hold_ptr& h, std::function<void(hold&)> f) {
    if (h->marked)
        f(*h);
    else
        h->then.push_back(std::move(f));
}

void sync_agent::impl::end_use(const hold_ptr& h) {
    if (--h->uses != 0)
        return;
    std::erase(holds, h);
    release(*h);
}

void sync_agent::impl::release(hold& h) {
    codec::stream_builder stream;
    for (const hold::part& part : h.parts) {
        if (part.user_event == 0)
            continue;
        stream.set_user_event(part.user_event, 0).destroy(VGPU_OBJECT_EVENT, part.user_event);
        if (nearly_full(stream))
            requests.inject(stream, h.freed);
    }
    requests.inject(stream, h.freed);
    requests.arm(h.freed);
}

void sync_agent::impl::log_before(agent_context& c) {
    agent_entry entry(file);
    append_marks(
        entry.stream, c.queue, state.queues(c.id), [&] { return requests.new_id(); },
        [&] {
            if (nearly_full(entry.stream)) {
                append(entry);
                entry.stream.clear();
            }
        });
    if (!entry.stream.stream().empty())
        append(entry);
    c.wrote = true;
}

// What the guest enqueues from here on comes after what the agent has in its queue.
void sync_agent::impl::log_after(agent_context& c) {
    if (!c.wrote)
        return;
    c.wrote = false;
    agent_entry entry(file);
    append_order(
        entry.stream, c, state.queues(c.id), [] { return guest_id{0}; },
        [&] {
            if (nearly_full(entry.stream)) {
                append(entry);
                entry.stream.clear();
            }
        });
    append(entry);
}

// A queue that the guest made after a point of the order is not behind the barriers that were made there. It
// gets them before the first command that can be in it.
void sync_agent::impl::order_new_queues() {
    seen_queues = state.queues_created();
    codec::stream_builder stream;
    for (const hold_ptr& h : holds) {
        for (hold::part& part : h->parts) {
            if (part.user_event == 0)
                continue;
            for (const guest_id queue : state.queues(part.context)) {
                if (!part.queues.insert(queue).second)
                    continue;
                const guest_id event = requests.event(h->freed);
                stream.barrier({queue, event, {part.user_event}}).destroy(VGPU_OBJECT_EVENT, event);
                requests.inject(stream, h->freed);
            }
        }
    }
    if (options.cuda && !holds.empty()) {
        const step_ptr ended = requests.wait();
        for (const auto& c : contexts) {
            if (!c->ready)
                continue;
            append_order(stream, *c, state.queues(c->id), [&] { return requests.event(ended); }, [] {});
            requests.inject(stream, ended);
        }
        requests.arm(ended);
    }
    // On the standby the agent's commands may still run whatever was released here.
    if (phase != sync_phase::finishing && phase != sync_phase::on)
        return;
    for (const auto& c : contexts) {
        if (!c->ready)
            continue;
        c->wrote = true;
        log_after(*c);
    }
}

} // namespace kagemusha::mirror
