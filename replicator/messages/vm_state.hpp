// SPDX-License-Identifier: GPL-2.0-or-later
// mirror::vm_state ↔ the bytes that a VM's checkpoint carries. Pure; what is decoded is a peer's.
#ifndef KAGEMUSHA_MESSAGES_VM_STATE_HPP
#define KAGEMUSHA_MESSAGES_VM_STATE_HPP

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mirror/vm_state.hpp"

namespace kagemusha::messages {

// A guest with every file and event in flight that the limits allow needs about 40 MiB.
inline constexpr std::size_t max_vm_state_bytes = std::size_t{64} << 20;

// Replaces `out`.
void encode(const mirror::vm_state& state, std::vector<std::byte>& out);
// Empty, or a sentence: which rule was broken.
std::string decode(std::span<const std::byte> bytes, mirror::vm_state& out);

} // namespace kagemusha::messages

#endif
