// SPDX-License-Identifier: GPL-2.0-or-later
// session_shadow alone: what a request becomes, and what counts as dirty.
#include <random>

#include "mirror/shadow/session_shadow_bed.hpp"

namespace kagemusha::mirror {
namespace {

// ---- what a request becomes

TEST(session_shadow, what_writes_crosses_as_it_is) {
    fixture f;
    f.set_up();
    stream_builder b;
    b.write_buffer({queue, event, {}}, buffer, 0, data)
        .fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern)
        .copy_buffer({queue, 0, {event}}, buffer, other, 0, 0, 64)
        .barrier({queue, event + 1, {event}})
        .set_user_event(event + 2, 0);
    f.run([](auto& s) { s.create_user_event(event + 2, context); });
    EXPECT_EQ(f.submit(b), lines{"write event 100 inline; fill; copy after 100; barrier event 101 after 100; "
                                 "set_event 102=0"});
    ASSERT_EQ(f.entries.size(), 1u);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(f.entries[0].stream)), b.stream()));
    EXPECT_EQ(f.entries[0].meta.op_count, 5u);
    EXPECT_EQ(f.entries[0].meta.stream_bytes, b.stream().size());
    EXPECT_EQ(f.entries[0].meta.flags, 0u);
}

// Launches whose arguments repeat, or do not, between all else: what each writes is marked, and nothing else.
TEST(session_shadow, launches_are_packed_and_mark_what_they_write) {
    fixture f;
    f.set_up();
    f.run([](auto& s) { s.create_program(program, context, "source"); });
    f.run([](auto& s) { s.build_program(program); });
    constexpr std::uint64_t buffers = 12, first = 200, kernels = 3;
    for (std::uint64_t i = 0; i < kernels; ++i)
        f.run([&](auto& s) { s.create_kernel(kernel + 300 + i, program, "k"); });
    for (std::uint64_t i = 0; i < buffers; ++i)
        f.run([&](auto& s) { s.create_buffer(first + i, context, 4096, i % 3 == 0 ? cl_mem_read_only : 0); });
    std::mt19937_64 random(5);
    launch_size size;
    for (int run = 0; run < 300; ++run) {
        f.clean();
        stream_builder b;
        std::set<guest_id> expected;
        std::uint64_t one = first, two = first;
        for (std::uint64_t n = random() % 20 + 1; n != 0; --n) {
            if (random() % 6 == 0) {
                b.read_buffer({queue, 0, {}}, buffer, 0, b.payload(true, 0, 0, 64));
                continue;
            }
            if (random() % 6 == 0) {
                b.marker({queue, 0, {}});
                continue;
            }
            if (random() % 80 == 0) { // then it is not packed
                b.write_buffer({queue, 0, {}}, buffer, 0, b.payload(false, 0, 0, 64));
                expected.insert(buffer);
                continue;
            }
            one = random() % 3 == 0 ? first + random() % buffers : one;
            two = random() % 3 == 0 ? first + random() % buffers : two;
            argument_builder a;
            std::uint32_t index = 0;
            for (std::uint64_t more = random() % 2 * 40; more != 0; --more)
                a.scalar(index++, std::uint64_t{7}); // so that what decides lies beyond the 64th word
            a.memory(index, one).scalar(index + 1, static_cast<std::uint32_t>(n)).memory(index + 2, two);
            b.launch({queue, 0, {}}, kernel + 300 + random() % kernels, size, a);
            for (const guest_id id : {one, two})
                if ((id - first) % 3 != 0)
                    expected.insert(id);
        }
        f.submit(b); // compares both files
        f.answer();
        EXPECT_EQ(f.dirty(), std::vector<guest_id>(expected.begin(), expected.end())) << "in run " << run;
        if (testing::Test::HasFailure())
            return;
    }
    EXPECT_GT(f.entries_packed, 200u);
    EXPECT_LT(f.entries_packed, 300u);
}

