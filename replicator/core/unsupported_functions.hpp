// SPDX-License-Identifier: GPL-2.0-or-later
// unsupported_functions: which functions of an API the guest's programs called although its driver does not have
// them. The guest reports them, so it decides what is here: names of bounded length, a bounded number of them.
// One thread adds, any thread reads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::core {

class unsupported_functions {
public:
    static constexpr std::size_t most_names = 64;      // a program that meets more has met the first ones too
    static constexpr std::size_t most_name_bytes = 64; // also on the wire

    // A name that is none of C's is left out.
    void note(std::string_view name) {
        const bool good =
            !name.empty() && name.size() <= most_name_bytes &&
            std::all_of(name.begin(), name.end(), [](char c) {
                return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
            });
        if (!good)
            return;
        const std::size_t used = used_.load(std::memory_order_relaxed);
        for (std::size_t i = 0; i < used; ++i) {
            if (names_[i].view() == name) {
                names_[i].reports.fetch_add(1, std::memory_order_relaxed);
                return;
            }
        }
        if (used == most_names) {
            others_.fetch_add(1, std::memory_order_relaxed);
            return;
        }
        std::copy(name.begin(), name.end(), names_[used].text);
        names_[used].bytes = name.size();
        names_[used].reports.store(1, std::memory_order_relaxed);
        used_.store(used + 1, std::memory_order_release); // from here on others read it
    }

    // "cuA 2, cuB 1", in the order of the first reports; empty: none.
    std::string text() const {
        std::string out;
        const std::size_t used = used_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < used; ++i) {
            out += out.empty() ? "" : ", ";
            out += names_[i].view();
            out += ' ';
            out += std::to_string(names_[i].reports.load(std::memory_order_relaxed));
        }
        if (const std::uint64_t others = others_.load(std::memory_order_relaxed); others != 0)
            out += ", others " + std::to_string(others);
        return out;
    }

private:
    struct entry {
        char text[most_name_bytes]{};
        std::size_t bytes = 0;
        std::atomic<std::uint64_t> reports{0};
        std::string_view view() const { return {text, bytes}; }
    };

    std::array<entry, most_names> names_{};
    std::atomic<std::size_t> used_{0};
    std::atomic<std::uint64_t> others_{0};
};

} // namespace kagemusha::core
