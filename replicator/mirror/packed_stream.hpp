// SPDX-License-Identifier: GPL-2.0-or-later
// packed_stream: a stream with what its commands repeat left out. A guest's launches differ from each other
// in a few words; so a command is written as the difference from an earlier one of the same length, if there
// is one and that is shorter. Who packs need not look again at what a command has in common with the earlier
// one, and fewer bytes go from the device's thread to the replication thread. Inside one process only: the
// wire has the stream itself.
//
//   literal     {0, words} and the words
//   difference  {how many words before this one the other begins, words}; for each 32 words (the last time
//               fewer) a mask with a bit for each word that differs, and those words
//
// Pure.
#ifndef KAGEMUSHA_MIRROR_PACKED_STREAM_HPP
#define KAGEMUSHA_MIRROR_PACKED_STREAM_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kagemusha::mirror {

class stream_packer {
public:
    // Commands are remembered by what they launch; those of the same kind replace each other.
    static constexpr std::size_t kinds = 16;

    // A new stream. The memory for it stays.
    void begin();

    struct likeness {
        unsigned kind = 0;
        // A bit for each word that differs from the last command of this kind that was given, in a command of
        // at most 64 words; else, and if there is none like it, all bits.
        std::uint64_t differs = UINT64_MAX;
    };
    // A validated command, which stays where it is until the stream is complete.
    likeness add(std::span<const std::uint64_t> command);
    // Any words; they need not stay.
    void add_literal(std::span<const std::uint64_t> words);

    std::size_t stream_words() const { return stream_words_; }
    // The packed stream, until the next begin().
    std::span<const std::uint64_t> packed() const { return std::span(memory_).first(used_); }

private:
    struct earlier {
        const std::uint64_t* words = nullptr;
        std::size_t at = 0; // in the stream
    };
    bool add_difference(std::span<const std::uint64_t> command, const earlier& other, std::uint64_t& differs);
    void make_room(std::size_t words);

    static constexpr std::size_t no_literal = SIZE_MAX;
    std::vector<std::uint64_t> memory_; // more than is used
    std::size_t used_ = 0, stream_words_ = 0;
    std::size_t literal_ = no_literal; // the item that is being written
    std::array<earlier, kinds> earlier_{};
};

// `stream` is as long as the one that was packed.
void unpack_stream(std::span<const std::uint64_t> packed, std::span<std::uint64_t> stream);

} // namespace kagemusha::mirror

#endif
