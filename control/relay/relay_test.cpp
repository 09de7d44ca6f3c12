// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/relay/relay.hpp"

#include <gtest/gtest.h>

namespace kagemusha::control {
namespace {

TEST(relay, routes_are_text_on_their_way) {
    const std::vector<relay_route> routes{{7, "hostb:7002", std::nullopt},
                                          {8, "unix:/run/k/web.d/listens/gpu", 0x70000001}};
    EXPECT_EQ(parse_routes(to_text(routes)), routes);
    for (const char* wrong : {"", "7", "[7]", "[[7]]", "[[\"7\",\"a:1\",null]]", "[[7,\"a:1\",\"root\"]]"})
        EXPECT_FALSE(parse_routes(wrong)) << wrong;
}

} // namespace
} // namespace kagemusha::control