// Launches that repeat others have events that later requests may have waited for, and mark nothing while
// nobody listens.
TEST(session_shadow, launches_that_repeat_others_keep_the_host_s_order) {
    fixture f;
    f.set_up();
    constexpr guest_id second = 50, k = 60;
    f.run([](auto& s) { s.create_queue(second, context); });
    f.run([](auto& s) { s.create_program(program, context, "source"); });
    f.run([](auto& s) { s.build_program(program); });
    f.run([](auto& s) { s.create_kernel(k, program, "k"); });
    std::mt19937_64 random(8);
    guest_id next_event = 1000;
    std::vector<guest_id> in_flight;
    std::uint64_t awaits = 0;
    for (int run = 0; run < 400 && !testing::Test::HasFailure(); ++run) {
        SCOPED_TRACE("run " + std::to_string(run));
        if (run % 40 == 0) {
            constexpr mirror_mode modes[] = {mirror_mode::on, mirror_mode::off, mirror_mode::on,
                                             mirror_mode::syncing};
            f.mode = modes[run / 40 % 4];
        }
        stream_builder b;
        const guest_id one_queue = random() % 2 ? second : queue;
        for (std::uint64_t n = random() % 8 + 1; n != 0; --n) {
            const guest_id of = random() % 8 == 0 ? queue + second - one_queue : one_queue;
            const guest_id e = random() % 2 ? next_event++ : 0;
            enqueue_ref where{of, e, {}};
            if (!in_flight.empty() && random() % 3 == 0)
                where.waits.push_back(in_flight[random() % in_flight.size()]);
            if (e != 0)
                in_flight.push_back(e);
            b.launch(where, k, {}, argument_builder{}.memory(0, random() % 2 * buffer).scalar(1, n));
        }
        const lines out = f.submit(b);
        f.answer();
        for (const log_entry& e : f.entries)
            awaits += !e.stream.empty() && static_cast<std::uint16_t>(e.stream[0]) == VGPU_CMD_AWAIT;
        while (!in_flight.empty() && random() % 3 != 0) {
            ASSERT_EQ(f.h.fsm.on_record(core::testing::completion(in_flight.front())).broken_rule, nullptr);
            f.h.take_records();
            for (session_shadow* m : {f.file.get(), f.packing.get()})
                m->on_completion(in_flight.front(), false);
            in_flight.erase(in_flight.begin());
        }
    }
    EXPECT_GT(awaits, 50u);
    EXPECT_GT(f.entries_packed, 150u);
}

TEST(session_shadow, reads_become_markers_where_somebody_may_wait_for_them) {
    fixture f;
    f.set_up();
    const lines made = f.submit([](auto& b) {
        b.marker({queue, event, {}});
        const auto to = b.payload(true, 0, 0, 64);
        const auto to_2 = b.payload(true, 0, 64, 64);
        const auto to_3 = b.payload(true, 0, 128, 64);
        b.read_buffer({queue, event + 1, {event}}, buffer, 0, to);
        b.read_buffer({queue, 0, {}}, buffer, 0, to_2);
        b.read_buffer({queue, 0, {event}}, buffer, 0, to_3);
    });
    EXPECT_EQ(made, lines{"marker event 100; marker event 101 after 100; marker after 100"});
    EXPECT_TRUE(f.entries[0].payloads.empty());
    EXPECT_EQ(f.submit([](auto& b) { b.read_buffer({queue, 0, {}}, buffer, 0, b.payload(true, 0, 0, 64)); }),
              lines{})
        << "nothing is left of it";
}

TEST(session_shadow, queries_and_flushes_do_not_cross) {
    fixture f;
    f.set_up();
    EXPECT_EQ(f.run([](auto& b) { b.flush(queue); }), lines{});
    EXPECT_EQ(f.run([](auto& b) { b.info(VGPU_INFO_DEVICE, 0x102B, 0, 0, no_payload); }), lines{});
    EXPECT_EQ(f.run([](auto& b) {
        b.marker({queue, 0, {}}).flush(queue).info(VGPU_INFO_DEVICE, 0x102B, 0, 0, no_payload);
    }),
              lines{"marker"});
}

