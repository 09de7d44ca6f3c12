// SPDX-License-Identifier: GPL-2.0-or-later
// Every message there and back, with ordinary and with extreme values.
#include <gtest/gtest.h>

#include "messages/messages.hpp"
#include "messages/test_helpers.hpp"
#include "messages/text.hpp"

using namespace kagemusha;
using namespace kagemusha::messages;
using namespace kagemusha::messages::test;
using mirror::entry_kind;

namespace {

constexpr std::uint64_t u64_max = UINT64_MAX;

void expect_round_trip(const mirror::message& m) {
    const std::vector<std::byte> frame = encoded(m);
    const frame_header header = header_of(frame);
    EXPECT_EQ(header.magic, frame_magic);
    EXPECT_EQ(header.message_bytes + sizeof(header), frame.size());
    EXPECT_EQ(header.payload_bytes, payload_bytes_of(m));
    mirror::message back;
    EXPECT_EQ(decode_frame(frame, back), "");
    EXPECT_TRUE(back == m) << "message kind " << m.index();
}

mirror::hello full_hello() {
    mirror::hello h;
    h.version = UINT32_MAX;
    h.oldest_version = UINT32_MAX;
    h.role = mirror::role::standby;
    h.vm = std::string(mirror::max_text_bytes, 'v');
    h.instance = u64_max;
    h.abi_version = UINT32_MAX;
    h.gpu = "NVIDIA H200, 139 GiB · 影";
    h.capabilities.assign(mirror::max_capabilities, std::string(mirror::max_text_bytes, 'c'));
    h.heartbeat_budget_ms = UINT32_MAX;
    h.hold_bytes = u64_max;
    h.hold_entries = u64_max;
    h.limits = {UINT32_MAX, u64_max, u64_max - 1};
    h.oldest_abi_version = UINT32_MAX;
    h.checkpoint_version = h.oldest_checkpoint_version = UINT32_MAX;
    return h;
}

} // namespace

TEST(messages, hello) {
    expect_round_trip(mirror::hello{});
    expect_round_trip(full_hello());
}

TEST(messages, entries_of_every_kind) {
    mirror::entries m;
    m.list.push_back(plain_entry(1, entry_kind::reset, 0));
    m.list.push_back(plain_entry(2, entry_kind::open_file, 7));
    m.list.push_back(submit_entry(3));
    m.list.push_back(submit_entry(4, {}, mirror::entry_awaits_outcome));
    m.list.push_back(submit_entry(5, {{13, false}, {0, false}, {4096, false}}));
    m.list.push_back(submit_entry(6, {{u64_max >> 24, false}}, mirror::entry_late_content));
    m.list.push_back(submit_entry(7, {{8, false}, {800, true}}, mirror::entry_agent | mirror::entry_compare));
    m.list.push_back(plain_entry(8, entry_kind::lose_session, UINT32_MAX));
    m.list.push_back(plain_entry(9, entry_kind::close_file, 7));
    expect_round_trip(m);
    // Streams of 5 submits, and what is not late: 16 + 0 + 4096, and 8.
    EXPECT_EQ(payload_bytes_of(m), 5u * 48 + 4112 + 8);
}

TEST(messages, entries_that_differ_in_one_column_only) {
    const mirror::entries alike{{submit_entry(10), submit_entry(11), submit_entry(12)}};
    expect_round_trip(alike);
    const auto with = [&](auto&& change) {
        mirror::entries m = alike;
        change(m.list[1]);
        expect_round_trip(m);
    };
    with([](auto& e) { e = plain_entry(11, entry_kind::close_file, 7); });
    with([](auto& e) { e.meta.file = 0; });
    with([](auto& e) { e.meta.flags = mirror::entry_agent; });
    with([](auto& e) { e.meta.op_count = 6; });
    with([](auto& e) { e.meta.stream_bytes = VGPU_MAX_STREAM_BYTES; });
    with([](auto& e) { e = submit_entry(11, {{1, false}}); });
    with([](auto& e) { e = submit_entry(11, {{8, true}}, mirror::entry_compare); });
}

