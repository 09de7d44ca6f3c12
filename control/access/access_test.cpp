// SPDX-License-Identifier: GPL-2.0-or-later
//
// Who is let in, and who is not.
#include "control/access/cookie.hpp"
#include "control/access/door.hpp"
#include "control/access/secrets.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control::access {
namespace {

const std::string salt(salt_bytes, 's');

TEST(access, a_password_is_kept_as_a_hash_that_only_it_fits) {
    const auto hash = hash_password("correct horse", salt);
    EXPECT_EQ(hash.find("horse"), hash.npos);
    EXPECT_TRUE(is_password("correct horse", hash));
    EXPECT_FALSE(is_password("correct hors", hash));
    EXPECT_FALSE(is_password("", hash));
    EXPECT_FALSE(is_password("", ""));
    EXPECT_FALSE(is_password("x", "scrypt$15$zz$zz"));
    EXPECT_NE(hash, hash_password("correct horse", std::string(salt_bytes, 't')));
}

TEST(access, accounts_are_the_same_when_they_are_read_again) {
    accounts all;
    all.users["ann"] = {role::admin, hash_password("12345678", salt)};
    all.tokens["ci.1"] = {role::viewer, digest_of("secret"), 100};
    EXPECT_EQ(parse_accounts(to_json(all)), all);
    auto wrong = to_json(all);
    wrong["users"]["ann"]["role"] = "god";
    EXPECT_FALSE(parse_accounts(wrong));
    wrong = to_json(all);
    wrong["users"]["<b>"] = wrong["users"]["ann"];
    EXPECT_FALSE(parse_accounts(wrong));
    EXPECT_FALSE(parse_accounts(nlohmann::json::array()));
}

TEST(access, a_token_is_known_until_it_expires) {
    accounts all;
    all.tokens["ci"] = {role::operates, digest_of("secret"), 100};
    ASSERT_TRUE(bearer(all, "secret", 99));
    EXPECT_EQ(bearer(all, "secret", 99)->may, role::operates);
    EXPECT_FALSE(bearer(all, "secret", 100));
    EXPECT_FALSE(bearer(all, "secre", 0));
    EXPECT_FALSE(bearer(all, all.tokens["ci"].digest, 0)); // what is kept opens nothing
}

TEST(access, a_session_ends_when_it_is_idle_when_it_is_old_and_when_it_is_told) {
    sessions all;
    all.begin("id", {"ann", role::admin, "c"}, 0);
    EXPECT_TRUE(all.find("id", session_limits::idle_s - 1));
    EXPECT_TRUE(all.find("id", 2 * session_limits::idle_s - 2)); // it was used
    EXPECT_FALSE(all.find("id", 3 * session_limits::idle_s));
    all.begin("id", {"ann", role::admin, "c"}, 0);
    for (std::int64_t now = 0; now < session_limits::whole_s; now += session_limits::idle_s / 2)
        ASSERT_TRUE(all.find("id", now));
    EXPECT_FALSE(all.find("id", session_limits::whole_s));
    all.begin("id", {"ann", role::admin, "c"}, 0);
    all.begin("other", {"bob", role::viewer, "c"}, 0);
    all.end_all_of("ann");
    EXPECT_FALSE(all.find("id", 1));
    EXPECT_TRUE(all.is_alive(sessions::key_of("other"), 1));
    all.end("other");
    EXPECT_FALSE(all.is_alive(sessions::key_of("other"), 1));
}

TEST(access, the_table_of_sessions_is_bounded_and_the_idlest_one_goes) {
    sessions all;
    for (std::size_t i = 0; i <= session_limits::most; ++i)
        all.begin(std::to_string(i), {"ann", role::viewer, ""}, static_cast<std::int64_t>(i));
    EXPECT_EQ(all.count(), session_limits::most);
    EXPECT_FALSE(all.find("0", 1001));
    EXPECT_TRUE(all.find("1", 1001));
}

TEST(access, a_code_is_good_once_and_not_long) {
    one_time_codes codes;
    codes.add("abc", "root", 0);
    EXPECT_FALSE(codes.use("abd", 1));
    EXPECT_EQ(codes.use("abc", 1), "root");
    EXPECT_FALSE(codes.use("abc", 1));
    codes.add("abc", "root", 0);
    EXPECT_FALSE(codes.use("abc", session_limits::code_s));
    for (int i = 0; i < 100; ++i)
        codes.add(std::to_string(i), "root", i);
    EXPECT_FALSE(codes.use("0", 100)); // the oldest of too many
    EXPECT_TRUE(codes.use("99", 100));
}

TEST(access, a_rate_is_a_burst_and_then_so_many_a_second) {
    rate_limiter limit({3, 2});
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(limit.allow("a", 0));
    EXPECT_FALSE(limit.allow("a", 0));
    EXPECT_TRUE(limit.allow("b", 0));
    EXPECT_TRUE(limit.allow("a", 0.5));
    EXPECT_FALSE(limit.allow("a", 0.5));
    for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(limit.allow("a", 1000));
    EXPECT_FALSE(limit.allow("a", 1000));
}

TEST(access, the_table_of_a_rate_limiter_is_bounded) {
    rate_limiter limit({2, 1}, 100);
    for (int i = 0; i < 1000; ++i)
        limit.allow(std::to_string(i), 0);
    EXPECT_LE(limit.names(), 101u);
    EXPECT_FALSE(limit.allow("one more", 0)); // strangers share what is left
    EXPECT_TRUE(limit.allow("one more", 10)); // others have been forgotten
}

knock with_cookie(const std::string& id) {
    return {false, false, "192.0.2.1", std::string("a=b; ") + cookie_name + "=" + id + "; c=d",
            "",    "",    "h:1",       ""};
}

TEST(door, a_cookie_alone_may_look_and_changes_nothing) {
    sessions all;
    door d(all);
    all.begin("id", {"ann", role::admin, "token"}, 0);
    auto at = with_cookie("id");
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).who.may, role::admin);
    EXPECT_EQ(d.admit(with_cookie("other"), {}, {1, 1, 1}).who.may, role::nobody);
    at.changes = true;
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 403u);
    at.csrf = "wrong";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 403u);
    at.csrf = "token";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).who.name, "ann");
    at.origin = "https://h:1";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 0u);
    at.origin = "https://evil.example";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 403u);
}

