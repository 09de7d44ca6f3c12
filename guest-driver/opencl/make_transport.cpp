// SPDX-License-Identifier: GPL-2.0-or-later
//
// The transport of the driver that is installed in guests: the kernel driver's character device.
#include "transport_kernel.hpp"

namespace kagemusha::opencl {

std::unique_ptr<transport> make_transport(std::string& error) {
    return open_kernel_transport(error);
}

} // namespace kagemusha::opencl
