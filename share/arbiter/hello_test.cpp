// SPDX-License-Identifier: GPL-2.0-or-later
#include "share/arbiter/hello.hpp"

#include <gtest/gtest.h>

namespace kagemusha::share {
namespace {

share_hello valid() {
    share_hello h{};
    h.magic = SHARE_MAGIC;
    h.version = SHARE_VERSION;
    h.role = SHARE_VM;
    h.cap_permille = whole_permille;
    put_name(h.vm, "web");
    return h;
}

std::string refusal(const share_hello& h, std::size_t bytes = sizeof(share_hello)) {
    return check_hello({reinterpret_cast<const std::byte*>(&h), bytes}).refusal;
}

TEST(hello, a_valid_one_is_taken) {
    share_hello h = valid();
    h.share_permille = 250;
    h.flags = SHARE_IS_STANDBY | SHARE_HAS_POLICY;
    h.policy = static_cast<std::uint32_t>(policy_kind::fixed);
    const auto heard = check_hello(std::as_bytes(std::span(&h, 1)));
    EXPECT_EQ(heard.refusal, "");
    EXPECT_EQ(heard.what.vm, "web");
    EXPECT_EQ(heard.what.policy, policy_kind::fixed);
    EXPECT_TRUE(heard.what.terms.standby);
    EXPECT_EQ(heard.what.terms.share_permille, 250u);
}

TEST(hello, every_field_is_checked) {
    EXPECT_EQ(refusal(valid()), "");
    EXPECT_NE(refusal(valid(), 0), "");
    EXPECT_NE(refusal(valid(), 7), "");
    EXPECT_NE(refusal(valid(), sizeof(share_hello) - 1), "");
    const auto with = [](auto change) {
        share_hello h = valid();
        change(h);
        return refusal(h);
    };
    EXPECT_NE(with([](share_hello& h) { h.magic = 0; }), "");
    EXPECT_NE(with([](share_hello& h) { h.role = 0; }), "");
    EXPECT_NE(with([](share_hello& h) { h.role = 4; }), "");
    EXPECT_NE(with([](share_hello& h) { h.flags = 8; }), "");
    EXPECT_NE(with([](share_hello& h) { h.share_permille = 9; }), "");
    EXPECT_NE(with([](share_hello& h) { h.share_permille = 1001; }), "");
    EXPECT_NE(with([](share_hello& h) { h.cap_permille = 0; }), "");
    EXPECT_NE(with([](share_hello& h) { h.cap_permille = 1001; }), "");
    EXPECT_NE(with([](share_hello& h) { h.priority = max_priority + 1; }), "");
    EXPECT_NE(with([](share_hello& h) { h.flags = SHARE_HAS_POLICY, h.policy = 4; }), "");
    EXPECT_NE(with([](share_hello& h) { h.vm[0] = 0; }), "");
    EXPECT_NE(with([](share_hello& h) { h.vm[1] = '/'; }), "");
    EXPECT_NE(with([](share_hello& h) { std::fill(std::begin(h.vm), std::end(h.vm), 'a'); }), "");
}

TEST(hello, another_version_is_told_which_there_is) {
    share_hello h = valid();
    h.version = 7;
    EXPECT_EQ(refusal(h),
              "the share arbiter of this GPU (kagemusha-gpu) speaks version 2 and not 7: stop the "
              "VMs of this GPU and start them with one release");
}

TEST(message, only_what_a_session_may_say) {
    share_message m{SHARE_WANTS, 0};
    const auto bytes = std::as_bytes(std::span(&m, 1));
    EXPECT_EQ(check_message(bytes), SHARE_WANTS);
    EXPECT_FALSE(check_message(bytes.first(7)));
    m.pad = 1;
    EXPECT_FALSE(check_message(bytes));
    m = {SHARE_GO, 0};
    EXPECT_FALSE(check_message(bytes));
}

} // namespace
} // namespace kagemusha::share
