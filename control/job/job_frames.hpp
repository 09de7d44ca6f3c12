// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a job's reader on a host and the job's keeper in the guest say to each other, in frames of
// lan/frames.hpp:
//
//   to the keeper    H two positions and two ends, once: how long the reader's files are, and their last bytes
//                    K two positions: everything before them is in the reader's files for good
//   from the keeper  B two positions: where the output begins   O output   X errors   K: it has heard
//                    S exit status, as decimal digits; all output came before it
//
// Positions are decimal, of output and errors, with a space between them; ends are hexadecimal, "-" if the reader
// cannot read its file. Whoever sends is not trusted.
#pragma once

#include "base/hexadecimal.hpp"
#include "control/job/output_spool.hpp"
#include "control/lan/frames.hpp"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::job {

struct positions {
    std::uint64_t out = 0, err = 0;
    bool operator==(const positions&) const = default;
};

inline std::string text_of(const positions& p) {
    return std::to_string(p.out) + " " + std::to_string(p.err);
}

inline std::optional<std::uint64_t> position_in(std::string_view digits) {
    std::uint64_t value = 0;
    const auto* end = digits.data() + digits.size();
    const auto done = std::from_chars(digits.data(), end, value);
    if (digits.empty() || done.ec != std::errc() || done.ptr != end)
        return std::nullopt;
    return value;
}

inline std::optional<positions> positions_in(std::string_view text) {
    const auto space = text.find(' ');
    if (space == text.npos)
        return std::nullopt;
    const auto out = position_in(text.substr(0, space)), err = position_in(text.substr(space + 1));
    return out && err ? std::optional(positions{*out, *err}) : std::nullopt;
}

// What a reader begins with.
struct greeting {
    positions have;
    std::string out_end, err_end;
    bool operator==(const greeting&) const = default;
};

inline std::string text_of_end(std::string_view bytes) {
    return bytes.empty() ? "-" : hexadecimal(bytes);
}

inline std::optional<std::string> end_in(std::string_view text) {
    std::string bytes;
    if (text == "-")
        return bytes;
    if (text.empty() || text.size() % 2 != 0 || text.size() > 2 * most_file_end)
        return std::nullopt;
    for (; !text.empty(); text.remove_prefix(2)) {
        unsigned byte = 0;
        const auto done = std::from_chars(text.data(), text.data() + 2, byte, 16);
        if (done.ec != std::errc() || done.ptr != text.data() + 2)
            return std::nullopt;
        bytes += static_cast<char>(byte);
    }
    return bytes;
}

// Four words: positions, ends.
inline std::optional<greeting> greeting_in(std::string_view text) {
    const auto before_err_end = text.rfind(' ');
    if (before_err_end == text.npos || before_err_end == 0)
        return std::nullopt;
    const auto before_out_end = text.rfind(' ', before_err_end - 1);
    if (before_out_end == text.npos)
        return std::nullopt;
    const auto have = positions_in(text.substr(0, before_out_end));
    const auto out = end_in(text.substr(before_out_end + 1, before_err_end - before_out_end - 1)),
               err = end_in(text.substr(before_err_end + 1));
    return have && out && err ? std::optional(greeting{*have, *out, *err}) : std::nullopt;
}

// A key names a job in its guest: letters, digits, '.', '-'.
inline bool is_key(std::string_view key) {
    return !key.empty() && key.size() <= 64 && key[0] != '.' &&
           key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") ==
               key.npos;
}

} // namespace kagemusha::control::job
