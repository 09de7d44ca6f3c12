// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keys of a secret: the same each time, different ones for each purpose, and OpenSSH reads them.
#include "control/keys/ssh_keys.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>

namespace kagemusha::control {
namespace {

std::string output_of(const std::string& command) {
    std::string out;
    FILE* const pipe = ::popen(command.c_str(), "r");
    std::array<char, 512> buffer{};
    while (pipe && std::fgets(buffer.data(), buffer.size(), pipe))
        out += buffer.data();
    if (!pipe || ::pclose(pipe) != 0)
        return "failed";
    return out;
}

TEST(ssh_keys, one_secret_gives_the_same_keys_again_and_another_one_for_each_purpose) {
    const auto first = ssh_key_of("secret", "host/node1"), again = ssh_key_of("secret", "host/node1");
    EXPECT_EQ(first.public_key, again.public_key);
    EXPECT_EQ(first.private_key, again.private_key);
    EXPECT_NE(first.public_key, ssh_key_of("secret", "host/node2").public_key);
    EXPECT_NE(first.public_key, ssh_key_of("secreT", "host/node1").public_key);
}

TEST(ssh_keys, openssh_reads_them) {
    if (std::system("command -v ssh-keygen >/dev/null") != 0)
        GTEST_SKIP() << "there is no ssh-keygen: install openssh-client";
    // Purposes of all lengths, so that each padding occurs.
    for (std::size_t length = 0; length < 9; ++length) {
        const auto key = ssh_key_of("of a cluster", std::string(length, 'x'));
        const auto path =
            std::filesystem::temp_directory_path() / ("kage-ssh-key-" + std::to_string(::getpid()));
        std::ofstream(path) << key.private_key;
        ::chmod(path.c_str(), 0600);
        EXPECT_EQ(output_of("ssh-keygen -y -P '' -f " + path.string() + " | cut -d' ' -f1,2"),
                  key.public_key + "\n");
        std::filesystem::remove(path);
    }
}

} // namespace
} // namespace kagemusha::control
