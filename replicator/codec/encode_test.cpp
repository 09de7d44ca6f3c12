// SPDX-License-Identifier: GPL-2.0-or-later
// What the encoder writes, word for word, for each kind of part that has a view. The words come from
// proto/abi/vgpu_protocol.h by hand, not from the rows: decoder and encoder both follow the rows, so a row that
// is wrong would not be noticed by letting one read what the other wrote.
#include "codec/encode.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "codec/commands/emit.hpp"
#include "codec/decode.hpp"
#include "codec/sample_session.hpp"

namespace kagemusha::codec {
namespace {

using words = std::vector<std::uint64_t>;

words stream_of(const stream_builder& b) {
    words all(b.stream().size() / 8);
    std::memcpy(all.data(), b.stream().data(), b.stream().size());
    return all;
}

constexpr std::uint64_t header(std::uint16_t opcode, std::uint32_t length) {
    return opcode | std::uint64_t{length} << 32;
}
constexpr std::uint64_t two(std::uint32_t low, std::uint32_t high) {
    return low | std::uint64_t{high} << 32;
}
constexpr std::uint32_t no_index = 0xfffffffe, inside = 0xffffffff;

std::vector<std::byte> octets(std::string_view s) {
    const auto raw = std::as_bytes(std::span(s));
    return {raw.begin(), raw.end()};
}

TEST(encode, text_has_its_length_and_is_padded) {
    stream_builder b;
    b.create_kernel(3, 4, "scale_all");
    EXPECT_EQ(stream_of(b), (words{header(12, 48), 3, 4, two(9, 0), 0x6c615f656c616373 /* scale_al */, 'l'}));
}

TEST(encode, lists_texts_and_names_are_in_the_order_of_the_protocol) {
    stream_builder b;
    b.compile_program(7, "-g", std::array<std::uint64_t, 2>{5, 6},
                      std::array<std::string_view, 2>{"a", "bc"});
    EXPECT_EQ(stream_of(b), (words{header(10, 64), 7, two(2, 2), two(5, 0), 5, 6, 0x672d /* -g */,
                                   0x63620061 /* a, 0, bc, 0 */}));
    b.clear();
    b.link_program(1, 2, std::array<std::uint64_t, 1>{9}, "-w");
    EXPECT_EQ(stream_of(b), (words{header(11, 48), 1, 2, two(2, 1), 9, 0x772d}));
}

TEST(encode, octets_have_their_length) {
    stream_builder b;
    b.set_spec_constant(2, 40, octets("abc"));
    EXPECT_EQ(stream_of(b), (words{header(17, 32), 2, two(40, 3), 0x636261}));
}

TEST(encode, payloads_are_nothing_an_entry_or_inside) {
    stream_builder b;
    b.info(2, 0x102b, 0, 0, b.payload(true, 0, 0, 256));
    EXPECT_EQ(stream_of(b), (words{header(1, 64), two(2, 0x102b), 0, 0, 256, 0, 0, no_index}));
    b.clear();
    b.info(8, 1, 3, 0, no_payload, octets("12345678"));
    EXPECT_EQ(stream_of(b),
              (words{header(1, 72), two(8, 1), 3, 0, 0, no_index, 8, inside, 0x3837363534333231}));
}

TEST(encode, an_enqueued_command_has_its_wait_list_before_its_other_parts) {
    stream_builder b;
    b.write_buffer({1, 2, {3, 4}}, 5, 6, octets("xyz"));
    EXPECT_EQ(stream_of(b), (words{header(32, 88), 1, 2, two(2, 0), 5, 6, 3, inside, 3, 4, 0x7a7978}));
    EXPECT_EQ(b.completion_count(), 1u);
    b.clear();
    b.migrate({1, 0, {9}}, std::array<std::uint64_t, 2>{7, 8}, 1);
    EXPECT_EQ(stream_of(b), (words{header(48, 72), 1, 0, two(1, 0), 1, two(2, 0), 9, 7, 8}));
    EXPECT_EQ(b.completion_count(), 0u);
}

TEST(encode, arguments_have_their_number_and_length) {
    stream_builder b;
    b.launch({1, 0, {}}, 2, launch_size{}, argument_builder{}.memory(0, 77).scalar(3, std::uint16_t{5}));
    const words all = stream_of(b);
    ASSERT_EQ(all.size(), 16u + 6);
    EXPECT_EQ(all[0], header(45, 22 * 8));
    EXPECT_EQ(all[15], two(2, 48));
    EXPECT_EQ(words(all.begin() + 16, all.end()), (words{two(0, 2), 8, 77, two(3, 1), 2, 5}));
}

TEST(encode, what_the_row_decides_is_not_for_the_sender) {
    vgpu_cmd_create_queue c{};
    c.cmd = {99, 3, 1};
    c.id = 1;
    c.context = 2;
    c.pad = 7;
    stream_builder b;
    commands::emit<commands::create_queue>(b, c);
    EXPECT_EQ(stream_of(b), (words{header(3, 40), 1, 2, 0, 0}));
}

TEST(encode, a_payload_may_get_its_entry_later) {
    vgpu_cmd_transfer_buffer c{};
    vgpu_payload_ref* place = nullptr;
    const std::array<std::uint64_t, 1> waits{4};
    const auto pieces =
        commands::lay_out<commands::read_buffer>(c, id_list(waits), later_payload{300, place});
    EXPECT_EQ(place, &c.data);
    EXPECT_EQ(c.data.bytes, 300u);
    EXPECT_EQ(c.data.index, VGPU_PAYLOAD_NONE);
    EXPECT_EQ(c.enqueue.wait_count, 1u);
    EXPECT_EQ(pieces[0].bytes, 8u);
    EXPECT_EQ(pieces[1].bytes, 0u);
}

// ---- and both directions agree, for each row

class copier { // a command again, from its op
public:
    std::vector<std::uint64_t> stream;