TEST(session_shadow, a_call_has_an_entry_of_its_own) {
    fixture f;
    f.set_up();
    EXPECT_EQ(f.run([](auto& b) { b.marker({queue, 0, {}}).create_sampler(50, context); }),
              (lines{"marker", "sampler 50 (call)"}));
    EXPECT_EQ(f.run([](auto& b) { b.create_program(program, context, "kernel void k() {}"); }),
              lines{"program 5 (call)"});
    EXPECT_EQ(f.run([](auto& b) { b.build_program(program, "-DX"); }), lines{"build 5 -DX (may fail)"});
}

TEST(session_shadow, payloads_are_numbered_anew) {
    fixture f;
    f.set_up();
    const lines made = f.submit([](auto& b) {
        const auto to = b.payload(true, 0, 0, 64);
        const auto from = b.payload(false, {{4096, 16, 0, 0}, {8192, 48, 0, 0}});
        const auto from_2 = b.payload(false, 0, 128, 32);
        b.read_buffer({queue, 0, {}}, buffer, 0, to)
            .write_buffer({queue, 0, {}}, buffer, 0, from_2)
            .write_buffer({queue, 0, {}}, buffer, 0, from);
    });
    EXPECT_EQ(made, lines{"write payload 0; write payload 1"});
    const log_entry& e = f.entries[0];
    ASSERT_EQ(e.payloads.size(), 2u);
    ASSERT_EQ(e.content.size(), 2u);
    EXPECT_EQ(e.payloads[0].bytes, 32u);
    EXPECT_EQ(e.payloads[1].bytes, 64u);
    EXPECT_EQ(e.meta.content_bytes, 96u);
    EXPECT_TRUE(e.content_in_guest);
    EXPECT_EQ(e.content[1].pieces.size(), 2u);
    std::vector<std::byte> expected(f.memory.begin() + 4096, f.memory.begin() + 4112);
    expected.insert(expected.end(), f.memory.begin() + 8192, f.memory.begin() + 8240);
    EXPECT_EQ(bytes_of(e.content[1]), expected);
}

TEST(session_shadow, content_of_a_program_is_a_copy) {
    fixture f;
    f.set_up();
    f.submit([](auto& b) {
        const auto from = b.payload(false, {{100, 10, 0, 0}, {200, 10, 0, 0}});
        b.create_program(program, context, VGPU_PROGRAM_SOURCE, from);
    });
    const auto content = bytes_of(f.entries.at(0).content.at(0));
    EXPECT_FALSE(f.entries[0].content_in_guest);
    f.memory.assign(f.memory.size(), std::byte{0});
    EXPECT_EQ(bytes_of(f.entries[0].content[0]), content);
    f.answer();
    f.restore();
    EXPECT_EQ(bytes_of(f.restored.back().content.at(0)), content);
}

TEST(session_shadow, nothing_crosses_while_off) {
    fixture f;
    f.mode = mirror_mode::off;
    f.set_up();
    EXPECT_EQ(
        f.run([](auto& b) { b.write_buffer({queue, 0, {}}, buffer, 0, data).create_sampler(9, context); }),
        lines{});
    EXPECT_EQ(f.restore().back(), "sampler 9");
}

TEST(session_shadow, while_syncing_writes_become_markers_and_objects_cross_without_content) {
    fixture f;
    f.set_up();
    f.mode = mirror_mode::syncing;
    EXPECT_EQ(f.run([](auto& b) {
        b.write_buffer({queue, event, {}}, buffer, 0, data)
            .fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern)
            .copy_buffer({queue, 0, {event}}, buffer, other, 0, 0, 64)
            .marker({queue, event + 1, {}})
            .destroy(VGPU_OBJECT_EVENT, event);
    }),
              lines{"marker event 100; marker after 100; marker event 101; destroy 100"});
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{buffer, other}));
    EXPECT_EQ(f.run([](auto& b) { b.create_buffer_inline(50, context, data); }), lines{"buffer 50 (call)"});
    EXPECT_EQ(f.entries[0].stream.size() * 8, sizeof(vgpu_cmd_create_buffer));
    EXPECT_EQ(f.run([](auto& b) { b.create_buffer(51, context, 64, 1, b.payload(false, 0, 0, 64)); }),
              lines{"buffer 51 (call)"});
    EXPECT_TRUE(f.entries[0].payloads.empty());
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{50, 51}));
}

