// SPDX-License-Identifier: GPL-2.0-or-later
// own_selector: a name of one GPU that means the same one however many others a process sees. Indices do not:
// they count what the process may open.
//
//     pci:0000:17:00.0                        a GPU by its place on the host's bus
//     cpu:0:Portable Computing Language       a processor, by its number in its platform
//     MIG-2a5e…                               an instance of an NVIDIA GPU, which only a process sees that asked for it
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kagemusha::gpu {

struct pci_place {
    std::uint32_t domain = 0, bus = 0, device = 0, function = 0;
};

std::string pci_selector(const pci_place& place);
std::string processor_selector(std::uint32_t device_index, std::string_view platform);

bool is_processor_selector(std::string_view selector);
// "0000:17:00.0", as /sys and /proc write it; "" for every other selector, so the result is a safe file name.
std::string pci_of_selector(std::string_view selector);

// "MIG-" and a UUID.
bool is_mig_selector(std::string_view selector);
// For a MIG instance: before the process loads a driver, whose list then has this instance alone. Nothing otherwise.
void see_only(std::string_view selector);
// The instance that this process sees, if the device's name says that it is one; else "".
std::string mig_selector(std::string_view device_name);

} // namespace kagemusha::gpu
