// SPDX-License-Identifier: GPL-2.0-or-later
// setup: see setup.hpp.
#include "worker/setup.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kagemusha::worker {

namespace {

constexpr std::size_t max_descriptors = setup_fixed_count + max_regions;

union control_buffer {
    cmsghdr alignment;
    char bytes[CMSG_SPACE(max_descriptors * sizeof(int))];
};

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

} // namespace

std::string send_setup(int socket, const setup_message& message, std::span<const int> descriptors) {
    if (descriptors.size() > max_descriptors)
        return "too many descriptors for one worker";
    control_buffer control{};
    iovec io{const_cast<setup_message*>(&message), sizeof message};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());

    ssize_t sent;
    do {
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return system_error("the worker's setup can't be sent");
    return sent == static_cast<ssize_t>(sizeof message) ? "" : "the worker's setup was cut";
}

std::string receive_setup(int socket, setup_message& message, std::vector<int>& descriptors) {
    control_buffer control{};
    iovec io{&message, sizeof message};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    ssize_t got;
    do {
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return system_error("no setup message");
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        descriptors.resize(count);
        std::memcpy(descriptors.data(), CMSG_DATA(part), count * sizeof(int));
    }
    if (got == 0)
        return "the device closed the connection before it sent a setup message";
    if (got != static_cast<ssize_t>(sizeof message) || message.version != setup_version)
        return "the setup message is of another version: device and worker must come from the same build";
    std::size_t expected = setup_fixed_count;
    if (message.region_count > max_regions)
        return "too many regions";
    for (std::uint32_t i = 0; i < message.region_count; ++i)
        expected += message.regions[i].present != 0;
    if ((header.msg_flags & MSG_CTRUNC) != 0 || descriptors.size() != expected)
        return "descriptors are missing in the setup message";
    message.backend[sizeof message.backend - 1] = '\0';
    message.gpu[sizeof message.gpu - 1] = '\0';
    message.options[sizeof message.options - 1] = '\0';
    return "";
}

} // namespace kagemusha::worker
