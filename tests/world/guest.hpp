// SPDX-License-Identifier: GPL-2.0-or-later
// The program in the VM, as what a checkpoint has of it.
//
// It answers a client's numbered requests. Request r writes r to block r % slots of the disk, has the GPU
// count one up, and has it read r into two words of memory; the program is told of the read's end before the
// device's request is answered (it waits behind a later command). Then it changes one of the words, flushes
// the disk and replies with all that it sees. From time to time it speaks on its own.
//
// Each step makes a new node of the history, a tree: what an outside was told is a path in it
// (checkers/output).
#pragma once

#include <cstdint>

#include "world/disk.hpp"

namespace kagemusha::world {

struct guest {
    enum class phase : std::uint8_t { idle, computing, flushing };
    std::uint32_t node = 0;
    std::uint32_t requests = 0; // applied
    phase at = phase::idle;
    std::uint32_t read[slots] = {}; // words that only the GPU writes
    std::uint32_t own[slots] = {};  // words that the program changes once it knows of the read
    bool open = false;              // a read was told, and its request is not answered
    std::uint32_t gpu_since = 0;    // the request before the GPU's state was made
    std::uint32_t entries = 0;      // in the GPU's log
};

constexpr std::uint32_t owned = 1u << 31; // added to a word by the program

// What left the VM.
struct packet {
    std::uint32_t node = 0;
    std::uint32_t request = 0; // 0: it spoke on its own
    std::uint32_t gpu_value = 0;
    std::uint32_t words[2] = {};  // read and own of this request
    std::uint32_t before[2] = {}; // of the one before
    std::uint32_t blocks[2] = {};
    bool gpu_told = false; // of a GPU that failed since the request before
};

} // namespace kagemusha::world
