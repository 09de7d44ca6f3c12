// SPDX-License-Identifier: GPL-2.0-or-later
//
// Archives of hostile guests, written here byte by byte, and one of the host's tar.
#include "control/run/out_archive.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kagemusha::control {
namespace {

namespace fs = std::filesystem;

std::string tar_header(const std::string& name, std::uint64_t bytes, char type, unsigned mode = 0644) {
    std::string block(512, '\0');
    const auto put = [&](std::size_t at, const std::string& text) { block.replace(at, text.size(), text); };
    put(0, name.substr(0, 100));
    put(100, fmt::format("{:07o}", mode));
    put(124, fmt::format("{:011o}", bytes));
    block[156] = type;
    put(257, std::string("ustar\0", 6) + "00");
    put(148, "        ");
    unsigned sum = 0;
    for (const char c : block)
        sum += static_cast<unsigned char>(c);
    put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    return block;
}

std::string tar_entry(const std::string& name, const std::string& text, char type = '0',
                      unsigned mode = 0644) {
    return tar_header(name, text.size(), type, mode) + text +
           std::string((512 - text.size() % 512) % 512, '\0');
}

const std::string tar_end(1024, '\0');

class out_archive_test : public testing::Test {
protected:
    out_archive_test() {
        std::string name = (fs::temp_directory_path() / "out-archive-XXXXXX").string();
        top_ = mkdtemp(name.data());
        to_ = top_ + "/to";
    }
    ~out_archive_test() override { fs::remove_all(top_); }

