// SPDX-License-Identifier: GPL-2.0-or-later
// digest: see digest.hpp. All versions stand beside each other, because they must be changed together.
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
    // Four words are on their way at a time: what takes the time is to wait for them.
    const ulong step = items * INDEX_FACTOR;
    ulong key = (get_local_id(0) + 1) * INDEX_FACTOR;
    ulong i = get_local_id(0);
    for (; i + 3 * items < words; i += 4 * items, key += 4 * step) {
        const ulong a = word[i], b = word[i + items], c = word[i + 2 * items], d = word[i + 3 * items];
        sum += kagemusha_mix(a + key) + kagemusha_mix(b + key + step) + kagemusha_mix(c + key + 2 * step) +
               kagemusha_mix(d + key + 3 * step);
    }
    for (; i < words; i += items, key += step)
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

// The same in PTX.
// %x through mix().
#define PTX_MIX                                                                                              \
    "    shr.u64 %y, %x, 30;\n    xor.b64 %x, %x, %y;\n    mul.lo.u64 %x, %x, %m1;\n"                        \
    "    shr.u64 %y, %x, 27;\n    xor.b64 %x, %x, %y;\n    mul.lo.u64 %x, %x, %m2;\n"                        \
    "    shr.u64 %y, %x, 31;\n    xor.b64 %x, %x, %y;\n"

// One of the words that came together.
#define PTX_WORD(word)                                                                                       \
    "    add.u64 %x, " word ", %key;\n    add.u64 %key, %key, %step;\n" PTX_MIX                              \
    "    add.u64 %sum, %sum, %x;\n"

constexpr char ptx_source[] = R"(// Kagemusha: hashes of chunks of memory.
.version 6.0
.target sm_50
.address_size 64
.visible .entry kagemusha_digest(.param .u64 data, .param .u64 bytes, .param .u64 chunk_bytes,
                                 .param .u64 hashes, .param .u64 first)
{
    .reg .pred %past, %other, %whole, %more;
    .reg .b32 %r<4>;
    .reg .b64 %data, %length, %words, %chunk, %chunk_bytes, %item, %items, %index, %key, %step, %sum, %at, %stride;
    .reg .b64 %f, %m1, %m2, %x, %y, %rest, %last, %x0, %x1, %x2, %x3, %ahead, %items4, %mine;
    .shared .align 8 .b8 sums[2048];

    ld.param.u64 %data, [data];
    cvta.to.global.u64 %data, %data;
    ld.param.u64 %length, [bytes];
    ld.param.u64 %chunk_bytes, [chunk_bytes];
    mov.u32 %r0, %ctaid.x;
    cvt.u64.u32 %chunk, %r0;
    mul.lo.u64 %x, %chunk, %chunk_bytes;
    add.u64 %data, %data, %x;
    sub.u64 %length, %length, %x;
    min.u64 %length, %length, %chunk_bytes;
    shr.u64 %words, %length, 3;
    mov.u32 %r0, %tid.x;
    cvt.u64.u32 %item, %r0;
    mov.u32 %r1, %ntid.x;
    cvt.u64.u32 %items, %r1;
    mov.u64 %f, 0x9e3779b97f4a7c15;
    mov.u64 %m1, 0xbf58476d1ce4e5b9;
    mov.u64 %m2, 0x94d049bb133111eb;
    add.u64 %key, %item, 1;
    mul.lo.u64 %key, %key, %f;
    mul.lo.u64 %step, %items, %f;
    mov.u64 %sum, 0;
    mov.u64 %index, %item;
    shl.b64 %at, %item, 3;
    add.u64 %at, %at, %data;
    shl.b64 %stride, %items, 3;
    mul.lo.u64 %ahead, %items, 3;
    shl.b64 %items4, %items, 2;
FOUR:
    add.u64 %y, %index, %ahead;
    setp.ge.u64 %past, %y, %words;
    @%past bra LOOP;
    ld.global.u64 %x0, [%at];
    add.u64 %at, %at, %stride;
    ld.global.u64 %x1, [%at];
    add.u64 %at, %at, %stride;
    ld.global.u64 %x2, [%at];
    add.u64 %at, %at, %stride;
    ld.global.u64 %x3, [%at];
    add.u64 %at, %at, %stride;
)" PTX_WORD("%x0") PTX_WORD("%x1") PTX_WORD("%x2") PTX_WORD("%x3") R"(    add.u64 %index, %index, %items4;
    bra FOUR;
LOOP:
    setp.ge.u64 %past, %index, %words;
    @%past bra REST;
    ld.global.u64 %x, [%at];
    add.u64 %x, %x, %key;
)" PTX_MIX R"(    add.u64 %sum, %sum, %x;
    add.u64 %index, %index, %items;
    add.u64 %key, %key, %step;
    add.u64 %at, %at, %stride;
    bra LOOP;
REST:
    setp.ne.u64 %other, %item, 0;
    and.b64 %rest, %length, 7;
    setp.eq.u64 %whole, %rest, 0;
    @%other bra STORE;
    @%whole bra STORE;
    shl.b64 %at, %words, 3;
    add.u64 %at, %at, %data;
    mov.u64 %last, 0;
    mov.u32 %r2, 0;
OCTET:
    ld.global.u8 %r3, [%at];
    cvt.u64.u32 %x, %r3;
    shl.b64 %x, %x, %r2;
    or.b64 %last, %last, %x;
    add.u32 %r2, %r2, 8;
    add.u64 %at, %at, 1;
    sub.u64 %rest, %rest, 1;
    setp.ne.u64 %more, %rest, 0;
    @%more bra OCTET;
    add.u64 %key, %words, 1;
    mul.lo.u64 %key, %key, %f;
    add.u64 %x, %last, %key;
)" PTX_MIX R"(    add.u64 %sum, %sum, %x;
STORE:
    mov.u64 %at, sums;
    shl.b64 %mine, %item, 3;
    add.u64 %mine, %mine, %at;
    st.shared.u64 [%mine], %sum;
HALVE:
    bar.sync 0;
    setp.le.u64 %past, %items, 1;
    @%past bra ADDED;
    add.u64 %y, %items, 1;
    shr.u64 %y, %y, 1;
    add.u64 %x, %item, %y;
    setp.ge.u64 %past, %x, %items;
    @%past bra NEXT;
    shl.b64 %x, %x, 3;
    add.u64 %x, %x, %at;
    ld.shared.u64 %x, [%x];
    add.u64 %sum, %sum, %x;
    st.shared.u64 [%mine], %sum;
NEXT:
    mov.u64 %items, %y;
    bra HALVE;
ADDED:
    @%other bra DONE;
    mul.lo.u64 %x, %length, 0xd6e8feb86659fd93;
    add.u64 %sum, %sum, %x;
    shr.u64 %y, %sum, 30;
    xor.b64 %x, %sum, %y;
    mul.lo.u64 %x, %x, %m1;
    shr.u64 %y, %x, 27;
    xor.b64 %x, %x, %y;
    mul.lo.u64 %x, %x, %m2;
    shr.u64 %y, %x, 31;
    xor.b64 %x, %x, %y;
    ld.param.u64 %at, [hashes];
    cvta.to.global.u64 %at, %at;
    ld.param.u64 %y, [first];
    add.u64 %y, %y, %chunk;
    shl.b64 %y, %y, 3;
    add.u64 %at, %at, %y;
    st.global.u64 [%at], %x;
DONE:
    ret;
}
)";

std::string_view digest_kernel_ptx() {
    return ptx_source;
}

} // namespace kagemusha::mirror
