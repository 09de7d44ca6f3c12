// SPDX-License-Identifier: GPL-2.0-or-later
// Random sessions of several files, mirrored: whatever the guest did and whenever the standby came, in the
// end both have the same objects and every buffer has the same content.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "codec/cl_numbers.hpp"
#include "tests/support/instant_pair.hpp"

namespace kagemusha::mirror {
namespace {

using testing::instant_pair;
using testing::stream_builder;

constexpr std::uint64_t ids = 40;
constexpr std::uint64_t buffer_bytes = 256;

struct guest_object {
    vgpu_object_kind kind;
    guest_id context = 0; // by number of its making
    guest_id context_id = 0;
    std::uint64_t bytes = 0;
    bool sub = false;
    bool unset = false; // user event
    bool out_of_order = false;
    std::uint64_t allocation = 0; // MEMORY
};

// One open file's guest: knows what it made, and makes only what is allowed.
class random_guest {
public:
    random_guest(instant_pair& p, std::uint32_t file, std::uint64_t seed)
        : p_(p), file_(file), random_(seed) {}

    std::map<guest_id, guest_object> objects;

    void step() {
        stream_builder b;
        for (std::uint64_t n = 1 + below(3); n != 0; --n) {
            if (below(3) == 0) {
                call(b);
                return;
            }
            below(4) == 0 ? silent(b) : enqueued(b);
        }
        if (!b.stream().empty())
            run(b);
    }

    void set_user_events() {
        for (auto& [id, o] : objects) {
            if (o.unset) {
                o.unset = false;
                run(stream_builder{}.set_user_event(id, 0));
            }
        }
    }

    void touch() {
        const guest_id id = new_id();
        run(stream_builder{}.create_context(id));
        run(stream_builder{}.destroy(VGPU_OBJECT_CONTEXT, id));
    }

    void destroy_everything() {
        stream_builder b;
        for (const auto& [id, o] : objects)
            b.destroy(o.kind, id);
        objects.clear();
        if (!b.stream().empty())
            run(b);
    }

private:
    std::uint64_t below(std::uint64_t n) { return random_() % n; }
    // A request whose memory a command uses that waits for a user event is answered later.
    vgpu_response run(const stream_builder& b) {
        in_hand_ = 0;
        in_stream_.clear();
        const std::uint64_t token = p_.primary.submit(file_, b);
        p_.primary.dispatch();
        const vgpu_response* r = p_.primary.answer_of(token);
        const vgpu_response response = r ? *r : vgpu_response{};
        testing::require(response.status == VGPU_STATUS_OK,
                         "the guest of this test broke a rule: " +
                             (p_.primary.lines.empty() ? "" : p_.primary.lines.back()));
        return response;
    }
    guest_id pick(vgpu_object_kind kind, guest_id context = 0) {
        std::vector<guest_id> fitting;
        for (const auto& [id, o] : objects)
            if (o.kind == kind && (context == 0 || o.context == context))
                fitting.push_back(id);
        return fitting.empty() ? 0 : fitting[below(fitting.size())];
    }
    guest_id new_id() {
        for (;;) {
            // An event that was destroyed before it completed still has its id; also one that was made and
            // destroyed in the stream in hand, which the device has not seen yet.
            const guest_id id = 1 + below(4 * ids);
            if (!objects.contains(id) && !in_stream_.contains(id) &&
                !p_.primary.device->objects(file_)->taken(id)) {
                in_stream_.insert(id);
                return id;
            }
        }
    }
    std::vector<std::byte> bytes(std::uint64_t n) {
        std::vector<std::byte> out(n);
        for (auto& b : out)
            b = static_cast<std::byte>(random_());
        return out;
    }
    // A payload of one or two pieces, filled with random bytes; guest memory is used once, because nobody
    // here says when a command is done with it.
    vgpu_payload_ref payload(stream_builder& b, std::uint64_t n, bool writable = false) {
        const auto put = [this](std::uint64_t count) {
            const std::uint64_t at = next_byte_;
            next_byte_ += count + 16;
            testing::require(next_byte_ <= file_ * zone_bytes, "the guest's memory is used up");
            for (std::uint64_t i = 0; i < count; ++i)
                p_.primary.memory[at + i] = static_cast<std::byte>(random_());
            return at;
        };
        const std::uint64_t first = 1 + below(n);
        const std::uint64_t at = put(first);
        if (first == n)
            return b.payload(writable, {{at, first, 0, 0}});
        return b.payload(writable, {{at, first, 0, 0}, {put(n - first), n - first, 0, 0}});
    }

