// SPDX-License-Identifier: GPL-2.0-or-later
// Random streams against a model so simple that it is obviously right: plain maps, copied before every
// request and put back when it is refused. Ids come from a small range, so that most commands collide with
// something.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "codec/cl_numbers.hpp"
#include "core/session_fsm.hpp"
#include "core/test_helpers.hpp"

namespace kagemusha::core {
namespace {

using namespace codec;
using testing::file_harness;

constexpr std::uint64_t ids = 14; // 1 … 14
constexpr std::uint64_t memory_quota = 1000;
constexpr std::uint64_t object_quota = 9;
constexpr std::uint64_t event_quota = 4;

struct model_object {
    vgpu_object_kind kind;
    std::uint64_t context; // number of its making
    std::uint64_t bytes = 0;
    std::uint64_t owner = 0; // of memory: which allocation
    bool sub = false;
    enum { pending, zombie, unset, done, refused } event = done;
    std::uint64_t made = 0;
};

struct model_state {
    std::map<std::uint64_t, model_object> objects;
    std::uint64_t made = 0; // counts creations
    std::uint64_t events_in_flight = 0;

    const model_object* live(std::uint64_t id, vgpu_object_kind kind) const {
        const auto at = objects.find(id);
        const bool found = at != objects.end() && at->second.kind == kind &&
                           !(kind == VGPU_OBJECT_EVENT && at->second.event == model_object::zombie);
        return found ? &at->second : nullptr;
    }
    std::uint64_t memory() const {
        std::map<std::uint64_t, std::uint64_t> allocations;
        for (const auto& [id, o] : objects)
            if (o.kind == VGPU_OBJECT_MEMORY)
                allocations[o.owner] = std::max(allocations[o.owner], charges.at(o.owner));
        std::uint64_t sum = 0;
        for (const auto& [owner, bytes] : allocations)
            sum += bytes;
        return sum;
    }
    std::map<std::uint64_t, std::uint64_t> charges; // by allocation
};

// What a request should lead to.
struct expectation {
    std::uint32_t status = VGPU_STATUS_OK;
    std::int32_t result = 0;
    std::vector<std::uint16_t> forwarded;
    std::vector<std::pair<std::uint64_t, std::int32_t>> completions;
};

struct thrower {}; // the request is malformed

class model {
public:
    model_state s;
    expectation expect;

    void begin() {
        before_ = s;
        expect = {};
    }
    void refuse() {
        s = before_;
        expect = {};
        expect.status = VGPU_STATUS_MALFORMED;
    }

