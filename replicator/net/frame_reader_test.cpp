// SPDX-License-Identifier: GPL-2.0-or-later
// The reader alone: every way to cut a conversation, everything that is refused. And the queue that writes.
#include <gtest/gtest.h>

#include "net/frame_reader.hpp"
#include "net/send_queue.hpp"
#include "net/test_helpers.hpp"

using namespace kagemusha;
using namespace kagemusha::net;
using namespace kagemusha::net::test;

namespace {

class reader_sink : public frame_sink {
public:
    receive_buffers on_payload(const mirror::message&, std::uint64_t size) override {
        payloads.emplace_back(size);
        receive_buffers out;
        auto memory = std::make_shared<int>();
        kept = memory;
        out.keep = std::move(memory);
        auto& place = payloads.back();
        for (std::size_t at = 0; at < place.size(); at += piece_bytes) {
            out.pieces.emplace_back(place.data() + at, std::min(piece_bytes, place.size() - at));
            out.pieces.emplace_back(); // an empty piece is no problem
        }
        return out;
    }
    void on_message(const mirror::message& m) override { messages.push_back(m); }
    bool wants_more() const override { return true; }

    std::size_t piece_bytes = 1000;
    std::vector<mirror::message> messages;
    std::list<bytes> payloads;
    std::weak_ptr<int> kept; // of the last payload: alive as long as the reader keeps it
};

// What a socket does: fills the pieces that the reader offers, in order, with at most `limit` bytes each
// time.
std::string feed(frame_reader& reader, frame_sink& sink, std::span<const std::byte> input,
                 std::size_t limit) {
    std::array<std::span<std::byte>, frame_reader::max_pieces> pieces;
    while (!input.empty()) {
        const std::size_t count = reader.prepare(pieces);
        std::size_t taken = 0;
        for (std::size_t i = 0; i < count && taken < limit && !input.empty(); ++i) {
            const std::size_t part = std::min({pieces[i].size(), limit - taken, input.size()});
            std::memcpy(pieces[i].data(), input.data(), part);
            input = input.subspan(part);
            taken += part;
        }
        if (taken == 0)
            return "the reader offered no room";
        if (auto why = reader.commit(taken, sink); !why.empty())
            return why;
    }
    return {};
}

void append(bytes& to, const bytes& what) {
    to.insert(to.end(), what.begin(), what.end());
}

// hello, a small message, small bytes, large bytes, a small message.
struct conversation {
    conversation(std::size_t large_bytes) {
        const auto small_payload = pattern(24, 3), large_payload = pattern(large_bytes, 5);
        messages = {a_hello(), mirror::ack{.received = 3, .executed = 2, .committed_epoch = 1},
                    a_content(small_payload.size()), a_content(large_payload.size()), mirror::close_epoch{}};
        payloads = {small_payload, large_payload};
        append(wire, frame(messages[0]));
        append(wire, frame(messages[1]));
        append(wire, frame(messages[2], small_payload));
        append(wire, frame(messages[3], large_payload));
        append(wire, frame(messages[4]));
    }
    std::vector<mirror::message> messages;
    std::list<bytes> payloads;
    bytes wire;
};

TEST(frame_reader, a_conversation_in_parts_of_any_size) {
    const conversation c(3000);
    for (const std::size_t limit : {std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{16},
                                    std::size_t{17}, std::size_t{999}, c.wire.size()}) {
        frame_reader reader;
        reader_sink sink;
        ASSERT_EQ(feed(reader, sink, c.wire, limit), "") << limit;
        EXPECT_EQ(sink.messages, c.messages) << limit;
        EXPECT_EQ(sink.payloads, c.payloads) << limit;
        EXPECT_TRUE(reader.between_frames());
    }
}

TEST(frame_reader, a_conversation_cut_in_two_at_every_byte) {
    const conversation c(300);
    for (std::size_t cut = 0; cut <= c.wire.size(); ++cut) {
        frame_reader reader;
        reader_sink sink;
        sink.piece_bytes = 70;
        const std::span<const std::byte> wire(c.wire);
        ASSERT_EQ(feed(reader, sink, wire.first(cut), c.wire.size()), "") << cut;
        ASSERT_EQ(feed(reader, sink, wire.subspan(cut), c.wire.size()), "") << cut;
        ASSERT_EQ(sink.messages, c.messages) << cut;
        ASSERT_EQ(sink.payloads, c.payloads) << cut;
    }
}

TEST(frame_reader, large_bytes_and_more_pieces_than_one_read_has) {
    const conversation c(mirror::content_piece_bytes);
    for (const std::size_t piece_bytes : {std::size_t{4096}, std::size_t{100'000}, std::size_t{8} << 20}) {
        frame_reader reader;
        reader_sink sink;
        sink.piece_bytes = piece_bytes;
        ASSERT_EQ(feed(reader, sink, c.wire, 300'000), "");
        EXPECT_EQ(sink.messages, c.messages);
        EXPECT_EQ(sink.payloads, c.payloads);
    }
}

// Its user may let go of memory that bytes are still on their way to.
TEST(frame_reader, memory_is_kept_until_its_bytes_have_come) {
    const conversation c(3000);
    const std::size_t end = c.wire.size() - frame(c.messages[4]).size();
    const std::span<const std::byte> wire(c.wire);
    frame_reader reader;
    reader_sink sink;
    ASSERT_EQ(feed(reader, sink, wire.first(end - 1), 700), "");
    ASSERT_EQ(sink.payloads.size(), 2u);
    EXPECT_FALSE(sink.kept.expired());
    ASSERT_EQ(feed(reader, sink, wire.subspan(end - 1, 1), 700), "");
    EXPECT_EQ(sink.messages.size(), 4u);
    EXPECT_TRUE(sink.kept.expired());
}

TEST(frame_reader, a_message_larger_than_the_buffer) {
    mirror::digests m;
    m.sequence = 9;
    for (std::uint64_t i = 0; i < mirror::max_hashes_per_message; ++i)
        m.hashes.push_back(i * 0x9e3779b97f4a7c15u);
    bytes wire = frame(a_hello());
    append(wire, frame(m));
    append(wire, frame(mirror::close_epoch{}));
    ASSERT_GT(wire.size(), frame_reader::buffer_bytes);
    for (const std::size_t limit : {std::size_t{1000}, wire.size()}) {
        frame_reader reader;
        reader_sink sink;
        ASSERT_EQ(feed(reader, sink, wire, limit), "");
        ASSERT_EQ(sink.messages.size(), 3u);
        EXPECT_EQ(sink.messages[1], mirror::message(m));
    }
}

std::string refusal(const bytes& wire) {
    frame_reader reader;
    reader_sink sink;
    auto why = feed(reader, sink, wire, wire.size());
    EXPECT_FALSE(why.empty());
    EXPECT_EQ(sink.payloads.size(), 0u) << "nothing was allocated for it";
    return why;
}

bytes raw_header(std::uint32_t magic, std::uint32_t message_bytes, std::uint64_t payload_bytes) {
    const messages::frame_header header{magic, message_bytes, payload_bytes};
    bytes out(sizeof(header));
    std::memcpy(out.data(), &header, sizeof(header));
    return out;
}

TEST(frame_reader, what_is_refused) {
    EXPECT_NE(refusal(pattern(100)), "");
    bytes after_hello = frame(a_hello());
    append(after_hello, pattern(16));
    EXPECT_NE(refusal(after_hello), "");
    bytes too_long = frame(a_hello());
    append(too_long, raw_header(messages::frame_magic, mirror::max_message_bytes + 1, 0));
    EXPECT_NE(refusal(too_long), "");
    bytes too_much = frame(a_hello());
    append(too_much, raw_header(messages::frame_magic, 10, mirror::max_frame_payload_bytes + 1));
    EXPECT_NE(refusal(too_much), "");
    bytes more_than_said = frame(a_hello());
    bytes wrong = frame(a_content(24));
    wrong[8] = std::byte{25};
    append(more_than_said, wrong);
    EXPECT_NE(refusal(more_than_said), "");
}

TEST(frame_reader, the_first_message_is_a_hello_or_a_goodbye) {
    EXPECT_EQ(refusal(frame(mirror::close_epoch{})), "the peer's first message is no hello");
    EXPECT_EQ(refusal(raw_header(messages::frame_magic, 10, 1)),
              "the peer's first message is too large for a hello");
    EXPECT_EQ(refusal(raw_header(messages::frame_magic, frame_reader::max_first_message_bytes + 1, 0)),
              "the peer's first message is too large for a hello");
    frame_reader reader;
    reader_sink sink;
    const auto wire = frame(mirror::goodbye{mirror::goodbye_reason::refused, "another VM"});
    EXPECT_EQ(feed(reader, sink, wire, wire.size()), "");
    EXPECT_EQ(sink.messages.size(), 1u);
}

TEST(frame_reader, the_largest_hello_is_let_in) {
    auto m = a_hello();
    m.vm = m.gpu = std::string(mirror::max_text_bytes, 'x');
    for (unsigned i = 0; i < mirror::max_capabilities; ++i)
        m.capabilities.push_back(std::string(mirror::max_text_bytes, 'y'));
    frame_reader reader;
    reader_sink sink;
    const auto wire = frame(m);
    EXPECT_EQ(feed(reader, sink, wire, wire.size()), "");
    EXPECT_EQ(sink.messages.size(), 1u);
}

TEST(frame_reader, tls_is_recognised) {
    const bytes client_hello{std::byte{0x16}, std::byte{0x03}, std::byte{0x01}};
    EXPECT_NE(refusal(client_hello).find("TLS"), std::string::npos);
    bytes alert{std::byte{0x15}, std::byte{0x03}, std::byte{0x03}, std::byte{0}, std::byte{2}};
    EXPECT_NE(refusal(alert).find("TLS"), std::string::npos);
}

// ---- the queue

bytes drained(send_queue& queue, std::size_t step, std::size_t max_pieces) {
    bytes out;
    std::vector<std::span<const std::byte>> pieces(max_pieces);
    while (queue.bytes() > 0) {
        const std::size_t count = queue.gather(pieces);
        EXPECT_GT(count, 0u);
        std::size_t left = step;
        for (std::size_t i = 0; i < count && left > 0; ++i) {
            const auto part = pieces[i].first(std::min(left, pieces[i].size()));
            out.insert(out.end(), part.begin(), part.end());
            left -= part.size();
        }
        queue.consume(step - left);
    }
    return out;
}

TEST(send_queue, gives_the_frames_in_order_whatever_is_taken_at_once) {
    const auto large = pattern(200'000, 9), small = pattern(100, 2);
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{5000}, std::size_t{1} << 20}) {
        send_queue queue;
        bytes expected;
        for (unsigned i = 0; i < 3; ++i) {
            queue.push(mirror::heartbeat{i, 0}, {}, {});
            append(expected, frame(mirror::heartbeat{i, 0}));
            const std::span<const std::byte> all(large);
            queue.push(a_content(large.size()), {all.first(150'000), all.subspan(150'000)}, {});
            append(expected, frame(a_content(large.size()), large));
            queue.push(a_content(small.size()), {small}, {});
            append(expected, frame(a_content(small.size()), small));
        }
        EXPECT_EQ(queue.bytes(), expected.size());
        EXPECT_EQ(drained(queue, step, step % 2 == 0 ? 64 : 2), expected) << step;
    }
}

TEST(send_queue, many_small_frames_are_few_pieces) {
    send_queue queue;
    for (unsigned i = 0; i < 500; ++i)
        queue.push(mirror::ack{.received = i, .executed = i, .committed_epoch = i, .freed_bytes = i}, {}, {});
    std::array<std::span<const std::byte>, 64> pieces;
    EXPECT_EQ(queue.gather(pieces), 1u);
}

TEST(send_queue, pieces_stay_where_they_are_while_more_is_pushed) {
    send_queue queue;
    const auto payload = pattern(1000);
    queue.push(a_content(payload.size()), {payload}, {});
    std::array<std::span<const std::byte>, 64> before;
    const std::size_t count = queue.gather(before);
    for (unsigned i = 0; i < 10'000; ++i)
        queue.push(mirror::ack{.received = i, .executed = i, .committed_epoch = i, .freed_bytes = i}, {}, {});
    std::array<std::span<const std::byte>, 64> after;
    queue.gather(after);
    for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(before[i].data(), after[i].data());
}

TEST(send_queue, lets_go_of_a_payload_when_its_last_byte_was_written) {
    send_queue queue;
    const auto large = pattern(10'000), tiny = pattern(10);
    auto keep = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = keep;
    const std::span<const std::byte> all(large);
    queue.push(a_content(10'010), {all, tiny}, std::exchange(keep, nullptr));
    queue.push(mirror::close_epoch{}, {}, {});
    EXPECT_FALSE(alive.expired());
    const std::size_t head = frame(a_content(10'010)).size();
    queue.consume(head + 9'999);
    EXPECT_FALSE(alive.expired());
    queue.consume(1);
    EXPECT_TRUE(alive.expired());
    EXPECT_GT(queue.bytes(), 0u);
}

TEST(send_queue, a_tiny_payload_is_let_go_at_once) {
    send_queue queue;
    const auto tiny = pattern(10);
    auto keep = std::make_shared<int>(0);
    const std::weak_ptr<int> alive = keep;
    queue.push(a_content(10), {tiny}, std::exchange(keep, nullptr));
    EXPECT_TRUE(alive.expired());
    queue.clear();
    EXPECT_EQ(queue.bytes(), 0u);
}

} // namespace