    void append_command(vgpu_cmd& fixed, std::size_t fixed_bytes, std::span<const piece> pieces) {
        const std::size_t at = stream.size();
        append(&fixed, fixed_bytes);
        for (const piece& p : pieces)
            append(p.data, p.bytes);
        reinterpret_cast<vgpu_cmd*>(&stream[at])->bytes = static_cast<__u32>((stream.size() - at) * 8);
    }

    template <class Row, class Op>
    void again(const Op& o) {
        auto c = *o.c;
        const auto views = std::tuple_cat(
            waits<Row>(o),
            std::apply([&](const auto&... part) { return std::tuple_cat(view(o, part)...); }, Row::parts));
        std::apply([&](const auto&... v) { commands::emit<Row>(*this, c, v...); }, views);
    }

private:
    template <class Row, class Op>
    static auto waits(const Op& o) {
        if constexpr (Row::answers == commands::answer::enqueued)
            return std::tuple(o.waits);
        else
            return std::tuple();
    }
    template <class Op, class Part>
    static auto view(const Op& o, const Part& p) {
        if constexpr (requires { p.view; })
            return std::tuple(o.*p.view);
        else
            return std::tuple();
    }
    void append(const void* data, std::size_t bytes) {
        const std::size_t at = stream.size();
        stream.resize(at + (bytes + 7) / 8);
        if (bytes != 0)
            std::memcpy(&stream[at], data, bytes);
    }
};

TEST(encode, what_was_decoded_is_encoded_to_the_same_bytes) {
    std::vector<int> seen(VGPU_OPCODE_COUNT);
    for (const sample_request& r : sample_session()) {
        SCOPED_TRACE(r.name);
        stream_decoder decoder(r.builder.stream(), {r.builder.payloads()});
        for (op o; decoder.next(o) == decode_status::op;) {
            if (header_of(o).opcode == VGPU_CMD_WRITE_RUNS)
                continue; // packed
            copier copy;
            std::visit(
                [&]<class Op>(const Op& one) {
                    commands::with_row(one, [&]<class Row>() {
                        if constexpr (!commands::is_packed<Row>) {
                            copy.again<Row>(one);
                            ++seen[Row::opcode];
                        }
                    });
                },
                o);
            const auto command = r.builder.stream().subspan(decoder.offset(), command_bytes(header_of(o)));
            words original(command.size() / 8);
            std::memcpy(original.data(), command.data(), command.size());
            EXPECT_EQ(copy.stream, original);
        }
    }
    commands::all_rows::for_each([&]<class Row>() {
        const bool sampled = !commands::is_packed<Row> && Row::answers != commands::answer::log;
        EXPECT_EQ(seen[Row::opcode] > 0, sampled) << Row::name;
    });
}

} // namespace
} // namespace kagemusha::codec