TEST(session_shadow, an_image_without_its_content_has_no_pitches) {
    fixture f;
    f.set_up();
    f.mode = mirror_mode::syncing;
    stream_builder b;
    vgpu_cmd_create_image c{};
    c.id = image;
    c.context = context;
    c.channel_order = 0x10B0; // CL_R
    c.channel_type = 0x10DE;  // CL_FLOAT
    c.image_type = cl_mem_object_image2d;
    c.width = 8;
    c.height = 4;
    c.row_pitch = 64;
    c.content = b.payload(false, 0, 0, 3 * 64 + 32);
    b.create_image(c);
    EXPECT_EQ(f.submit(b), lines{"image 8 (call)"});
    const auto& crossed = *reinterpret_cast<const vgpu_cmd_create_image*>(f.entries[0].stream.data());
    EXPECT_EQ(crossed.row_pitch, 0u);
    EXPECT_EQ(crossed.content.index, VGPU_PAYLOAD_NONE);
    f.answer();
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{image});
}

// ---- dirty marks

TEST(session_shadow, every_command_marks_what_it_writes) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.create_image_2d(image, context, 16, 16); });
    f.run([](auto& b) { b.create_program(program, context, "kernel void k(global int* p) {}"); });
    f.run([](auto& b) { b.build_program(program); });
    f.run([](auto& b) { b.create_kernel(kernel, program, "k"); });
    f.clean();
    const auto marks = [&](auto&& build) {
        f.run(build);
        return f.dirty();
    };
    using ids = std::vector<guest_id>;
    const enqueue_ref q{queue, 0, {}};
    const box origin{{0, 0, 0}}, pixel{{1, 1, 1}};
    EXPECT_EQ(marks([&](auto& b) { b.write_buffer(q, buffer, 0, data); }), ids{buffer});
    EXPECT_EQ(marks([&](auto& b) {
                  b.write_runs(queue, buffer, std::array{written_run{3, {data.begin(), data.end()}}});
              }),
              ids{buffer});
    EXPECT_EQ(marks([&](auto& b) { b.read_buffer(q, buffer, 0, b.payload(true, 0, 0, 64)); }), ids{});
    EXPECT_EQ(marks([&](auto& b) { b.copy_buffer(q, buffer, other, 0, 0, 64); }), ids{other});
    EXPECT_EQ(marks([&](auto& b) { b.copy_rect(q, buffer, other, origin, origin, {{4, 4, 1}}, 16, 64); }),
              ids{other});
    EXPECT_EQ(marks([&](auto& b) { b.fill_buffer(q, buffer, 0, 64, pattern); }), ids{buffer});
    for (const bool write : {true, false}) {
        EXPECT_EQ(marks([&](auto& b) {
                      const auto p = b.payload(!write, 0, 0, 16);
                      b.transfer_rect(write, q, buffer, origin, {{4, 4, 1}}, 16, 64, p);
                  }),
                  write ? ids{buffer} : ids{});
        EXPECT_EQ(marks([&](auto& b) {
                      const auto p = b.payload(!write, 0, 0, 4);
                      b.transfer_image(write, q, image, origin, pixel, 4, 0, p);
                  }),
                  write ? ids{image} : ids{});
        EXPECT_EQ(marks([&](auto& b) { b.copy_image_buffer(write, q, image, buffer, origin, pixel, 0); }),
                  write ? ids{buffer} : ids{image});
    }
    EXPECT_EQ(marks([&](auto& b) { b.copy_image(q, image, image, origin, {{4, 4, 0}}, pixel); }), ids{image});
    EXPECT_EQ(marks([&](auto& b) { b.fill_image(q, image, origin, pixel); }), ids{image});
    EXPECT_EQ(marks([&](auto& b) { b.marker(q).barrier(q); }), ids{});
    EXPECT_EQ(marks([&](auto& b) { b.launch(q, kernel, {}, argument_builder{}.memory(0, buffer)); }),
              ids{buffer});
    EXPECT_EQ(
        marks([&](auto& b) { b.launch(q, kernel, {}, argument_builder{}.memory(0, other).memory(1, 0)); }),
        ids{})
        << "a kernel may only read it";
    const std::array<std::uint64_t, 1> list{buffer};
    EXPECT_EQ(marks([&](auto& b) { b.migrate(q, list); }), ids{});
    EXPECT_EQ(marks([&](auto& b) { b.migrate(q, list, cl_migrate_content_undefined); }), ids{buffer});
}

