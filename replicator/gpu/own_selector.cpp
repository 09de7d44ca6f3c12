// SPDX-License-Identifier: GPL-2.0-or-later
// own_selector: see own_selector.hpp.
#include "gpu/own_selector.hpp"

#include <algorithm>
#include <cstdio>

namespace kagemusha::gpu {

namespace {

constexpr std::string_view pci_word = "pci:", processor_word = "cpu:";
constexpr std::string_view pci_pattern = "xxxx:xx:xx.x"; // x: a hexadecimal digit in lower case

} // namespace

std::string pci_selector(const pci_place& place) {
    char text[64];
    std::snprintf(text, sizeof text, "pci:%04x:%02x:%02x.%x", place.domain, place.bus, place.device,
                  place.function);
    return pci_of_selector(text).empty() ? std::string() : text;
}

std::string processor_selector(std::uint32_t device_index, std::string_view platform) {
    return std::string(processor_word) + std::to_string(device_index) + ":" + std::string(platform);
}

bool is_processor_selector(std::string_view selector) {
    return selector.starts_with(processor_word);
}

std::string pci_of_selector(std::string_view selector) {
    if (!selector.starts_with(pci_word))
        return {};
    const std::string_view place = selector.substr(pci_word.size());
    const auto fits = [](char c, char wanted) {
        return wanted == 'x' ? (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') : c == wanted;
    };
    return std::equal(place.begin(), place.end(), pci_pattern.begin(), pci_pattern.end(), fits)
               ? std::string(place)
               : std::string();
}

} // namespace kagemusha::gpu