TEST(messages, extreme_entries) {
    mirror::entries many;
    for (std::uint32_t i = 0; i < mirror::max_entries_per_message; ++i)
        many.list.push_back(submit_entry(mirror::max_sequence - mirror::max_entries_per_message + i));
    expect_round_trip(many);

    mirror::entries::entry largest = submit_entry(
        mirror::max_sequence,
        std::vector<mirror::entry_payload>(VGPU_MAX_PAYLOADS, {mirror::max_payload_bytes, false}),
        mirror::entry_all_flags);
    largest.meta.stream_bytes = VGPU_MAX_STREAM_BYTES;
    largest.meta.op_count = VGPU_MAX_STREAM_BYTES / 8;
    largest.meta.file = UINT32_MAX;
    expect_round_trip(mirror::entries{{largest}});

    mirror::entries digests{{submit_entry(1, {{std::uint64_t{mirror::max_hashes_per_message} * 8, true}},
                                          mirror::entry_compare)}};
    expect_round_trip(digests);
}

TEST(messages, content) {
    expect_round_trip(mirror::content{1, 0, 0, 1, 0});
    expect_round_trip(mirror::content{mirror::max_sequence, VGPU_MAX_PAYLOADS - 1,
                                      mirror::max_payload_bytes - mirror::content_piece_bytes,
                                      mirror::content_piece_bytes, mirror::content_piece_bytes - 1});
    EXPECT_EQ(payload_bytes_of(mirror::content{1, 0, 0, 100, 0}), 100u);
    EXPECT_EQ(payload_bytes_of(mirror::content{1, 0, 0, 100, 60}), 60u);
}

TEST(messages, small_ones) {
    expect_round_trip(mirror::outcome{1, false, 0});
    expect_round_trip(mirror::outcome{mirror::max_sequence, false, INT32_MIN});
    expect_round_trip(mirror::outcome{3, true, 0});
    expect_round_trip(mirror::marker{1, 0});
    expect_round_trip(mirror::marker{mirror::max_sequence, mirror::max_sequence});
    expect_round_trip(mirror::marker{7, 8, true});
    expect_round_trip(mirror::synced{1});
    expect_round_trip(mirror::ack{});
    expect_round_trip(mirror::ack{.received = mirror::max_sequence,
                                  .executed = mirror::max_sequence,
                                  .committed_epoch = mirror::max_sequence,
                                  .freed_bytes = u64_max,
                                  .freed_entries = u64_max,
                                  .complete_checkpoint = mirror::max_sequence});
    expect_round_trip(mirror::heartbeat{});
    expect_round_trip(mirror::heartbeat{u64_max, u64_max});
    expect_round_trip(mirror::close_epoch{});
    expect_round_trip(mirror::unknown_message{});
    for (const std::string& why : {std::string(), std::string(mirror::max_text_bytes, 'w')}) {
        expect_round_trip(mirror::fault{mirror::max_sequence, why});
        for (std::uint32_t reason = 1; reason <= 5; ++reason)
            expect_round_trip(mirror::goodbye{static_cast<mirror::goodbye_reason>(reason), why});
    }
}

TEST(messages, words_of_supervisors) {
    for (auto k = mirror::supervision_kind::description; k <= mirror::supervision_kind::lineage;
         k = static_cast<mirror::supervision_kind>(static_cast<std::uint32_t>(k) + 1))
        expect_round_trip(mirror::supervision{k, u64_max, "why", k == mirror::supervision_kind::died,
                                              k == mirror::supervision_kind::died, 7});
    mirror::supervision described{mirror::supervision_kind::description, 0, "why", false, false, 0, {}};
    described.parts = {{mirror::part_rule::equal, "machine", "pc"},
                       {mirror::part_rule::shown, "words", std::string(mirror::max_part_value_bytes, 'a')}};
    expect_round_trip(described);
}

TEST(messages, digests) {
    expect_round_trip(mirror::digests{1, {}});
    mirror::digests d{mirror::max_sequence, {}};
    mirror::digest_result r{mirror::max_sequence, {}};
    expect_round_trip(r);
    for (std::uint64_t i = 0; i < mirror::max_hashes_per_message; ++i) {
        d.hashes.push_back(u64_max - i);
        r.different.push_back(i);
    }
    expect_round_trip(d);
    expect_round_trip(r);
}

