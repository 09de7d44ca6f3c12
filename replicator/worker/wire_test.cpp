// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of the records between device and worker.
#include "worker/wire.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace kagemusha::worker {
namespace {

// A record as a ring gives it: aligned, contiguous.
struct flat {
    explicit flat(parts p) : bytes(total_bytes(p)), words((bytes + 7) / 8) {
        auto* out = reinterpret_cast<std::byte*>(words.data());
        for (auto part : p) {
            if (!part.empty())
                std::memcpy(out, part.data(), part.size());
            out += part.size();
        }
    }
    std::span<const std::byte> view() const { return std::as_bytes(std::span(words)).first(bytes); }
    request_header& header() { return *reinterpret_cast<request_header*>(words.data()); }

    std::size_t bytes;
    std::vector<std::uint64_t> words;
};

struct sample {
    std::vector<std::uint64_t> stream = {1, 2, 3};
    std::vector<kagemusha_payload> payloads = {{100, 0, 2, 1, 0}, {50, 2, 1, 0, 0}};
    std::vector<kagemusha_segment> segments = {{0, 60, 0, 0}, {4096, 40, 1, 0}, {9, 50, 0, 0}};

    flat encode() const {
        const request_view view{77, std::as_bytes(std::span(stream)), payloads, segments};
        return flat(encoded_request(view).parts());
    }
};

TEST(wire, a_request_comes_back_as_it_was) {
    const sample s;
    const flat record = s.encode();
    const auto got = decode_request(record.view());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->token, 77u);
    EXPECT_EQ(got->stream.size(), 24u);
    EXPECT_EQ(std::memcmp(got->stream.data(), s.stream.data(), 24), 0);
    ASSERT_EQ(got->payloads.size(), 2u);
    EXPECT_EQ(got->payloads[1].bytes, 50u);
    ASSERT_EQ(got->segments.size(), 3u);
    EXPECT_EQ(got->segments[1].offset, 4096u);
}

TEST(wire, the_largest_request_fits_the_limit) {
    std::vector<std::uint64_t> stream(VGPU_MAX_STREAM_BYTES / 8);
    std::vector<kagemusha_payload> payloads(VGPU_MAX_PAYLOADS);
    std::vector<kagemusha_segment> segments(VGPU_MAX_SEGMENTS);
    const encoded_request encoded({1, std::as_bytes(std::span(stream)), payloads, segments});
    EXPECT_EQ(total_bytes(encoded.parts()), max_request_bytes);
    EXPECT_TRUE(decode_request(flat(encoded.parts()).view()));
}

TEST(wire, a_request_of_another_length_is_refused) {
    const flat record = sample().encode();
    for (std::size_t bytes = 0; bytes < record.bytes; ++bytes)
        EXPECT_FALSE(decode_request(record.view().first(bytes))) << bytes;
}

TEST(wire, counts_above_the_format_are_refused) {
    flat record = sample().encode();
    record.header().segment_count = VGPU_MAX_SEGMENTS + 1;
    EXPECT_FALSE(decode_request(record.view()));
    record = sample().encode();
    record.header().payload_count = UINT32_MAX;
    EXPECT_FALSE(decode_request(record.view()));
    record = sample().encode();
    record.header().stream_bytes = UINT32_MAX - 7;
    EXPECT_FALSE(decode_request(record.view()));
    record = sample().encode();
    record.header().pad = 1;
    EXPECT_FALSE(decode_request(record.view()));
}

TEST(wire, payloads_outside_the_segment_table_are_refused) {
    sample s;
    s.payloads[1].first_segment = 4;
    EXPECT_FALSE(decode_request(s.encode().view()));
    s = {};
    s.payloads[1].segment_count = 2;
    EXPECT_FALSE(decode_request(s.encode().view()));
    s = {};
    s.payloads[1] = {50, 1, UINT32_MAX, 0, 0};
    EXPECT_FALSE(decode_request(s.encode().view()));
}

TEST(wire, random_bytes_never_point_outside_the_record) {
    std::mt19937 random(7);
    int accepted = 0;
    for (int round = 0; round < 20000; ++round) {
        flat record = sample().encode();
        auto* bytes = reinterpret_cast<unsigned char*>(record.words.data());
        for (unsigned n = random() % 4; n > 0; --n)
            bytes[random() % record.bytes] = static_cast<unsigned char>(random() % 5);
        const auto view =
            record.view().first(record.bytes - (random() % 4 == 0 ? random() % record.bytes : 0));
        const auto got = decode_request(view);
        if (!got)
            continue;
        ++accepted;
        const std::byte* end = view.data() + view.size();
        ASSERT_LE(got->stream.data() + got->stream.size(), end);
        ASSERT_LE(reinterpret_cast<const std::byte*>(got->segments.data() + got->segments.size()), end);
        for (const auto& payload : got->payloads)
            ASSERT_LE(std::uint64_t{payload.first_segment} + payload.segment_count, got->segments.size());
    }
    EXPECT_GT(accepted, 0);
}

TEST(wire, records_for_the_guest_state_their_own_length) {
    vgpu_record_completion record{};
    record.record.bytes = sizeof record;
    EXPECT_TRUE(valid_guest_record(bytes_of(record)));
    record.record.bytes = sizeof record + 8;
    EXPECT_FALSE(valid_guest_record(bytes_of(record)));
    EXPECT_FALSE(valid_guest_record(bytes_of(record).first(8)));
    std::vector<std::uint64_t> large(VGPU_MAX_RECORD_BYTES / 8 + 1);
    reinterpret_cast<vgpu_record*>(large.data())->bytes = VGPU_MAX_RECORD_BYTES + 8;
    EXPECT_FALSE(valid_guest_record(std::as_bytes(std::span(large))));
}

TEST(wire, text_for_people_is_one_printable_line) {
    EXPECT_EQ(escaped("a\nb\x1b[31m\\", 100), "a\\x0ab\\x1b[31m\\x5c");
    EXPECT_EQ(escaped("plain", 100), "plain");
    EXPECT_LE(escaped(std::string(1000, 'x'), 100).size(), 100u);
    EXPECT_LE(escaped(std::string(1000, '\0'), 100).size(), 100u);
}

} // namespace
} // namespace kagemusha::worker
