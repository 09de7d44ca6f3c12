// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/node/files.hpp"
#include "kubernetes/node/gpu_lister.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>

namespace kagemusha::kubernetes {
namespace {

namespace fs = std::filesystem;

class node_folder : public ::testing::Test {
protected:
    void SetUp() override {
        std::string name = (fs::temp_directory_path() / "kagemusha-k8s-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }
    void TearDown() override { fs::remove_all(folder_); }

    // A program in the place of kagemusha-gpus.
    std::string lister(const std::string& body) {
        const auto path = (folder_ / "lister").string();
        std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
        ::chmod(path.c_str(), S_IRWXU);
        return path;
    }
    std::string error_of(const std::string& body, int timeout_ms = 30'000) {
        std::string error;
        EXPECT_FALSE(list_gpus(lister(body), timeout_ms, error)) << body;
        return error;
    }

    fs::path folder_;
};

std::string content_of(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path).rdbuf();
    return out.str();
}

TEST_F(node_folder, lists_what_has_a_selector) {
    std::string error;
    const auto gpus =
        list_gpus(lister("echo '{\"gpus\": [{\"name\": \"A\", \"memory_bytes\": 1048576, "
                         "\"own_selector\": \"cpu:0:P\"}, {\"name\": \"B\", \"own_selector\": \"\"}]}'"),
                  30'000, error);
    ASSERT_TRUE(gpus) << error;
    ASSERT_EQ(gpus->size(), 1u);
    EXPECT_EQ(gpus->front().name, "A");
    EXPECT_EQ(gpus->front().memory_bytes, 1u << 20);
    EXPECT_EQ(gpus->front().numa, -1);
    EXPECT_TRUE(gpus->front().nodes.empty()) << "a processor has none";
    EXPECT_TRUE(gpus->front().id.starts_with("gpu-"));
}

TEST_F(node_folder, drivers_that_hang_crash_or_babble_are_told) {
    EXPECT_NE(error_of("exec sleep 1000", 50).find("a driver hangs"), std::string::npos);
    EXPECT_NE(error_of("kill -SEGV $$").find("signal 11"), std::string::npos);
    EXPECT_NE(error_of("yes").find("says more than"), std::string::npos);
    EXPECT_NE(error_of("echo '{\"gpus\": []}'").find("no GPU"), std::string::npos);
    EXPECT_EQ(error_of("echo '{\"error\": \"no platform\"}'; exit 1"), "no platform");
    EXPECT_NE(error_of("echo nonsense").find("no GPU"), std::string::npos);
}

TEST_F(node_folder, files_are_written_whole) {
    const auto path = (folder_ / "cdi/spec.json").string();
    EXPECT_EQ(write_atomically(path, "one"), "");
    EXPECT_EQ(write_atomically(path, "two"), "");
    EXPECT_EQ(content_of(path), "two");
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_ / "cdi"))
        ++files;
    EXPECT_EQ(files, 1u);
    fs::create_directory(folder_ / "a-folder");
    EXPECT_NE(write_atomically((folder_ / "a-folder").string(), "x"), "");
    EXPECT_FALSE(fs::exists(folder_ / "a-folder.new"));
}

TEST_F(node_folder, only_a_socket_counts_as_one) {
    EXPECT_FALSE(socket_at((folder_ / "none").string()));
    std::ofstream(folder_ / "file") << "x";
    EXPECT_FALSE(socket_at((folder_ / "file").string()));
}

} // namespace
} // namespace kagemusha::kubernetes