    void create_context(std::uint64_t id) {
        free_id(id);
        if (s.objects.size() >= object_quota) {
            expect.result = cl_out_of_host_memory;
            return;
        }
        add(id, {VGPU_OBJECT_CONTEXT, s.made + 1});
        expect.forwarded.push_back(VGPU_CMD_CREATE_CONTEXT);
    }
    void create_queue(std::uint64_t id, std::uint64_t context) {
        free_id(id);
        const auto c = of(context, VGPU_OBJECT_CONTEXT).context;
        if (s.objects.size() >= object_quota) {
            expect.result = cl_out_of_host_memory;
            return;
        }
        add(id, {VGPU_OBJECT_QUEUE, c});
        expect.forwarded.push_back(VGPU_CMD_CREATE_QUEUE);
    }
    void create_buffer(std::uint64_t id, std::uint64_t context, std::uint64_t bytes) {
        const auto c = of(context, VGPU_OBJECT_CONTEXT).context;
        free_id(id);
        if (s.objects.size() >= object_quota) {
            expect.result = cl_out_of_host_memory;
            return;
        }
        if (s.memory() + bytes > memory_quota) {
            expect.result = cl_mem_object_allocation_failure;
            return;
        }
        s.charges[s.made + 1] = bytes;
        add(id, {VGPU_OBJECT_MEMORY, c, bytes, s.made + 1});
        expect.forwarded.push_back(VGPU_CMD_CREATE_BUFFER);
    }
    void create_sub_buffer(std::uint64_t id, std::uint64_t parent, std::uint64_t origin,
                           std::uint64_t bytes) {
        const model_object p = of(parent, VGPU_OBJECT_MEMORY);
        free_id(id);
        if (p.sub) {
            expect.result = cl_invalid_mem_object;
        } else if (origin + bytes > p.bytes) {
            expect.result = cl_invalid_value;
        } else if (s.objects.size() >= object_quota) {
            expect.result = cl_out_of_host_memory;
        } else {
            add(id, {VGPU_OBJECT_MEMORY, p.context, bytes, p.owner, true});
            expect.forwarded.push_back(VGPU_CMD_CREATE_SUB_BUFFER);
        }
    }
    void create_user_event(std::uint64_t id, std::uint64_t context) {
        const auto c = of(context, VGPU_OBJECT_CONTEXT).context;
        free_id(id);
        if (s.objects.size() >= object_quota) {
            expect.result = cl_out_of_host_memory;
            return;
        }
        model_object o{VGPU_OBJECT_EVENT, c};
        o.event = model_object::unset;
        add(id, o);
        expect.forwarded.push_back(VGPU_CMD_CREATE_USER_EVENT);
    }
    void set_user_event(std::uint64_t id) {
        if (of(id, VGPU_OBJECT_EVENT).event != model_object::unset)
            throw thrower{};
        s.objects[id].event = model_object::done;
        expect.forwarded.push_back(VGPU_CMD_SET_USER_EVENT);
    }
    void destroy(vgpu_object_kind kind, std::uint64_t id) {
        const model_object o = of(id, kind);
        if (kind == VGPU_OBJECT_EVENT && o.event == model_object::pending)
            s.objects[id].event = model_object::zombie;
        else
            s.objects.erase(id);
        if (kind != VGPU_OBJECT_EVENT || o.event != model_object::refused)
            expect.forwarded.push_back(VGPU_CMD_DESTROY);
    }
    void marker(std::uint64_t queue, std::uint64_t event, const std::vector<std::uint64_t>& waits) {
        enqueue(VGPU_CMD_MARKER, queue, event, waits, [](const model_object&) { return 0; });
    }
    void fill(std::uint64_t queue, std::uint64_t event, const std::vector<std::uint64_t>& waits,
              std::uint64_t buffer, std::uint64_t offset, std::uint64_t bytes) {
        enqueue(VGPU_CMD_FILL_BUFFER, queue, event, waits, [&](const model_object& q) {
            const model_object b = of(buffer, VGPU_OBJECT_MEMORY);
            return b.context != q.context     ? cl_invalid_context
                   : offset + bytes > b.bytes ? cl_invalid_value
                                              : 0;
        });
    }

    // The worker's moves.
    void call_failed(std::uint64_t id, std::uint64_t made) {
        const auto at = s.objects.find(id);
        if (at != s.objects.end() && at->second.made == made)
            s.objects.erase(at);
    }
    bool complete(std::uint64_t id) {
        const auto at = s.objects.find(id);
        if (at == s.objects.end() || at->second.kind != VGPU_OBJECT_EVENT)
            return false;
        if (at->second.event == model_object::zombie) {
            s.objects.erase(at);
            return true;
        }
        const bool was_pending = at->second.event == model_object::pending;
        if (was_pending)
            at->second.event = model_object::done;
        return was_pending;
    }

private:
    void free_id(std::uint64_t id) const {
        if (s.objects.contains(id))
            throw thrower{};
    }
    model_object of(std::uint64_t id, vgpu_object_kind kind) const {
        const model_object* o = s.live(id, kind);
        return o ? *o : throw thrower{};
    }
    void add(std::uint64_t id, model_object o) {
        o.made = ++s.made;
        s.objects[id] = o;
    }
    template <class Body>
    void enqueue(std::uint16_t opcode, std::uint64_t queue, std::uint64_t event,
                 const std::vector<std::uint64_t>& waits, Body&& body) {
        const model_object q = of(queue, VGPU_OBJECT_QUEUE);
        if (event != 0)
            free_id(event);
        std::int32_t error = 0;
        bool other_context = false;
        bool waits_for_refused = false;
        for (const std::uint64_t id : waits) {
            const model_object w = of(id, VGPU_OBJECT_EVENT);
            other_context |= w.context != q.context;
            waits_for_refused |= w.context == q.context && w.event == model_object::refused;
        }
        // Which of two errors is told is no promise, but the model follows the order of the wait list like
        // the code.
        if (other_context)
            error = cl_invalid_context;
        else if (waits_for_refused)
            error = cl_wait_list_error;
        const std::int32_t of_body = body(q);
        error = error != 0 ? error : of_body;
        if (event == 0) {
            if (error == 0)
                expect.forwarded.push_back(opcode);
            return;
        }
        if (error == 0 && (s.events_in_flight >= event_quota || s.objects.size() >= object_quota))
            error = cl_out_of_resources;
        model_object e{VGPU_OBJECT_EVENT, q.context};
        e.event = error == 0 ? model_object::pending : model_object::refused;
        add(event, e);
        ++s.events_in_flight;
        if (error == 0)
            expect.forwarded.push_back(opcode);
        else
            expect.completions.emplace_back(event, error);
    }

