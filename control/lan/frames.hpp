// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a cluster's network carries, as bytes: QEMU's stream of Ethernet frames (each behind its length, 4
// bytes, network order), and the frames of `kage cluster exec` to a node's agent (a letter, a length, bytes).
// Whoever sends is hostile: a length is checked before anything is kept for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kagemusha::control::lan {

inline constexpr std::size_t least_ethernet = 14, most_ethernet = 65536 + 22; // with segmentation offloads

inline void put_length(std::string& out, std::size_t length) {
    for (int shift = 24; shift >= 0; shift -= 8)
        out += static_cast<char>(length >> shift & 0xff);
}

inline std::uint32_t length_at(std::string_view bytes, std::size_t at) {
    std::uint32_t length = 0;
    for (std::size_t i = 0; i < 4; ++i)
        length = length << 8 | static_cast<unsigned char>(bytes[at + i]);
    return length;
}

// Puts what arrives in pieces together. HEAD bytes before the length (none for Ethernet, the letter for exec).
template <std::size_t Head, std::size_t Least, std::size_t Most>
class frame_reader {
public:
    void feed(std::string_view bytes) { bytes_ += bytes; }
    bool broken() const { return broken_; } // nothing that follows can be understood

    struct frame {
        char letter = 0;
        std::string_view payload; // until the next call
    };
    std::optional<frame> next() {
        if (taken_ > 0) {
            bytes_.erase(0, taken_);
            taken_ = 0;
        }
        if (broken_ || bytes_.size() < Head + 4)
            return std::nullopt;
        const auto length = length_at(bytes_, Head);
        if (length < Least || length > Most) {
            broken_ = true;
            bytes_.clear();
            return std::nullopt;
        }
        if (bytes_.size() < Head + 4 + length)
            return std::nullopt;
        taken_ = Head + 4 + length;
        return frame{Head ? bytes_[0] : '\0', std::string_view(bytes_).substr(Head + 4, length)};
    }

private:
    std::string bytes_; // at most one frame and one read of the socket
    std::size_t taken_ = 0;
    bool broken_ = false;
};

using ethernet_reader = frame_reader<0, least_ethernet, most_ethernet>;

// ---- exec, at TCP port exec_port of a node
//
//   to the agent    H the node's secret   C words of a command, each ended by NUL   I input   E its end
//                   T "80 24": in a terminal of so many columns and rows            W its new size
//   from the agent  A the command was begun   O output   X errors   S exit status, as decimal digits   R a sentence: it was refused
//
// H, then T if there is one, and C come first, once each. S or R is the last one. Whoever hangs up ends the command.

inline constexpr std::uint16_t exec_port = 1022;
inline constexpr std::size_t most_exec_payload = 65536;
using exec_reader = frame_reader<1, 0, most_exec_payload>;

inline std::string exec_frame(char letter, std::string_view payload) {
    std::string out(1, letter);
    put_length(out, payload.size());
    return out.append(payload);
}

// "" when it is none: 0 to 255.
inline std::optional<int> exec_status(std::string_view digits) {
    if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != digits.npos)
        return std::nullopt;
    int value = 0;
    for (const char c : digits)
        value = value * 10 + (c - '0');
    return value <= 255 ? std::optional(value) : std::nullopt;
}

} // namespace kagemusha::control::lan