TEST(door, a_websocket_needs_our_own_origin) {
    sessions all;
    door d(all);
    all.begin("id", {"ann", role::admin, "token"}, 0);
    auto at = with_cookie("id");
    at.websocket = true;
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 403u);
    at.origin = "null";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).status, 403u);
    at.origin = "https://h:1";
    EXPECT_EQ(d.admit(at, {}, {1, 1, 1}).who.name, "ann");
}

TEST(door, a_token_needs_no_csrf_and_a_wrong_one_is_refused) {
    sessions all;
    door d(all);
    accounts known;
    known.tokens["ci"] = {role::operates, digest_of("secret"), 100};
    knock at{true, false, "192.0.2.1", "", "Bearer secret", "", "h", ""};
    EXPECT_EQ(d.admit(at, known, {1, 1, 1}).who.may, role::operates);
    EXPECT_EQ(d.admit(at, known, {100, 100, 1}).status, 401u);
    at.authorization = "Bearer x";
    EXPECT_EQ(d.admit(at, known, {1, 1, 1}).status, 401u);
    at.authorization = "Basic secret";
    EXPECT_EQ(d.admit(at, known, {1, 1, 1}).status, 401u);
}

TEST(door, strangers_users_and_logins_are_limited) {
    sessions all;
    door d(all);
    knock stranger{false, false, "192.0.2.1", "", "", "", "h", ""};
    unsigned heard = 0;
    while (heard < 10000 && d.admit(stranger, {}, {1, 1, 1}).status == 0)
        ++heard;
    EXPECT_EQ(heard, 300u);
    EXPECT_EQ(d.admit(stranger, {}, {1, 1, 1}).status, 429u);
    stranger.from = "192.0.2.2";
    EXPECT_EQ(d.admit(stranger, {}, {1, 1, 1}).status, 0u);
    all.begin("id", {"ann", role::admin, "token"}, 0);
    auto at = with_cookie("id");
    at.changes = true;
    at.csrf = "token";
    heard = 0;
    while (heard < 10000 && d.admit(at, {}, {1, 1, 1}).status == 0)
        ++heard;
    EXPECT_EQ(heard, 60u);
    heard = 0;
    while (heard < 10000 && d.may_log_in("192.0.2.1", 1).status == 0)
        ++heard;
    EXPECT_EQ(heard, 10u);
    EXPECT_EQ(d.may_log_in("192.0.2.1", 12).status, 0u);
}

TEST(door, cookies_are_read_as_browsers_send_them) {
    EXPECT_EQ(session_id(""), "");
    EXPECT_EQ(session_id("__Host-kagemusha=1"), "1");
    EXPECT_EQ(session_id("x__Host-kagemusha=1"), "");
    EXPECT_EQ(session_id("a; ;;=; __Host-kagemusha=1=2"), "1=2");
    EXPECT_EQ(session_id("__Host-kagemusha"), "");
    EXPECT_EQ(cookie_for("id"), "__Host-kagemusha=id; Path=/; Secure; HttpOnly; SameSite=Strict");
    EXPECT_EQ(cookie_to_forget(), "__Host-kagemusha=; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=Strict");
    EXPECT_EQ(set_cookie("a", "b", same_site::lax, 600),
              "a=b; Max-Age=600; Path=/; Secure; HttpOnly; SameSite=Lax");
}

} // namespace
} // namespace kagemusha::control::access
