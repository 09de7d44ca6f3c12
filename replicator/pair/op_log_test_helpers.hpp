// SPDX-License-Identifier: GPL-2.0-or-later
// An op log in a test, and entries for it: small ones, packed ones, and ones whose content is guest memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "mirror/log/limits.hpp"
#include "mirror/log/packed_stream.hpp"
#include "pair/op_log.hpp"

namespace kagemusha::pair::testing {

using mirror::log_entry;

struct op_log_harness {
    unsigned wakes = 0, rooms = 0, copies_wanted = 0;
    std::vector<log_sequence> released;
    op_log log;

    // Somebody calls copy_ahead(): the test.
    static op_log_harness with_copier() { return op_log_harness({std::uint64_t{1} << 30, 1 << 20}, true); }

    explicit op_log_harness(op_log::bounds b = {std::uint64_t{1} << 30, 1 << 20}, bool copier = false)
        : log(b, {[this] { ++wakes; }, [this](log_sequence n) { released.push_back(n); }, [this] { ++rooms; },
                  copier ? [this] { ++copies_wanted; } : std::function<void()>()}) {}

    std::vector<log_event> events() {
        std::vector<log_event> e;
        log.take_events(e);
        return e;
    }
};

inline log_entry small_entry(std::uint64_t word) {
    log_entry e;
    e.meta.file = 1;
    e.meta.op_count = 1;
    e.stream = {word, word + 1};
    e.meta.stream_bytes = 16;
    return e;
}

// A stream of commands, each of `words` words that count on from `first`, packed as a device gives it.
struct packed_entry {
    mirror::entry_meta meta;
    std::vector<std::uint64_t> stream;
    mirror::stream_packer packer;

    packed_entry(std::uint64_t first, std::size_t commands, std::size_t words) {
        for (std::size_t i = 0; i < commands; ++i) {
            const vgpu_cmd header{VGPU_CMD_BARRIER, 0, static_cast<std::uint32_t>(words * 8)};
            stream.emplace_back();
            std::memcpy(&stream.back(), &header, sizeof(header));
            for (std::size_t w = 1; w < words; ++w)
                stream.push_back(first++);
        }
        packer.begin();
        const std::size_t literal = words <= core::word_mask::words ? words : stream.size();
        packer.add_literal(std::span(stream).first(literal));
        if (literal < stream.size()) {
            core::launch_run others;
            others.at = others.back = others.words = static_cast<std::uint32_t>(words);
            others.count = static_cast<std::uint32_t>(commands - 1);
            for (std::size_t w = 1; w < words; ++w)
                others.differs.set(w);
            packer.add_run(others, others.back, std::span(stream).subspan(words));
        }
        meta.file = 1;
        meta.op_count = static_cast<std::uint32_t>(commands);
        meta.stream_bytes = stream.size() * 8;
    }
    log_sequence append(op_log& log) { return log.append_packed(meta, packer.packed()); }
};

inline std::vector<std::uint64_t> words_of(const std::vector<std::byte>& bytes) {
    std::vector<std::uint64_t> out(bytes.size() / 8);
    std::memcpy(out.data(), bytes.data(), out.size() * 8);
    return out;
}

// One payload of guest memory, scattered over `pieces` pages.
inline log_entry guest_entry(std::vector<std::byte>& memory, std::size_t pieces) {
    log_entry e = small_entry(100);
    e.payloads.push_back({memory.size(), false});
    e.content.emplace_back();
    const std::size_t step = memory.size() / pieces;
    for (std::size_t i = 0; i < pieces; ++i) {
        e.content[0].pieces.emplace_back(memory.data() + i * step,
                                         i + 1 == pieces ? memory.size() - i * step : step);
    }
    e.content_in_guest = true;
    e.meta.content_bytes = mirror::rounded_up(memory.size());
    return e;
}

inline std::vector<std::byte> pattern(std::size_t bytes) {
    std::vector<std::byte> m(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        m[i] = static_cast<std::byte>(i * 7 + i / 256);
    return m;
}

inline std::vector<std::byte> joined(const outgoing& o) {
    std::vector<std::byte> all;
    for (const auto& p : o.payload)
        all.insert(all.end(), p.begin(), p.end());
    return all;
}

} // namespace kagemusha::pair::testing