    void made(const stream_builder& b, guest_id id, guest_object o) {
        const std::uint64_t token = p_.primary.next_token;
        vgpu_response r = run(b);
        if (!p_.primary.answer_of(token)) {
            set_user_events();
            p_.primary.dispatch();
            testing::require(p_.primary.answer_of(token) != nullptr, "a call without an answer");
            r = *p_.primary.answer_of(token);
        }
        if (r.result == 0)
            objects[id] = o;
    }

    static guest_object memory(guest_id context, guest_id context_id, std::uint64_t bytes,
                               std::uint64_t allocation) {
        guest_object o{VGPU_OBJECT_MEMORY, context, context_id, bytes};
        o.allocation = allocation;
        return o;
    }

    // Memory that the queue may touch without a race: an allocation belongs to one in-order queue for as long
    // as anything may be waiting.
    guest_id pick_memory(guest_id queue) {
        const guest_id id = pick(VGPU_OBJECT_MEMORY, objects[queue].context);
        if (id == 0 || objects[queue].out_of_order)
            return 0;
        if (p_.primary.device->objects(file_)->unset_user_events() == 0 && in_hand_ == 0)
            owners_.clear();
        const std::uint64_t serial =
            p_.primary.device->objects(file_)->find(queue, VGPU_OBJECT_QUEUE)->serial;
        return owners_.try_emplace(objects[id].allocation, serial).first->second == serial ? id : 0;
    }

    // One call ends the stream.
    void call(stream_builder& b) {
        if (objects.size() + 4 > ids) {
            run_if_any(b);
            b.clear();
            destroy_everything();
        }
        const guest_id id = new_id();
        const guest_id context = pick(VGPU_OBJECT_CONTEXT);
        const std::uint64_t what = context == 0 ? 0 : below(14);
        const guest_id of = context == 0 ? 0 : objects[context].context;
        const bool out_of_order = below(3) == 0;
        const std::uint64_t allocation = ++allocations_made_;
        switch (what) {
        case 0:
            return made(b.create_context(id), id, {VGPU_OBJECT_CONTEXT, ++contexts_made_, id});
        case 1:
        case 2:
            return made(b.create_queue(id, context, out_of_order ? codec::cl_queue_out_of_order : 0), id,
                        {VGPU_OBJECT_QUEUE, of, context, 0, false, false, out_of_order});
        case 3:
            return made(b.create_buffer(id, context, buffer_bytes), id,
                        memory(of, context, buffer_bytes, allocation));
        case 4: {
            const auto content = bytes(buffer_bytes);
            return made(b.create_buffer_inline(id, context, content), id,
                        memory(of, context, buffer_bytes, allocation));
        }
        case 5: {
            const auto content = payload(b, buffer_bytes);
            return made(b.create_buffer(id, context, buffer_bytes, codec::cl_mem_read_write, content), id,
                        memory(of, context, buffer_bytes, allocation));
        }
        case 6: {
            const guest_id parent = pick(VGPU_OBJECT_MEMORY);
            if (parent == 0 || objects[parent].sub)
                return run_if_any(b);
            const guest_object& p = objects[parent];
            const std::uint64_t origin = below(buffer_bytes / 2), n = 1 + below(buffer_bytes / 2);
            guest_object o = memory(p.context, p.context_id, n, p.allocation);
            o.sub = true;
            return made(b.create_sub_buffer(id, parent, origin, n), id, o);
        }
        case 7: // the backend has no images: fails
            made(b.create_image_2d(id, context, 8, 8), id, memory(of, context, 0, allocation));
            testing::require(!objects.contains(id), "an image on the null backend");
            return;
        case 8:
            return made(b.create_program(id, context, "kernel void k(global int* p) { p[0] = 1; }"), id,
                        {VGPU_OBJECT_PROGRAM, of, context});
        case 9: {
            const guest_id program = pick(VGPU_OBJECT_PROGRAM);
            if (program == 0)
                return run_if_any(b);
            run(b.build_program(program, below(2) ? "-DA" : "-DB"));
            return;
        }
        case 10: {
            const guest_id program = pick(VGPU_OBJECT_PROGRAM, of);
            if (program == 0)
                return run_if_any(b);
            return made(b.link_program(id, context, std::array<std::uint64_t, 1>{program}), id,
                        {VGPU_OBJECT_PROGRAM, of, context});
        }
        case 11:
        case 12: {
            const guest_id program = pick(VGPU_OBJECT_PROGRAM);
            if (program == 0)
                return run_if_any(b);
            return made(b.create_kernel(id, program, below(5) ? "k" : "no_such_kernel"), id,
                        {VGPU_OBJECT_KERNEL, objects[program].context, objects[program].context_id});
        }
        default: {
            guest_object o{VGPU_OBJECT_EVENT, of, context};
            o.unset = true;
            return made(b.create_user_event(id, context), id, o);
        }
        }
    }
    void run_if_any(const stream_builder& b) {
        if (!b.stream().empty())
            run(b);
    }

