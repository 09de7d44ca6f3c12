// SPDX-License-Identifier: GPL-2.0-or-later
//
// Requests whole, in pieces, several at once, and what no client should send.
#include "protocol.hpp"

#include <gtest/gtest.h>

namespace service {
namespace {

using namespace std::string_literals;

TEST(http, get_and_put) {
    const auto got = read_http("GET /key:7 HTTP/1.1\r\nHost: here\r\n\r\nGET /next");
    ASSERT_TRUE(got);
    EXPECT_EQ(got->what, verb::get);
    EXPECT_EQ(got->key, "key:7");
    EXPECT_TRUE(got->keeps_connection);
    EXPECT_EQ(got->bytes, 35u);

    const auto put = read_http("PUT /a HTTP/1.1\r\ncontent-length: 3\r\nConnection: close\r\n\r\nxyz");
    ASSERT_TRUE(put);
    EXPECT_EQ(put->what, verb::set);
    EXPECT_EQ(put->value, "xyz");
    EXPECT_FALSE(put->keeps_connection);
}

TEST(http, a_request_without_fields) {
    const auto got = read_http("GET /a HTTP/1.0\r\n\r\n");
    ASSERT_TRUE(got);
    EXPECT_EQ(got->what, verb::get);
    EXPECT_FALSE(got->keeps_connection); // HTTP/1.0
}

// Every beginning of a request is a request that is not complete.
TEST(http, in_pieces) {
    const auto whole = "PUT /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz"s;
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
        EXPECT_FALSE(read_http(whole.substr(0, bytes))) << bytes;
}

TEST(http, what_no_client_should_send) {
    for (const auto& text :
         {"GET\r\n\r\n"s, "GET a HTTP/1.1\r\n\r\n"s, "GET /a HTTP/2.0\r\n\r\n"s,
          "GET /a HTTP/1.1\r\nfield\r\n\r\n"s, "PUT /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n"s,
          "PUT /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"s,
          "PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"s,
          std::string(longest_request_bytes, 'x')}) {
        const auto got = read_http(text);
        ASSERT_TRUE(got) << text;
        EXPECT_EQ(got->what, verb::invalid) << text;
        EXPECT_FALSE(got->keeps_connection) << text;
    }
    const auto long_key = read_http("GET /" + std::string(longest_key_bytes + 1, 'k') + " HTTP/1.1\r\n\r\n");
    ASSERT_TRUE(long_key);
    EXPECT_EQ(long_key->what, verb::other);
    EXPECT_EQ(read_http("DELETE /a HTTP/1.1\r\n\r\n")->what, verb::other);
}

TEST(http, answers) {
    request asked{verb::get, "a", {}, true, 0};
    EXPECT_EQ(http_answer(asked, "x"),
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx");
    EXPECT_TRUE(http_answer(asked, {}).starts_with("HTTP/1.1 404 "));
    asked.what = verb::set;
    EXPECT_TRUE(http_answer(asked, {}).starts_with("HTTP/1.1 507 "));
    asked.keeps_connection = false;
    EXPECT_NE(http_answer(asked, "x").find("Connection: close\r\n"), std::string::npos);
}

TEST(resp, commands) {
    const auto got = read_resp("*2\r\n$3\r\nget\r\n$1\r\na\r\n*1\r\n");
    ASSERT_TRUE(got);
    EXPECT_EQ(got->what, verb::get);
    EXPECT_EQ(got->key, "a");
    EXPECT_EQ(got->bytes, 20u);
    EXPECT_EQ(read_resp("*1\r\n$4\r\nPING\r\n")->what, verb::ping);
    EXPECT_EQ(read_resp("*2\r\n$4\r\nINCR\r\n$1\r\na\r\n")->what, verb::increase);
    const auto set = read_resp("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nxy\r\n");
    EXPECT_EQ(set->what, verb::set);
    EXPECT_EQ(set->value, "xy");
    EXPECT_EQ(read_resp("*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$4\r\nsave\r\n")->what, verb::other);
    EXPECT_EQ(read_resp("*0\r\n")->what, verb::other);
}

TEST(resp, in_pieces) {
    const auto whole = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\nxy\r\n"s;
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
        EXPECT_FALSE(read_resp(whole.substr(0, bytes))) << bytes;
}

TEST(resp, what_no_client_should_send) {
    for (const auto& text :
         {"PING\r\n"s, "*9\r\n"s, "*-1\r\n"s, "*1\r\n+PING\r\n"s, "*1\r\n$99999\r\n"s,
          "*1\r\n$1\r\nPING\r\n"s, "*123456789"s, "*2\r\n$3\r\nGET\r\n$8100\r\n" + std::string(8180, 'x')}) {
        const auto got = read_resp(text);
        ASSERT_TRUE(got) << text.substr(0, 40);
        EXPECT_EQ(got->what, verb::invalid) << text.substr(0, 40);
    }
    EXPECT_EQ(read_resp("*2\r\n$3\r\nGET\r\n$32\r\n" + std::string(32, 'k') + "\r\n")->what, verb::other);
}

TEST(resp, answers) {
    request asked{verb::get, "a", {}, true, 0};
    EXPECT_EQ(resp_answer(asked, "xy"), "$2\r\nxy\r\n");
    EXPECT_EQ(resp_answer(asked, {}), "$-1\r\n");
    asked.what = verb::increase;
    EXPECT_EQ(resp_answer(asked, "8"), ":8\r\n");
    EXPECT_TRUE(resp_answer(asked, {}).starts_with("-ERR "));
}

} // namespace
} // namespace service
