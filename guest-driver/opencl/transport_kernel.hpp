// SPDX-License-Identifier: GPL-2.0-or-later
//
// The transport over the kernel driver's character device.
#pragma once

#include "transport.hpp"

namespace kagemusha::opencl {

// The /dev/kagemusha-vgpuN that there are, or those that KAGEMUSHA_VGPU names, with ':' between them.
std::vector<std::string> kernel_device_names();

// Opens one. Null with a sentence if this driver can't talk to it.
std::unique_ptr<transport> open_kernel_transport(const std::string& name, std::string& error);

} // namespace kagemusha::opencl
