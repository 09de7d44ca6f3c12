// SPDX-License-Identifier: GPL-2.0-or-later
// Breaks every part of every row, in a command that is right otherwise, and expects the decoder to refuse it:
// a new row is tested by being in the table and in the sample session. Rules that are functions can't be
// broken without knowing them: decode_hostile_test.cpp has those.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "codec/commands/table.hpp"
#include "codec/decode.hpp"
#include "codec/encode.hpp"
#include "codec/sample_session.hpp"

namespace kagemusha::codec::commands {
namespace {

// A command of the sample session, alone in its stream.
struct sample {
    std::vector<std::uint64_t> words;
    std::vector<kagemusha_payload> payloads;

    // Empty: accepted.
    std::string refusal() const {
        stream_decoder decoder(std::as_bytes(std::span(words)), {payloads});
        op o;
        return decoder.next(o) == decode_status::op ? "" : decoder.error().message;
    }
};

// AWAIT is no guest's, so it is not in the session.
sample await_sample() {
    stream_builder b;
    b.await(std::array<std::uint64_t, 2>{7, 8});
    sample s;
    s.words.resize(b.stream().size() / 8);
    std::memcpy(s.words.data(), b.stream().data(), b.stream().size());
    return s;
}

std::optional<sample> sample_of(std::uint16_t opcode) {
    if (opcode == VGPU_CMD_AWAIT) {
        return await_sample();
    }
    for (const sample_request& r : sample_session()) {
        stream_decoder decoder(r.builder.stream(), {r.builder.payloads()});
        for (op o; decoder.next(o) == decode_status::op;) {
            const vgpu_cmd& header =
                *reinterpret_cast<const vgpu_cmd*>(r.builder.stream().data() + decoder.offset());
            if (header.opcode == opcode) {
                sample s;
                s.words.resize(command_bytes(header) / 8);
                std::memcpy(s.words.data(), &header, command_bytes(header));
                s.payloads.assign(r.builder.payloads().begin(), r.builder.payloads().end());
                return s;
            }
        }
    }
    return {};
}

constexpr const char* any_sentence = "";

// Calls with_change(change of the fixed structure, sentence) for each way in which a part can be broken.
// Where another part may notice it first, any sentence will do.
template <class Wire, class F>
struct breaker {
    F with_change;

    template <class Value>
    void set(Value Wire::* field, std::uint64_t to, const char* sentence) {
        with_change([=](Wire& c) { c.*field = static_cast<Value>(to); }, sentence);
    }
    // A field that is computed can't be set.
    template <class Value>
    void set(const Value&, std::uint64_t, const char*) {}

