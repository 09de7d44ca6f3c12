// SPDX-License-Identifier: GPL-2.0-or-later
// digest: one 64-bit hash per chunk of GPU memory, by which primary and standby compare what they hold. The
// same function three times: as a kernel in OpenCL C and in PTX, which runs where the memory is, and as the
// reference on a CPU, for GPUs that run no kernels and for the check that a GPU computes it right.
//
//   h = finish(bytes * length_factor + sum over i of mix(word[i] + (i + 1) * index_factor))   modulo 2^64
//
// A chunk is taken as little-endian 64-bit words, the last one filled up with zeros. The sum does not depend
// on the order of its terms, so the result is the same for every size of work-group on every device. mix() is
// a bijection (the finalizer of splitmix64), so two chunks of the same length that differ in one word always
// differ in their hash; else they agree by chance with a probability of 2^-64. It is no protection against
// somebody who wants two chunks to look equal: a guest could only do that to itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kagemusha::mirror {

std::uint64_t chunk_hash(std::span<const std::byte> chunk);

// OpenCL C 1.2. One work-group per chunk, of at most digest_max_local_size work-items:
//   kernel void kagemusha_digest(global const ulong* data, ulong bytes, ulong chunk_bytes, global ulong*
//   hashes,
//                                ulong first)
// writes the hash of chunk i of data's `bytes` to hashes[first + i]. chunk_bytes is a multiple of 8.
inline constexpr std::string_view digest_kernel_name = "kagemusha_digest";
inline constexpr std::uint64_t digest_max_local_size = 256;
std::string_view digest_kernel_source();
// The same in PTX, with the same parameters, for GPUs that CUDA speaks to.
std::string_view digest_kernel_ptx();

} // namespace kagemusha::mirror
