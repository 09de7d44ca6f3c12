// SPDX-License-Identifier: GPL-2.0-or-later
#include "core/repeated_launches.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codec/launch_size.hpp"

namespace kagemusha::core {

namespace {

constexpr std::size_t word_bytes = sizeof(std::uint64_t);
constexpr std::size_t fixed_words = sizeof(vgpu_cmd_launch) / word_bytes;
constexpr std::size_t queue_at = offsetof(vgpu_cmd_launch, enqueue.queue) / word_bytes;
constexpr std::size_t event_at = offsetof(vgpu_cmd_launch, enqueue.event) / word_bytes;
constexpr std::size_t kernel_at = offsetof(vgpu_cmd_launch, kernel) / word_bytes;
constexpr std::size_t sizes_from = offsetof(vgpu_cmd_launch, offset) / word_bytes;
constexpr std::size_t sizes_to = offsetof(vgpu_cmd_launch, argument_count) / word_bytes;
static_assert(sizeof(vgpu_cmd_launch) % word_bytes == 0 && sizeof(vgpu_argument) == 2 * word_bytes);

// A run may have some words more than each of its launches needs, which is less than another run.
constexpr unsigned few_words = 4;

// A bit for each word that differs; at most 64.
std::uint64_t difference(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < words; ++i)
        mask |= std::uint64_t{a[i] != b[i]} << i;
    return mask;
}

#if defined(__x86_64__)
// Most of the time here goes into this comparison: four words at once are twice as fast as one.
[[gnu::target("avx2")]] std::uint64_t difference_avx2(const std::uint64_t* a, const std::uint64_t* b,
                                                      std::size_t words) {
    std::uint64_t mask = 0;
    std::size_t i = 0;
    for (; i + 4 <= words; i += 4) {
        const __m256i equal = _mm256_cmpeq_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i)),
                                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i)));
        const auto same = static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
        mask |= std::uint64_t{same ^ 15u} << i;
    }
    for (; i < words; ++i)
        mask |= std::uint64_t{a[i] != b[i]} << i;
    return mask;
}
#endif

using difference_function = decltype(&difference);
difference_function fastest() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return difference_avx2;
#endif
    return difference;
}
const difference_function difference_of = fastest();

} // namespace

std::size_t repeated_launches::kind_of(const std::uint64_t* command) {
    const std::uint64_t key = (command[0] ^ command[kernel_at]) * 0x9e3779b97f4a7c15 ^ command[queue_at];
    static_assert(std::has_single_bit(kinds));
    return (key * 0xd6e8feb86659fd93) >> (64 - std::countr_zero(kinds));
}

void repeated_launches::begin(std::span<const std::byte> stream) {
    stream_ = reinterpret_cast<const std::uint64_t*>(stream.data());
    stream_words_ = stream.size() / word_bytes;
    end();
    runs_.clear();
}

// What each word of a launch that was accepted is.
void repeated_launches::classify(kind& k) {
    const auto& launch = *reinterpret_cast<const vgpu_cmd_launch*>(k.command);
    std::uint8_t* const what = k.words.data();
    std::fill_n(what, launch.cmd.bytes / word_bytes, std::uint8_t{structure});
    what[event_at] = event;
    std::fill(what + sizes_from, what + sizes_to, std::uint8_t{size});
    std::size_t at = fixed_words;
    at = static_cast<std::size_t>(std::fill_n(what + at, launch.enqueue.wait_count, std::uint8_t{wait}) -
                                  what);
    for (std::uint32_t i = 0; i < launch.argument_count; ++i) {
        const auto& argument = *reinterpret_cast<const vgpu_argument*>(k.command + at);
        at += sizeof(argument) / word_bytes;
        switch (argument.kind) {
        case VGPU_ARGUMENT_MEMORY:
            what[at++] = memory;
            break;
        case VGPU_ARGUMENT_SAMPLER:
            ++at;
            break;
        case VGPU_ARGUMENT_BYTES:
            at = static_cast<std::size_t>(
                std::fill_n(what + at, argument.bytes / word_bytes, std::uint8_t{value_bytes_8}) - what);
            if (const std::uint64_t rest = argument.bytes % word_bytes)
                what[at++] = static_cast<std::uint8_t>(rest);
            break;
        default: // LOCAL
            break;
        }
    }
    assert(at * word_bytes == launch.cmd.bytes);
    k.known = true;
}