TEST(messages, encode_appends) {
    std::vector<std::byte> out;
    encode(mirror::marker{1, 2}, out);
    const std::size_t first = out.size();
    encode(mirror::marker{3, 4}, out);
    mirror::message m;
    EXPECT_EQ(decode_frame({out.begin(), out.begin() + first}, m), "");
    EXPECT_TRUE(m == mirror::message(mirror::marker{1, 2}));
    EXPECT_EQ(decode_frame({out.begin() + first, out.end()}, m), "");
    EXPECT_TRUE(m == mirror::message(mirror::marker{3, 4}));
}

// Sentences are made of what other software says; they must not end a connection.
TEST(messages, encode_makes_texts_sendable) {
    mirror::message back;
    EXPECT_EQ(decode_frame(encoded(mirror::fault{1, "a\nb\x1b[0m\xff" + std::string(5000, 'x')}), back), "");
    EXPECT_EQ(std::get<mirror::fault>(back).why,
              as_text("a?b?[0m?" + std::string(mirror::max_text_bytes - 8, 'x')));
    EXPECT_EQ(std::get<mirror::fault>(back).why.size(), mirror::max_text_bytes);
    mirror::hello h;
    h.vm = "two\tparts";
    EXPECT_EQ(decode_frame(encoded(h), back), "");
    EXPECT_EQ(std::get<mirror::hello>(back).vm, "two?parts");
}

TEST(messages, text) {
    EXPECT_TRUE(is_text(""));
    EXPECT_TRUE(is_text("~ ä € 影 😀"));
    EXPECT_TRUE(is_text(std::string(mirror::max_text_bytes, ' ')));
    EXPECT_FALSE(is_text(std::string(mirror::max_text_bytes + 1, ' ')));
    for (const char* bad :
         {"\n", "\x7f", "\x80", "\xc2", "\xc2\x85", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xe2\x82",
          "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff"}) {
        EXPECT_FALSE(is_text(bad)) << testing::PrintToString(bad);
        EXPECT_TRUE(is_text(as_text(bad))) << testing::PrintToString(bad);
    }
    EXPECT_TRUE(is_text("\xc2\xa0\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
    EXPECT_FALSE(is_text(std::string_view("a\0b", 3)));
    // Cut between two characters.
    const std::string three = "影";
    std::string longer = "ab";
    while (longer.size() <= mirror::max_text_bytes)
        longer += three;
    EXPECT_EQ(as_text(longer).size(), mirror::max_text_bytes - (mirror::max_text_bytes - 2) % 3);
}

TEST(messages, entries_budget_fills_a_frame_and_no_more) {
    struct shape {
        std::vector<mirror::entry_payload> payloads;
        std::uint64_t stream_bytes;
        std::uint32_t flags;
    };
    const std::vector<mirror::entry_payload> thousand(1000, {mirror::max_payload_bytes, false});
    const shape shapes[] = {
        {{}, 48, 0},                                                            // bound by their number
        {thousand, 48, mirror::entry_late_content},                             // by the protobuf part
        {{}, VGPU_MAX_STREAM_BYTES, 0},                                         // by the streams
        {{{mirror::max_inline_content_bytes, false}}, 48, 0},                   // by the content
        {{{mirror::max_payload_bytes, false}}, 48, mirror::entry_late_content}, // late content does not count
    };
    for (const shape& s : shapes) {
        entries_budget budget;
        mirror::entries m;
        for (;;) {
            mirror::entries::entry e = submit_entry(m.list.size() + 1, s.payloads, s.flags);
            e.meta.file = UINT32_MAX;
            e.meta.stream_bytes = s.stream_bytes;
            if (!budget.take(e.meta, e.payloads.size()))
                break;
            m.list.push_back(std::move(e));
        }
        expect_round_trip(m);
        const std::uint64_t message = encoded(m).size();
        EXPECT_TRUE(m.list.size() == mirror::max_entries_per_message ||
                    message > mirror::max_message_bytes * 3 / 4 ||
                    payload_bytes_of(m) + VGPU_MAX_STREAM_BYTES + mirror::max_inline_content_bytes >
                        mirror::max_frame_payload_bytes)
            << m.list.size() << " entries, " << message << " bytes";
    }
}
