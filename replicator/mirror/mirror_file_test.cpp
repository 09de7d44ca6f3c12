// SPDX-License-Identifier: GPL-2.0-or-later
// mirror_file alone: what a request becomes, what counts as dirty, what the catalog keeps and for how long.
#include "mirror/mirror_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <utility>

#include "codec/cl_numbers.hpp"
#include "codec/sample_session.hpp"
#include "core/test_helpers.hpp"
#include "mirror/packed_stream.hpp"

namespace kagemusha::mirror {
namespace {

using namespace codec;

enum : std::uint64_t {
    context = 1,
    queue,
    buffer,
    other,
    program,
    kernel,
    sub,
    image,
    header,
    linked,
    event = 100
};

constexpr const char* names[VGPU_OPCODE_COUNT] = {"0",
                                                  "info",
                                                  "context",
                                                  "queue",
                                                  "buffer",
                                                  "sub_buffer",
                                                  "image",
                                                  "sampler",
                                                  "program",
                                                  "build",
                                                  "compile",
                                                  "link",
                                                  "kernel",
                                                  "user_event",
                                                  "set_event",
                                                  "destroy",
                                                  "flush",
                                                  "spec_constant",
                                                  "18",
                                                  "19",
                                                  "20",
                                                  "21",
                                                  "22",
                                                  "23",
                                                  "24",
                                                  "25",
                                                  "26",
                                                  "27",
                                                  "28",
                                                  "29",
                                                  "30",
                                                  "31",
                                                  "write",
                                                  "read",
                                                  "write_rect",
                                                  "read_rect",
                                                  "copy",
                                                  "copy_rect",
                                                  "fill",
                                                  "write_image",
                                                  "read_image",
                                                  "copy_image",
                                                  "image_to_buffer",
                                                  "buffer_to_image",
                                                  "fill_image",
                                                  "launch",
                                                  "marker",
                                                  "barrier",
                                                  "migrate",
                                                  "write_runs"};

// A stream as one line: names of commands with what they make, change or destroy.
std::string line_of(const log_entry& e) {
    std::vector<kagemusha_payload> payloads;
    for (const entry_payload& p : e.payloads) {
        payloads.push_back({p.bytes, 0, 1, p.writable, 0});
    }
    stream_decoder decoder(std::as_bytes(std::span(e.stream)), {payloads});
    std::string out;
    op o;
    while (decoder.next(o) == decode_status::op) {
        std::visit(
            [&](const auto& x) {
                out += out.empty() ? "" : "; ";
                out += names[x.c->cmd.opcode];
                if constexpr (requires { x.c->id; }) {
                    out += " " + std::to_string(x.c->id);
                } else if constexpr (requires { x.c->program; }) {
                    out += " " + std::to_string(x.c->program);
                } else if constexpr (requires { x.c->event; }) {
                    out += " " + std::to_string(x.c->event);
                }
                if constexpr (requires { x.options; }) {
                    out += x.options.empty() ? "" : " " + std::string(x.options);
                }
                if constexpr (requires { x.c->status; }) {
                    out += "=" + std::to_string(x.c->status);
                }
                if constexpr (requires { x.c->enqueue; }) {
                    out += x.c->enqueue.event != 0 ? " event " + std::to_string(x.c->enqueue.event) : "";
                    for (const guest_id w : x.waits) {
                        out += " after " + std::to_string(w);
                    }
                }
                if constexpr (requires { x.data; }) {
                    out += x.data.index == VGPU_PAYLOAD_INLINE ? " inline"
                                                               : " payload " + std::to_string(x.data.index);
                }
            },
            o);
    }
    EXPECT_EQ(decoder.error().message, nullptr) << decoder.error().message;
    if ((e.meta.flags & entry_awaits_outcome) != 0) {
        out += (e.meta.flags & entry_may_fail) != 0 ? " (may fail)" : " (call)";
    }
    return out;
}

using lines = std::vector<std::string>;

struct fixture {
    explicit fixture(std::uint64_t budget_limit = max_catalog_bytes) {
        budget.limit = budget_limit;
        for (std::size_t i = 0; i < memory.size(); ++i) {
            memory[i] = static_cast<std::byte>(i * 7 + (i >> 8));
        }
        file = std::make_unique<mirror_file>(&budget, 3);
        packing = std::make_unique<mirror_file>(nullptr, 3);
    }

    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    core::testing::file_harness h;
    catalog_budget budget;
    std::unique_ptr<mirror_file> file;
    std::unique_ptr<mirror_file> packing; // hears the same, and packs
    std::vector<log_entry> entries;       // of the last request
    mirror_mode mode = mirror_mode::on;
    std::uint64_t token = 0; // of the last request

