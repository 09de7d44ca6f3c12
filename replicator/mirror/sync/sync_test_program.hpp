// SPDX-License-Identifier: GPL-2.0-or-later
// A guest's program for tests of the agent: a context, two queues, and a kernel that adds one buffer to another.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>

#include "tests/support/executing_pair.hpp"

namespace kagemusha::mirror::testing {

inline constexpr std::uint64_t out_of_order = 1;
inline constexpr std::uint64_t mib = 1 << 20;

inline constexpr std::string_view add_source = R"(
kernel void add(global uint* to, global const uint* from, uint value) {
    size_t i = get_global_id(0);
    to[i] = to[i] * 3 + from[i] + value;
})";

struct guest_program {
    explicit guest_program(executing_pair& p)
        : context(p.context())
        , in_order(p.queue(context))
        , any_order(p.queue(context, out_of_order))
        , kernel(p.kernel(context, add_source, "add")) {}
    std::uint64_t context, in_order, any_order, kernel;

    void add(executing_pair& p, std::uint64_t queue, std::uint64_t to, std::uint64_t from,
             std::uint32_t value, std::uint64_t count, std::uint64_t event = 0) const {
        codec::launch_size size;
        size.global[0] = count;
        p.ok(stream_builder().launch({queue, event}, kernel, size,
                                     argument_builder().memory(0, to).memory(1, from).scalar(2, value)));
    }
};

inline void expect_same(executing_pair& p, std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes) {
    p.finish(queue);
    EXPECT_TRUE(p.on_primary(queue, buffer, bytes) == p.on_standby(queue, buffer, bytes)) << buffer;
}

} // namespace kagemusha::mirror::testing
