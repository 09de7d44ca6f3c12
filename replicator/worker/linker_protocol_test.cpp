// SPDX-License-Identifier: GPL-2.0-or-later
// Tests of what the linker broker obeys.
#include "worker/linker_protocol.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kagemusha::worker {
namespace {

using arguments = std::vector<std::string_view>;

// What PoCL 3.1 with LLVM 15 asks for on Debian 12.
const arguments honest = {"/usr/bin/ld",
                          "--hash-style=both",
                          "--build-id",
                          "--eh-frame-hdr",
                          "-m",
                          "elf_x86_64",
                          "-shared",
                          "-o",
                          "/mnt/tempfile_a.so",
                          "-L/usr/lib/gcc/x86_64-linux-gnu/12/../../../../lib64",
                          "-L/lib/x86_64-linux-gnu",
                          "/mnt/tempfile_b.so.o",
                          "-lm",
                          "-lgcc",
                          "--as-needed",
                          "-lgcc_s",
                          "--no-as-needed",
                          "-lc",
                          "/usr/lib/gcc/x86_64-linux-gnu/12/crtendS.o"};

arguments with(arguments base, std::initializer_list<std::string_view> more) {
    base.insert(base.end(), more.begin(), more.end());
    return base;
}

arguments replaced(arguments base, std::string_view what, std::string_view by) {
    for (auto& argument : base)
        if (argument == what)
            argument = by;
    return base;
}

TEST(link_request, of_pocl_is_obeyed) {
    EXPECT_EQ(check_link_request(honest, "/mnt"), "");
}

TEST(link_request, survives_encoding) {
    const char* const list[] = {"/usr/bin/ld", "-o", "/mnt/a", "", "/mnt/b.o"};
    const auto message = encode_link_request(list);
    ASSERT_TRUE(message);
    const auto got = decode_link_request({message->data(), message->size()});
    ASSERT_TRUE(got);
    EXPECT_EQ(*got, (arguments{"/usr/bin/ld", "-o", "/mnt/a", "", "/mnt/b.o"}));
}

TEST(link_request, with_anything_but_a_plain_link_is_refused) {
    for (const std::string_view extra : {"-plugin",
                                         "--plugin=/mnt/x.so",
                                         "@/mnt/response",
                                         "-T",
                                         "--script=/mnt/x",
                                         "-Map=/mnt/map",
                                         "-rpath",
                                         "--dynamic-linker=/mnt/x",
                                         "-dynamic-linker",
                                         "-I/mnt/x",
                                         "--wrap=x",
                                         "-o",
                                         "-e",
                                         "--version-script=/mnt/x",
                                         "-dT",
                                         "/etc/passwd",
                                         "/home/x.o",
                                         "/mnt/../etc/passwd",
                                         "/mnt",
                                         "/mntx/a.o",
                                         "relative.o",
                                         "..",
                                         "-l/mnt/x",
                                         "-l:../../x",
                                         "-Lrelative",
                                         "--just-symbols=/mnt/x",
                                         "-R",
                                         "--out-implib=/mnt/x",
                                         "-fini",
                                         ""})
        EXPECT_NE(check_link_request(with(honest, {extra}), "/mnt"), "") << extra;
}

TEST(link_request, writes_only_into_the_private_directory) {
    for (const std::string_view output :
         {"/tmp/x.so", "/mnt", "/mnt/", "/mnt/../tmp/x", "/mnt/a/..", "x.so", "", "-o"})
        EXPECT_NE(check_link_request(replaced(honest, "/mnt/tempfile_a.so", output), "/mnt"), "") << output;
    EXPECT_NE(check_link_request(with(honest, {"-o", "/mnt/second"}), "/mnt"), "");
}

TEST(link_request, needs_program_output_and_input) {
    EXPECT_NE(check_link_request({}, "/mnt"), "");
    EXPECT_NE(check_link_request(arguments{"/usr/bin/ld"}, "/mnt"), "");
    EXPECT_NE(check_link_request(arguments{"/usr/bin/ld", "-o"}, "/mnt"), "");
    EXPECT_NE(check_link_request(arguments{"/usr/bin/ld", "-o", "/mnt/a"}, "/mnt"), "");
    EXPECT_NE(check_link_request(arguments{"/usr/bin/ld", "-m"}, "/mnt"), "");
    EXPECT_EQ(check_link_request(arguments{"/usr/bin/ld", "-o", "/mnt/a", "/mnt/b.o"}, "/mnt"), "");
}

TEST(link_request, starts_only_linkers) {
    for (const std::string_view linker :
         {"/usr/bin/ld", "/bin/ld", "/usr/bin/ld.lld-14", "/usr/bin/x86_64-linux-gnu-ld.bfd",
          "/usr/bin/ld.gold", "/usr/lib/llvm-19/bin/ld.lld"})
        EXPECT_TRUE(names_a_linker(linker)) << linker;
    for (const std::string_view other :
         {"", "ld", "./ld", "/mnt/ld", "/bin/sh", "/usr/bin/ldd", "/usr/bin/ld.so", "/usr/bin/../../mnt/ld",
          "/usr/lib/llvm-1/../../../mnt/bin/ld", "/usr/bin/", "/usr/bin/ld/", "/usr/lib/llvm-19/bin/clang"})
        EXPECT_FALSE(names_a_linker(other)) << other;
}

TEST(link_request, malformed_messages_are_refused) {
    EXPECT_FALSE(decode_link_request(""));
    EXPECT_FALSE(decode_link_request("no end"));
    EXPECT_FALSE(decode_link_request(std::string(max_link_request_bytes + 1, '\0')));
    EXPECT_FALSE(decode_link_request(std::string(max_link_arguments + 1, '\0')));
    EXPECT_TRUE(decode_link_request(std::string(max_link_arguments, '\0')));
    const std::string large(max_link_request_bytes, 'x');
    const char* const list[] = {large.c_str()};
    EXPECT_FALSE(encode_link_request(list));
    EXPECT_FALSE(encode_link_request({}));
}

// Whatever bytes come: a request that is obeyed writes into the directory and starts a linker.
TEST(link_request, random_mixtures_keep_the_rules) {
    std::mt19937 random(3);
    const arguments pool =
        with(honest, {"/etc/passwd", "-plugin", "@x", "..", "/mnt/..", "-o", "-z", "-m", "/bin/sh"});
    int obeyed = 0;
    for (int round = 0; round < 50000; ++round) {
        arguments list = {random() % 4 != 0 ? "/usr/bin/ld" : pool[random() % pool.size()]};
        for (unsigned n = random() % 8; n > 0; --n)
            list.push_back(pool[random() % pool.size()]);
        if (!check_link_request(list, "/mnt").empty())
            continue;
        ++obeyed;
        ASSERT_TRUE(names_a_linker(list[0]));
        for (const auto& argument : list) {
            ASSERT_NE(argument, "/etc/passwd");
            ASSERT_NE(argument, "-plugin");
            ASSERT_NE(argument, "@x");
        }
    }
    EXPECT_GT(obeyed, 0);
}

} // namespace
} // namespace kagemusha::worker
