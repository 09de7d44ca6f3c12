// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/log/packed_stream.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>

namespace kagemusha::mirror {

namespace {

struct item {
    std::uint32_t back; // 0: literal
    std::uint32_t what;
};
static_assert(sizeof(item) == sizeof(std::uint64_t));
constexpr unsigned count_shift = 8;
static_assert(core::word_mask::words < 1u << count_shift);

constexpr std::size_t mask_words(std::size_t command_words) {
    return command_words <= 64 ? 1 : 2;
}

// Which words of a command a mask has.
struct places {
    explicit places(const core::word_mask& mask) {
        mask.for_each([this](std::size_t word) { at[count++] = static_cast<std::uint8_t>(word); });
    }
    std::size_t count = 0;
    std::array<std::uint8_t, core::word_mask::words> at;
};

} // namespace

void stream_packer::begin() {
    used_ = stream_words_ = 0;
    literal_ = no_literal;
}

// Behind what is used. What is written there does not count yet.
std::uint64_t* stream_packer::room(std::size_t words) {
    if (memory_.size() - used_ < words)
        memory_.resize(std::max(used_ + words, 2 * memory_.size()));
    return memory_.data() + used_;
}

void stream_packer::add_literal(std::span<const std::uint64_t> words) {
    if (words.empty())
        return;
    std::uint64_t* out = room(words.size() + 1);
    if (literal_ == no_literal) {
        literal_ = used_++;
        ++out;
    }
    std::memcpy(out, words.data(), words.size_bytes());
    used_ += words.size();
    stream_words_ += words.size();
    memory_[literal_] =
        std::bit_cast<std::uint64_t>(item{0, static_cast<std::uint32_t>(used_ - literal_ - 1)});
}

void stream_packer::add_run(const core::launch_run& run, std::uint32_t back,
                            std::span<const std::uint64_t> commands) {
    assert(back != 0 && back <= stream_words_ && commands.size() == std::size_t{run.words} * run.count);
    const places differ(run.differs);
    const std::size_t head = 1 + mask_words(run.words), packed = head + differ.count * run.count;
    if (packed > commands.size())
        return add_literal(commands);
    std::uint64_t* out = room(packed);
    *out++ = std::bit_cast<std::uint64_t>(item{back, run.count << count_shift | run.words});
    for (std::size_t i = 0; i < head - 1; ++i)
        *out++ = run.differs.bits[i];
    const std::uint64_t* command = commands.data();
    for (std::uint32_t n = 0; n < run.count; ++n, command += run.words)
        for (std::size_t i = 0; i < differ.count; ++i)
            *out++ = command[differ.at[i]];
    used_ += packed;
    stream_words_ += commands.size();
    literal_ = no_literal;
}

void unpack_stream(std::span<const std::uint64_t> packed, std::span<std::uint64_t> stream) {
    const std::uint64_t* in = packed.data();
    std::uint64_t* out = stream.data();
    const auto left = [&] { return static_cast<std::size_t>(stream.data() + stream.size() - out); };
    while (left() != 0) {
        const auto i = std::bit_cast<item>(*in++);
        if (i.back == 0) {
            assert(i.what != 0 && i.what <= left());
            std::memcpy(out, in, i.what * sizeof(std::uint64_t));
            in += i.what;
            out += i.what;
            continue;
        }
        const std::size_t words = i.what & ((1u << count_shift) - 1), count = i.what >> count_shift;
        assert(words != 0 && count != 0 && words * count <= left() &&
               i.back <= static_cast<std::size_t>(out - stream.data()) && i.back >= words);
        core::word_mask mask;
        for (std::size_t m = 0; m < mask_words(words); ++m)
            mask.bits[m] = *in++;
        const places differ(mask);
        for (std::size_t n = 0; n < count; ++n, out += words) {
            std::memcpy(out, out - i.back, words * sizeof(std::uint64_t));
            for (std::size_t d = 0; d < differ.count; ++d)
                out[differ.at[d]] = *in++;
        }
    }
    assert(in == packed.data() + packed.size());
}

} // namespace kagemusha::mirror