    void id(auto field) { set(field, 0, "an id that must name an object is 0"); }
    template <class... A>
    void operator()(const creates_part<A...>& p) {
        id(p.id);
    }
    template <class... A>
    void operator()(const uses_part<A...>& p) {
        id(p.id);
    }
    template <class... A>
    void operator()(const destroys_part<A...>& p) {
        id(p.id);
    }
    template <class... A>
    void operator()(const flags_part<A...>& p) {
        for (unsigned bit = 0; bit < 32; ++bit) {
            if ((p.known >> bit & 1) == 0) {
                set(p.flags, std::uint64_t{1} << bit, "an unknown flag is set");
            }
        }
    }
    template <class... A>
    void operator()(const pad_part<A...>& p) {
        set(p.pad, 1, "a pad field is not 0");
        set(p.pad, std::uint64_t{1} << 31, "a pad field is not 0");
    }
    template <class... A>
    void operator()(const between_part<A...>& p) {
        if (p.first != 0) {
            set(p.value, p.first - 1, p.sentence);
        }
        if (p.last < UINT32_MAX) {
            set(p.value, p.last + 1, p.sentence);
        }
    }
    template <class... A>
    void operator()(const range_part<A...>& p) {
        set(p.offset, UINT64_MAX, any_sentence);
    }
    template <class... A>
    void operator()(const region_part<A...>& p) {
        for (const unsigned side : {0, 1, 2}) {
            with_change([=](Wire& c) { (c.*p.region)[side] = 0; }, "a region has a side of 0");
        }
    }
    template <class... A>
    void operator()(const box_part<A...>& p) {
        for (const unsigned side : {0, 1, 2}) {
            with_change([=](Wire& c) { (c.*p.region)[side] = 0; }, "a region has a side of 0");
            with_change([=](Wire& c) { (c.*p.origin)[side] = UINT64_MAX; },
                        "origin + region of an image overflow");
        }
    }
    template <class... A>
    void operator()(const pitches_part<A...>& p) {
        set(p.row, 0, "a row pitch is shorter than a row");
        set(p.slice, 0, "a slice pitch is shorter than a slice");
    }
    template <class... A>
    void operator()(const rect_part<A...>& p) {
        for (const unsigned side : {0, 1, 2}) {
            with_change([=](Wire& c) { (c.*p.origin)[side] = UINT64_MAX; }, "a rectangle's end overflows");
        }
    }
    template <class... A>
    void operator()(const ids_part<A...>& p) {
        set(p.count, UINT32_MAX, any_sentence);
    }
    template <class... A>
    void operator()(const text_part<A...>& p) {
        set(p.bytes, p.limit + 1, "text is longer than its limit");
    }
    template <class... A>
    void operator()(const names_part<A...>& p) {
        set(p.bytes, p.limit + 1, "text is longer than its limit");
    }
    template <class... A>
    void operator()(const octets_part<A...>& p) {
        set(p.bytes, UINT32_MAX, any_sentence);
    }
    template <class... A>
    void operator()(const payload_part<A...>& p) {
        with_change([=](Wire& c) { (c.*p.ref).pad = 1; }, any_sentence);
        with_change([=](Wire& c) { (c.*p.ref) = {8, 0x1000, 0}; }, any_sentence);
        if (p.way == direction::out) {
            with_change([=](Wire& c) { (c.*p.ref) = {8, VGPU_PAYLOAD_INLINE, 0}; },
                        "data that the device writes can't be inline");
        }
    }
    template <class... A>
    void operator()(const arguments_part<A...>& p) {
        set(p.count, VGPU_MAX_ARGUMENTS + 1, "more arguments than VGPU_MAX_ARGUMENTS");
        set(p.bytes, 4, "argument_bytes is not a multiple of 8");
    }
    template <class... A>
    void operator()(const may_use_part<A...>&) {}
    template <class... A>
    void operator()(const rule_part<A...>&) {}
    template <class... A>
    void operator()(const rules_part<A...>&) {}
};

template <class Row>
void break_all_parts() {
    SCOPED_TRACE(Row::name);
    const std::optional<sample> right = sample_of(Row::opcode);
    ASSERT_TRUE(right) << "the sample session has no such command";
    ASSERT_EQ(right->refusal(), "");
    if constexpr (!is_packed<Row>) {
        using wire = typename Row::wire;
        const auto with_change = [&](const std::function<void(wire&)>& change, const std::string& sentence) {
            sample s = *right;
            change(*reinterpret_cast<wire*>(s.words.data()));
            const std::string refusal = s.refusal();
            EXPECT_FALSE(refusal.empty()) << "accepted; wanted: " << sentence;
            if (!sentence.empty()) {
                EXPECT_EQ(refusal, sentence);
            }
        };
        breaker<wire, decltype(with_change)> broken{with_change};
        std::apply([&](const auto&... part) { (broken(part), ...); }, Row::parts);
        if constexpr (Row::answers == answer::enqueued) {
            with_change([](wire& c) { c.enqueue.queue = 0; }, "an id that must name an object is 0");
            with_change([](wire& c) { c.enqueue.pad = 1; }, "a pad field is not 0");
            with_change([](wire& c) { c.enqueue.wait_count = VGPU_MAX_WAIT_COUNT + 1; },
                        "the wait list is longer than VGPU_MAX_WAIT_COUNT");
        }
    }
}

TEST(command_rows, every_part_of_every_row_is_checked) {
    all_rows::for_each([]<class Row>() { break_all_parts<Row>(); });
}

// Offsets in the stream, and so a call's place in it, are the walk's: the rows only say what a call is.
TEST(command_rows, a_call_is_the_last_command_of_its_stream) {
    all_rows::for_each([]<class Row>() {
        SCOPED_TRACE(Row::name);
        sample s = sample_of(Row::opcode).value();
        stream_builder more;
        more.flush(1);
        const auto* flush_words = reinterpret_cast<const std::uint64_t*>(more.stream().data());
        s.words.insert(s.words.end(), flush_words, flush_words + more.stream().size() / 8);
        stream_decoder decoder(std::as_bytes(std::span(s.words)), {s.payloads});
        op o;
        ASSERT_EQ(decoder.next(o), decode_status::op);
        EXPECT_EQ(decoder.next(o) == decode_status::error, Row::answers == answer::call);
    });
}

} // namespace
} // namespace kagemusha::codec::commands
