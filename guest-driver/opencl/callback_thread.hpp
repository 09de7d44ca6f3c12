// SPDX-License-Identifier: GPL-2.0-or-later
//
// One thread of the process runs the program's event callbacks. They may call OpenCL functions, even ones
// that wait, so they run in no thread that others wait for and with no lock held.
#pragma once

#include <functional>

namespace kagemusha::opencl {

// Runs `work` after everything that was given before.
void run_in_callback_thread(std::function<void()> work);

} // namespace kagemusha::opencl
