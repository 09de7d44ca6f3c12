// SPDX-License-Identifier: GPL-2.0-or-later
// repeated_launches: the launches of a stream that differ from an earlier one of it in a few words only. Most
// launches do, and what was found out about the earlier one holds for them too, as long as what differs is
// looked at:
//
//   bytes of an argument       may be anything, but for padding, which must be 0      looked at here
//   sizes of the launch        must be sizes                                          looked at here
//   a memory object, an event  the object table knows what they are                   for the validator
//   anything else              the launch is decoded and validated like any other
//
// An object that is destroyed in the stream ends what was known of launches that may name it. Nothing is
// known beyond the end of a stream. The stream is a copy that the guest can't change.
//
// Pure. A launch takes a comparison with one earlier one, whatever the stream has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/launch_run.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::core {

class repeated_launches {
public:
    // Launches are remembered by kernel and queue; those whose place is the same replace each other, which
    // costs time only.
    static constexpr std::size_t kinds = 16;

    // A new stream, which stays where it is until the next one.
    void begin(std::span<const std::byte> stream);

    // A launch that repeats an earlier one, if what differs and names an object is found to be right.
    struct repetition {
        const std::uint64_t* command = nullptr;
        std::uint64_t context = 0; // serial of the context that everything it names must be of
        word_mask memory;          // words with the id of a memory object, or 0, that differ
        word_mask waits;           // words of the wait list that differ

        const vgpu_cmd_launch& launch() const { return *reinterpret_cast<const vgpu_cmd_launch*>(command); }
    };
    // The command that begins here, behind what was accepted before; null if it is none.
    const repetition* find(std::uint32_t offset);
    // It was right. Valid once after find().
    void accept_found();

    // A launch was decoded and accepted; `context`: serial of its queue's.
    void accepted(const vgpu_cmd_launch& launch, std::uint64_t context);
    void destroyed(vgpu_object_kind kind);
    // No launch follows in this stream.
    void end() {
        ++generation_;
        knows_some_ = knows_waits_ = false;
    }

    // What was accepted by accept_found(), until the next begin().
    launch_runs runs() const { return runs_; }

private:
    // What a word of a launch is.
    enum word_kind : std::uint8_t { structure, value_bytes_1, value_bytes_8 = 8, size, event, wait, memory };

    struct kind {
        std::uint64_t generation = 0;
        const std::uint64_t* command = nullptr; // the last that was accepted
        std::uint64_t context = 0;
        bool known = false; // `words` is right: nobody needs it of a launch that is not repeated
        std::array<std::uint8_t, word_mask::words> words{};
    };
    static std::size_t kind_of(const std::uint64_t* command);
    static void classify(kind& k);

    const std::uint64_t* stream_ = nullptr;
    std::size_t stream_words_ = 0;
    std::uint64_t generation_ = 0; // of what is known
    bool knows_some_ = false, knows_waits_ = false;
    std::array<kind, kinds> kinds_;
    std::vector<launch_run> runs_;

    repetition found_;
    std::size_t found_kind_ = 0, run_kind_ = 0;
    std::uint32_t found_words_ = 0;
    word_mask differs_;
};

} // namespace kagemusha::core
