// SPDX-License-Identifier: GPL-2.0-or-later
//
// A domain of KubeVirt's that gets our emulator and our device: what KubeVirt would start, changed as little as that
// needs. What our emulator does not have is refused with a sentence, never left out in silence; only controllers that
// KubeVirt adds to each domain, and that have no device here, go. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::kubernetes {

struct hook_options {
    std::string emulator = "/usr/lib/kagemusha/qemu-system-x86_64";
    std::vector<std::string> firmware = {"/usr/share/seabios", "/usr/share/qemu"};
    std::string backend = "opencl";
    std::string gpu; // a selector; "": the first one that the container has
};

struct hooked_domain {
    std::string xml;
    std::vector<std::string> refused; // sentences; then there is no XML
};

// `vmi`: the VirtualMachineInstance, as JSON.
hooked_domain hook_domain(std::string_view domain_xml, std::string_view vmi, const hook_options& options);

} // namespace kagemusha::kubernetes
