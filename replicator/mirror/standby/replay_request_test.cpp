// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/standby/replay_request.hpp"

#include <gtest/gtest.h>

#include "codec/decode.hpp"
#include "codec/sample_session.hpp"

using namespace kagemusha;
using namespace kagemusha::mirror;

TEST(replay_request, counts_events_as_the_decoder_does) {
    for (const codec::sample_request& r : codec::sample_session()) {
        codec::stream_decoder decoder(r.builder.stream(), {r.builder.payloads()});
        codec::op o;
        std::uint32_t events = 0;
        while (decoder.next(o) == codec::decode_status::op) {
            const vgpu_enqueue* e = codec::enqueue_of(o);
            events += e != nullptr && e->event != 0;
        }
        EXPECT_EQ(completion_count(r.builder.stream()), events) << r.name;
    }
}

TEST(replay_request, a_broken_stream_is_read_up_to_its_error) {
    codec::stream_builder b;
    b.marker({1, 10, {}}).marker({1, 11, {}}).marker({1, 12, {}});
    EXPECT_EQ(completion_count(b.stream()), 3u);
    EXPECT_EQ(completion_count(b.stream().first(b.stream().size() - 1)), 2u);
    EXPECT_EQ(completion_count(b.stream().first(4)), 0u);
    const std::size_t second = b.stream().size() / 3;
    for (const std::uint32_t bytes : {0u, 7u, UINT32_MAX}) {
        std::memcpy(b.mutable_stream().data() + second + offsetof(vgpu_cmd, bytes), &bytes, sizeof(bytes));
        EXPECT_EQ(completion_count(b.stream()), 1u) << bytes;
    }
}

TEST(replay_request, content_lies_as_it_crossed_and_then_what_is_written) {
    const std::vector<entry_payload> payloads{{5, false}, {24, true}, {0, false}, {16, false}, {8, true}};
    EXPECT_EQ(arena_bytes(payloads), 56u);
    replay_request r;
    r.place(std::vector<entry_payload>(9, {1, true}), 9, 9); // nothing of it may stay
    r.place(payloads, 3, 4096);
    const std::uint64_t stream[] = {0, 0};
    const kagemusha_request q = r.request(7, 99, std::as_bytes(std::span(stream)));
    EXPECT_EQ(q.file, 7u);
    EXPECT_EQ(q.token, 99u);
    EXPECT_EQ(q.stream, stream);
    EXPECT_EQ(q.stream_bytes, 16u);
    ASSERT_EQ(q.payload_count, payloads.size());
    ASSERT_EQ(q.segment_count, payloads.size());
    const std::uint64_t offsets[] = {4096, 4120, 0, 4104, 4144};
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        EXPECT_EQ(q.payloads[i].bytes, i == 2 ? 1 : payloads[i].bytes) << i;
        EXPECT_EQ(q.payloads[i].writable, payloads[i].writable) << i;
        ASSERT_EQ(q.payloads[i].segment_count, 1u) << i;
        const kagemusha_segment& s = q.segments[q.payloads[i].first_segment];
        EXPECT_EQ(s.offset, offsets[i]) << i;
        EXPECT_EQ(s.bytes, q.payloads[i].bytes) << i;
        EXPECT_EQ(s.region, 3u) << i;
        EXPECT_EQ(r.offset_of(i), offsets[i]) << i;
    }
}
