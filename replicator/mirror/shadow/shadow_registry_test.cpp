// SPDX-License-Identifier: GPL-2.0-or-later
// session_shadow's registry: what it keeps, for how long, and what a standby is told of it.
#include "mirror/shadow/session_shadow_bed.hpp"

namespace kagemusha::mirror {
namespace {

struct programs : fixture {
    programs() {
        mode = mirror_mode::off;
        run([](auto& b) { b.create_context(context); });
        run([](auto& b) { b.create_program(program, context, "kernel void k() {}"); });
    }
    void build(const char* options, std::int32_t result = 0) {
        run([&](auto& b) { b.build_program(program, options); }, result);
    }
    void compile(const char* options) {
        run([&](auto& b) {
            b.compile_program(program, options, std::array<std::uint64_t, 1>{header},
                              std::array<std::string_view, 1>{"n.h"});
        });
    }
    void link(std::int32_t result = 0) {
        run([](auto& b) { b.link_program(linked, context, std::array<std::uint64_t, 1>{program}); }, result);
    }
    void make_kernel(std::int32_t result = 0) {
        run([](auto& b) { b.create_kernel(kernel, program, "k"); }, result);
    }
    void destroy(vgpu_object_kind kind, guest_id id) {
        run([&](auto& b) { b.destroy(kind, id); });
    }
};

TEST(shadow_registry, only_the_last_build_matters) {
    programs f;
    f.build("-DA");
    f.build("-DB");
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "build 5 -DB"}));
}

TEST(shadow_registry, a_failed_build_counts_where_the_compiler_said_no) {
    programs f;
    f.build("-DA");
    f.build("-DB", cl_invalid_value);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "build 5 -DA"}));
    f.build("-DC", cl_build_program_failure);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "build 5 -DC (may fail)"}));
    ASSERT_EQ(f.calls.size(), 1u);
    EXPECT_EQ(f.calls[0].entry, 2u);
    EXPECT_FALSE(f.calls[0].pending);
    EXPECT_EQ(f.calls[0].result, cl_build_program_failure);
}

TEST(shadow_registry, a_program_lives_as_long_as_its_kernels) {
    programs f;
    f.build("-DA");
    f.make_kernel();
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5"}));
    f.destroy(VGPU_OBJECT_KERNEL, kernel);
    EXPECT_EQ(f.restore(), lines{"context 1"});
    f.destroy(VGPU_OBJECT_CONTEXT, context);
    EXPECT_EQ(f.file->registry_bytes(), 0u);
}

TEST(shadow_registry, a_kernel_keeps_the_build_that_was_under_way_when_it_was_made) {
    programs f;
    f.submit([](auto& b) { b.build_program(program, "-DA"); });
    const std::uint64_t build = f.token;
    f.submit([](auto& b) { b.create_kernel(kernel, program, "k"); });
    const std::uint64_t made = f.token;
    for (const std::uint64_t token : {build, made}) {
        f.token = token;
        f.answer();
    }
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5"}));
}

TEST(shadow_registry, a_destroyed_object_leaves_its_id_to_the_next) {
    programs f;
    f.build("-DA");
    f.make_kernel();
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    f.run([](auto& b) { b.create_buffer(program, context, 64); });
    EXPECT_EQ(f.restore(),
              (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5", "buffer 5"}));
}

TEST(shadow_registry, a_linked_program_keeps_its_inputs_as_they_were) {
    programs f;
    f.run([](auto& b) { b.create_program(header, context, "#define N 1"); });
    f.compile("-DA");
    f.link();
    f.destroy(VGPU_OBJECT_PROGRAM, header);
    f.run([](auto& b) { b.create_program(header, context, "#define N 2"); });
    f.compile("-DB");
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "program 9", "compile 5 -DA", "link 10",
                                  "destroy 9", "program 9", "compile 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "program 9", "compile 5 -DA", "link 10",
                                  "destroy 9", "program 9", "destroy 5"}));
    f.destroy(VGPU_OBJECT_PROGRAM, linked);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 9"}));
}

TEST(shadow_registry, failed_calls_leave_nothing) {
    programs f;
    const std::uint64_t before = f.file->registry_bytes();
    f.build("", cl_invalid_value);
    f.make_kernel(-46);
    f.run([](auto& b) { b.create_buffer(buffer, context, 64); }, -4);
    f.run([](auto& b) { b.create_sampler(50, context); }, -6);
    f.link(-30);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5"}));
    EXPECT_EQ(f.file->registry_bytes(), before);
    f.link(cl_link_program_failure);
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "link 10 (may fail)"}))
        << "it exists all the same, for its log";
    EXPECT_EQ(f.calls.at(0).result, cl_link_program_failure);
}

TEST(shadow_registry, specialisation_constants_are_set_before_the_build_that_saw_them) {
    programs f;
    const auto set = [&](std::uint32_t constant, unsigned char value) {
        f.run([&](auto& b) { b.set_spec_constant(program, constant, std::array{std::byte{value}}); });
    };
    set(1, 10);
    set(2, 20);
    set(1, 11);
    f.build("-DA");
    f.link(); // needs constant 1 = 11 and that build
    set(1, 12);
    f.build("-DB");
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "spec_constant 5", "spec_constant 5",
                                  "build 5 -DA", "link 10", "spec_constant 5", "build 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, linked);
    EXPECT_EQ(f.restore(),
              (lines{"context 1", "program 5", "spec_constant 5", "spec_constant 5", "build 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.restore(), lines{"context 1"});
}

TEST(shadow_registry, an_object_that_is_destroyed_before_its_call_is_answered) {
    programs f;
    f.submit([](auto& b) { b.create_buffer(buffer, context, 64); });
    const std::uint64_t call = f.token;
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer); });
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5"}));
    EXPECT_FALSE(f.file->memory_is_pending());
    f.token = call;
    f.answer();
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5"}));
}

