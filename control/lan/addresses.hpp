// SPDX-License-Identifier: GPL-2.0-or-later
//
// Addresses of a cluster's private network. Every cluster has a network of its own, so all of them use the
// same ones: node N is 10.77.0.(10 + N), the way outside is 10.77.0.2, names are asked at 10.77.0.3.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::control::lan {

inline constexpr std::uint32_t network_address = 0x0a4d0000, network_mask = 0xffffff00;
inline constexpr std::uint32_t gateway_address = network_address + 2,
                               name_server_address = network_address + 3;
inline constexpr unsigned first_node = 10; // + N

inline constexpr std::uint32_t node_address(unsigned number) {
    return network_address + first_node + number;
}

// Of a node's address, without its last number: "10.77.0.".
inline std::string node_prefix() {
    return "10.77.0.";
}

inline std::string dotted(std::uint32_t address) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8)
        out += std::to_string(address >> shift & 0xff) + (shift ? "." : "");
    return out;
}

// Of a node's card: the same at each start, and of two clusters' nodes never the same by design, so that a
// network that is joined with another one by its owner has no address twice.
inline std::array<unsigned char, 6> node_mac_bytes(std::string_view cluster, unsigned number) {
    std::uint32_t hash = 0x811c9dc5; // FNV-1a, 32 bits
    for (const char c : cluster)
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
    const auto byte = [](std::uint32_t value) { return static_cast<unsigned char>(value & 0xff); };
    return {0x52, 0x54, byte(hash >> 24), byte(hash >> 16), byte(hash >> 8), byte(number)};
}

inline std::string node_mac(std::string_view cluster, unsigned number) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const unsigned byte : node_mac_bytes(cluster, number))
        out += std::string(out.empty() ? "" : ":") + digits[byte >> 4] + digits[byte & 15];
    return out;
}

} // namespace kagemusha::control::lan
