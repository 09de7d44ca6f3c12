// SPDX-License-Identifier: GPL-2.0-or-later
//
// Functions that programs and the ICD loader ask for by name.
#pragma once

namespace kagemusha::opencl {

/// Null for a name that is not an extension's function of this driver. Defined in dispatch.cpp.
void* extension_function(const char* name) noexcept;

} // namespace kagemusha::opencl