    std::string unpack(const std::string& bytes, const out_limits& limits = {}, std::size_t at_once = 4096) {
        out_archive archive(to_, limits);
        for (std::size_t at = 0; at < bytes.size(); at += at_once)
            archive.feed(std::string_view(bytes).substr(at, at_once));
        return archive.finish();
    }
    std::string content(const std::string& name) const {
        std::ifstream file(to_ + "/" + name);
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    std::size_t entries() const {
        std::size_t count = 0;
        for ([[maybe_unused]] const auto& entry : fs::recursive_directory_iterator(top_))
            ++count;
        return count - 1; // to_ itself
    }

    std::string top_, to_;
};

TEST_F(out_archive_test, files_and_directories_come_in_pieces_of_any_size) {
    const std::string long_name = "d/" + std::string(150, 'n');
    const std::string archive =
        tar_entry("./", "", '5') + tar_entry("./d/", "", '5') + tar_entry("./d/a", "one") +
        tar_entry("b", std::string(512, 'x'), '0', 0755) + tar_entry("e/f/g", "", '\0') +
        tar_entry("././@LongLink", long_name + '\0', 'L') + tar_entry("cut", "long") + tar_end;
    for (const std::size_t at_once : {std::size_t{1}, std::size_t{511}, std::size_t{513}, archive.size()}) {
        fs::remove_all(to_);
        EXPECT_EQ(unpack(archive + std::string(8192, 'r'), {}, at_once), "") << at_once;
        EXPECT_EQ(content("d/a"), "one");
        EXPECT_EQ(content("b"), std::string(512, 'x'));
        EXPECT_TRUE(fs::is_regular_file(to_ + "/e/f/g"));
        EXPECT_EQ(content(long_name), "long");
        EXPECT_EQ(fs::status(to_ + "/b").permissions() & fs::perms::owner_exec, fs::perms::owner_exec);
    }
}

TEST_F(out_archive_test, what_the_hosts_tar_writes_is_read) {
    fs::create_directories(top_ + "/from/" + std::string(120, 'd'));
    std::ofstream(top_ + "/from/" + std::string(120, 'd') + "/file") << "text";
    const auto made = run_captured({"tar", "-C", top_ + "/from", "-cf", "-", "."});
    ASSERT_EQ(made.status, 0);
    EXPECT_EQ(unpack(made.out), "");
    EXPECT_EQ(content(std::string(120, 'd') + "/file"), "text");
}

TEST_F(out_archive_test, no_name_leads_out_of_the_directory) {
    for (const char* name : {"../x", "/x", "a/../../x", "..", "a/..", "\x1b[2Jx", "a\nb"}) {
        EXPECT_NE(unpack(tar_entry(name, "evil") + tar_end).find("is refused"), std::string::npos) << name;
        EXPECT_EQ(entries(), 0u) << name;
    }
    const std::string deep(2 * 65, '/');
    std::string name;
    for (int i = 0; i < 65; ++i)
        name += "d/";
    EXPECT_NE(unpack(tar_entry("", name + '\0', 'L') + tar_entry("x", "", '5') + tar_end), "");
    EXPECT_EQ(entries(), 0u);
}

TEST_F(out_archive_test, nothing_but_files_and_directories_is_made) {
    for (const char type : {'1', '2', '3', '4', '6', 'S', 'x', 'g', 'K', 'M', '\x1b'}) {
        EXPECT_NE(unpack(tar_entry("name", "", type) + tar_end).find("only files and directories"),
                  std::string::npos)
            << type;
        EXPECT_EQ(entries(), 0u) << type;
    }
}

TEST_F(out_archive_test, links_that_the_owner_has_there_are_not_followed) {
    fs::create_directories(to_);
    fs::create_directories(top_ + "/elsewhere");
    fs::create_symlink(top_ + "/elsewhere", to_ + "/d");
    std::ofstream(top_ + "/mine") << "mine";
    fs::create_symlink(top_ + "/mine", to_ + "/f");
    EXPECT_NE(unpack(tar_entry("d/x", "evil") + tar_end), "");
    EXPECT_FALSE(fs::exists(top_ + "/elsewhere/x"));
    EXPECT_EQ(unpack(tar_entry("f", "new") + tar_end), ""); // in its place
    EXPECT_EQ(content("f"), "new");
    EXPECT_EQ(content("../mine"), "mine");
}

TEST_F(out_archive_test, bytes_and_entries_are_bounded) {
    const out_limits limits{1000, 3};
    EXPECT_EQ(unpack(tar_entry("a", std::string(600, 'a')) + tar_entry("b", std::string(400, 'b')) + tar_end,
                     limits),
              "");
    EXPECT_NE(unpack(tar_entry("a", std::string(600, 'a')) + tar_entry("c", std::string(401, 'b')) + tar_end,
                     limits)
                  .find("--out-max"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(to_ + "/c"));
    EXPECT_NE(unpack(tar_header("big", (std::uint64_t{1} << 33) - 1, '0'), limits).find("--out-max"),
              std::string::npos);
    std::string many, names;
    for (int i = 0; i < 4; ++i) {
        many += tar_entry(fmt::format("f{}", i), "", '5');
        names += tar_entry("x", "name", 'L');
    }
    EXPECT_NE(unpack(many + tar_end, limits).find("more than 3 entries"), std::string::npos);
    EXPECT_FALSE(fs::exists(to_ + "/f3"));
    EXPECT_NE(unpack(names, limits).find("more than 3 entries"), std::string::npos);
    EXPECT_NE(unpack(tar_header("x", 4097, 'L')).find("too long"), std::string::npos);
}

TEST_F(out_archive_test, what_is_damaged_or_ends_early_is_said) {
    EXPECT_EQ(unpack(""), "nothing came");
    EXPECT_EQ(unpack(tar_entry("a", "text")), "it ends in the middle");
    EXPECT_EQ(unpack(tar_header("a", 4, '0')), "it ends in the middle");
    std::string damaged = tar_entry("a", "text") + tar_end;
    damaged[3] = 'z';
    EXPECT_NE(unpack(damaged).find("no tar archive"), std::string::npos);
    EXPECT_NE(unpack(std::string(4096, 'x')).find("no tar archive"), std::string::npos);
}

} // namespace
} // namespace kagemusha::control
