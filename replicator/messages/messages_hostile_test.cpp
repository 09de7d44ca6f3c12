// SPDX-License-Identifier: GPL-2.0-or-later
// What a peer may not send, each rule broken once; and what one of a later version may.
#include <gtest/gtest.h>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "messages/messages.hpp"
#include "messages/test_helpers.hpp"
#include "proto/replication/replication.pb.h"

using namespace kagemusha;
using namespace kagemusha::messages;
using namespace kagemusha::messages::test;

namespace {

std::string decode_bytes(const std::string& protobuf, std::uint64_t payload_bytes, mirror::message& out) {
    const frame_header header{frame_magic, static_cast<std::uint32_t>(protobuf.size()), payload_bytes};
    return decode(header, std::as_bytes(std::span(protobuf)), out);
}

// What is said to a peer that sends this.
std::string answer_to(const replication::Message& wire, std::uint64_t payload_bytes = 0) {
    mirror::message out;
    return decode_bytes(wire.SerializeAsString(), payload_bytes, out);
}

replication::Message valid_hello() {
    replication::Message m;
    m.mutable_hello()->set_version(1);
    m.mutable_hello()->set_oldest_version(1);
    m.mutable_hello()->set_role(replication::ROLE_PRIMARY);
    return m;
}

// Two submits; the second has two payloads.
replication::Message valid_entries() {
    replication::Message m;
    auto& b = *m.mutable_entries();
    b.set_first_sequence(5);
    b.set_count(2);
    for (const unsigned op_count : {1, 2}) {
        b.add_op_count(op_count);
        b.add_stream_words(4);
    }
    b.add_payload_count(0);
    b.add_payload_count(2);
    b.add_payload_bytes(3);
    b.add_payload_bytes(8);
    return m;
}
constexpr std::uint64_t valid_entries_payload = 2 * 32 + 16;

template <class Change>
std::string answer_to_entries(Change change, std::uint64_t payload_bytes = valid_entries_payload) {
    replication::Message m = valid_entries();
    change(*m.mutable_entries());
    return answer_to(m, payload_bytes);
}

template <class Change>
std::string answer_to_hello(Change change) {
    replication::Message m = valid_hello();
    change(*m.mutable_hello());
    return answer_to(m);
}

template <class Change>
std::string answer_to_content(Change change) {
    replication::Message m;
    auto& c = *m.mutable_content();
    c.set_sequence(1);
    c.set_length(100);
    change(c);
    const std::uint64_t follows = c.compressed_bytes() != 0 ? c.compressed_bytes() : c.length();
    return answer_to(m, c.lane() != 0 ? 0 : follows);
}

#define EXPECT_REFUSED(sentence, answer) EXPECT_PRED_FORMAT2(testing::IsSubstring, sentence, answer)

} // namespace

TEST(hostile_messages, what_the_rest_starts_from_is_valid) {
    EXPECT_EQ(answer_to(valid_hello()), "");
    EXPECT_EQ(answer_to(valid_entries(), valid_entries_payload), "");
    EXPECT_EQ(answer_to_content([](auto&) {}), "");
}

TEST(hostile_messages, header) {
    const frame_header good{frame_magic, mirror::max_message_bytes, mirror::max_frame_payload_bytes};
    EXPECT_EQ(check(good), "");
    frame_header h = good;
    h.magic ^= 1;
    EXPECT_REFUSED("not Kagemusha's", check(h));
    h = good;
    ++h.message_bytes;
    EXPECT_REFUSED("is too long", check(h));
    h = good;
    ++h.payload_bytes;
    EXPECT_REFUSED("payload", check(h));
    mirror::message out;
    EXPECT_REFUSED("is too long", decode(h, {}, out));
    EXPECT_REFUSED("shorter than its header", decode({frame_magic, 1, 0}, {}, out));
}

TEST(hostile_messages, payload_that_the_message_does_not_explain) {
    EXPECT_REFUSED("8 bytes of payload", answer_to(valid_hello(), 8));
    EXPECT_REFUSED("explains 80", answer_to(valid_entries(), valid_entries_payload - 8));
    EXPECT_REFUSED("explains 80", answer_to(valid_entries(), mirror::max_frame_payload_bytes));
}

