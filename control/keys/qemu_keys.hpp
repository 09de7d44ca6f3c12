// SPDX-License-Identifier: GPL-2.0-or-later
//
// qemu_keys: what a VM's QEMU gets of its host's keys: copies of vm/NAME/qemu/, in the VM's own directory,
// and nothing else. A guest that has taken its QEMU over has no key of another VM, of a supervisor or of the
// host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kagemusha::control {

// Makes `to` as `keys` (a host's directory of `kage keys`) is now, under the device's names and QEMU's own.
// What does not fit together is not copied: then the former copies stay. `changed`: something was copied.
// `owner`: whose the copies are, if not ours. Empty, or a sentence.
std::string copy_qemu_keys(const std::string& keys, const std::string& vm, const std::string& to,
                           bool& changed, std::optional<std::uint32_t> owner = {});

} // namespace kagemusha::control
