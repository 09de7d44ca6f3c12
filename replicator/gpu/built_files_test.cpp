// SPDX-License-Identifier: GPL-2.0-or-later
#include "gpu/built_files.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "proto/replication/built_commands.h"

using namespace kagemusha::gpu;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t room = std::size_t{4} << 20;

class built_files_test : public testing::Test {
protected:
    static fs::path make_top() {
        std::string name = testing::TempDir() + "built-XXXXXX";
        const fs::path made = mkdtemp(name.data());
        fs::create_directory(made / "primary");
        fs::create_directory(made / "standby");
        return made;
    }
    ~built_files_test() override { fs::remove_all(top); }

    void write(const std::string& name, const std::string& content) const {
        const fs::path path = top / "primary" / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << content;
    }
    std::string stored(const std::string& name) const {
        std::ifstream file(top / "standby" / name, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    std::size_t files_stored() const {
        std::size_t n = 0;
        for (const auto& e : fs::recursive_directory_iterator(top / "standby"))
            n += !e.is_directory();
        return n;
    }
    static vgpu_built head_of(const std::vector<std::byte>& pack) {
        vgpu_built head{};
        if (pack.size() >= sizeof(head))
            std::memcpy(&head, pack.data(), sizeof(head));
        return head;
    }

    const fs::path top = make_top();
    built_files primary{(top / "primary").string()};
    built_files standby{(top / "standby").string()};
};

// A pack with one file, whatever its name and lengths say.
std::vector<std::byte> pack_of(const std::string& name, const std::string& content,
                               vgpu_built_file lengths = {0, 0}) {
    if (lengths.name_bytes == 0)
        lengths = {static_cast<std::uint32_t>(name.size()), static_cast<std::uint32_t>(content.size())};
    const auto padded = [](std::size_t n) { return (n + 7) / 8 * 8; };
    std::vector<std::byte> pack(sizeof(vgpu_built) + sizeof(lengths) + padded(name.size()) +
                                padded(content.size()));
    std::byte* at = pack.data() + sizeof(vgpu_built);
    std::memcpy(at, &lengths, sizeof(lengths));
    at += sizeof(lengths);
    std::memcpy(at, name.data(), name.size());
    std::memcpy(at + padded(name.size()), content.data(), content.size());
    return pack;
}

} // namespace

TEST_F(built_files_test, what_a_compiler_made_comes_to_the_other_side_once) {
    write("AB/HASH/program.bc", "bitcode");
    write("AB/HASH/k/64-1-1/k.so", "machine code");
    const auto pack = primary.take(false, room);
    EXPECT_EQ(head_of(pack).files, 2u);
    EXPECT_EQ(head_of(pack).bytes, pack.size());
    EXPECT_EQ(head_of(pack).more, 0u);
    EXPECT_EQ(standby.store(pack), 2u);
    EXPECT_EQ(stored("AB/HASH/program.bc"), "bitcode");
    EXPECT_EQ(stored("AB/HASH/k/64-1-1/k.so"), "machine code");

    EXPECT_EQ(head_of(primary.take(false, room)).files, 0u) << "taken before";
    write("AB/HASH/k/32-1-1/k.so", "for another size");
    write("CD/OTHER/program.bc", "another program");
    EXPECT_EQ(standby.store(primary.take(false, room)), 2u);
    EXPECT_EQ(stored("CD/OTHER/program.bc"), "another program");
    EXPECT_EQ(head_of(primary.take(true, room)).files, 4u) << "for another standby";
}

TEST_F(built_files_test, what_does_not_fit_comes_with_the_next_pack) {
    for (int i = 0; i < 8; ++i)
        write("AB/P" + std::to_string(i) + "/program.bc", std::string(1000, 'a' + i));
    std::size_t packs = 0, files = 0;
    for (bool more = true; more && packs < 100; ++packs) {
        const auto pack = primary.take(packs == 0, 2500);
        ASSERT_LE(pack.size(), 2500u);
        more = head_of(pack).more != 0;
        files += standby.store(pack);
    }
    EXPECT_EQ(files, 8u);
    EXPECT_EQ(packs, 4u);
    EXPECT_EQ(stored("AB/P7/program.bc"), std::string(1000, 'h'));
}

TEST_F(built_files_test, what_nobody_can_use_stays) {
    write("tempfile_x.bc", "not renamed yet");
    write("AB/HASH/last_accessed", "");
    write("AB/HASH/empty.so", "");
    write("AB/HASH/large.so", std::string(max_built_file_bytes + 1, 'x'));
    write("AB/HASH/.hidden/k.so", "hidden");
    fs::create_symlink("/etc/passwd", top / "primary/AB/HASH/link.so");
    fs::create_directory_symlink("/usr/lib", top / "primary/CD");
    EXPECT_EQ(head_of(primary.take(true, room)).files, 0u);
}

TEST_F(built_files_test, a_pack_names_nothing_outside) {
    for (const char* name : {"../a/b/c.so", "a/../../b.so", "/etc/a/b.so", "a/b.so", "a//b.so", "a/b/.so",
                             "a/b/c", "a/b/c.so/", "a/.b/c.so", "a/b c/d.so", "a/b/c/d/e/f/g/h.so", ""}) {
        EXPECT_FALSE(is_built_name(name)) << name;
        EXPECT_EQ(standby.store(pack_of(name, "content")), 0u) << name;
    }
    EXPECT_FALSE(is_built_name("a/b/" + std::string(max_built_name_bytes, 'c') + ".so"));
    EXPECT_FALSE(is_built_name(std::string("a/b/c\0d.so", 10)));
    EXPECT_TRUE(is_built_name("AB/HASH/kernel_1/64-1-1-goffs0-smallgrid/kernel_1.so"));
    EXPECT_EQ(files_stored(), 0u);
}

TEST_F(built_files_test, lengths_that_lie_end_a_pack) {
    const std::string name = "a/b/c.so";
    for (const vgpu_built_file lie :
         {vgpu_built_file{8, 0}, vgpu_built_file{8, 9}, vgpu_built_file{9, 8}, vgpu_built_file{8, UINT32_MAX},
          vgpu_built_file{UINT32_MAX, 8}, vgpu_built_file{UINT32_MAX, UINT32_MAX}})
        EXPECT_EQ(standby.store(pack_of(name, "12345678", lie)), 0u);
    const auto whole = pack_of(name, "12345678");
    for (std::size_t n = 0; n < whole.size(); ++n)
        EXPECT_EQ(standby.store(std::span(whole).first(n)), 0u);
    EXPECT_EQ(files_stored(), 0u);
    EXPECT_EQ(standby.store(whole), 1u);
    EXPECT_EQ(standby.store(whole), 0u) << "it is there";
}

TEST_F(built_files_test, a_peer_fills_a_part_of_the_directory_only) {
    const std::string large(std::size_t{3} << 20, 'x');
    std::size_t n = 0;
    for (int i = 0; i < 64; ++i)
        n += standby.store(pack_of("a/b/" + std::to_string(i) + ".so", large));
    EXPECT_EQ(n, max_built_bytes / large.size());
}

TEST_F(built_files_test, folders_count_too) {
    // Each of the first names makes five folders, and then is too long for a file that is not whole yet.
    for (std::size_t i = 0; i < max_built_entries / 5 + 100; ++i)
        EXPECT_EQ(standby.store(
                      pack_of("a" + std::to_string(i) + "/b/c/d/e/" + std::string(250, 'f') + ".so", "x")),
                  0u);
    std::size_t entries = 0;
    for (const auto& e : fs::recursive_directory_iterator(top / "standby"))
        entries += e.exists();
    EXPECT_LE(entries, max_built_entries);
    EXPECT_GE(entries, max_built_entries - 6);
    EXPECT_EQ(files_stored(), 0u);
    EXPECT_EQ(standby.store(pack_of("x/y/z.so", "content")), 0u);
}

TEST_F(built_files_test, a_full_disk_leaves_a_program_to_the_compiler) {
    const fs::path full = top / "standby/a/b";
    fs::create_directories(full);
    // As on a full disk, a file can be made, and be written in part.
    const rlimit before = [] {
        rlimit l{};
        getrlimit(RLIMIT_FSIZE, &l);
        return l;
    }();
    rlimit small = before;
    small.rlim_cur = 4;
    const auto old = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const std::size_t stored_then = standby.store(pack_of("a/b/d.so", "content"));
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old);
    EXPECT_EQ(stored_then, 0u);
    EXPECT_FALSE(fs::exists(full / "d.so"));
    EXPECT_FALSE(fs::exists(full / "d.so.part")) << "half of a file is no file";
    EXPECT_EQ(standby.store(pack_of("a/b/d.so", "content")), 1u) << "there is room again";
}

TEST_F(built_files_test, a_runtime_without_a_cache_has_none) {
    built_files none{""};
    EXPECT_EQ(none.take(true, room).size(), sizeof(vgpu_built));
    EXPECT_EQ(none.store(pack_of("a/b/c.so", "content")), 0u);
}