// Kernels `plain` and `wild`, of which only the second has a name that is known, and three buffers.
struct with_named : fixture {
    enum : std::uint64_t { plain = 60, wild, a, b, c };
    with_named() : fixture(max_registry_bytes, {"another", "wild"}) {
        set_up();
        run([](auto& s) { s.create_program(program, context, "kernel void k(global int* p) {}"); });
        run([](auto& s) { s.build_program(program); });
        run([](auto& s) { s.create_kernel(plain, program, "plain"); });
        run([](auto& s) { s.create_kernel(wild, program, "wild"); });
        for (const guest_id id : {a, b, c})
            run([&](auto& s) { s.create_buffer(id, context, 4096); });
    }
    // One launch for each pair of kernel and memory.
    void launch(std::initializer_list<std::pair<guest_id, guest_id>> list) {
        run([&](auto& s) {
            for (const auto& [k, memory] : list)
                s.launch({queue}, k, {}, argument_builder{}.memory(0, memory));
        });
    }
    std::vector<guest_id> computed() {
        std::vector<guest_id> out;
        file->for_each_memory([&](memory_info& m) {
            if (m.computed)
                out.push_back(m.id);
        });
        return out;
    }
    void ship(std::initializer_list<guest_id> list) {
        for (session_shadow* f : {file.get(), packing.get()}) {
            f->for_each_memory([&](memory_info& m) {
                m.computed = m.computed && std::find(list.begin(), list.end(), m.id) == list.end();
            });
            f->note_shipped();
        }
    }
};
using ids = std::vector<guest_id>;

// Kernels know addresses, so what is not among a launch's arguments may be written too.
TEST(session_shadow, a_launch_may_write_each_arena_and_each_variable) {
    fixture f;
    f.set_up();
    constexpr guest_id arena = 50, variable = 51, later = 52;
    const auto make_arena = [](guest_id id, std::uint64_t number) {
        return [=](auto& b) {
            b.begin(
                VGPU_CMD_CREATE_ARENA,
                vgpu_cmd_create_arena{
                    {}, id, context, VGPU_ARENA_BASE + number * VGPU_ARENA_ALIGNMENT, VGPU_ARENA_ALIGNMENT});
        };
    };
    const auto make_variable = [](auto& b) {
        b.begin(VGPU_CMD_CREATE_VARIABLE, vgpu_cmd_create_variable{{}, variable, program, 4096, 8, 5, 0})
            .text("total");
    };
    f.run(
        [](auto& b) { b.create_program(program, context, VGPU_PROGRAM_BINARY, b.payload(false, 0, 0, 64)); });
    f.run([](auto& b) { b.create_kernel(kernel, program, "k"); });
    EXPECT_EQ(f.run(make_arena(arena, 0)), lines{"20 50 (call)"});
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{}) << "it is as empty on the standby";
    EXPECT_EQ(f.run(make_variable), lines{"21 51 (call)"});
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{variable}) << "kernels may have written it before";
    const auto launch = [](auto& b) { b.launch({queue, 0, {}}, kernel, launch_size{}, argument_builder{}); };
    f.run(launch);
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{arena, variable}));
    f.run([&](auto& b) {
        b.fill_buffer({queue, 0, {}}, arena, 0, 64, pattern);
        for (int i = 0; i < 3; ++i)
            launch(b);
    });
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{arena, variable}));
    f.run(make_arena(later, 1), cl_out_of_host_memory);
    f.run(launch);
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{arena, variable})) << "one that could not be made is none";
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, arena); });
    f.run(launch);
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{variable});

    EXPECT_EQ(f.restore(),
              (lines{"context 1", "queue 2", "buffer 3", "buffer 4", "program 5", "kernel 6", "21 51"}))
        << "a variable comes after its program, and an arena that is gone not at all";
}

