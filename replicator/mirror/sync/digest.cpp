// SPDX-License-Identifier: GPL-2.0-or-later
// digest: see digest.hpp. Both versions stand beside each other, because they must be changed together.
#include "mirror/sync/digest.hpp"

#include <bit>
#include <cstring>

namespace kagemusha::mirror {

static_assert(std::endian::native == std::endian::little, "words are little-endian");

namespace {

constexpr std::uint64_t index_factor = 0x9e3779b97f4a7c15;
constexpr std::uint64_t length_factor = 0xd6e8feb86659fd93;

constexpr std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

} // namespace

std::uint64_t chunk_hash(std::span<const std::byte> chunk) {
    std::uint64_t sum = chunk.size() * length_factor, key = 0;
    const std::size_t words = chunk.size() / 8;
    for (std::size_t i = 0; i < words; ++i) {
        std::uint64_t word;
        std::memcpy(&word, chunk.data() + i * 8, 8);
        sum += mix(word + (key += index_factor));
    }
    if (const std::size_t rest = chunk.size() % 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, chunk.data() + words * 8, rest);
        sum += mix(word + (key += index_factor));
    }
    return mix(sum);
}

std::string_view digest_kernel_source() {
    return R"(// Kagemusha: hashes of chunks of memory.
#define INDEX_FACTOR 0x9e3779b97f4a7c15UL
#define LENGTH_FACTOR 0xd6e8feb86659fd93UL

ulong kagemusha_mix(ulong x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9UL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebUL;
    return x ^ (x >> 31);
}

kernel void kagemusha_digest(global const ulong* data, ulong bytes, ulong chunk_bytes, global ulong* hashes,
                             ulong first) {
    local ulong sums[256];
    const ulong chunk = get_group_id(0);
    const ulong begin = chunk * chunk_bytes;
    const ulong length = min(chunk_bytes, bytes - begin);
    const ulong words = length / 8;
    global const ulong* word = data + begin / 8;
    const ulong items = get_local_size(0);
    ulong sum = 0;
#ifdef POCL_DEVICE_ADDRESS_BITS
    // On PoCL's CPU devices the work-items of a group take turns: one of them goes through memory in order, which
    // its compiler turns into vector instructions. The sum is the same.
    if (get_local_id(0) == 0)
        for (ulong i = 0; i < words; ++i)
            sum += kagemusha_mix(word[i] + (i + 1) * INDEX_FACTOR);
#else
    const ulong step = items * INDEX_FACTOR;
    ulong key = (get_local_id(0) + 1) * INDEX_FACTOR;
    for (ulong i = get_local_id(0); i < words; i += items, key += step)
        sum += kagemusha_mix(word[i] + key);
#endif
    if (get_local_id(0) == 0 && (length & 7) != 0) {
        global const uchar* rest = (global const uchar*)(word + words);
        ulong last = 0;
        for (ulong i = 0; i < (length & 7); ++i)
            last |= (ulong)rest[i] << (8 * i);
        sum += kagemusha_mix(last + (words + 1) * INDEX_FACTOR);
    }
    sums[get_local_id(0)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        ulong total = length * LENGTH_FACTOR;
        for (ulong i = 0; i < items; ++i)
            total += sums[i];
        hashes[first + chunk] = kagemusha_mix(total);
    }
}
)";
}

} // namespace kagemusha::mirror