    lines submit(const stream_builder& b) {
        const core::submit_decision d = h.submit(b);
        EXPECT_EQ(d.what, core::submit_decision::action::forward)
            << (d.broken_rule ? d.broken_rule : "refused");
        token = d.request.token;
        entries.clear();
        const payload_reader payloads = [&](std::uint32_t index) {
            byte_pieces out;
            const kagemusha_payload& p = d.request.payloads[index];
            for (std::uint32_t s = 0; s < p.segment_count; ++s) {
                const kagemusha_segment& segment = d.request.segments[p.first_segment + s];
                out.pieces.push_back(std::span(memory).subspan(segment.offset, segment.bytes));
            }
            return out;
        };
        file->make_over(d.request, mode, payloads, entries);
        if (!file->failure()) {
            std::vector<log_entry> packed;
            packing->make_over(d.request, mode, payloads, packed, {true, d.repeats});
            expect_the_same(packed);
        }
        lines out;
        for (const log_entry& e : entries) {
            out.push_back(line_of(e));
        }
        return out;
    }
    // Whether it is packed or not, an entry says the same, and the same memory is marked.
    void expect_the_same(const std::vector<log_entry>& packed) {
        ASSERT_EQ(packed.size(), entries.size());
        for (std::size_t i = 0; i < packed.size(); ++i) {
            EXPECT_EQ(packed[i].meta, entries[i].meta);
            EXPECT_EQ(packed[i].payloads, entries[i].payloads);
            std::vector<std::uint64_t> stream = packed[i].stream;
            if (!packed[i].packed.empty()) {
                ++entries_packed;
                EXPECT_TRUE(stream.empty());
                stream.resize(packed[i].meta.stream_bytes / 8);
                unpack_stream(packed[i].packed, stream);
            }
            EXPECT_EQ(stream, entries[i].stream);
        }
        EXPECT_EQ(marks(*packing), marks(*file));
    }
    static std::vector<std::pair<guest_id, int>> marks(mirror_file& f) {
        std::vector<std::pair<guest_id, int>> out;
        f.for_each_memory(
            [&](memory_info& m) { out.emplace_back(m.id, m.dirty_for_sync + 2 * m.dirty_for_digest); });
        return out;
    }
    std::uint64_t entries_packed = 0;

