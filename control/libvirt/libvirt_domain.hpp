// SPDX-License-Identifier: GPL-2.0-or-later
//
// A domain of libvirt as a VM's description (docs/libvirt.md): what the guest sees of it, as TOML. What we do not
// have is refused with a sentence, never left out in silence. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

struct imported_domain {
    std::string toml;
    std::vector<std::string> refused; // sentences; then there is no toml
};

// `without`: devices that the guest is to do without, by their elements: "graphics".
imported_domain import_domain(std::string_view xml, const std::vector<std::string>& without);

} // namespace kagemusha::control