TEST(hostile_messages, bytes_that_are_no_message) {
    mirror::message out;
    EXPECT_REFUSED("does not know", decode_bytes("", 0, out));
    EXPECT_REFUSED("can't be parsed", decode_bytes("\xff", 0, out));
    const std::string good = valid_hello().SerializeAsString();
    for (std::size_t bytes = 1; bytes < good.size(); ++bytes)
        EXPECT_NE(decode_bytes(good.substr(0, bytes), 0, out), "") << bytes;
    EXPECT_REFUSED("can't be parsed", decode_bytes(good + '\0', 0, out));
    EXPECT_REFUSED("can't be parsed", decode_bytes(good + '\x0c', 0, out)); // end of a group that never began
    // Groups in groups in groups: unknown, and deeper than anything of ours.
    std::string groups = good;
    groups.append(100000, '\x7b');
    groups.append(100000, '\x7c');
    EXPECT_REFUSED("can't be parsed", decode_bytes(groups, 0, out));
}

TEST(hostile_messages, hello) {
    EXPECT_REFUSED("versions", answer_to_hello([](auto& h) { h.set_oldest_version(0); }));
    EXPECT_REFUSED("versions", answer_to_hello([](auto& h) { h.set_oldest_version(2); }));
    EXPECT_REFUSED("role", answer_to_hello([](auto& h) { h.clear_role(); }));
    EXPECT_REFUSED("role", answer_to_hello([](auto& h) { h.set_role(static_cast<replication::Role>(257)); }));
    EXPECT_REFUSED("too long", answer_to_hello([](auto& h) { h.set_vm(std::string(1025, 'a')); }));
    EXPECT_REFUSED("printable", answer_to_hello([](auto& h) { h.set_vm("a\nb"); }));
    EXPECT_REFUSED("too long", answer_to_hello([](auto& h) { h.set_gpu(std::string(1025, 'a')); }));
    EXPECT_REFUSED("printable", answer_to_hello([](auto& h) { h.set_gpu("\xff"); }));
    EXPECT_REFUSED("too long", answer_to_hello([](auto& h) { h.add_capabilities(std::string(1025, 'a')); }));
    EXPECT_REFUSED("printable", answer_to_hello([](auto& h) { h.add_capabilities("\x1b"); }));
    EXPECT_REFUSED("too many capabilities", answer_to_hello([](auto& h) {
                       for (int i = 0; i < 65; ++i)
                           h.add_capabilities("c");
                   }));
}

TEST(hostile_messages, lanes) {
    EXPECT_REFUSED("another length", answer_to_hello([](auto& h) { h.set_lane_token("short"); }));
    EXPECT_REFUSED("too long", answer_to_hello([](auto& h) { h.set_lane_token(std::string(17, 'x')); }));
    const auto lane = [](std::uint32_t number, std::uint64_t length, std::uint64_t compressed_bytes = 0) {
        return answer_to_content([&](auto& c) {
            c.set_lane(number);
            c.set_length(length);
            c.set_compressed_bytes(compressed_bytes);
        });
    };
    EXPECT_EQ(lane(mirror::max_lanes, mirror::min_lane_bytes), "");
    EXPECT_REFUSED("not so many lanes", lane(mirror::max_lanes + 1, mirror::min_lane_bytes));
    EXPECT_REFUSED("only large pieces", lane(1, mirror::min_lane_bytes - 1));
    EXPECT_REFUSED("only large pieces", lane(1, mirror::min_lane_bytes, 100));
}

TEST(hostile_messages, ranges_of_versions) {
    EXPECT_REFUSED("stream versions", answer_to_hello([](auto& h) { h.set_oldest_abi_version(99); }));
    EXPECT_REFUSED("checkpoint versions",
                   answer_to_hello([](auto& h) { h.set_oldest_checkpoint_version(1); }));
    EXPECT_REFUSED("checkpoint versions", answer_to_hello([](auto& h) { h.set_checkpoint_version(1); }));
}

TEST(hostile_messages, descriptions) {
    const auto answer_to_parts = [](auto change) {
        replication::Message m;
        auto& s = *m.mutable_supervision();
        s.set_kind(replication::SUPERVISION_DESCRIPTION);
        auto& part = *s.add_parts();
        part.set_rule(replication::PART_EQUAL);
        part.set_name("machine");
        part.set_value("pc");
        change(s);
        return answer_to(m);
    };
    EXPECT_EQ(answer_to_parts([](auto&) {}), "");
    EXPECT_REFUSED("rule", answer_to_parts([](auto& s) { s.mutable_parts(0)->clear_rule(); }));
    EXPECT_REFUSED("rule", answer_to_parts([](auto& s) {
                       s.mutable_parts(0)->set_rule(static_cast<replication::PartRule>(4));
                   }));
    EXPECT_REFUSED("too long",
                   answer_to_parts([](auto& s) { s.mutable_parts(0)->set_name(std::string(1025, 'a')); }));
    EXPECT_REFUSED("too long",
                   answer_to_parts([](auto& s) { s.mutable_parts(0)->set_value(std::string(4097, 'a')); }));
    EXPECT_REFUSED("printable", answer_to_parts([](auto& s) { s.mutable_parts(0)->set_value("\n"); }));
    EXPECT_REFUSED("too many", answer_to_parts([](auto& s) {
                       for (int i = 0; i < 192; ++i)
                           s.add_parts()->set_rule(replication::PART_EQUAL);
                   }));
}

