// SPDX-License-Identifier: GPL-2.0-or-later
//
// A console's messages, the portal's files, and its certificate.
#include "control/portal/certificate.hpp"
#include "control/portal/console.hpp"
#include "control/portal/web_files.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kagemusha::control::portal {
namespace {

namespace fs = std::filesystem;

struct folder {
    folder() {
        std::string name = testing::TempDir() + "portal-XXXXXX";
        path = ::mkdtemp(name.data());
    }
    ~folder() { fs::remove_all(path); }
    std::string path;
};

TEST(console, a_page_says_its_size_first_and_then_sends_what_is_typed) {
    const auto greeting = console_greeting("secret", R"({"columns":80,"rows":24})");
    ASSERT_TRUE(greeting);
    lan::exec_reader reader;
    reader.feed(*greeting);
    EXPECT_EQ(reader.next()->payload, "secret");
    EXPECT_EQ(reader.next()->payload, "80 24");
    EXPECT_EQ(reader.next()->letter, 'C');
    EXPECT_EQ(console_frames("ls\r", false), lan::exec_frame('I', "ls\r"));
    EXPECT_EQ(console_frames(R"({"columns":100,"rows":1})", true), lan::exec_frame('W', "100 1"));
}

TEST(console, what_is_no_size_is_refused) {
    for (const char* wrong : {"", "[]", "{}", R"({"columns":0,"rows":1})", R"({"columns":-1,"rows":1})",
                              R"({"columns":1001,"rows":1})", R"({"columns":"1","rows":1})", "\xff"}) {
        EXPECT_FALSE(console_greeting("secret", wrong)) << wrong;
        EXPECT_FALSE(console_frames(wrong, true)) << wrong;
    }
}

TEST(console, what_a_node_sends_is_output_until_its_last_message) {
    EXPECT_EQ(console_text({'O', "x"}).binary, "x");
    EXPECT_TRUE(console_text({'O', "x"}).last.empty());
    EXPECT_EQ(console_text({'S', "7"}).last, R"({"exit":7})");
    EXPECT_NE(console_text({'S', "999"}).last.find("no agent"), std::string::npos);
    EXPECT_NE(console_text({'R', "\xff no"}).last.find("no"), std::string::npos);
    EXPECT_NE(console_text({'?', ""}).last.find("no agent"), std::string::npos);
}

TEST(web_files, only_files_of_the_folder_are_there) {
    const folder at;
    fs::create_directory(at.path + "/pages");
    std::ofstream(at.path + "/index.html") << "<p>";
    std::ofstream(at.path + "/pages/a.js") << "1";
    std::ofstream(at.path + "/secret.pem") << "key";
    std::string error;
    const auto files = web_files::load(at.path, error);
    EXPECT_EQ(error, "");
    ASSERT_TRUE(files.find("/", ""));
    EXPECT_EQ(files.find("/?x=1", "")->body, "<p>");
    EXPECT_EQ(files.find("/pages/a.js", "")->type, "text/javascript; charset=utf-8");
    for (const char* other :
         {"/secret.pem", "/../etc/passwd", "//index.html", "/pages", "", "/pages/../index.html"})
        EXPECT_FALSE(files.find(other, "")) << other;
    const auto tag = files.find("/", "")->headers[0].second;
    EXPECT_EQ(files.find("/", tag)->status, 304u);
    EXPECT_EQ(files.find("/", tag)->body, "");
}

TEST(web_files, a_folder_without_pages_is_named) {
    std::string error;
    web_files::load("/nowhere", error);
    EXPECT_NE(error.find("/nowhere"), std::string::npos);
}

TEST(certificate, it_is_made_once_and_again_when_it_lacks_a_name) {
    const folder at;
    std::string error;
    const auto first = portal_certificate(at.path, {"localhost", "127.0.0.1"}, error);
    EXPECT_EQ(error, "");
    EXPECT_EQ(first.fingerprint.size(), 95u);
    EXPECT_EQ(portal_certificate(at.path, {"127.0.0.1"}, error).fingerprint, first.fingerprint);
    EXPECT_NE(portal_certificate(at.path, {"other"}, error).fingerprint, first.fingerprint);
    EXPECT_EQ(fs::status(first.key).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    portal_certificate("/proc/none", {"a"}, error);
    EXPECT_NE(error, "");
}

} // namespace
} // namespace kagemusha::control::portal
