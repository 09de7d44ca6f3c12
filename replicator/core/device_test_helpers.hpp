// SPDX-License-Identifier: GPL-2.0-or-later
// For tests of the whole device: a file with a context and a queue, and a command whose end is a completion.
#pragma once

#include <poll.h>

#include <cstdint>

#include "core/test_helpers.hpp"

namespace kagemusha::core::testing {

enum : std::uint64_t { context = 1, queue, user_event, first_event = 1000 };

// A file with a context and a queue, whose worker has answered.
inline void set_up(device_harness& h, std::uint32_t file) {
    h.open(file);
    h.submit(file, [](auto& b) { b.create_context(context); });
    h.submit(file, [](auto& b) { b.create_queue(queue, context); });
    h.answer_all(file);
}

inline std::uint64_t marker(device_harness& h, std::uint32_t file, std::uint64_t event = 0) {
    return h.submit(file, [&](auto& b) { b.marker({queue, event, {}}); });
}

inline bool readable(int fd) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

} // namespace kagemusha::core::testing
