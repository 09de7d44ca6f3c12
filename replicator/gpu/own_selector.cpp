// SPDX-License-Identifier: GPL-2.0-or-later
// own_selector: see own_selector.hpp.
#include "gpu/own_selector.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace kagemusha::gpu {

namespace {

constexpr std::string_view pci_word = "pci:", processor_word = "cpu:";
constexpr std::string_view pci_pattern = "xxxx:xx:xx.x"; // x: a hexadecimal digit in lower case
constexpr std::string_view mig_pattern = "MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
// Of NVIDIA's driver, for CUDA and OpenCL.
constexpr const char* visible_devices = "CUDA_VISIBLE_DEVICES";

bool has_form(std::string_view text, std::string_view pattern) {
    const auto fits = [](char c, char wanted) {
        return wanted == 'x' ? (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') : c == wanted;
    };
    return std::equal(text.begin(), text.end(), pattern.begin(), pattern.end(), fits);
}

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
    return has_form(place, pci_pattern) ? std::string(place) : std::string();
}

bool is_mig_selector(std::string_view selector) {
    return has_form(selector, mig_pattern);
}

void see_only(std::string_view selector) {
    if (is_mig_selector(selector))
        ::setenv(visible_devices, std::string(selector).c_str(), 1);
}

std::string mig_selector(std::string_view device_name) {
    const char* const seen = std::getenv(visible_devices);
    return seen && is_mig_selector(seen) && device_name.find(" MIG ") != device_name.npos ? seen : "";
}

} // namespace kagemusha::gpu