    void silent(stream_builder& b) {
        if (const guest_id event = pick(VGPU_OBJECT_EVENT); event != 0 && objects[event].unset && below(2)) {
            objects[event].unset = false;
            b.set_user_event(event, below(6) == 0 ? -5 : 0);
            return;
        }
        if (objects.empty())
            return;
        auto at = objects.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(below(objects.size())));
        if ((at->second.kind == VGPU_OBJECT_CONTEXT || at->second.kind == VGPU_OBJECT_QUEUE) && below(4))
            return; // else nothing would live long
        if (at->second.kind == VGPU_OBJECT_CONTEXT && in_use(at->second.context))
            return;
        b.destroy(at->second.kind, at->first);
        objects.erase(at);
    }
    // Without its context memory can't be read (session_shadow.hpp, memory_info::context). Drivers keep it.
    bool in_use(guest_id context) const {
        return std::any_of(objects.begin(), objects.end(), [&](const auto& o) {
            return o.second.kind != VGPU_OBJECT_CONTEXT && o.second.context == context;
        });
    }

    void enqueued(stream_builder& b) {
        const guest_id queue = pick(VGPU_OBJECT_QUEUE);
        if (queue == 0)
            return;
        const guest_id of = objects[queue].context;
        codec::enqueue_ref e{queue, 0, {}};
        for (std::uint64_t n = below(3); n != 0; --n)
            if (const guest_id event = pick(VGPU_OBJECT_EVENT, of))
                e.waits.push_back(event);
        const bool event = below(2) != 0 && objects.size() + 4 < ids;
        if (event) {
            e.event = new_id();
            objects[e.event] = {VGPU_OBJECT_EVENT, of, objects[queue].context_id};
        }
        const guest_id memory = pick_memory(queue);
        ++in_hand_;
        if (memory == 0) {
            below(2) ? b.marker(e) : b.barrier(e);
            return;
        }
        const std::uint64_t size = objects[memory].bytes;
        const std::uint64_t n = 1 + below(size), offset = below(size - n + 1);
        const guest_id other = pick_memory(queue);
        switch (below(9)) {
        case 8: {
            std::vector<codec::written_run> runs;
            for (std::uint64_t at = offset; at < size && runs.size() < 20; at += below(8) + 1) {
                const auto data = bytes(std::min(1 + below(6), size - at));
                runs.push_back({at, {data.begin(), data.end()}});
                at += data.size();
            }
            b.write_runs(e.queue, memory, runs).marker(e); // which it has no event of its own for
            ++in_hand_;
            return;
        }
        case 0:
            b.write_buffer(e, memory, offset, bytes(n));
            return;
        case 1:
            b.write_buffer(e, memory, offset, payload(b, n));
            return;
        case 2:
            b.read_buffer(e, memory, offset, payload(b, n, true));
            return;
        case 3:
            b.fill_buffer(e, memory, offset, n, bytes(1));
            return;
        case 4: {
            // Not between two that overlap in memory: what that does is nobody's promise.
            const std::uint64_t m = other == 0 ? 0 : std::min(n, objects[other].bytes);
            other == 0 || objects[other].allocation == objects[memory].allocation
                ? b.marker(e)
                : b.copy_buffer(e, memory, other, offset, 0, m);
            return;
        }
        case 5: {
            if (size < 64) {
                b.barrier(e);
                return;
            }
            const auto ref = payload(b, 4 * 3 + 4); // the builder's host side is tight
            b.transfer_rect(true, e, memory, {{0, 1, 0}}, {{4, 4, 1}}, 8, 32, ref);
            return;
        }
        case 6: {
            const guest_id kernel = pick(VGPU_OBJECT_KERNEL, of);
            kernel == 0 ? b.marker(e) : b.launch(e, kernel, {}, codec::argument_builder{}.memory(0, memory));
            return;
        }
        default:
            below(2) ? b.marker(e) : b.barrier(e);
            return;
        }
    }

