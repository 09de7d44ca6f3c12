// SPDX-License-Identifier: GPL-2.0-or-later
//
// pci_bus_id: a PCI device's address as CUDA and NVML take it from a program, "domain:bus:slot" in
// hexadecimal digits, with ".function" behind it or not. Reference: cuDeviceGetByPCIBusId,
// nvmlDeviceGetHandleByPciBusId_v2.
//
// Threads: any. Errors: std::nullopt for any other text. Memory: nothing is allocated.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>

namespace kagemusha::guest {

struct pci_bus_id {
    unsigned domain = 0, bus = 0, slot = 0;
};

// Without a domain ("bus:slot") it is 0 if `domain_may_miss`.
inline std::optional<pci_bus_id> pci_bus_id_of(std::string_view text, bool domain_may_miss) {
    unsigned parts[3] = {};
    std::size_t count = 0;
    const char* at = text.data();
    const char* const end = at + text.size();
    for (;;) {
        const auto [rest, error] = std::from_chars(at, end, parts[count], 16);
        if (error != std::errc{})
            return std::nullopt;
        at = rest;
        if (++count == 3 || at == end || *at != ':')
            break;
        ++at;
    }
    if (at != end && *at != '.')
        return std::nullopt;
    if (count == 3)
        return pci_bus_id{parts[0], parts[1], parts[2]};
    if (count == 2 && domain_may_miss)
        return pci_bus_id{0, parts[0], parts[1]};
    return std::nullopt;
}

} // namespace kagemusha::guest
