// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/share/mps.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "base/unique_fd.hpp"

namespace kagemusha::control {
namespace {

class mps : public ::testing::Test {
protected:
    mps() {
        char path[] = "/tmp/kagemusha-mps-test-XXXXXX";
        directory_ = ::mkdtemp(path);
    }
    ~mps() override { std::filesystem::remove_all(directory_); }

    unique_fd daemon(int type) const {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, (directory_ / "control").c_str());
        unique_fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::listen(socket.get(), 1), 0);
        return socket;
    }

    std::filesystem::path directory_;
};

TEST_F(mps, is_found_while_its_daemon_listens) {
    for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
        EXPECT_FALSE(find_mps(directory_.c_str()));
        {
            const unique_fd listens = daemon(type);
            EXPECT_EQ(find_mps(directory_.c_str()), directory_);
        }
        EXPECT_FALSE(find_mps(directory_.c_str())) << "the socket of a daemon that was killed";
        std::filesystem::remove(directory_ / "control");
    }
}

TEST_F(mps, a_name_too_long_for_a_socket_is_none) {
    EXPECT_FALSE(find_mps(std::string(200, 'a').c_str()));
}

TEST_F(mps, people_are_told_that_vms_do_not_use_it) {
    EXPECT_EQ(mps_text(std::nullopt), "");
    const std::string text = mps_text(directory_);
    EXPECT_NE(text.find("NVIDIA's MPS runs on this host (" + directory_.string() + "). VMs do not use it"),
              text.npos)
        << text;
}

} // namespace
} // namespace kagemusha::control
