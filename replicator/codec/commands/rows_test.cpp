// SPDX-License-Identifier: GPL-2.0-or-later
// Breaks every rule of every part of every row, one at a time, in a command that is right otherwise, and
// expects the decoder to refuse it with the rule's sentence. core/validator_rows_test.cpp does the same for
// what needs objects.
//
// Nothing can be left out: the table gives the rows and parts, a kind of part without a breaker does not
// compile, and a breaker that breaks nothing fails. So a new row is tested by being in the table and in the
// sample session. By hand, in decode_hostile_test.cpp: the runs of WRITE_RUNS, which are no parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "codec/cl_numbers.hpp"
#include "codec/command_reader.hpp"
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

    vgpu_cmd& header() { return *reinterpret_cast<vgpu_cmd*>(words.data()); }
    void lengthen(std::size_t at_byte, std::uint64_t word) {
        words.insert(words.begin() + static_cast<std::ptrdiff_t>(at_byte / 8), word);
        header().bytes += 8;
    }

    // Empty: accepted.
    std::string refusal() const {
        stream_decoder decoder(std::as_bytes(std::span(words)), {payloads});
        op o;
        for (;;) {
            switch (decoder.next(o)) {
            case decode_status::op:
                break;
            case decode_status::end:
                return "";
            case decode_status::error:
                return decoder.error().message;
            }
        }
    }
};

sample sample_from(std::span<const std::byte> command, std::span<const kagemusha_payload> payloads) {
    sample s;
    s.words.resize(command.size() / 8);
    std::memcpy(s.words.data(), command.data(), command.size());
    s.payloads.assign(payloads.begin(), payloads.end());
    return s;
}

std::vector<sample> samples_of(std::uint16_t opcode) {
    std::vector<sample> found;
    if (opcode == VGPU_CMD_AWAIT) { // no guest's, so it is not in the session
        stream_builder b;
        b.await(std::array<std::uint64_t, 2>{7, 8});
        return {sample_from(b.stream(), {})};
    }
    if (opcode == VGPU_CMD_TAKE_BUILT || opcode == VGPU_CMD_STORE_BUILT) {
        stream_builder b;
        const vgpu_payload_ref data = b.payload(opcode == VGPU_CMD_TAKE_BUILT, 0, 0, 4096);
        opcode == VGPU_CMD_TAKE_BUILT ? b.take_built(0, data) : b.store_built(data);
        return {sample_from(b.stream(), b.payloads())};
    }
    for (const sample_request& r : sample_session()) {
        stream_decoder decoder(r.builder.stream(), {r.builder.payloads()});
        for (op o; decoder.next(o) == decode_status::op;) {
            const auto command = r.builder.stream().subspan(decoder.offset());
            const auto& header = *reinterpret_cast<const vgpu_cmd*>(command.data());
            if (header.opcode == opcode)
                found.push_back(sample_from(command.first(command_bytes(header)), r.builder.payloads()));
        }
    }
    return found;
}

constexpr const char* zero_id = "an id that must name an object is 0";
constexpr const char* zero_id_in_list = "an id in a list is 0";
constexpr const char* long_list = "an id list is longer than the command";
constexpr const char* unknown_flag = "an unknown flag is set";
constexpr const char* set_pad = "a pad field is not 0";
constexpr const char* padding = "padding is not 0";
constexpr const char* zero_side = "a region has a side of 0";
constexpr const char* too_long = "text, arguments or inline payload are longer than the command";
constexpr const char* any_sentence = nullptr; // another rule may notice it first

// What can be wrong with an argument.
constexpr const char* argument_errors[] = {
    "the indices of arguments do not ascend or are too large",
    "an argument of 0 bytes",
    "an argument that names an object is not 8 bytes long",
    "an unknown kind of argument",
    "an argument is longer than the command",
    padding,
    zero_id,
};

template <class Row>
class row_breaker {
    using wire = typename Row::wire;

public:
    row_breaker() : samples_(samples_of(Row::opcode)) {
        EXPECT_FALSE(samples_.empty()) << "the sample session has no such command";
        for (const sample& s : samples_)
            EXPECT_EQ(s.refusal(), "");
    }

    unsigned broken() const { return broken_; } // so often
    unsigned free() const { return free_; }     // parts without a rule of their own

    // ---- ids

