// SPDX-License-Identifier: GPL-2.0-or-later
#include "kubernetes/node/files.hpp"
#include "kubernetes/node/gpu_lister.hpp"
#include "kubernetes/node/mig_lister.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

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

constexpr char two_instances[] = R"([
    {"mig": "on", "pci": "0000:17:00.0", "name": "H100", "uuid": "GPU-1", "instances": [
        {"uuid": "MIG-00000000-0000-4000-8000-000000000101", "id": 3, "profile": "1g.10gb", "memory_bytes": 1048576},
        {"uuid": "MIG-00000000-0000-4000-8000-000000000102", "id": 5, "profile": "2g.20gb", "memory_bytes": 2097152},
        {"uuid": "", "id": 6, "profile": "1g.10gb"}, {"uuid": "MIG-../../x", "profile": "1g.10gb"}, 7]},
    {"mig": "off", "pci": "0000:65:00.0", "name": "L4"}, 3])";

TEST_F(node_folder, instances_take_the_place_of_the_gpu_that_was_cut) {
    std::string error;
    const auto cut = parse_mig(two_instances, error);
    ASSERT_TRUE(cut) << error;
    ASSERT_EQ(cut->size(), 1u);
    ASSERT_EQ(cut->front().instances.size(), 2u);
    found_gpu parent, other;
    parent.name = "H100 MIG 1g.10gb", parent.selector = "pci:0000:17:00.0";
    other.name = "L4", other.selector = "pci:0000:65:00.0";
    const auto gpus = with_instances({parent, other}, *cut);
    ASSERT_EQ(gpus.size(), 3u);
    EXPECT_EQ(gpus[0].name, "L4");
    EXPECT_EQ(gpus[1].name, "H100 MIG 1g.10gb");
    EXPECT_EQ(gpus[1].selector, "MIG-00000000-0000-4000-8000-000000000101");
    EXPECT_EQ(gpus[1].parent, "pci:0000:17:00.0");
    EXPECT_EQ(gpus[1].memory_bytes, 1u << 20);
    EXPECT_TRUE(gpus[1].id.starts_with("gpu-"));
    EXPECT_NE(gpus[1].id, gpus[2].id);
    for (const char* nonsense : {"", "{}", "3", "[{"})
        EXPECT_FALSE(parse_mig(nonsense, error)) << nonsense;
    EXPECT_TRUE(parse_mig("[]", error)->empty());
}

TEST_F(node_folder, an_instance_has_its_own_rights_and_no_others) {
    if (::getuid() != 0)
        GTEST_SKIP() << "only root makes device nodes";
    const auto at = [&](const std::string& path) { return folder_.string() + path; };
    const auto file = [&](const std::string& path, const std::string& text) {
        fs::create_directories(fs::path(at(path)).parent_path());
        std::ofstream(at(path)) << text;
    };
    fs::create_directories(at("/dev/nvidia-caps"));
    for (const char* node : {"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia-caps/nvidia-cap21",
                             "nvidia-caps/nvidia-cap22", "nvidia-caps/nvidia-cap30"})
        ASSERT_EQ(::mknod(at(std::string("/dev/") + node).c_str(), S_IFCHR | S_IRUSR, 0), 0) << node;
    file("/proc/driver/nvidia/gpus/0000:17:00.0/information", "Device Minor: \t 1\n");
    file("/proc/driver/nvidia/capabilities/gpu1/mig/gi3/access",
         "DeviceFileMinor: 21\nDeviceFileMode: 292\n");
    file("/proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access", "DeviceFileMinor: 22\n");
    file("/proc/driver/nvidia/capabilities/gpu1/mig/gi5/access", "DeviceFileMinor: 30\n");
    std::string error;
    auto cut = parse_mig(two_instances, error);
    ASSERT_TRUE(cut) << error;
    auto nodes = with_instances({}, *cut, folder_.string()).front().nodes;
    std::ranges::sort(nodes);
    const std::vector<std::string> wanted{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22",
                                          "/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"};
    EXPECT_EQ(nodes, wanted);
    fs::remove_all(at("/proc/driver/nvidia/capabilities"));
    EXPECT_EQ(with_instances({}, *cut, folder_.string()).front().nodes.size(), 6u)
        << "a driver that does not tell";
}

TEST_F(node_folder, why_instances_are_not_known_is_told) {
    std::string error;
    EXPECT_FALSE(list_mig(lister("echo 'kage: no library' >&2; exit 125"), 30'000, error));
    EXPECT_EQ(error, "MIG instances are not known: kage: no library");
    EXPECT_FALSE(list_mig(lister("exec sleep 1000"), 50, error));
    EXPECT_NE(error.find("a driver hangs"), std::string::npos);
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