    instant_pair& p_;
    const std::uint32_t file_;
    std::mt19937_64 random_;
    std::uint64_t contexts_made_ = 0;
    std::uint64_t allocations_made_ = 0;
    std::map<std::uint64_t, std::uint64_t> owners_; // allocation: serial of its queue
    int in_hand_ = 0;                               // commands of the stream that is built
    std::set<guest_id> in_stream_;                  // new ids in it
    static constexpr std::uint64_t zone_bytes = testing::instant_device::guest_bytes / 3;
    std::uint64_t next_byte_ = (file_ - 1) * zone_bytes;
};

std::size_t buffers_compared = 0; // of a test: shows that it looked at something

void expect_same(instant_pair& p, std::uint32_t file, const random_guest& guest) {
    const core::object_table* here = p.primary.device->objects(file);
    const core::object_table* there = p.standby.device->objects(file);
    ASSERT_NE(there, nullptr);
    std::map<guest_id, vgpu_object_kind> on_primary, on_standby;
    here->for_each([&](guest_id id, const core::object& o) {
        if (o.event != core::event_state::refused)
            on_primary[id] = o.kind;
    });
    there->for_each([&](guest_id id, const core::object& o) { on_standby[id] = o.kind; });
    ASSERT_EQ(on_primary, on_standby);
    for (const auto& [id, o] : guest.objects) {
        if (o.kind != VGPU_OBJECT_MEMORY || !guest.objects.contains(o.context_id) ||
            guest.objects.at(o.context_id).kind != VGPU_OBJECT_CONTEXT ||
            guest.objects.at(o.context_id).context != o.context) {
            continue; // without a context nothing can be read
        }
        ASSERT_EQ(p.primary.content(file, o.context_id, id, o.bytes),
                  p.standby.content(file, o.context_id, id, o.bytes))
            << "buffer " << id;
        ++buffers_compared;
    }
}

constexpr int steps = 150;

// `attach_at`: the standby comes before this step; `detach_at`: it goes there and comes back later.
void run(std::uint64_t seed, int attach_at, int detach_at, bool full_ports) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", attached at " + std::to_string(attach_at) +
                 ", detached at " + std::to_string(detach_at));
    std::mt19937_64 random(seed * 77);
    instant_pair p;
    p.agent_patience = static_cast<int>(seed % 12);
    if (full_ports)
        p.primary.is_full = [&random] { return random() % 3 == 0; };
    std::map<std::uint32_t, std::unique_ptr<random_guest>> guests;
    for (std::uint32_t file = 1; file <= 3; ++file) {
        p.open(file);
        guests[file] = std::make_unique<random_guest>(p, file, seed * 10 + file);
    }
    try {
        for (int step = 0; step < steps; ++step) {
            if (step == attach_at || step == detach_at + 10) {
                p.mirror->start_sync();
            } else if (step == detach_at && p.mirror->mode() != mirror_mode::off) {
                p.mirror->stop();
                p.log.items.clear(); // as the link's end does
                p.replay.executed = 0;
            }
            if (step == steps - 1) {
                for (auto& [file, agent] : p.made)
                    agent->patience = 0;
                p.agent_patience = 0;
            }
            for (auto& [file, guest] : guests)
                guest->step();
            if (random() % 4 == 0)
                p.replay.run();
        }
        for (auto& [file, guest] : guests) {
            guest->set_user_events();
            guest->touch(); // a transfer may end with it
        }
        p.primary.dispatch();
        p.replay.run();
        p.replay.expect_answers();
        ASSERT_EQ(p.replay.executed, p.log.items.size());
        ASSERT_EQ(p.log.failures, std::vector<std::string>{});
        ASSERT_EQ(p.mirror->mode(), mirror_mode::on);
        for (auto& [file, guest] : guests)
            expect_same(p, file, *guest);
        for (auto& [file, guest] : guests)
            guest->destroy_everything();
        p.primary.dispatch();
        p.replay.run();
    } catch (const std::exception& e) {
        FAIL() << e.what();
    }
    EXPECT_EQ(p.mirror->registry_bytes(), 0u);
    for (auto& [file, guest] : guests)
        EXPECT_EQ(p.standby.device->objects(file)->size(), 0u);
}

constexpr std::uint64_t seeds = 40;

TEST(mirror_random, a_standby_from_the_beginning) {
    for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed)
        run(seed, 0, -100, false);
    EXPECT_GT(buffers_compared, seeds);
}

TEST(mirror_random, a_standby_that_attaches_in_the_middle) {
    for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed)
        run(seed, static_cast<int>(seed * 37 % steps), -100, false);
    EXPECT_GT(buffers_compared, seeds);
}

TEST(mirror_random, a_standby_that_goes_and_comes_back_and_ports_that_are_often_full) {
    for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
        const int attach_at = static_cast<int>(seed * 37 % 60);
        run(seed, attach_at, attach_at + 5 + static_cast<int>(seed % 50), true);
    }
    EXPECT_GT(buffers_compared, seeds);
}

} // namespace
} // namespace kagemusha::mirror