    template <class... A>
    void operator()(const creates_part<A...>& p) {
        set(p.id, 0, zero_id);
    }
    template <class... A>
    void operator()(const uses_part<A...>& p) {
        set(p.id, 0, zero_id);
    }
    template <class... A>
    void operator()(const destroys_part<A...>& p) {
        set(p.id, 0, zero_id);
    }
    // No number is wrong by itself: rules of the row and the validator look at it.
    template <class... A>
    void operator()(const may_use_part<A...>&) {
        ++free_;
    }

    // ---- what is checked by itself

    template <class... A>
    void operator()(const flags_part<A...>& p) {
        for (unsigned bit = 0; bit < digits(p.flags); ++bit)
            if ((p.known >> bit & 1) == 0)
                set(p.flags, std::uint64_t{1} << bit, unknown_flag);
    }
    template <class... A>
    void operator()(const pad_part<A...>& p) {
        set(p.pad, 1, set_pad);
        set(p.pad, std::uint64_t{1} << (digits(p.pad) - 1), set_pad);
    }
    template <class... A>
    void operator()(const between_part<A...>& p) {
        if constexpr (std::is_member_object_pointer_v<decltype(p.value)>) {
            if (p.first != 0)
                set(p.value, p.first - 1, p.sentence);
            if (p.last < UINT64_MAX >> (64 - digits(p.value)))
                set(p.value, p.last + 1, p.sentence);
        } else { // computed
            search(p.sentence, [&](const wire& c) { return p.value(c) < p.first || p.value(c) > p.last; });
        }
    }
    template <class... A>
    void operator()(const rule_part<A...>& p) {
        search(p.sentence, [&](const wire& c) { return !p.holds(c); });
    }
    template <class... A>
    void operator()(const rules_part<A...>& p) {
        for (const auto& text : p.sentences) {
            const std::string sentence(text);
            search(sentence, [&](const wire& c) {
                const char* const why = p.broken(c);
                return why && why == sentence;
            });
        }
    }
    template <class... A>
    void operator()(const range_part<A...>& p) {
        search(p.sentence, [&](const wire& c) {
            return !(base::checked_u64(c.*p.offset) + std::invoke(p.bytes, c)).ok();
        });
    }
    template <class... A>
    void operator()(const region_part<A...>& p) {
        for (const unsigned side : {0, 1, 2})
            change([&](wire& c) { (c.*p.region)[side] = 0; }, zero_side);
    }
    template <class... A>
    void operator()(const box_part<A...>& p) {
        for (const unsigned side : {0, 1, 2}) {
            change([&](wire& c) { (c.*p.region)[side] = 0; }, zero_side);
            change([&](wire& c) { (c.*p.origin)[side] = UINT64_MAX; },
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
        for (const unsigned side : {0, 1, 2})
            change([&](wire& c) { (c.*p.origin)[side] = UINT64_MAX; }, "a rectangle's end overflows");
    }

    // ---- what follows the fixed structure

    template <class... A>
    void operator()(const ids_part<A...>& p) {
        longer_than_command(p.count, 1, long_list);
        in_view(p.view, [](std::byte* ids, std::size_t) { std::memset(ids, 0, 8); }, zero_id_in_list);
    }
    template <class... A>
    void operator()(const text_part<A...>& p) {
        any_text(p);
        in_view(p.view, [](std::byte* text, std::size_t) { text[0] = {}; }, "text contains a 0 byte");
    }
    template <class... A>
    void operator()(const names_part<A...>& p) {
        any_text(p);
        in_view(p.view, [](std::byte* names, std::size_t) { names[0] = {}; }, p.sentence);
        in_view(p.view, [](std::byte* names, std::size_t n) { names[n - 1] = std::byte{'x'}; }, p.sentence);
    }
    template <class... A>
    void operator()(const octets_part<A...>& p) {
        longer_than_view(p);
        padding_of(p.view);
    }
    template <class... A>
    void operator()(const payload_part<A...>& p) {
        const auto with = [&](bool inline_bytes, const auto& f, const char* sentence) {
            apply(sentence, [&](sample& s) {
                vgpu_payload_ref& ref = fixed(s).*p.ref;
                const bool fits =
                    inline_bytes ? ref.index == VGPU_PAYLOAD_INLINE : ref.index < s.payloads.size();
                if (fits)
                    f(s, ref);
                return fits;
            });
        };
        const auto has = [&](const auto& f) {
            return std::any_of(samples_.begin(), samples_.end(),
                               [&](sample& s) { return f(s, fixed(s).*p.ref); });
        };
        const bool table =
            has([](const sample& s, const auto& ref) { return ref.index < s.payloads.size(); });
        const bool octets =
            has([](const sample&, const auto& ref) { return ref.index == VGPU_PAYLOAD_INLINE; });
        EXPECT_TRUE(table || octets) << "no sample has this payload";
        change([&](wire& c) { (c.*p.ref).pad = 1; }, set_pad);
        if (p.way == direction::out) {
            change([&](wire& c) { (c.*p.ref) = {8, VGPU_PAYLOAD_INLINE, 0}; }, any_sentence);
            with(
                false, [](sample&, auto& ref) { ref.index = VGPU_PAYLOAD_INLINE; },
                "data that the device writes can't be inline");
        }
        if (table)
            payload_of_table(with);
        if (octets)
            payload_inside(with, p.view);
    }
    template <class... A>
    void operator()(const arguments_part<A...>& p) {
        set(p.count, VGPU_MAX_ARGUMENTS + 1, "more arguments than VGPU_MAX_ARGUMENTS");
        set(p.bytes, 4, "argument_bytes is not a multiple of 8");
        longer_than_command(p.bytes, 8, too_long);
        change([&](wire& c) { --(c.*p.count); }, "more argument bytes than arguments");
        change([&](wire& c) { ++(c.*p.count); }, "fewer argument bytes than arguments");
        for (const char* sentence : argument_errors) {
            bool found = false;
            for (const sample& s : samples_) {
                each_mutation(s, sizeof(wire), s.words.size() * 8,
                              [&](sample& m) { found = found || m.refusal() == sentence; });
            }
            EXPECT_TRUE(found) << "no argument was refused with: " << sentence;
            ++broken_;
        }
    }

    // ---- what every command has

    void frame() {
        apply("the command is shorter than its opcode's structure", [](sample& s) {
            s.words.resize(sizeof(wire) / 8 - 1);
            s.header().bytes = sizeof(wire) - 8;
            return true;
        });
        apply("the command is longer than what it contains", [](sample& s) {
            s.lengthen(s.words.size() * 8, 0);
            return true;
        });
        apply(unknown_flag, [](sample& s) { return s.header().flags = 1, true; });
    }
    void enqueue() {
        change([](wire& c) { c.enqueue.queue = 0; }, zero_id);
        change([](wire& c) { c.enqueue.pad = 1; }, set_pad);
        change([](wire& c) { c.enqueue.wait_count = VGPU_MAX_WAIT_COUNT + 1; },
               "the wait list is longer than VGPU_MAX_WAIT_COUNT");
        change([](wire& c) { c.enqueue.wait_count = VGPU_MAX_WAIT_COUNT; }, long_list);
        const auto with_wait = [](guest_id id) {
            return [id](sample& s) {
                ++fixed(s).enqueue.wait_count;
                s.lengthen(sizeof(wire), id);
                return true;
            };
        };
        for (sample s : samples_) {
            with_wait(1)(s);
            EXPECT_EQ(s.refusal(), "");
        }
        apply(zero_id_in_list, with_wait(0));
    }

private:
    static wire& fixed(sample& s) { return *reinterpret_cast<wire*>(s.words.data()); }
    template <class Value, class Class>
    static constexpr unsigned digits(Value Class::*) {
        return sizeof(Value) * 8;
    }

    // Changes every sample to which the change applies. All must be refused, at least one with the sentence.
    void apply(const char* sentence, const std::function<bool(sample&)>& f) {
        bool applied = false, said = !sentence;
        for (sample s : samples_) {
            if (!f(s))
                continue;
            applied = true;
            const std::string refusal = s.refusal();
            EXPECT_FALSE(refusal.empty()) << "accepted; wanted: " << (sentence ? sentence : "any");
            said = said || refusal == sentence;
        }
        EXPECT_TRUE(applied) << "no sample can break it: " << (sentence ? sentence : "any");
        EXPECT_TRUE(said) << "nothing was refused with: " << sentence;
        ++broken_;
    }
    void change(const std::function<void(wire&)>& f, const char* sentence) {
        apply(sentence, [&](sample& s) { return f(fixed(s)), true; });
    }
    template <class Value, class Class>
    void set(Value Class::* field, std::uint64_t to, const char* sentence) {
        change([=](wire& c) { c.*field = static_cast<Value>(to); }, sentence);
    }

    // Calls f(copy) for each copy with one number in [from, to) changed, or its payload.
    template <class F>
    static void each_mutation(const sample& s, std::size_t from, std::size_t to, F&& f) {
        const auto try_with = [&]<class Number>(Number) {
            for (std::size_t at = from; at + sizeof(Number) <= to; at += sizeof(Number)) {
                Number old;
                std::memcpy(&old, reinterpret_cast<const std::byte*>(s.words.data()) + at, sizeof(old));
                constexpr auto max = std::numeric_limits<Number>::max();
                for (const std::uint64_t value : std::initializer_list<std::uint64_t>{
                         0, 1, 2, 3, 9, VGPU_MAX_RESULT_BYTES + 1, max, max & ~std::uint64_t{127},
                         max / 2 + 1, old + std::uint64_t{1}, old - std::uint64_t{1},
                         cl_mem_object_image1d_buffer}) {
                    sample m = s;
                    const auto number = static_cast<Number>(value);
                    std::memcpy(reinterpret_cast<std::byte*>(m.words.data()) + at, &number, sizeof(number));
                    f(m);
                }
            }
        };
        try_with(std::uint8_t{});
        try_with(std::uint32_t{});
        try_with(std::uint64_t{});
    }
    // The same for payloads: of another length, and none.
    template <class F>
    static void each_payload(const sample& s, F&& f) {
        const auto one = [&](const auto& part) {
            if constexpr (requires { part.ref; }) {
                for (const std::uint64_t bytes : {0, 8, 16, 4096}) {
                    sample m = s;
                    vgpu_payload_ref& ref = fixed(m).*part.ref;
                    if (ref.index < m.payloads.size()) {
                        m.payloads[ref.index].bytes = bytes;
                        ref.bytes = bytes;
                        ref.index = bytes == 0 ? VGPU_PAYLOAD_NONE : ref.index;
                        f(m);
                    }
                }
            }
        };
        std::apply([&](const auto&... part) { (one(part), ...); }, Row::parts);
    }
    // One number of the fixed structure, or a payload, is changed until the rule is broken. Whatever breaks
    // it must be refused, and something with the sentence.
    template <class Broken>
    void search(const std::string& sentence, const Broken& breaks) {
        bool said = false;
        // A rule may rely on those before it, so it is asked only when they hold.
        const auto look = [&](sample& m) {
            const std::string refusal = m.refusal();
            if (refusal.empty())
                EXPECT_FALSE(breaks(fixed(m))) << "accepted; wanted: " << sentence;
            else if (refusal == sentence)
                said = said || breaks(fixed(m));
        };
        for (const sample& s : samples_) {
            each_mutation(s, sizeof(vgpu_cmd), sizeof(wire), look);
            each_payload(s, look);
        }
        EXPECT_TRUE(said) << "nothing was refused with: " << sentence;
        ++broken_;
    }

    // ---- variable parts

    // Calls f(bytes, size) with what the op's member points at in the sample; false if that is nothing.
    template <class View, class F>
    static bool look_at(sample& s, View view, F&& f) {
        stream_decoder decoder(std::as_bytes(std::span(s.words)), {s.payloads});
        op o;
        decoder.next(o);
        const auto& seen = std::get<typename Row::op>(o).*view;
        std::span<const std::byte> bytes;
        if constexpr (requires { seen.inline_bytes; })
            bytes = seen.inline_bytes;
        else
            bytes = std::as_bytes(std::span(seen.data(), seen.size()));
        if (!bytes.empty())
            f(const_cast<std::byte*>(bytes.data()), bytes.size());
        return !bytes.empty();
    }
    template <class View, class F>
    void in_view(View view, const F& f, const char* sentence) {
        apply(sentence, [&](sample& s) { return look_at(s, view, f); });
    }
    template <class View>
    void padding_of(View view) {
        apply(padding, [&](sample& s) {
            bool padded_one = false;
            look_at(s, view, [&](std::byte* bytes, std::size_t n) {
                padded_one = n % 8 != 0;
                bytes[padded_one ? n : 0] |= std::byte{padded_one};
            });
            return padded_one;
        });
    }
    // A count, of so many bytes each, that only a longer command could have.
    template <class Count>
    void longer_than_command(Count count, std::uint32_t times, const char* sentence) {
        apply(sentence, [=](sample& s) {
            fixed(s).*count = static_cast<std::uint32_t>(s.words.size()) * times;
            return true;
        });
    }
    template <class Part>
    void longer_than_view(const Part& p) {
        apply(too_long, [&](sample& s) {
            return look_at(s, p.view, [&](std::byte*, std::size_t n) {
                fixed(s).*p.bytes = static_cast<std::uint32_t>(padded(n) + 8);
            });
        });
    }
    template <class Part>
    void any_text(const Part& p) {
        set(p.bytes, p.limit + 1, "text is longer than its limit");
        longer_than_command(p.bytes, 8, too_long);
        padding_of(p.view);
    }

    // ---- payloads: `with` changes samples in which the payload is in the table, or inline

    template <class With>
    void payload_of_table(const With& with) {
        with(
            false, [](sample& s, auto& ref) { ref.index = static_cast<std::uint32_t>(s.payloads.size()); },
            "a payload reference is beyond the payload table");
        with(
            false, [](sample& s, auto& ref) { ++s.payloads[ref.index].bytes; },
            "a payload reference's length is 0 or not that of its table entry");
        with(
            false, [](sample& s, auto& ref) { s.payloads[ref.index].writable ^= 1; },
            "a payload's direction is not that of its command");
        with(
            false, [](sample&, auto& ref) { ref.index = VGPU_PAYLOAD_NONE; },
            "a payload reference to nothing has a length");
        if (Row::answers != answer::call) { // a call is alone in its stream, and has one payload in the table
            with(
                false,
                [](sample& s, auto&) {
                    const std::vector<std::uint64_t> again = s.words;
                    s.words.insert(s.words.end(), again.begin(), again.end());
                },
                "two commands use one payload table entry");
        }
    }
    template <class With, class View>
    void payload_inside(const With& with, View view) {
        constexpr const char* length =
            "an inline payload is empty or longer than VGPU_MAX_INLINE_PAYLOAD_BYTES";
        with(true, [](sample&, auto& ref) { ref.bytes = 0; }, length);
        // INFO has a rule before it
        with(
            true, [](sample&, auto& ref) { ref.bytes = VGPU_MAX_INLINE_PAYLOAD_BYTES + 1; },
            Row::opcode == VGPU_CMD_INFO ? any_sentence : length);
        with(true, [](sample&, auto& ref) { ref.bytes = padded(ref.bytes) + 8; }, too_long);
        if (Row::opcode != VGPU_CMD_INFO) // whose input has no padding
            padding_of(view);
    }

    std::vector<sample> samples_;
    unsigned broken_ = 0, free_ = 0;
};

// A packed command has no fields to change, so it is written anew.
void break_write_runs() {
    const auto refusal = [](std::uint64_t queue, std::uint64_t buffer) {
        stream_builder b;
        b.write_runs(queue, buffer, std::array{written_run{64, std::vector<std::byte>(3)}});
        return sample_from(b.stream(), {}).refusal();
    };
    EXPECT_EQ(refusal(1, 2), "");
    EXPECT_EQ(refusal(0, 2), zero_id);
    EXPECT_EQ(refusal(1, 0), zero_id);
}

// How many parts were broken, and how often.
struct tally {
    unsigned rows = 0, parts = 0, broken = 0;
};

template <class Row>
void break_all_parts(tally& all) {
    SCOPED_TRACE(Row::name);
    ++all.rows;
    constexpr auto parts =
        static_cast<unsigned>(std::tuple_size_v<std::remove_cvref_t<decltype(Row::parts)>>);
    all.parts += parts;
    if constexpr (is_packed<Row>) {
        static_assert(parts == 1 && Row::opcode == VGPU_CMD_WRITE_RUNS, "write a breaker for it");
        break_write_runs();
        all.broken += 2;
    } else {
        row_breaker<Row> broken;
        const auto one = [&](const auto& part) {
            const unsigned before = broken.broken() + broken.free();
            broken(part);
            EXPECT_GT(broken.broken() + broken.free(), before) << "a part that nothing breaks";
        };
        std::apply([&](const auto&... part) { (one(part), ...); }, Row::parts);
        broken.frame();
        if constexpr (Row::answers == answer::enqueued)
            broken.enqueue();
        all.broken += broken.broken();
    }
}

TEST(command_rows, every_rule_of_every_part_of_every_row_is_checked) {
    tally all;
    all_rows::for_each([&]<class Row>() { break_all_parts<Row>(all); });
    EXPECT_EQ(all.rows, all_rows::count);
    std::printf("%u rows with %u parts: %u rules broken, each alone\n", all.rows, all.parts, all.broken);
}

// Offsets in the stream, and so a call's place in it, are the walk's: the rows only say what a call is.
TEST(command_rows, a_call_is_the_last_command_of_its_stream) {
    all_rows::for_each([]<class Row>() {
        SCOPED_TRACE(Row::name);
        sample s = samples_of(Row::opcode).at(0);
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