const repeated_launches::repetition* repeated_launches::find(std::uint32_t offset) {
    const std::size_t at = offset / word_bytes;
    if (!knows_some_ || stream_words_ - at < fixed_words)
        return nullptr;
    const std::uint64_t* const command = stream_ + at;
    const std::size_t number = kind_of(command);
    kind& k = kinds_[number];
    // The first word is opcode, flags and length.
    if (k.generation != generation_ || k.command[0] != command[0] ||
        k.command[kernel_at] != command[kernel_at] || k.command[queue_at] != command[queue_at]) {
        return nullptr;
    }
    const std::size_t words = reinterpret_cast<const vgpu_cmd*>(command)->bytes / word_bytes;
    if (words > stream_words_ - at)
        return nullptr;
    if (!k.known)
        classify(k);
    differs_.bits[0] = difference_of(command, k.command, std::min<std::size_t>(words, 64));
    differs_.bits[1] = words <= 64 ? 0 : difference_of(command + 64, k.command + 64, words - 64);

    bool has_sizes = false, is_right = true;
    found_.memory = found_.waits = {};
    differs_.for_each([&](std::size_t word) {
        switch (const std::uint8_t what = k.words[word]) {
        case structure:
            is_right = false;
            break;
        case size:
            has_sizes = true;
            break;
        case event:
        case value_bytes_8:
            break;
        case wait:
            found_.waits.set(word);
            break;
        case memory:
            found_.memory.set(word);
            break;
        default: // so many bytes of a value, and padding
            is_right &= command[word] >> (8 * what) == 0;
        }
    });
    found_.command = command;
    if (!is_right || (has_sizes && codec::launch_size_error(found_.launch())))
        return nullptr;
    found_.context = k.context;
    found_kind_ = number;
    found_words_ = static_cast<std::uint32_t>(words);
    return &found_;
}

void repeated_launches::accept_found() {
    kind& k = kinds_[found_kind_];
    const auto at = static_cast<std::uint32_t>(found_.command - stream_);
    const auto back = static_cast<std::uint32_t>(found_.command - k.command);
    k.command = found_.command;
    if (!runs_.empty() && runs_.back().end() == at && runs_.back().back == back && run_kind_ == found_kind_) {
        launch_run& run = runs_.back();
        const word_mask all = run.differs | differs_;
        if (all == run.differs || all.count() <= few_words) {
            run.differs = all;
            run.objects = run.objects | found_.memory;
            ++run.count;
            return;
        }
    }
    run_kind_ = found_kind_;
    runs_.push_back({at, found_words_, 1, back, differs_, found_.memory});
}

void repeated_launches::accepted(const vgpu_cmd_launch& launch, std::uint64_t context) {
    if (launch.cmd.bytes / word_bytes > word_mask::words)
        return;
    const auto* const command = reinterpret_cast<const std::uint64_t*>(&launch);
    kind& k = kinds_[kind_of(command)];
    k.generation = generation_;
    k.command = command;
    k.context = context;
    k.known = false;
    knows_some_ = true;
    knows_waits_ |= launch.enqueue.wait_count != 0;
}

void repeated_launches::destroyed(vgpu_object_kind kind) {
    // Nobody but those who wait names an event of another command; its own a launch makes.
    if (kind != VGPU_OBJECT_EVENT || knows_waits_)
        end();
}

} // namespace kagemusha::core