TEST(session_shadow, a_variable_without_an_address_ends_the_mirroring) {
    fixture f;
    f.set_up();
    f.run(
        [](auto& b) { b.create_program(program, context, VGPU_PROGRAM_BINARY, b.payload(false, 0, 0, 64)); });
    f.run(
        [](auto& b) {
            b.begin(VGPU_CMD_CREATE_VARIABLE, vgpu_cmd_create_variable{{}, 51, program, 0, 1, 5, 0})
                .text("total");
        },
        -20500);
    ASSERT_NE(f.file->failure(), nullptr);
    EXPECT_NE(std::string(f.file->failure()).find("no address"), std::string::npos);
}

TEST(session_shadow, named_kernels_and_whatever_is_computed_after_them_is_shipped) {
    with_named f;
    f.launch({{f.plain, f.a}, {f.plain, f.b}});
    EXPECT_EQ(f.computed(), ids{});
    EXPECT_FALSE(f.file->launched_named());
    f.launch({{f.plain, f.a}, {f.wild, f.b}});
    EXPECT_EQ(f.computed(), ids{f.b}) << "not what ran before it";
    EXPECT_TRUE(f.file->launched_named());
    f.launch({{f.plain, f.a}});
    f.run([&](auto& s) { s.copy_buffer({queue}, f.b, f.c, 0, 0, 64); });
    EXPECT_EQ(f.computed(), (ids{f.a, f.b, f.c}));
    f.ship({f.a, f.b, f.c});
    f.launch({{f.plain, f.a}});
    EXPECT_EQ(f.computed(), ids{}) << "all of it is on the standby";
    EXPECT_TRUE(f.file->launched_named()) << "for ever";
}

TEST(session_shadow, named_kernels_are_in_doubt_until_everything_was_shipped) {
    with_named f;
    f.launch({{f.wild, f.a}, {f.plain, f.b}});
    f.ship({f.a});
    f.launch({{f.plain, f.c}});
    EXPECT_EQ(f.computed(), (ids{f.b, f.c}));
}

// The third repeats the first, whose memory had its marks before the named kernel ran.
TEST(session_shadow, named_kernels_between_launches_that_repeat) {
    with_named f;
    f.launch({{f.plain, f.a}, {f.wild, f.b}, {f.plain, f.a}, {f.plain, f.a}});
    EXPECT_EQ(f.computed(), (ids{f.a, f.b}));
}

TEST(session_shadow, named_kernels_that_were_not_made_are_none) {
    with_named f;
    f.run([](auto& s) { s.create_kernel(70, program, "another"); }, -46);
    f.run([](auto& s) { s.destroy(VGPU_OBJECT_KERNEL, with_named::wild); });
    f.run([](auto& s) { s.create_kernel(70, program, "plain"); });
    f.run([](auto& s) { s.create_kernel(with_named::wild, program, "plain"); });
    f.launch({{70, f.a}, {f.wild, f.b}});
    EXPECT_EQ(f.computed(), ids{});
    EXPECT_FALSE(f.file->launched_named());
}

TEST(session_shadow, without_names_all_kernels_results_are_computed) {
    fixture f;
    f.set_up();
    f.run([](auto& s) { s.create_program(program, context, "kernel void k(global int* p) {}"); });
    f.run([](auto& s) { s.build_program(program); });
    f.run([](auto& s) { s.create_kernel(kernel, program, "k"); });
    f.run([](auto& s) { s.launch({queue}, kernel, {}, argument_builder{}.memory(0, buffer)); });
    EXPECT_TRUE(f.file->find_memory(buffer)->computed);
    EXPECT_FALSE(f.file->launched_named());
}

