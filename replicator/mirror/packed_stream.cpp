// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/packed_stream.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::mirror {

namespace {

constexpr std::size_t chunk_words = 32;

struct item {
    std::uint32_t back; // 0: literal
    std::uint32_t words;
};
static_assert(sizeof(item) == sizeof(std::uint64_t));

// A bit for each word that differs; at most chunk_words.
std::uint32_t difference(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < words; ++i) {
        mask |= std::uint32_t{a[i] != b[i]} << i;
    }
    return mask;
}

#if defined(__x86_64__)
// Most of the time here goes into this comparison: four words at once are twice as fast as one.
[[gnu::target("avx2")]] std::uint32_t difference_avx2(const std::uint64_t* a, const std::uint64_t* b,
                                                      std::size_t words) {
    std::uint32_t mask = 0;
    std::size_t i = 0;
    for (; i + 4 <= words; i += 4) {
        const __m256i equal = _mm256_cmpeq_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)),
                                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i)));
        const auto same = static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
        mask |= (same ^ 15u) << i;
    }
    return i == words ? mask : mask | difference(a + i, b + i, words - i) << i;
}
#endif

using difference_function = decltype(&difference);
difference_function fastest() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return difference_avx2;
    }
#endif
    return difference;
}

// Where commands like this one are remembered.
unsigned kind_of(std::span<const std::uint64_t> command) {
    std::uint64_t key = command[0];
    const auto& header = *reinterpret_cast<const vgpu_cmd*>(command.data());
    constexpr std::size_t kernel_at = offsetof(vgpu_cmd_launch, kernel) / sizeof(std::uint64_t);
    if (header.opcode == VGPU_CMD_LAUNCH && command.size() > kernel_at) {
        key ^= command[kernel_at] << 8;
    }
    static_assert(std::has_single_bit(stream_packer::kinds));
    return static_cast<unsigned>((key * 0x9e3779b97f4a7c15) >> (64 - std::countr_zero(stream_packer::kinds)));
}

} // namespace

void stream_packer::begin() {
    used_ = stream_words_ = 0;
    literal_ = no_literal;
    earlier_.fill({});
}

// For so many words as they are, and the item before them. What is written beyond the end of what is used
// does not count.
void stream_packer::make_room(std::size_t words) {
    if (memory_.size() - used_ < words + 1) {
        memory_.resize(std::max(used_ + words + 1, 2 * memory_.size()));
    }
}

stream_packer::likeness stream_packer::add(std::span<const std::uint64_t> command) {
    likeness out;
    out.kind = kind_of(command);
    earlier& last = earlier_[out.kind];
    make_room(command.size());
    // The first word has the length.
    const bool is_difference =
        last.words && *last.words == command[0] && add_difference(command, last, out.differs);
    last = {command.data(), stream_words_};
    if (is_difference) {
        stream_words_ += command.size();
        literal_ = no_literal;
    } else {
        add_literal(command);
    }
    return out;
}

// False, with nothing written that counts, if it is not shorter than the command.
bool stream_packer::add_difference(std::span<const std::uint64_t> command, const earlier& other,
                                   std::uint64_t& differs) {
    static const difference_function difference_of = fastest();
    const std::size_t words = command.size();
    std::uint64_t* out = memory_.data() + used_;
    const std::uint64_t* const end = out + words - 1;
    *out++ = std::bit_cast<std::uint64_t>(
        item{static_cast<std::uint32_t>(stream_words_ - other.at), static_cast<std::uint32_t>(words)});
    std::uint64_t all = 0;
    for (std::size_t at = 0; at < words; at += chunk_words) {
        if (out >= end) {
            return false;
        }
        std::uint32_t mask =
            difference_of(command.data() + at, other.words + at, std::min(chunk_words, words - at));
        all |= at < 64 ? std::uint64_t{mask} << at : 0;
        for (*out++ = mask; mask != 0; mask &= mask - 1) {
            if (out == end) {
                return false;
            }
            *out++ = command[at + static_cast<unsigned>(std::countr_zero(mask))];
        }
    }
    used_ = static_cast<std::size_t>(out - memory_.data());
    differs = words <= 64 ? all : UINT64_MAX;
    return true;
}

void stream_packer::add_literal(std::span<const std::uint64_t> words) {
    if (words.empty()) {
        return;
    }
    make_room(words.size());
    if (literal_ == no_literal) {
        literal_ = used_;
        memory_[used_++] = 0;
    }
    std::memcpy(memory_.data() + used_, words.data(), words.size_bytes());
    used_ += words.size();
    stream_words_ += words.size();
    memory_[literal_] =
        std::bit_cast<std::uint64_t>(item{0, static_cast<std::uint32_t>(used_ - literal_ - 1)});
}

void unpack_stream(std::span<const std::uint64_t> packed, std::span<std::uint64_t> stream) {
    const std::uint64_t* in = packed.data();
    std::uint64_t* out = stream.data();
    while (out != stream.data() + stream.size()) {
        const auto i = std::bit_cast<item>(*in++);
        assert(i.words != 0 && i.words <= static_cast<std::size_t>(stream.data() + stream.size() - out));
        if (i.back == 0) {
            std::memcpy(out, in, i.words * sizeof(std::uint64_t));
            in += i.words;
            out += i.words;
            continue;
        }
        std::memcpy(out, out - i.back, i.words * sizeof(std::uint64_t));
        for (std::size_t at = 0; at < i.words; at += chunk_words) {
            for (std::uint64_t mask = *in++; mask != 0; mask &= mask - 1) {
                out[at + static_cast<unsigned>(std::countr_zero(mask))] = *in++;
            }
        }
        out += i.words;
    }
    assert(in == packed.data() + packed.size());
}

} // namespace kagemusha::mirror
