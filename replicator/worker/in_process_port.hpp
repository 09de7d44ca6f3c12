// SPDX-License-Identifier: GPL-2.0-or-later
// in_process_port: the executor on a thread of this process. Only for the null and faulty backends, in tests
// and benchmarks: a backend that runs code of the guest must never be in here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/port.hpp"
#include "worker/executor_factory.hpp"

namespace kagemusha::worker {

// Opens the GPU before it returns. Null on failure, with a sentence in `error`.
std::unique_ptr<port> make_in_process_port(executor_factory factory, std::vector<gpu::region_view> regions,
                                           std::string& error);

} // namespace kagemusha::worker