TEST(hostile_messages, columns) {
    EXPECT_REFUSED("no entries", answer_to_entries([](auto& b) { b.set_count(0); }));
    EXPECT_REFUSED("too many", answer_to_entries([](auto& b) { b.set_count(4097); }));
    EXPECT_REFUSED("too many", answer_to_entries([](auto& b) { b.set_count(UINT32_MAX); }));
    EXPECT_REFUSED("number", answer_to_entries([](auto& b) { b.set_first_sequence(0); }));
    EXPECT_REFUSED("number", answer_to_entries([](auto& b) { b.set_first_sequence(UINT64_MAX); }));
    const char* elements = "not as many elements as there are entries";
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.set_count(3); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_kind(replication::ENTRY_KIND_SUBMIT); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_file(1); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_flags(0); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_op_count(1); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_stream_words(1); }));
    EXPECT_REFUSED(elements, answer_to_entries([](auto& b) { b.add_payload_count(0); }));
    const char* payloads = "not as many elements as there are payloads";
    EXPECT_REFUSED(payloads, answer_to_entries([](auto& b) { b.add_payload_bytes(1); }));
    EXPECT_REFUSED(payloads, answer_to_entries([](auto& b) { b.set_payload_count(0, 1); }));
    EXPECT_REFUSED(payloads, answer_to_entries([](auto& b) { b.set_payload_count(0, UINT32_MAX); }));
    EXPECT_REFUSED(payloads, answer_to_entries([](auto& b) { b.add_payload_writable(false); }));
    EXPECT_REFUSED("payload is too long",
                   answer_to_entries([](auto& b) { b.set_payload_bytes(0, UINT64_MAX); }));
    EXPECT_REFUSED("kind is unknown", answer_to_entries([](auto& b) {
                       b.add_kind(replication::ENTRY_KIND_SUBMIT);
                       b.add_kind(static_cast<replication::EntryKind>(256 + 3));
                   }));
    EXPECT_REFUSED("kind is unknown", answer_to_entries([](auto& b) {
                       b.add_kind(replication::ENTRY_KIND_UNSPECIFIED);
                       b.add_kind(replication::ENTRY_KIND_SUBMIT);
                   }));
}