    template <class F>
    lines submit(F&& build)
        requires std::is_invocable_v<F, stream_builder&>
    {
        stream_builder b;
        build(b);
        return submit(b);
    }
    void answer(std::int32_t result = 0) {
        EXPECT_FALSE(h.fsm.on_done(token, core::testing::ok_response(result)).violation);
        file->on_done(token, result);
        packing->on_done(token, result);
    }
    template <class F>
    lines run(F&& build, std::int32_t result = 0) {
        const lines out = submit(build);
        answer(result);
        return out;
    }
    // A context, a queue and two buffers, clean.
    void set_up() {
        run([](auto& b) { b.create_context(context); });
        run([](auto& b) { b.create_queue(queue, context); });
        run([](auto& b) { b.create_buffer(buffer, context, 4096); });
        run([](auto& b) { b.create_buffer(other, context, 4096, cl_mem_read_only); });
        clean();
    }
    void clean() {
        for (mirror_file* f : {file.get(), packing.get()}) {
            f->for_each_memory([](memory_info& m) { m.dirty_for_sync = m.dirty_for_digest = false; });
        }
    }
    // Ids of what is dirty; both marks must agree.
    std::vector<guest_id> dirty() {
        std::vector<guest_id> out;
        file->for_each_memory([&](memory_info& m) {
            EXPECT_EQ(m.dirty_for_sync, m.dirty_for_digest) << m.id;
            if (m.dirty_for_sync) {
                out.push_back(m.id);
            }
        });
        clean();
        return out;
    }
    std::vector<recreated_call> calls;
    lines recreate() {
        std::vector<log_entry> out;
        calls.clear();
        file->recreate(h.fsm.objects(), out, calls);
        lines all;
        for (const log_entry& e : out) {
            all.push_back(line_of(e));
        }
        recreated = std::move(out);
        return all;
    }
    std::vector<log_entry> recreated;
};

std::vector<std::byte> bytes_of(const byte_pieces& pieces) {
    std::vector<std::byte> out;
    for (const auto& p : pieces.pieces) {
        out.insert(out.end(), p.begin(), p.end());
    }
    return out;
}

const std::vector<std::byte> data(64, std::byte{0x42});
const std::vector<std::byte> pattern(4, std::byte{1});

// ---- what a request becomes

TEST(mirror_file, what_writes_crosses_as_it_is) {
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
TEST(mirror_file, launches_are_packed_and_mark_what_they_write) {
    fixture f;
    f.set_up();
    f.run([](auto& s) { s.create_program(program, context, "source"); });
    f.run([](auto& s) { s.build_program(program); });
    constexpr std::uint64_t buffers = 12, first = 200, kernels = 3;
    for (std::uint64_t i = 0; i < kernels; ++i) {
        f.run([&](auto& s) { s.create_kernel(kernel + 300 + i, program, "k"); });
    }
    for (std::uint64_t i = 0; i < buffers; ++i) {
        f.run([&](auto& s) { s.create_buffer(first + i, context, 4096, i % 3 == 0 ? cl_mem_read_only : 0); });
    }
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
            for (std::uint64_t more = random() % 2 * 40; more != 0; --more) {
                a.scalar(index++, std::uint64_t{7}); // so that what decides lies beyond the 64th word
            }
            a.memory(index, one).scalar(index + 1, static_cast<std::uint32_t>(n)).memory(index + 2, two);
            b.launch({queue, 0, {}}, kernel + 300 + random() % kernels, size, a);
            for (const guest_id id : {one, two}) {
                if ((id - first) % 3 != 0) {
                    expected.insert(id);
                }
            }
        }
        f.submit(b); // compares both files
        f.answer();
        EXPECT_EQ(f.dirty(), std::vector<guest_id>(expected.begin(), expected.end())) << "in run " << run;
        if (testing::Test::HasFailure()) {
            return;
        }
    }
    EXPECT_GT(f.entries_packed, 200u);
    EXPECT_LT(f.entries_packed, 300u);
}

// Launches that repeat others have events that later requests may have waited for, and mark nothing while
// nobody listens.
TEST(mirror_file, launches_that_repeat_others_keep_the_host_s_order) {
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
            if (!in_flight.empty() && random() % 3 == 0) {
                where.waits.push_back(in_flight[random() % in_flight.size()]);
            }
            if (e != 0) {
                in_flight.push_back(e);
            }
            b.launch(where, k, {}, argument_builder{}.memory(0, random() % 2 * buffer).scalar(1, n));
        }
        const lines out = f.submit(b);
        f.answer();
        for (const log_entry& e : f.entries) {
            awaits += !e.stream.empty() && static_cast<std::uint16_t>(e.stream[0]) == VGPU_CMD_AWAIT;
        }
        while (!in_flight.empty() && random() % 3 != 0) {
            ASSERT_EQ(f.h.fsm.on_record(core::testing::completion(in_flight.front())).broken_rule, nullptr);
            f.h.take_records();
            for (mirror_file* m : {f.file.get(), f.packing.get()}) {
                m->on_completion(in_flight.front(), false);
            }
            in_flight.erase(in_flight.begin());
        }
    }
    EXPECT_GT(awaits, 50u);
    EXPECT_GT(f.entries_packed, 150u);
}

