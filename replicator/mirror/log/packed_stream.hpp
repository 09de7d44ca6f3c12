// SPDX-License-Identifier: GPL-2.0-or-later
// packed_stream: a stream with what its launches repeat left out. Of launches that validation found to repeat
// others (core/launch_run.hpp) only the words that differ are written, so few bytes go from the device's
// thread to the replication thread, and nobody compares anything again. Inside one process only: the wire has
// the stream itself.
//
//   literal   {0, words} and the words
//   run       {how many words before each command the one begins that it repeats; count << 8 | words of
//             each}; a mask with a bit for each word that differs, in one word or, for commands of more than
//             64 words, two; for each command those words
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/launch_run.hpp"

namespace kagemusha::mirror {

class stream_packer {
public:
    // A new stream. The memory for it stays.
    void begin();

    // Any words; they need not stay.
    void add_literal(std::span<const std::uint64_t> words);
    // The commands of a run, which lie behind each other; `back`: as it is in the stream that is packed.
    void add_run(const core::launch_run& run, std::uint32_t back, std::span<const std::uint64_t> commands);

    std::size_t stream_words() const { return stream_words_; }
    // The packed stream, until the next begin().
    std::span<const std::uint64_t> packed() const { return std::span(memory_).first(used_); }

private:
    std::uint64_t* room(std::size_t words);

    static constexpr std::size_t no_literal = SIZE_MAX;
    std::vector<std::uint64_t> memory_; // more than is used
    std::size_t used_ = 0, stream_words_ = 0;
    std::size_t literal_ = no_literal; // the item that is being written
};

// `stream` is as long as the one that was packed.
void unpack_stream(std::span<const std::uint64_t> packed, std::span<std::uint64_t> stream);

} // namespace kagemusha::mirror
