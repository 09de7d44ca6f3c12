// SPDX-License-Identifier: GPL-2.0-or-later
// What a cable between two hosts does, and cut_link therefore too: a link has several connections, and one whose
// end is not read for a while (a lane, whose bytes were not announced yet) holds none of the others up.
#include "tests/mirror/cut_link.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "tests/support/guest.hpp"

namespace kagemusha::test {
namespace {

// Closes what it has; for a test's few sockets.
struct sockets {
    ~sockets() {
        for (const int fd : all)
            close(fd);
    }
    int add(int fd) {
        EXPECT_GE(fd, 0);
        all.push_back(fd);
        return fd;
    }
    std::vector<int> all;
};

TEST(cut_link, an_end_that_does_not_read_holds_no_other_connection_up) {
    const temporary_directory directory;
    const std::string from = directory.path() + "/from", to = directory.path() + "/to";
    const sockaddr_un from_name = unix_name(from), to_name = unix_name(to);
    sockets s;
    const int listener = s.add(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&to_name), sizeof to_name), 0);
    ASSERT_EQ(listen(listener, 8), 0);
    const cut_link link(from, to);
    const auto connect_through = [&](int& near, int& far) {
        near = s.add(socket(AF_UNIX, SOCK_STREAM, 0));
        ASSERT_EQ(connect(near, reinterpret_cast<const sockaddr*>(&from_name), sizeof from_name), 0);
        far = s.add(accept(listener, nullptr, nullptr));
    };
    int first = -1, first_far = -1, second = -1, second_far = -1;
    connect_through(first, first_far);
    connect_through(second, second_far);

    // Until every buffer on the way is full, and stays so.
    const std::vector<char> much(1 << 20, 'x');
    pollfd room{first, POLLOUT, 0};
    while (poll(&room, 1, 200) == 1)
        ASSERT_GT(send(first, much.data(), much.size(), MSG_DONTWAIT), 0);

    ASSERT_EQ(send(second, "beat", 4, 0), 4);
    pollfd there{second_far, POLLIN, 0};
    ASSERT_EQ(poll(&there, 1, 30'000), 1);
    char got[4];
    EXPECT_EQ(recv(second_far, got, sizeof got, MSG_WAITALL), 4);
}

} // namespace
} // namespace kagemusha::test