TEST(hostile_messages, entries) {
    EXPECT_REFUSED("entry 6: it has unknown flags", answer_to_entries([](auto& b) {
                       b.add_flags(0);
                       b.add_flags(mirror::entry_all_flags + 1);
                   }));
    EXPECT_REFUSED("its stream is empty", answer_to_entries([](auto& b) { b.set_stream_words(1, 0); }));
    EXPECT_REFUSED("its stream", answer_to_entries([](auto& b) { b.set_stream_words(1, (32 << 10) + 1); }));
    EXPECT_REFUSED("its stream", answer_to_entries([](auto& b) { b.set_stream_words(1, UINT32_MAX); }));
    EXPECT_REFUSED("no commands", answer_to_entries([](auto& b) { b.set_op_count(1, 0); }));
    EXPECT_REFUSED("no commands", answer_to_entries([](auto& b) { b.set_op_count(1, 5); }));
    EXPECT_REFUSED("too many payloads", answer_to_entries([](auto& b) {
                       b.set_payload_count(1, VGPU_MAX_PAYLOADS + 1);
                       while (b.payload_bytes_size() <= static_cast<int>(VGPU_MAX_PAYLOADS))
                           b.add_payload_bytes(0);
                   }));
    EXPECT_REFUSED("only an entry that is compared", answer_to_entries([](auto& b) {
                       b.add_payload_writable(false);
                       b.add_payload_writable(true);
                   }));
    const auto compared = [](std::uint32_t flags, std::uint64_t bytes) {
        return answer_to_entries(
            [&](auto& b) {
                b.add_flags(0);
                b.add_flags(flags);
                b.add_payload_writable(true);
                b.add_payload_writable(true);
                b.set_payload_bytes(0, bytes - 8); // the other one has 8
            },
            64);
    };
    EXPECT_EQ(compared(replication::FLAG_COMPARE, mirror::max_compared_bytes), "");
    EXPECT_REFUSED("GPU writes are too long",
                   compared(replication::FLAG_COMPARE, mirror::max_compared_bytes + 1));
    const std::uint32_t hash_content = replication::FLAG_COMPARE | replication::FLAG_HASH_CONTENT;
    EXPECT_EQ(compared(hash_content, mirror::max_hashed_content_bytes), "");
    EXPECT_REFUSED("GPU writes are too long", compared(hash_content, mirror::max_hashed_content_bytes + 1));
    EXPECT_REFUSED("only of an entry that is compared", answer_to_entries([](auto& b) {
                       b.add_flags(0);
                       b.add_flags(replication::FLAG_HASH_CONTENT);
                   }));
    EXPECT_REFUSED("too long to travel with it", answer_to_entries([](auto& b) {
                       b.set_payload_bytes(0, mirror::max_inline_content_bytes - 7);
                   }));
    EXPECT_REFUSED("only a submit has commands", answer_to_entries([](auto& b) {
                       b.add_kind(replication::ENTRY_KIND_OPEN_FILE);
                       b.add_kind(replication::ENTRY_KIND_SUBMIT);
                   }));
    const auto reset = [](std::uint32_t file, std::uint32_t flags) {
        replication::Message m;
        m.mutable_entries()->set_first_sequence(1);
        m.mutable_entries()->set_count(1);
        m.mutable_entries()->add_kind(replication::ENTRY_KIND_RESET);
        m.mutable_entries()->add_file(file);
        m.mutable_entries()->add_flags(flags);
        return answer_to(m);
    };
    EXPECT_EQ(reset(0, 0), "");
    EXPECT_REFUSED("names a file", reset(1, 0));
    EXPECT_REFUSED("only a submit may have", reset(0, replication::FLAG_AWAITS_OUTCOME));
    EXPECT_REFUSED("too long for one frame", answer_to_entries([](auto& b) {
                       b.set_count(40);
                       b.clear_payload_count();
                       b.clear_payload_bytes();
                       b.clear_op_count();
                       b.clear_stream_words();
                       for (int i = 0; i < 40; ++i) {
                           b.add_op_count(1);
                           b.add_stream_words(VGPU_MAX_STREAM_BYTES / 8);
                       }
                   }));
}

TEST(hostile_messages, content) {
    EXPECT_REFUSED("number", answer_to_content([](auto& c) { c.set_sequence(0); }));
    EXPECT_REFUSED("so many payloads", answer_to_content([](auto& c) { c.set_payload(VGPU_MAX_PAYLOADS); }));
    EXPECT_REFUSED("empty", answer_to_content([](auto& c) { c.set_length(0); }));
    EXPECT_REFUSED("too long",
                   answer_to_content([](auto& c) { c.set_length(mirror::content_piece_bytes + 1); }));
    EXPECT_REFUSED("behind any payload",
                   answer_to_content([](auto& c) { c.set_offset(mirror::max_payload_bytes - 99); }));
    EXPECT_REFUSED("behind any payload", answer_to_content([](auto& c) { c.set_offset(UINT64_MAX); }));
    EXPECT_REFUSED("not smaller", answer_to_content([](auto& c) { c.set_compressed_bytes(100); }));
}

TEST(hostile_messages, numbers) {
    const auto with = [](auto&& change) {
        replication::Message m;
        change(m);
        return answer_to(m);
    };
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_outcome(); }));
    EXPECT_REFUSED("called off", with([](auto& m) {
                       m.mutable_outcome()->set_sequence(1);
                       m.mutable_outcome()->set_canceled(true);
                       m.mutable_outcome()->set_result(-5);
                   }));
    EXPECT_REFUSED("epoch", with([](auto& m) { m.mutable_marker(); }));
    EXPECT_REFUSED("epoch", with([](auto& m) { m.mutable_marker()->set_epoch(UINT64_MAX); }));
    EXPECT_REFUSED("number", with([](auto& m) {
                       m.mutable_marker()->set_epoch(1);
                       m.mutable_marker()->set_sequence(mirror::max_sequence + 1);
                   }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_synced(); }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_ack()->set_received(UINT64_MAX); }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_ack()->set_executed(UINT64_MAX); }));
    EXPECT_REFUSED("epoch", with([](auto& m) { m.mutable_ack()->set_committed_epoch(UINT64_MAX); }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_digests(); }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_digest_result(); }));
    EXPECT_REFUSED("number", with([](auto& m) { m.mutable_fault()->set_sequence(UINT64_MAX); }));
    EXPECT_REFUSED("too long", with([](auto& m) { m.mutable_fault()->set_why(std::string(1025, 'a')); }));
    EXPECT_REFUSED("printable", with([](auto& m) { m.mutable_fault()->set_why("\r"); }));
    EXPECT_REFUSED("too long", with([](auto& m) { m.mutable_goodbye()->set_why(std::string(1025, 'a')); }));
    EXPECT_REFUSED("printable", with([](auto& m) { m.mutable_goodbye()->set_why("\xc2\x9b"); }));
}

