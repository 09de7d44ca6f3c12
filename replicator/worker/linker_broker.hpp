// SPDX-License-Identifier: GPL-2.0-or-later
// linker_broker: the small second process of a worker that runs the linker for it, in a sandbox of its own, and
// removes the worker's private directory at the end if that does not vanish by itself. It has no guest memory
// and no descriptor of the device, and no code of the guest runs in it; in the linker some might, if it has a
// bug, and finds the same files as the worker and less of everything else.
#pragma once

#include <string>

#include "base/unique_fd.hpp"
#include "worker/sandbox.hpp"

namespace kagemusha::worker {

// Called after the first step of the sandbox, by the only thread. A directory without a path is made by the
// broker, so that who removes it is there before it is, whenever the worker is killed. Returns the connection
// for use_link_broker(); an invalid one with a sentence in `error` on failure.
unique_fd start_link_broker(private_directory& directory, sandbox_mode mode, std::string& error);

} // namespace kagemusha::worker
