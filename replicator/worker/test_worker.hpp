// SPDX-License-Identifier: GPL-2.0-or-later
// test_worker: what the tests of process_port and their worker agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kagemusha::worker {

// First word of a stream. Every command but lose_gpu, crash and hang is answered with the stream's length in
// `value`.
enum class test_command : std::uint64_t {
    echo,       // result_bytes: number of segments
    record,     // a completion record first
    lose_gpu,   // detail 99
    crash,      // SIGSEGV
    print,      // 20,000 lines on standard output, then a completion record
    invert,     // inverts the bytes of every segment
    flood_log,  // 100,000 lines on standard error
    report_pid, // value: the worker's process id
    thread,     // value: the id of a thread that it starts, which does nothing
    hang,
};

inline test_command test_command_of(std::span<const std::byte> stream) {
    std::uint64_t word = 0;
    if (stream.size() >= sizeof word)
        std::memcpy(&word, stream.data(), sizeof word);
    return static_cast<test_command>(word);
}

} // namespace kagemusha::worker
