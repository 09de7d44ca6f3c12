// SPDX-License-Identifier: GPL-2.0-or-later
// mirror::vm_state ↔ the bytes that a VM's checkpoint carries. Pure; what is decoded is a peer's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/limits.hpp"
#include "mirror/standby/vm_state.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::messages {

// A guest with every file and event in flight that the limits allow needs about 40 MiB.
inline constexpr std::size_t max_vm_state_bytes = std::size_t{64} << 20;

// Of all files, so that little of it on the wire can't take much memory here: each is a small multiple of
// what it is on the wire, and no guest comes near. An in-flight request holds an element of a virtqueue; a refused
// event is an object of the device. Places that are over are at most those of 4096 full requests.
inline constexpr std::uint64_t max_open_requests = 32768;
inline constexpr std::uint64_t max_refused_events = core::max_objects_of_device;
inline constexpr std::uint64_t max_places = std::uint64_t{4096} * VGPU_MAX_PAYLOADS;
inline constexpr std::uint64_t max_unknown_fields = 65536; // of a later release

// Replaces `out`.
void encode(const mirror::vm_state& state, std::vector<std::byte>& out);
// Empty, or a sentence: which rule was broken.
std::string decode(std::span<const std::byte> bytes, mirror::vm_state& out);

} // namespace kagemusha::messages
