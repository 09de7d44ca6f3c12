// SPDX-License-Identifier: GPL-2.0-or-later
//
// The transport over the kernel driver's character device.
#pragma once

#include "transport.hpp"

namespace kagemusha::opencl {

/// Opens the first /dev/kagemusha-vgpuN that this driver can talk to, or the one that KAGEMUSHA_VGPU names.
/// Null with a sentence if there is none.
std::unique_ptr<transport> open_kernel_transport(std::string& error);

} // namespace kagemusha::opencl
