// SPDX-License-Identifier: GPL-2.0-or-later
// setup: see setup.hpp.
#include "worker/setup.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "worker/fd_message.hpp"

namespace kagemusha::worker {

namespace {

constexpr std::size_t max_descriptors = setup_fixed_count + setup_share_count + max_regions;
static_assert(max_descriptors <= max_message_fds);

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

} // namespace

std::string send_setup(int socket, const setup_message& message, std::span<const int> descriptors) {
    if (descriptors.size() > max_descriptors)
        return "too many descriptors for one worker";
    const ssize_t sent =
        send_with_fds(socket, std::as_bytes(std::span(&message, 1)), descriptors, MSG_DONTWAIT);
    if (sent < 0)
        return system_error("the worker's setup can't be sent");
    return sent == static_cast<ssize_t>(sizeof message) ? "" : "the worker's setup was cut";
}

std::string receive_setup(int socket, setup_message& message, std::vector<int>& descriptors) {
    received_message got =
        receive_with_fds(socket, std::as_writable_bytes(std::span(&message, 1)), max_descriptors);
    if (got.bytes < 0)
        return system_error("no setup message");
    descriptors.clear();
    for (unique_fd& fd : got.fds)
        descriptors.push_back(fd.release());
    if (got.bytes == 0)
        return "the device closed the connection before it sent a setup message";
    if (got.bytes != static_cast<ssize_t>(sizeof message) || message.version != setup_version)
        return "the setup message is of another version: device and worker must come from the same build";
    std::size_t expected = first_region_descriptor(message);
    if (message.region_count > max_regions)
        return "too many regions";
    for (std::uint32_t i = 0; i < message.region_count; ++i)
        expected += message.regions[i].present != 0;
    if ((got.flags & MSG_CTRUNC) != 0 || descriptors.size() != expected)
        return "descriptors are missing in the setup message";
    message.backend[sizeof message.backend - 1] = '\0';
    message.gpu[sizeof message.gpu - 1] = '\0';
    message.options[sizeof message.options - 1] = '\0';
    return "";
}

} // namespace kagemusha::worker
