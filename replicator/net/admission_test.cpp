// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/admission.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <set>

namespace kagemusha::net {
namespace {

constexpr std::uint64_t now_ms = 1'000'000;

std::string source_of_ip(const char* text, std::uint16_t port) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1)
        return source_of(reinterpret_cast<const sockaddr&>(four));
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET6, text, &six.sin6_addr), 1) << text;
    return source_of(reinterpret_cast<const sockaddr&>(six));
}

TEST(admission, a_source_is_an_address_or_a_network_of_64_bits) {
    EXPECT_EQ(source_of_ip("192.0.2.1", 1), source_of_ip("192.0.2.1", 2));
    EXPECT_EQ(source_of_ip("192.0.2.1", 1), source_of_ip("::ffff:192.0.2.1", 1));
    EXPECT_NE(source_of_ip("192.0.2.1", 1), source_of_ip("192.0.2.2", 1));
    EXPECT_EQ(source_of_ip("2001:db8:0:1::1", 1), source_of_ip("2001:db8:0:1:ffff::2", 1));
    EXPECT_NE(source_of_ip("2001:db8:0:1::1", 1), source_of_ip("2001:db8:0:2::1", 1));
    EXPECT_NE(source_of_ip("2001:db8:0:1::1", 1), source_of_ip("192.0.2.1", 1));
}

TEST(admission, who_floods_the_port_ends_no_handshake_but_his_own) {
    admission a;
    ASSERT_TRUE(a.on_arrival("primary", 1, now_ms).admitted);
    std::set<std::uint64_t> ended;
    for (std::uint64_t id = 2; id < 10'000; ++id) {
        ended.insert(a.on_arrival("stranger", id, now_ms + id).ends);
        ASSERT_LE(a.half_open(), 1 + admission::max_per_source);
    }
    EXPECT_GT(ended.size(), admission::max_per_source);
    EXPECT_FALSE(ended.contains(1));
}

TEST(admission, many_sources_end_those_of_the_source_that_has_most) {
    admission a;
    std::uint64_t id = 0;
    for (std::size_t i = 0; i < admission::max_per_source; ++i)
        a.on_arrival("greedy", ++id, now_ms);
    for (std::size_t i = a.half_open(); i < admission::max_half_open; ++i)
        EXPECT_EQ(a.on_arrival("source " + std::to_string(i), ++id, now_ms).ends, 0u);
    EXPECT_EQ(a.on_arrival("one more", ++id, now_ms).ends, 1u) << "the oldest of the greedy one";
    EXPECT_EQ(a.half_open(), admission::max_half_open);
}

TEST(admission, a_source_that_fails_again_and_again_has_to_wait) {
    admission a;
    std::uint64_t id = 0;
    for (std::uint32_t i = 0; i < admission::try_burst; ++i) {
        ASSERT_TRUE(a.on_arrival("stranger", ++id, now_ms).admitted);
        a.on_end(id, false);
    }
    EXPECT_FALSE(a.on_arrival("stranger", ++id, now_ms).admitted);
    EXPECT_TRUE(a.on_arrival("primary", ++id, now_ms).admitted);
    EXPECT_FALSE(a.on_arrival("stranger", ++id, now_ms + admission::try_interval_ms - 1).admitted);
    EXPECT_TRUE(a.on_arrival("stranger", ++id, now_ms + admission::try_interval_ms).admitted);
}

TEST(admission, who_proves_who_he_is_may_come_as_often_as_he_likes) {
    admission a;
    for (std::uint64_t id = 1; id < 1000; ++id) {
        ASSERT_TRUE(a.on_arrival("primary", id, now_ms).admitted);
        a.on_end(id, true);
    }
    EXPECT_EQ(a.half_open(), 0u);
}

TEST(admission, sources_are_not_remembered_without_a_bound) {
    admission a;
    for (std::uint64_t id = 1; id < 10'000; ++id) {
        a.on_arrival("source " + std::to_string(id), id, now_ms);
        a.on_end(id, false);
        ASSERT_LE(a.sources(), admission::max_sources);
    }
}

} // namespace
} // namespace kagemusha::net