TEST(shadow_registry, a_call_without_an_answer_is_recreated_as_one) {
    programs f;
    f.submit([](auto& b) { b.create_buffer(buffer, context, 64); });
    EXPECT_EQ(f.restore(), (lines{"context 1", "program 5", "buffer 3 (call)"}));
    ASSERT_EQ(f.calls.size(), 1u);
    EXPECT_TRUE(f.calls[0].pending);
    EXPECT_EQ(f.calls[0].token, f.token);
    f.answer();
    EXPECT_EQ(f.restore().back(), "buffer 3");
    EXPECT_TRUE(f.calls.empty());
}

TEST(shadow_registry, long_chains_of_links_end_without_recursion) {
    programs f;
    constexpr std::uint64_t first = 1000, length = 50'000;
    guest_id last = program;
    for (guest_id id = first; id < first + length; ++id) {
        f.run([&](auto& b) { b.link_program(id, context, std::array<std::uint64_t, 1>{last}); });
        f.destroy(VGPU_OBJECT_PROGRAM, last);
        last = id;
    }
    EXPECT_EQ(f.restore().size(), 2 + length + 1 + length * sizeof(vgpu_cmd_destroy) / VGPU_MAX_STREAM_BYTES)
        << "all of them, and destroyed again";
    f.destroy(VGPU_OBJECT_PROGRAM, last);
    EXPECT_EQ(f.restore(), lines{"context 1"});
}

TEST(shadow_registry, events_come_back_as_what_they_are) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.create_user_event(event, context); });
    f.run([](auto& b) { b.create_user_event(event + 1, context); });
    f.run([](auto& b) {
        b.set_user_event(event + 1, -7)
            .marker({queue, event + 2, {}})
            .marker({queue, event + 3, {}})
            .marker({queue, event + 4, {}});
    });
    EXPECT_EQ(f.h.fsm.on_record(core::testing::completion(event + 2)).broken_rule, nullptr);
    EXPECT_EQ(f.h.fsm.on_record(core::testing::completion(event + 3, -5)).broken_rule, nullptr);
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_CONTEXT, context); });
    EXPECT_EQ(f.restore(),
              (lines{"context 1", "queue 2", "buffer 3", "buffer 4", "user_event 100", "user_event 101",
                     "set_event 101=-7; user_event 102", "set_event 102=0; user_event 103",
                     "set_event 103=-5; user_event 104", "set_event 104=0", "destroy 1"}));
}

TEST(shadow_registry, a_guest_beyond_the_budget_is_mirrored_no_more) {
    fixture f(20'000);
    f.set_up();
    EXPECT_EQ(f.run([](auto& b) {
                   b.create_program(program, context, VGPU_PROGRAM_SOURCE, b.payload(false, 0, 0, 10'000));
               }).size(),
              1u);
    EXPECT_EQ(f.file->failure(), nullptr);
    EXPECT_EQ(f.run([](auto& b) {
        b.create_program(50, context, VGPU_PROGRAM_SOURCE, b.payload(false, 0, 0, 10'000));
    }),
              lines{});
    ASSERT_NE(f.file->failure(), nullptr);
    EXPECT_EQ(f.budget.used, 0u) << "and what it remembered is given back";
    EXPECT_EQ(f.run([](auto& b) {
        b.fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern).destroy(VGPU_OBJECT_MEMORY, buffer);
    }),
              lines{});
}

TEST(shadow_registry, many_small_objects_reach_the_budget_too) {
    fixture f(100'000);
    f.set_up();
    guest_id id = 1000;
    while (!f.file->failure() && id < 2000) {
        f.run([&](auto& b) { b.create_sampler(id, context); });
        ++id;
    }
    EXPECT_NE(f.file->failure(), nullptr);
}

// Every opcode, in each mode; at the end of the session nothing is left.
TEST(shadow_registry, returns_to_nothing_when_all_objects_are_gone) {
    for (const mirror_mode mode : {mirror_mode::off, mirror_mode::syncing, mirror_mode::on}) {
        fixture f;
        f.mode = mode;
        std::uint64_t most = 0;
        for (const sample_request& r : sample_session()) {
            f.submit(r.builder);
            f.answer();
            EXPECT_EQ(f.file->failure(), nullptr) << r.name;
            most = std::max(most, f.file->registry_bytes());
            f.restore();
            for (const log_entry& e : f.entries) {
                EXPECT_EQ(e.content.size(), e.payloads.size()) << r.name;
                EXPECT_EQ(e.meta.stream_bytes, e.stream.size() * 8) << r.name;
            }
        }
        EXPECT_GT(most, 1000u);
        EXPECT_EQ(f.file->registry_bytes(), 0u);
        EXPECT_EQ(f.budget.used, 0u);
        EXPECT_EQ(f.restore(), lines{});
    }
}

} // namespace
} // namespace kagemusha::mirror
