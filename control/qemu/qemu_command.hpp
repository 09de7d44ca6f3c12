// SPDX-License-Identifier: GPL-2.0-or-later
//
// QEMU's command line for a vm_config. Pure.
#pragma once

#include "control/qemu/vm_config.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace kagemusha::control {

// The guest's serial console is QEMU's stdin and stdout; what QEMU itself has to say comes on stderr. The
// machine stays
// (-no-shutdown) when the guest switches itself off, so that its statistics can still be read; it ends with
// QMP's quit. A described VM that reboots starts anew; the guest of a job has ended then.
std::vector<std::string> qemu_command(const vm_config& config);

// QEMU's name of the processor's model that the guest gets.
std::string cpu_model(const vm_config& config);

// What QEMU would start for this -netdev, which its sandbox denies, in a few words; "": nothing.
std::string why_not_sandboxed(std::string_view netdev);

// For whoever starts QEMU without a launcher of workers (replicator/worker/launcher.hpp), who must do without
// the sandbox as well.
std::vector<std::string> without_sandbox(std::vector<std::string> command);

// In QEMU's key=value lists a comma inside a value is written twice.
std::string escape_option(std::string_view value);

} // namespace kagemusha::control
