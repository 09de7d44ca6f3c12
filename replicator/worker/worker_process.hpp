// SPDX-License-Identifier: GPL-2.0-or-later
// worker_process: the life of a worker: setup, sandbox, GPU, then requests until the device ends it.
#pragma once

#include <functional>
#include <string>

#include "worker/executor_factory.hpp"

namespace kagemusha::worker {

// Makes the factory for a backend, a GPU and options, as gpu_executor_factory() does.
using factory_maker =
    std::function<executor_factory(std::string backend, std::string gpu, std::string options)>;

// main() of a worker. Talks to the device over setup_fd; returns the process's exit status.
int run_worker(const factory_maker& make_factory);

} // namespace kagemusha::worker
