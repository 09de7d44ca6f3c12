// SPDX-License-Identifier: GPL-2.0-or-later
// The device's part of a checkpoint: there and back, and what is refused.
#include "messages/vm_state.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>

#include "core/limits.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::messages {
namespace {

std::vector<std::byte> error_record(std::uint32_t file) {
    vgpu_record_queue_error e{};
    e.record = {VGPU_RECORD_QUEUE_ERROR, sizeof(e), file, 0};
    e.queue = 5;
    e.error = -5;
    std::vector<std::byte> out(sizeof(e));
    std::memcpy(out.data(), &e, sizeof(e));
    return out;
}

mirror::vm_state sample() {
    mirror::vm_state s;
    s.instance = UINT64_MAX;
    s.epoch = 17;
    core::file_checkpoint f;
    f.file = 3;
    f.requests = {{1027, {4, 6}, {{0, 7}, {1, 300}}}, {2048, {6, 6}}};
    f.unreported = {1, UINT64_MAX, 7};
    f.refused = {{9, 2, -38}};
    f.records = error_record(3);
    s.files.push_back(f);
    f = {};
    f.file = UINT32_MAX;
    f.lost = true;
    s.files.push_back(f);
    return s;
}

std::string refusal(const mirror::vm_state& s) {
    std::vector<std::byte> bytes;
    encode(s, bytes);
    mirror::vm_state back;
    return decode(bytes, back);
}

TEST(vm_state, there_and_back) {
    for (const mirror::vm_state& s : {mirror::vm_state{}, sample()}) {
        std::vector<std::byte> bytes;
        encode(s, bytes);
        mirror::vm_state back;
        EXPECT_EQ(decode(bytes, back), "");
        EXPECT_TRUE(back == s);
    }
}

TEST(vm_state, open_requests_are_in_the_order_of_their_tokens) {
    mirror::vm_state s = sample();
    s.files[1].requests = {{1500, {5, 5}}};
    const auto open = mirror::open_requests(s);
    ASSERT_EQ(open.size(), 3u);
    EXPECT_EQ(open[0].token, 1027u);
    EXPECT_EQ(open[1].token, 1500u);
    EXPECT_EQ(open[1].file, UINT32_MAX);
    EXPECT_EQ(open[2].token, 2048u);
}

TEST(vm_state, what_breaks_a_rule_is_refused) {
    const auto with = [](auto change) {
        mirror::vm_state s = sample();
        change(s);
        return refusal(s);
    };
    EXPECT_NE(with([](auto& s) { s.files[0].file = 0; }).find("order"), std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[1].file = 3; }).find("order"), std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].requests[0].entries = {7, 6}; }).find("ends before"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) {
                  s.files[0].requests.resize(core::hard_max_requests_per_file + 1);
              }).find("in-flight requests"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].requests[0].progress.written = {3, 3}; }).find("not in order"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) {
                  s.files[0].requests[0].progress.written = {VGPU_MAX_PAYLOADS};
              }).find("not in order"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].requests[0].progress.refused = {2, 1}; }).find("not in order"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].refused[0].status = 1; }).find("refused event"),
              std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].records = error_record(4); }).find("records"), std::string::npos);
    EXPECT_NE(with([](auto& s) { s.files[0].records.pop_back(); }).find("records"), std::string::npos);
    EXPECT_NE(with([](auto& s) { s.epoch = UINT64_MAX; }).find("epoch"), std::string::npos);
    std::vector<std::byte> bytes(5, std::byte{0xff});
    mirror::vm_state back;
    EXPECT_NE(decode(bytes, back).find("no message"), std::string::npos);
}

// ---- little on the wire that would be much in memory: refused before it is parsed

std::string refusal(const std::string& wire) {
    mirror::vm_state back;
    return decode(std::as_bytes(std::span(wire)), back);
}
std::string varint(std::uint64_t n) {
    std::string out;
    for (; n >= 128; n >>= 7)
        out.push_back(static_cast<char>((n & 127) | 128));
    out.push_back(static_cast<char>(n));
    return out;
}
std::string field(int number, const std::string& content) {
    return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}
std::string times(std::uint64_t count, const std::string& what) {
    std::string out;
    out.reserve(count * what.size());
    while (count-- != 0)
        out += what;
    return out;
}
const std::string number = varint(1 << 3) + varint(9); // of a file

TEST(vm_state, has_no_more_of_anything_than_a_guest_can_have) {
    const auto refused = [](const std::string& wire, const std::string& why) {
        const std::string said = refusal(wire);
        return said.find(why) != std::string::npos ? testing::AssertionSuccess()
                                                   : testing::AssertionFailure() << "\"" << said << "\"";
    };
    EXPECT_TRUE(refused(times(mirror::max_mirrored_files + 1, field(3, "")), "too many files"));

    const std::string request = field(3, "");
    std::string files;
    for (std::uint64_t left = max_open_requests, file = 1; left != 0; left -= 4096, ++file)
        files += field(3, varint(1 << 3) + varint(file) + times(4096, request));
    EXPECT_EQ(refusal(files), "");
    EXPECT_TRUE(
        refused(files + field(3, varint(1 << 3) + varint(1000) + request), "too many in-flight requests"));

    const std::string events = times(max_refused_events, field(5, ""));
    EXPECT_EQ(refusal(field(3, number + events)), "");
    EXPECT_TRUE(refused(field(3, number + events + field(5, "")), "too many refused events"));

    const std::string places(max_places + 1, '\0');
    EXPECT_TRUE(refused(field(3, number + field(3, field(4, places))), "too much is over"));
    EXPECT_TRUE(refused(field(3, number + field(3, times(max_places + 1, varint(5 << 3) + varint(1)))),
                        "too much is over"));

    const std::string unknown = times(max_unknown_fields, varint(100 << 3) + varint(1));
    EXPECT_EQ(refusal(unknown), "") << "of a later release";
    EXPECT_EQ(refusal(field(3, number + unknown)), "");
    EXPECT_TRUE(refused(field(3, number + unknown + varint(101 << 3) + varint(1)), "does not know"));
    EXPECT_TRUE(refused(varint(100 << 3 | 3) + varint(100 << 3 | 4), "no message")) << "a group";
}

} // namespace
} // namespace kagemusha::messages
