// SPDX-License-Identifier: GPL-2.0-or-later
// setup: the one message with which the device tells a fresh worker what to do, and hands it its descriptors.
// It crosses a socket pair before any code of the guest runs, so the worker believes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/limits.hpp"

namespace kagemusha::worker {

// Changed whenever this message or the rings change: the device refuses to talk to a worker of another build.
inline constexpr std::uint32_t setup_version = 2;

// The worker's end of the socket pair.
inline constexpr int setup_fd = 3;

struct setup_region {
    std::uint64_t file_offset;
    std::uint64_t bytes;   // 0: no region with this number, no descriptor
    std::uint32_t present; // 0 or 1
    std::uint32_t pad;
};

struct setup_message {
    std::uint32_t version;
    std::uint32_t sandbox; // enum sandbox_mode
    std::uint32_t probe;   // 1: open the GPU, tell its name, end
    std::uint32_t region_count;
    std::uint32_t share; // 1: the GPU is shared; descriptors of the connection and the page are there
    std::uint32_t pad;
    std::uint64_t max_worker_bytes;
    char backend[32]; // texts end with a 0
    char gpu[256];
    char options[1024];
    setup_region regions[max_regions];
};

// Descriptors that travel with the message, in this order, then with `share` its two, then one for each region
// that is present.
enum setup_descriptor { setup_ring_memory, setup_submission_bell, setup_completion_bell, setup_fixed_count };
inline constexpr std::size_t setup_share_count = 2; // socket, page

// Where the descriptors of the regions begin.
inline std::size_t first_region_descriptor(const setup_message& message) {
    return setup_fixed_count + (message.share != 0 ? setup_share_count : 0);
}

// Both return "" or why it failed.
std::string send_setup(int socket, const setup_message& message, std::span<const int> descriptors);
std::string receive_setup(int socket, setup_message& message, std::vector<int>& descriptors);

} // namespace kagemusha::worker
