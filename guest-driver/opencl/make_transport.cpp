// SPDX-License-Identifier: GPL-2.0-or-later
//
// The transport of the driver that is installed in guests: the kernel driver's character device.
#include "transport_kernel.hpp"

namespace kagemusha::opencl {

std::vector<std::string> device_names() {
    return kernel_device_names();
}

std::unique_ptr<transport> make_transport(const std::string& name, std::string& error) {
    return open_kernel_transport(name, error);
}

} // namespace kagemusha::opencl
