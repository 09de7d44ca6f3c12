// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/core/mailbox.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace kagemusha::loop {
namespace {

event event_with(std::uint32_t source, std::size_t bytes) {
    event one;
    one.head.kind = LOOP_RECEIVED;
    one.head.source = source;
    one.data.assign(bytes, std::byte{static_cast<unsigned char>(source)});
    return one;
}

// What one lane's callbacks made.
class outbox {
public:
    outbox() : bytes_(LOOP_OUTBOX_BYTES) {}
    outbox& add(loop_u32 kind, std::size_t data, loop_u32 claimed_bytes) {
        loop_request one{};
        one.kind = kind;
        one.bytes = claimed_bytes;
        std::memcpy(bytes_.data() + sizeof head + head.bytes, &one, sizeof one);
        head.bytes += static_cast<loop_u32>(sizeof one + (data + 7) / 8 * 8);
        ++head.requests;
        return *this;
    }
    lane_report read(std::uint32_t packed = 9, std::uint32_t callbacks = 9) {
        std::memcpy(bytes_.data(), &head, sizeof head);
        return read_outbox(bytes_, packed, callbacks);
    }
    loop_lane_out head{};

private:
    std::vector<std::byte> bytes_;
};

TEST(mailbox, what_a_launch_left_over_is_packed_again) {
    mailbox m;
    for (std::uint32_t i = 1; i <= 3; ++i)
        ASSERT_TRUE(m.push(event_with(i, 8)));
    std::vector<std::byte> inbox;
    EXPECT_EQ(m.pack(inbox), 3u);
    m.consumed(2);
    inbox.clear();
    EXPECT_EQ(m.pack(inbox), 1u);
    loop_event first;
    std::memcpy(&first, inbox.data(), sizeof first);
    EXPECT_EQ(first.source, 3u);
    EXPECT_EQ(first.bytes, 8u);
    EXPECT_EQ(inbox.size(), sizeof first + 8);
}

TEST(mailbox, events_are_packed_as_far_as_they_fit) {
    mailbox m;
    while (m.push(event_with(1, LOOP_DATA_BYTES)))
        ;
    EXPECT_EQ(m.size(), max_events);
    std::vector<std::byte> inbox;
    EXPECT_EQ(m.pack(inbox), LOOP_INBOX_BYTES / (sizeof(loop_event) + LOOP_DATA_BYTES));
    EXPECT_LE(inbox.size(), LOOP_INBOX_BYTES);
    EXPECT_FALSE(m.push(event_with(1, 0)));
}

TEST(mailbox, an_event_with_too_much_data_is_refused) {
    mailbox m;
    EXPECT_FALSE(m.push(event_with(1, LOOP_DATA_BYTES + 1)));
}

TEST(mailbox, each_lane_has_its_place_in_the_inbox) {
    std::vector<mailbox> lanes(3);
    ASSERT_TRUE(lanes[0].push(event_with(7, 5)));
    ASSERT_TRUE(lanes[2].push(event_with(9, 1)));
    std::vector<std::uint32_t> packed;
    const auto inbox = pack_inbox(lanes, packed);
    EXPECT_EQ(packed, (std::vector<std::uint32_t>{1, 0, 1}));
    for (const std::uint32_t lane : {0u, 2u}) {
        loop_lane_in in;
        std::memcpy(&in, inbox.data() + lane * sizeof in, sizeof in);
        loop_event first;
        ASSERT_LE(in.offset + sizeof first, inbox.size());
        EXPECT_EQ(in.offset % 8, 0u);
        std::memcpy(&first, inbox.data() + in.offset, sizeof first);
        EXPECT_EQ(first.source, 7 + lane);
    }
    EXPECT_LE(inbox.size(), inbox_bytes(3));
}

TEST(outbox, requests_come_with_their_data) {
    outbox o;
    o.head.consumed = 2;
    o.add(LOOP_SEND, 5, 5).add(LOOP_CLOSE, 0, 0);
    const auto report = o.read();
    EXPECT_EQ(report.error, "");
    ASSERT_EQ(report.requests.size(), 2u);
    EXPECT_EQ(report.requests[0].data.size(), 5u);
    EXPECT_EQ(report.requests[1].head.kind, LOOP_CLOSE);
}

TEST(outbox, nonsense_is_found) {
    const auto error_of = [](auto&& change) {
        outbox o;
        o.add(LOOP_SEND, 8, 8);
        change(o);
        const auto report = o.read();
        EXPECT_TRUE(report.error.empty() || report.requests.empty());
        return report.error;
    };
    EXPECT_EQ(error_of([](outbox&) {}), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.consumed = 10; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.callbacks = 10; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.steps = LOOP_MAX_STEPS + 1; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.bytes = LOOP_OUTBOX_BYTES; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.bytes = UINT32_MAX; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.requests = 0; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.requests = UINT32_MAX; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.head.fault = 77; }), "");
    EXPECT_NE(error_of([](outbox& o) { o.add(LOOP_SEND, 8, 16); }), "");
    EXPECT_NE(error_of([](outbox& o) { o.add(LOOP_SEND, 8, UINT32_MAX); }), "");
    EXPECT_NE(error_of([](outbox& o) { o.add(0, 0, 0); }), "");
    EXPECT_NE(error_of([](outbox& o) { o.add(LOOP_POST + 1, 0, 0); }), "");
    EXPECT_NE(read_outbox({}, 1, 1).error, "");
}

TEST(outbox, a_programs_faults_are_sentences) {
    outbox o;
    o.head.fault = LOOP_FAULT_REQUESTS;
    EXPECT_NE(o.read().error.find("requests"), std::string::npos);
    o.head.fault = LOOP_FAULT_STEPS;
    EXPECT_NE(o.read().error.find("steps"), std::string::npos);
    o.head.fault = LOOP_FAULT_STORES;
    EXPECT_NE(o.read().error.find("stores"), std::string::npos);
}

} // namespace
} // namespace kagemusha::loop