    model_state before_;
};

class random_guest {
public:
    explicit random_guest(std::uint64_t seed) : random_(seed) {}

    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    std::uint64_t id() { return 1 + below(ids); }
    // Mostly an id of that kind, so that streams get somewhere.
    std::uint64_t id(const model& m, vgpu_object_kind kind) {
        std::vector<std::uint64_t> fitting;
        for (const auto& [id, o] : m.s.objects)
            if (o.kind == kind)
                fitting.push_back(id);
        return fitting.empty() || below(25) == 0 ? id() : fitting[below(fitting.size())];
    }
    std::uint64_t new_id(const model& m) {
        for (int tries = 0; tries < 6; ++tries) {
            const std::uint64_t candidate = id();
            if (!m.s.objects.contains(candidate))
                return candidate;
        }
        return id();
    }
    std::vector<std::uint64_t> waits(const model& m) {
        std::vector<std::uint64_t> out(below(3));
        for (auto& w : out)
            w = id(m, VGPU_OBJECT_EVENT);
        return out;
    }

private:
    std::mt19937_64 random_;
};

// Appends one random command to the stream and tells the model. Returns whether it was a call (the last of
// its stream).
bool one_command(random_guest& r, model& m, stream_builder& b) {
    static const std::vector<std::byte> pattern(1);
    switch (r.below(12)) {
    case 0: {
        const auto id = r.new_id(m);
        b.create_context(id);
        m.create_context(id);
        return true;
    }
    case 1: {
        const auto id = r.new_id(m), context = r.id(m, VGPU_OBJECT_CONTEXT);
        b.create_queue(id, context);
        m.create_queue(id, context);
        return true;
    }
    case 2: {
        const auto id = r.new_id(m), context = r.id(m, VGPU_OBJECT_CONTEXT), bytes = 1 + r.below(500);
        b.create_buffer(id, context, bytes);
        m.create_buffer(id, context, bytes);
        return true;
    }
    case 3: {
        const auto id = r.new_id(m), parent = r.id(m, VGPU_OBJECT_MEMORY), origin = r.below(300),
                   bytes = 1 + r.below(300);
        b.create_sub_buffer(id, parent, origin, bytes);
        m.create_sub_buffer(id, parent, origin, bytes);
        return true;
    }
    case 4: {
        const auto id = r.new_id(m), context = r.id(m, VGPU_OBJECT_CONTEXT);
        b.create_user_event(id, context);
        m.create_user_event(id, context);
        return true;
    }
    case 5: {
        const auto id = r.id(m, VGPU_OBJECT_EVENT);
        b.set_user_event(id, 0);
        m.set_user_event(id);
        return false;
    }
    case 6:
    case 7: {
        const vgpu_object_kind kinds[] = {VGPU_OBJECT_CONTEXT, VGPU_OBJECT_QUEUE, VGPU_OBJECT_MEMORY,
                                          VGPU_OBJECT_EVENT,   VGPU_OBJECT_EVENT, VGPU_OBJECT_MEMORY};
        const vgpu_object_kind kind = kinds[r.below(std::size(kinds))];
        const auto id = r.id(m, kind);
        b.destroy(kind, id);
        m.destroy(kind, id);
        return false;
    }
    case 8:
    case 9: {
        const auto queue = r.id(m, VGPU_OBJECT_QUEUE), event = r.below(3) ? r.new_id(m) : 0;
        const auto waits = r.waits(m);
        b.marker({queue, event, waits});
        m.marker(queue, event, waits);
        return false;
    }
    default: {
        const auto queue = r.id(m, VGPU_OBJECT_QUEUE), event = r.below(2) ? r.new_id(m) : 0;
        const auto buffer = r.id(m, VGPU_OBJECT_MEMORY), offset = r.below(400), bytes = 1 + r.below(100);
        const auto waits = r.waits(m);
        b.fill_buffer({queue, event, waits}, buffer, offset, bytes, pattern);
        m.fill(queue, event, waits, buffer, offset, bytes);
        return false;
    }
    }
}

void run(std::uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_guest r(seed);
    model m;
    file_harness h({64, event_quota, object_quota, memory_quota});
    for (int step = 0; step < 300; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        stream_builder b;
        m.begin();
        bool call = false;
        try {
            for (std::uint64_t n = 1 + r.below(4); n != 0 && !call; --n)
                call = one_command(r, m, b);
        } catch (const thrower&) {
            m.refuse();
        }
        std::uint64_t call_id = 0;
        if (call && m.expect.result == 0)
            for (const auto& [id, o] : m.s.objects)
                call_id = o.made == m.s.made ? id : call_id;
        const std::uint64_t call_made = m.s.made;

        const submit_decision d = h.submit(b);
        std::vector<std::uint16_t> forwarded;
        if (d.what == submit_decision::action::forward)
            forwarded = testing::received_request(d.request).opcodes;
        ASSERT_EQ(d.response.status, m.expect.status) << (d.broken_rule ? d.broken_rule : "");
        ASSERT_EQ(forwarded, m.expect.forwarded);
        std::vector<std::pair<std::uint64_t, std::int32_t>> completions;
        for (const auto& record : h.take_records()) {
            const auto c = testing::as<vgpu_record_completion>(record);
            if (c.record.type == VGPU_RECORD_COMPLETION) {
                completions.emplace_back(c.event, c.status);
                --m.s.events_in_flight;
            }
        }
        ASSERT_EQ(completions, m.expect.completions);

        std::int32_t result = d.response.result;
        if (d.what == submit_decision::action::forward) {
            const bool fails = call_id != 0 && r.below(5) == 0;
            const done_decision done = h.fsm.on_done(d.request.token, testing::ok_response(fails ? -6 : 0));
            ASSERT_FALSE(done.violation);
            result = done.response.result;
            if (fails) {
                ASSERT_EQ(result, -6);
                result = 0;
                m.call_failed(call_id, call_made);
            }
        }
        ASSERT_EQ(result, m.expect.result);

        const std::uint64_t event = r.id(m, VGPU_OBJECT_EVENT);
        if (r.below(2)) {
            const bool legal = m.complete(event);
            ASSERT_EQ(h.fsm.on_record(testing::completion(event)).broken_rule == nullptr, legal)
                << "event " << event;
            m.s.events_in_flight -= h.take_records().size();
        }
        ASSERT_EQ(h.fsm.objects().size(), m.s.objects.size());
        ASSERT_EQ(h.fsm.objects().memory_bytes(), m.s.memory());
        ASSERT_EQ(h.usage.memory_bytes, m.s.memory());
    }
}

TEST(model, random_streams_do_what_a_simple_model_does) {
    for (std::uint64_t seed = 1; seed <= 300 && !::testing::Test::HasFailure(); ++seed)
        run(seed);
}

} // namespace
} // namespace kagemusha::core
