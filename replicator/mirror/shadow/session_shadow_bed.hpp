// SPDX-License-Identifier: GPL-2.0-or-later
// One session_shadow with the file of a device behind it, for its tests and the registry's: requests are
// submitted, entries and the registry come back as lines of text.
#pragma once

#include "mirror/shadow/session_shadow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codec/cl_numbers.hpp"
#include "codec/sample_session.hpp"
#include "core/test_helpers.hpp"
#include "mirror/log/packed_stream.hpp"

namespace kagemusha::mirror {
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

inline constexpr const char* names[VGPU_OPCODE_COUNT] = {"0",
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
inline std::string line_of(const log_entry& e) {
    std::vector<kagemusha_payload> payloads;
    for (const entry_payload& p : e.payloads)
        payloads.push_back({p.bytes, 0, 1, p.writable, 0});
    stream_decoder decoder(std::as_bytes(std::span(e.stream)), {payloads});
    std::string out;
    op o;
    while (decoder.next(o) == decode_status::op) {
        std::visit(
            [&](const auto& x) {
                out += out.empty() ? "" : "; ";
                out += names[x.c->cmd.opcode];
                if constexpr (requires { x.c->id; })
                    out += " " + std::to_string(x.c->id);
                else if constexpr (requires { x.c->program; })
                    out += " " + std::to_string(x.c->program);
                else if constexpr (requires { x.c->event; })
                    out += " " + std::to_string(x.c->event);
                if constexpr (requires { x.options; })
                    out += x.options.empty() ? "" : " " + std::string(x.options);
                if constexpr (requires { x.c->status; })
                    out += "=" + std::to_string(x.c->status);
                if constexpr (requires { x.c->enqueue; }) {
                    out += x.c->enqueue.event != 0 ? " event " + std::to_string(x.c->enqueue.event) : "";
                    for (const guest_id w : x.waits)
                        out += " after " + std::to_string(w);
                }
                if constexpr (requires { x.data; }) {
                    out += x.data.index == VGPU_PAYLOAD_INLINE ? " inline"
                                                               : " payload " + std::to_string(x.data.index);
                }
            },
            o);
    }
    EXPECT_EQ(decoder.error().message, nullptr) << decoder.error().message;
    if ((e.meta.flags & entry_awaits_outcome) != 0)
        out += (e.meta.flags & entry_may_fail) != 0 ? " (may fail)" : " (call)";
    return out;
}

using lines = std::vector<std::string>;

struct fixture {
    explicit fixture(std::uint64_t budget_limit = max_registry_bytes, std::vector<std::string> named = {})
        : named_kernels(std::move(named)) {
        budget.limit = budget_limit;
        for (std::size_t i = 0; i < memory.size(); ++i)
            memory[i] = static_cast<std::byte>(i * 7 + (i >> 8));
        file = std::make_unique<session_shadow>(&budget, 3, &named_kernels);
        packing = std::make_unique<session_shadow>(nullptr, 3, &named_kernels);
    }

    std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
    core::testing::file_harness h;
    registry_budget budget;
    const std::vector<std::string> named_kernels;
    std::unique_ptr<session_shadow> file;
    std::unique_ptr<session_shadow> packing; // hears the same, and packs
    std::vector<log_entry> entries;          // of the last request
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
        file->rewrite(d.request, mode, payloads, entries);
        if (!file->failure()) {
            std::vector<log_entry> packed;
            packing->rewrite(d.request, mode, payloads, packed, {true, d.repeats});
            expect_the_same(packed);
        }
        lines out;
        for (const log_entry& e : entries)
            out.push_back(line_of(e));
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
    static std::vector<std::pair<guest_id, int>> marks(session_shadow& f) {
        std::vector<std::pair<guest_id, int>> out;
        f.for_each_memory([&](memory_info& m) {
            out.emplace_back(m.id, m.dirty_for_sync + 2 * m.dirty_for_digest + 4 * m.computed);
        });
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
        for (session_shadow* f : {file.get(), packing.get()})
            f->for_each_memory([](memory_info& m) { m.dirty_for_sync = m.dirty_for_digest = false; });
    }
    // Ids of what is dirty; both marks must agree.
    std::vector<guest_id> dirty() {
        std::vector<guest_id> out;
        file->for_each_memory([&](memory_info& m) {
            EXPECT_EQ(m.dirty_for_sync, m.dirty_for_digest) << m.id;
            if (m.dirty_for_sync)
                out.push_back(m.id);
        });
        clean();
        return out;
    }
    std::vector<restored_call> calls;
    lines restore() {
        std::vector<log_entry> out;
        calls.clear();
        file->restore(h.fsm.objects(), out, calls);
        lines all;
        for (const log_entry& e : out)
            all.push_back(line_of(e));
        restored = std::move(out);
        return all;
    }
    std::vector<log_entry> restored;
};

inline std::vector<std::byte> bytes_of(const byte_pieces& pieces) {
    std::vector<std::byte> out;
    for (const auto& p : pieces.pieces)
        out.insert(out.end(), p.begin(), p.end());
    return out;
}

inline const std::vector<std::byte> data(64, std::byte{0x42});
inline const std::vector<std::byte> pattern(4, std::byte{1});

} // namespace kagemusha::mirror
