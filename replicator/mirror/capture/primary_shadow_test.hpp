// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of primary_shadow share: a file with a queue and a buffer, and the log as text.
#pragma once

#include <string>
#include <vector>

#include "tests/support/instant_pair.hpp"

namespace kagemusha::mirror::testing {

using namespace codec;
using lines = std::vector<std::string>;

enum : std::uint64_t { context = 1, queue, buffer, user_event, event = 100 };
inline constexpr std::uint64_t large = copy_content_bytes * 2; // stays in guest memory

// The log as "kind file" with the flags that count here.
inline lines log_of(const instant_pair& p, std::size_t from = 0) {
    static constexpr const char* kinds[] = {"?", "open", "close", "submit", "lose", "reset"};
    lines out;
    for (std::size_t i = from; i < p.log.items.size(); ++i) {
        const auto& item = p.log.items[i];
        std::string line = kinds[static_cast<int>(item.entry.meta.kind)];
        line += item.entry.meta.file != 0 ? " " + std::to_string(item.entry.meta.file) : "";
        line += (item.entry.meta.flags & entry_agent) != 0 ? " agent" : "";
        if ((item.entry.meta.flags & entry_awaits_outcome) != 0) {
            line += item.canceled  ? " canceled"
                    : item.outcome ? " = " + std::to_string(*item.outcome)
                                   : " = ?";
        }
        out.push_back(line);
    }
    return out;
}

inline void set_up(instant_pair& p, std::uint32_t file, bool with_memory = true) {
    p.open(file);
    p.run(file, [](auto& b) { b.create_context(context); });
    p.run(file, [](auto& b) { b.create_queue(queue, context); });
    if (with_memory)
        p.run(file, [](auto& b) { b.create_buffer_inline(buffer, context, std::vector<std::byte>(64)); });
}

inline stream_builder fill(std::byte value) {
    stream_builder b;
    b.fill_buffer({queue, 0, {}}, buffer, 0, 64, std::vector<std::byte>{value});
    return b;
}

inline std::vector<std::byte> content(instant_device& h, std::uint32_t file) {
    return h.content(file, context, buffer, 64);
}

} // namespace kagemusha::mirror::testing
