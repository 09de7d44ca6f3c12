// SPDX-License-Identifier: GPL-2.0-or-later
//
// The description that a supervisor was started with, read with what its command line changes of it.
#pragma once

#include "control/supervise/supervisor.hpp"
#include "control/vm/description.hpp"

#include <optional>
#include <string>
#include <vector>

namespace kagemusha::control {

void complain(const std::vector<std::string>& errors); // on stderr

// Nothing: what is wrong was printed.
std::optional<vm_description> described_vm(const supervisor_options& options);

} // namespace kagemusha::control