TEST(mirror_file, reads_become_markers_where_somebody_may_wait_for_them) {
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

TEST(mirror_file, queries_and_flushes_do_not_cross) {
    fixture f;
    f.set_up();
    EXPECT_EQ(f.run([](auto& b) { b.flush(queue); }), lines{});
    EXPECT_EQ(f.run([](auto& b) { b.info(VGPU_INFO_DEVICE, 0x102B, 0, 0, no_payload); }), lines{});
    EXPECT_EQ(f.run([](auto& b) {
        b.marker({queue, 0, {}}).flush(queue).info(VGPU_INFO_DEVICE, 0x102B, 0, 0, no_payload);
    }),
              lines{"marker"});
}

TEST(mirror_file, a_call_has_an_entry_of_its_own) {
    fixture f;
    f.set_up();
    EXPECT_EQ(f.run([](auto& b) { b.marker({queue, 0, {}}).create_sampler(50, context); }),
              (lines{"marker", "sampler 50 (call)"}));
    EXPECT_EQ(f.run([](auto& b) { b.create_program(program, context, "kernel void k() {}"); }),
              lines{"program 5 (call)"});
    EXPECT_EQ(f.run([](auto& b) { b.build_program(program, "-DX"); }), lines{"build 5 -DX (may fail)"});
}

TEST(mirror_file, payloads_are_numbered_anew) {
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

TEST(mirror_file, content_of_a_program_is_a_copy) {
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
    f.recreate();
    EXPECT_EQ(bytes_of(f.recreated.back().content.at(0)), content);
}

TEST(mirror_file, nothing_crosses_while_off) {
    fixture f;
    f.mode = mirror_mode::off;
    f.set_up();
    EXPECT_EQ(
        f.run([](auto& b) { b.write_buffer({queue, 0, {}}, buffer, 0, data).create_sampler(9, context); }),
        lines{});
    EXPECT_EQ(f.recreate().back(), "sampler 9");
}

TEST(mirror_file, while_syncing_writes_become_markers_and_objects_cross_without_content) {
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

TEST(mirror_file, an_image_without_its_content_has_no_pitches) {
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

TEST(mirror_file, every_command_marks_what_it_writes) {
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

TEST(mirror_file, sub_buffers_and_images_of_buffers_mark_the_buffer) {
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

TEST(mirror_file, memory_of_a_destroyed_buffer_is_told_of_through_its_sub_buffers) {
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
    EXPECT_EQ(f.recreate(), (lines{"context 1", "queue 2", "buffer 4"}));
}

TEST(mirror_file, the_two_marks_are_independent) {
    fixture f;
    f.set_up();
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern); });
    memory_info* m = f.file->find_memory(buffer);
    m->dirty_for_sync = false;
    EXPECT_TRUE(m->dirty_for_digest);
    f.run([](auto& b) { b.fill_buffer({queue, 0, {}}, buffer, 0, 64, pattern); });
    EXPECT_TRUE(m->dirty_for_sync);
}

TEST(mirror_file, memory_says_what_it_is) {
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

TEST(mirror_file, contexts_and_queues_are_those_that_exist) {
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

// ---- the catalog

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

TEST(mirror_catalog, only_the_last_build_matters) {
    programs f;
    f.build("-DA");
    f.build("-DB");
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "build 5 -DB"}));
}

TEST(mirror_catalog, a_failed_build_counts_where_the_compiler_said_no) {
    programs f;
    f.build("-DA");
    f.build("-DB", cl_invalid_value);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "build 5 -DA"}));
    f.build("-DC", cl_build_program_failure);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "build 5 -DC (may fail)"}));
    ASSERT_EQ(f.calls.size(), 1u);
    EXPECT_EQ(f.calls[0].entry, 2u);
    EXPECT_FALSE(f.calls[0].pending);
    EXPECT_EQ(f.calls[0].result, cl_build_program_failure);
}

TEST(mirror_catalog, a_program_lives_as_long_as_its_kernels) {
    programs f;
    f.build("-DA");
    f.make_kernel();
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5"}));
    f.destroy(VGPU_OBJECT_KERNEL, kernel);
    EXPECT_EQ(f.recreate(), lines{"context 1"});
    f.destroy(VGPU_OBJECT_CONTEXT, context);
    EXPECT_EQ(f.file->catalog_bytes(), 0u);
}

TEST(mirror_catalog, a_kernel_keeps_the_build_that_was_under_way_when_it_was_made) {
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
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5"}));
}

TEST(mirror_catalog, a_destroyed_object_leaves_its_id_to_the_next) {
    programs f;
    f.build("-DA");
    f.make_kernel();
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    f.run([](auto& b) { b.create_buffer(program, context, 64); });
    EXPECT_EQ(f.recreate(),
              (lines{"context 1", "program 5", "build 5 -DA", "kernel 6", "destroy 5", "buffer 5"}));
}

TEST(mirror_catalog, a_linked_program_keeps_its_inputs_as_they_were) {
    programs f;
    f.run([](auto& b) { b.create_program(header, context, "#define N 1"); });
    f.compile("-DA");
    f.link();
    f.destroy(VGPU_OBJECT_PROGRAM, header);
    f.run([](auto& b) { b.create_program(header, context, "#define N 2"); });
    f.compile("-DB");
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "program 9", "compile 5 -DA", "link 10",
                                   "destroy 9", "program 9", "compile 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "program 9", "compile 5 -DA", "link 10",
                                   "destroy 9", "program 9", "destroy 5"}));
    f.destroy(VGPU_OBJECT_PROGRAM, linked);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 9"}));
}

