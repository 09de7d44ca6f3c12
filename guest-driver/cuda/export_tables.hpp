// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the tables without names (export_tables.cpp) and the contexts know of each other.
#pragma once

#include "driver.hpp"

namespace kagemusha::cuda {

// The device's primary context, which need not be active yet: its handle stays the same from here on.
CUresult primary_context(device& of, CUcontext& handle);

// What libraries keep with a context ends with it.
void end_context_storage(context& dead);

} // namespace kagemusha::cuda
