// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which boot of the host this is; and its time stamp counter, which is also the guest's where QEMU emulates the processor.
//
// Why it is passed to the guest: its kernel measures the counter's frequency while it boots, against emulated
// timers that a busy host serves late. It was seen to find 325 and 930 MHz where there were 2596, and then
// the guest's clock ran eight times too fast for 20 seconds, until the kernel noticed and gave the counter
// up.
#pragma once

#include <cstdint>
#include <string>

namespace kagemusha::control {

// Measured, which takes 20 ms. 0 where there is no such counter.
std::uint32_t host_tsc_khz();

// Of this boot of the host; "": it is not said.
std::string boot_id();

} // namespace kagemusha::control