TEST(hostile_messages, digests) {
    replication::Message m;
    m.mutable_digests()->set_sequence(1);
    for (std::uint32_t i = 0; i <= mirror::max_hashes_per_message; ++i)
        m.mutable_digests()->add_hashes(i);
    EXPECT_REFUSED("too many digests", answer_to(m));
    const auto result = [](std::initializer_list<std::uint32_t> different) {
        replication::Message r;
        r.mutable_digest_result()->set_sequence(1);
        for (const std::uint32_t i : different)
            r.mutable_digest_result()->add_different(i);
        return answer_to(r);
    };
    EXPECT_EQ(result({0, 1, 65535}), "");
    EXPECT_REFUSED("ascending", result({1, 1}));
    EXPECT_REFUSED("ascending", result({2, 1}));
    EXPECT_REFUSED("not so many", result({65536}));
    replication::Message r;
    r.mutable_digest_result()->set_sequence(1);
    for (std::uint32_t i = 0; i <= mirror::max_hashes_per_message; ++i)
        r.mutable_digest_result()->add_different(i);
    EXPECT_REFUSED("too many differences", answer_to(r));
}

// ---- a peer of a later version

namespace {

// A field that this version does not know.
std::string unknown_field(int number, const std::string& value) {
    std::string out;
    {
        google::protobuf::io::StringOutputStream stream(&out);
        google::protobuf::io::CodedOutputStream coded(&stream);
        coded.WriteTag(static_cast<std::uint32_t>(number) << 3 | 2);
        coded.WriteVarint32(static_cast<std::uint32_t>(value.size()));
        coded.WriteString(value);
    }
    return out;
}

} // namespace

TEST(later_version, unknown_fields_change_nothing) {
    mirror::message plain, extended;
    replication::Message wire = valid_hello();
    ASSERT_EQ(decode_bytes(wire.SerializeAsString(), 0, plain), "");
    wire.mutable_hello()->MergeFromString(unknown_field(500, "what a later version says in hello"));
    ASSERT_EQ(decode_bytes(wire.SerializeAsString() + unknown_field(501, "beside it"), 0, extended), "");
    EXPECT_TRUE(plain == extended);

    wire = valid_entries();
    ASSERT_EQ(decode_bytes(wire.SerializeAsString(), valid_entries_payload, plain), "");
    wire.mutable_entries()->MergeFromString(unknown_field(500, "a column"));
    ASSERT_EQ(decode_bytes(wire.SerializeAsString(), valid_entries_payload, extended), "");
    EXPECT_TRUE(plain == extended);
}

TEST(later_version, an_unknown_message_is_passed_over_only_if_it_says_so) {
    mirror::message out;
    const std::string later = unknown_field(77, "a message of a later version");
    EXPECT_REFUSED("does not know", decode_bytes(later, 0, out));
    replication::Message mark;
    mark.set_ignorable(true);
    EXPECT_EQ(decode_bytes(mark.SerializeAsString() + later, 0, out), "");
    EXPECT_TRUE(std::holds_alternative<mirror::unknown_message>(out));
    EXPECT_EQ(decode_bytes(mark.SerializeAsString(), 0, out), "");
    // Bytes behind it would have to be understood.
    EXPECT_REFUSED("8 bytes of payload", decode_bytes(mark.SerializeAsString() + later, 8, out));
    // A message that is known is obeyed.
    replication::Message marked = valid_hello();
    marked.set_ignorable(true);
    EXPECT_EQ(decode_bytes(marked.SerializeAsString(), 0, out), "");
    EXPECT_TRUE(std::holds_alternative<mirror::hello>(out));
}

TEST(later_version, an_unknown_reason_to_say_goodbye_is_other) {
    replication::Message m;
    m.mutable_goodbye()->set_reason(static_cast<replication::GoodbyeReason>(99));
    m.mutable_goodbye()->set_why("the moon is full");
    mirror::message out;
    EXPECT_EQ(decode_bytes(m.SerializeAsString(), 0, out), "");
    EXPECT_TRUE(out == mirror::message(mirror::goodbye{mirror::goodbye_reason::other, "the moon is full"}));
}

TEST(hostile_messages_death, a_sender_does_not_break_rules) {
    std::vector<std::byte> out;
    EXPECT_DEATH(encode(mirror::marker{0, 1}, out), "breaks a rule: marker: the epoch");
}