TEST(session_shadow, sub_buffers_and_images_of_buffers_mark_the_buffer) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.create_sub_buffer(sub, buffer, 0, 1024); });
    f.run([](auto& b) {
        vgpu_cmd_create_image c{};
        c.id = image;
        c.context = context;
        c.channel_order = 0x10B5; // CL_RGBA
        c.channel_type = 0x10DE;  // CL_FLOAT
        c.image_type = cl_mem_object_image1d_buffer;
        c.width = 4;
        c.buffer = sub;
        c.content = no_payload;
        b.create_image(c);
    });
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{});
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, sub, 0, 64, pattern); });
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{buffer});
    f.run([](auto& b) { b.fill_image({queue, 0, {}}, image, {{0, 0, 0}}, {{1, 1, 1}}); });
    EXPECT_EQ(f.file->find_memory(image), f.file->find_memory(buffer));
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{buffer});
    EXPECT_EQ(f.file->find_memory(queue), nullptr);
    EXPECT_EQ(f.file->find_memory(999), nullptr);
}

TEST(session_shadow, memory_of_a_destroyed_buffer_is_told_of_through_its_sub_buffers) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.create_sub_buffer(sub, buffer, 0, 1024); });
    f.run([](auto& b) { b.create_sub_buffer(sub + 50, buffer, 2048, 1024); });
    f.run([](auto& b) {
        b.fill_buffer({queue, 0, {}}, sub, 0, 64, pattern).destroy(VGPU_OBJECT_MEMORY, buffer);
    });
    EXPECT_EQ(f.dirty(), (std::vector<guest_id>{sub, sub + 50})) << "nobody knows which one was written";
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, sub); });
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, sub + 50, 0, 64, pattern); });
    EXPECT_TRUE(f.file->find_memory(sub + 50)->dirty_for_sync);
    EXPECT_EQ(f.file->find_memory(sub + 50)->bytes, 1024u);
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{sub + 50});
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, sub + 50); });
    EXPECT_EQ(f.dirty(), std::vector<guest_id>{});
    EXPECT_EQ(f.restore(), (lines{"context 1", "queue 2", "buffer 4"}));
}

TEST(session_shadow, the_two_marks_are_independent) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern); });
    memory_info* m = f.file->find_memory(buffer);
    m->dirty_for_sync = false;
    EXPECT_TRUE(m->dirty_for_digest);
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern); });
    EXPECT_TRUE(m->dirty_for_sync);
}

TEST(session_shadow, memory_says_what_it_is) {
    fixture f;
    f.set_up();
    f.submit([](auto& b) { b.create_buffer(50, context, 100, cl_mem_write_only); });
    EXPECT_TRUE(f.file->find_memory(50)->unconfirmed);
    EXPECT_TRUE(f.file->memory_is_pending());
    f.answer();
    const memory_info* m = f.file->find_memory(50);
    EXPECT_FALSE(m->unconfirmed);
    EXPECT_FALSE(f.file->memory_is_pending());
    EXPECT_EQ(m->id, 50u);
    EXPECT_EQ(m->context, context);
    EXPECT_EQ(m->bytes, 100u);
    EXPECT_EQ(m->flags, cl_mem_write_only);
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_CONTEXT, context); });
    EXPECT_EQ(f.file->find_memory(50)->context, 0u);
    EXPECT_TRUE(f.file->contexts().empty());
}

TEST(session_shadow, contexts_and_queues_are_those_that_exist) {
    fixture f;
    f.set_up();
    const std::uint64_t before = f.file->queues_created();
    f.submit([](auto& b) { b.create_queue(50, context); });
    EXPECT_EQ(f.file->queues(context), std::vector<guest_id>{queue});
    EXPECT_EQ(f.file->queues_created(), before);
    f.answer();
    EXPECT_EQ(f.file->queues(context), (std::vector<guest_id>{queue, 50}));
    EXPECT_GT(f.file->queues_created(), before);
    f.run([](auto& b) { b.create_queue(51, context); }, -6);
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_QUEUE, queue); });
    EXPECT_EQ(f.file->queues(context), std::vector<guest_id>{50});
    EXPECT_EQ(f.file->contexts(), std::vector<guest_id>{context});
    EXPECT_TRUE(f.file->queues(999).empty());
}

} // namespace
} // namespace kagemusha::mirror