TEST(mirror_catalog, failed_calls_leave_nothing) {
    programs f;
    const std::uint64_t before = f.file->catalog_bytes();
    f.build("", cl_invalid_value);
    f.make_kernel(-46);
    f.run([](auto& b) { b.create_buffer(buffer, context, 64); }, -4);
    f.run([](auto& b) { b.create_sampler(50, context); }, -6);
    f.link(-30);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5"}));
    EXPECT_EQ(f.file->catalog_bytes(), before);
    f.link(cl_link_program_failure);
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "link 10 (may fail)"}))
        << "it exists all the same, for its log";
    EXPECT_EQ(f.calls.at(0).result, cl_link_program_failure);
}

TEST(mirror_catalog, specialisation_constants_are_set_before_the_build_that_saw_them) {
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
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "spec_constant 5", "spec_constant 5",
                                   "build 5 -DA", "link 10", "spec_constant 5", "build 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, linked);
    EXPECT_EQ(f.recreate(),
              (lines{"context 1", "program 5", "spec_constant 5", "spec_constant 5", "build 5 -DB"}));
    f.destroy(VGPU_OBJECT_PROGRAM, program);
    EXPECT_EQ(f.recreate(), lines{"context 1"});
}

TEST(mirror_catalog, an_object_that_is_destroyed_before_its_call_is_answered) {
    programs f;
    f.submit([](auto& b) { b.create_buffer(buffer, context, 64); });
    const std::uint64_t call = f.token;
    f.run([](auto& b) { b.destroy(VGPU_OBJECT_MEMORY, buffer); });
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5"}));
    EXPECT_FALSE(f.file->memory_is_pending());
    f.token = call;
    f.answer();
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5"}));
}

TEST(mirror_catalog, a_call_without_an_answer_is_recreated_as_one) {
    programs f;
    f.submit([](auto& b) { b.create_buffer(buffer, context, 64); });
    EXPECT_EQ(f.recreate(), (lines{"context 1", "program 5", "buffer 3 (call)"}));
    ASSERT_EQ(f.calls.size(), 1u);
    EXPECT_TRUE(f.calls[0].pending);
    EXPECT_EQ(f.calls[0].token, f.token);
    f.answer();
    EXPECT_EQ(f.recreate().back(), "buffer 3");
    EXPECT_TRUE(f.calls.empty());
}

TEST(mirror_catalog, long_chains_of_links_end_without_recursion) {
    programs f;
    constexpr std::uint64_t first = 1000, length = 50'000;
    guest_id last = program;
    for (guest_id id = first; id < first + length; ++id) {
        f.run([&](auto& b) { b.link_program(id, context, std::array<std::uint64_t, 1>{last}); });
        f.destroy(VGPU_OBJECT_PROGRAM, last);
        last = id;
    }
    EXPECT_EQ(f.recreate().size(), 2 + length + 1 + length * sizeof(vgpu_cmd_destroy) / VGPU_MAX_STREAM_BYTES)
        << "all of them, and destroyed again";
    f.destroy(VGPU_OBJECT_PROGRAM, last);
    EXPECT_EQ(f.recreate(), lines{"context 1"});
}

TEST(mirror_catalog, events_come_back_as_what_they_are) {
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
    EXPECT_EQ(f.recreate(),
              (lines{"context 1", "queue 2", "buffer 3", "buffer 4", "user_event 100", "user_event 101",
                     "set_event 101=-7; user_event 102", "set_event 102=0; user_event 103",
                     "set_event 103=-5; user_event 104", "set_event 104=0", "destroy 1"}));
}

TEST(mirror_catalog, a_guest_beyond_the_budget_is_mirrored_no_more) {
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

TEST(mirror_catalog, many_small_objects_reach_the_budget_too) {
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
TEST(mirror_catalog, returns_to_nothing_when_all_objects_are_gone) {
    for (const mirror_mode mode : {mirror_mode::off, mirror_mode::syncing, mirror_mode::on}) {
        fixture f;
        f.mode = mode;
        std::uint64_t most = 0;
        for (const sample_request& r : sample_session()) {
            f.submit(r.builder);
            f.answer();
            EXPECT_EQ(f.file->failure(), nullptr) << r.name;
            most = std::max(most, f.file->catalog_bytes());
            f.recreate();
            for (const log_entry& e : f.entries) {
                EXPECT_EQ(e.content.size(), e.payloads.size()) << r.name;
                EXPECT_EQ(e.meta.stream_bytes, e.stream.size() * 8) << r.name;
            }
        }
        EXPECT_GT(most, 1000u);
        EXPECT_EQ(f.file->catalog_bytes(), 0u);
        EXPECT_EQ(f.budget.used, 0u);
        EXPECT_EQ(f.recreate(), lines{});
    }
}

} // namespace
} // namespace kagemusha::mirror
