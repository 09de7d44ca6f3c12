// SPDX-License-Identifier: GPL-2.0-or-later
// fd_message: see fd_message.hpp.
#include "worker/fd_message.hpp"

#include <sys/socket.h>

#include <cassert>
#include <cerrno>
#include <cstring>

namespace kagemusha::worker {

namespace {

union control_buffer {
    cmsghdr alignment;
    char bytes[CMSG_SPACE(max_message_fds * sizeof(int))];
};

msghdr header_of(iovec& io) {
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    return header;
}

} // namespace

ssize_t send_with_fds(int socket, std::span<const std::byte> message, std::span<const int> fds, int flags) {
    assert(fds.size() <= max_message_fds);
    control_buffer control{};
    iovec io{const_cast<std::byte*>(message.data()), message.size()};
    msghdr header = header_of(io);
    if (!fds.empty()) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | flags);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

received_message receive_with_fds(int socket, std::span<std::byte> message, std::size_t max_fds) {
    assert(max_fds <= max_message_fds);
    received_message out;
    control_buffer control{};
    iovec io{message.data(), message.size()};
    msghdr header = header_of(io);
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(max_fds * sizeof(int));
    do {
        out.bytes = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    } while (out.bytes < 0 && errno == EINTR);
    if (out.bytes < 0)
        return out;
    out.flags = header.msg_flags;
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (std::size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
            out.fds.emplace_back(fd);
        }
    }
    return out;
}

} // namespace kagemusha::worker
