// SPDX-License-Identifier: GPL-2.0-or-later
// gpu_executor: the executor_factory of the real thing. Its own target, so that only who executes links GPU
// backends.
#pragma once

#include <string>

#include "worker/executor_factory.hpp"

namespace kagemusha::worker {

// Opens `gpu` of `backend` with `options`, as in kagemusha_device_config.
executor_factory gpu_executor_factory(std::string backend, std::string gpu, std::string options);

} // namespace kagemusha::worker
