// SPDX-License-Identifier: GPL-2.0-or-later
// linker_client: the worker's side of the linker broker. Compilers inside a GPU runtime start the linker by
// posix_spawn() and await it by wait4() or waitpid(); the worker's executable brings its own versions of
// these functions, which send the request to the broker. Without a broker they are the C library's.
#pragma once

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

// From here on processes are started by the broker behind `connection` (see linker_broker.hpp). Once per
// process.
void use_link_broker(unique_fd connection);

} // namespace kagemusha::worker
