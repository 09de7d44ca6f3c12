// SPDX-License-Identifier: GPL-2.0-or-later
// Which nodes a worker gets, on hosts that are folders.
#include "worker/gpu_nodes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gpu/own_selector.hpp"

namespace kagemusha::worker {
namespace {

namespace fs = std::filesystem;

class gpu_nodes_test : public testing::Test {
protected:
    gpu_nodes_test() {
        std::string name = (fs::temp_directory_path() / "gpu-nodes-XXXXXX").string();
        root_ = mkdtemp(name.data());
    }
    ~gpu_nodes_test() override { fs::remove_all(root_); }

    void put(const std::string& path, const std::string& text = "") {
        fs::create_directories(fs::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    // As driver 580 writes it.
    void put_nvidia(const std::string& pci, int minor) {
        put("/dev/nvidiactl");
        put("/dev/nvidia" + std::to_string(minor));
        put("/proc/driver/nvidia/gpus/" + pci + "/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\nBus Location: \t " + pci + "\nDevice Minor: \t " +
                std::to_string(minor) + "\nGPU Excluded:\t No\n");
    }
    std::vector<std::string> sorted(std::string_view selector) const {
        auto devices = nodes_of_gpu(selector, root_).devices;
        std::ranges::sort(devices);
        return devices;
    }

    std::string root_;
};

using names = std::vector<std::string>;

// Places are in another order than minors, as the kernel found the GPUs.
TEST_F(gpu_nodes_test, a_worker_gets_its_own_nvidia_gpu_only) {
    put_nvidia("0000:17:00.0", 3);
    put_nvidia("0000:9a:00.0", 0);
    put_nvidia("0001:17:00.0", 12);
    put("/dev/dri/renderD128");
    put("/dev/kfd");
    EXPECT_EQ(sorted("pci:0000:17:00.0"),
              (names{"/dev/nvidia-caps", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidiactl"}));
    EXPECT_EQ(sorted("pci:0001:17:00.0"),
              (names{"/dev/nvidia-caps", "/dev/nvidia-uvm", "/dev/nvidia12", "/dev/nvidiactl"}));
    EXPECT_TRUE(nodes_of_gpu("pci:0000:9a:00.0", root_).nvidia);
    EXPECT_EQ(nodes_of_gpu("pci:0000:9a:00.0", root_).problem, "");
}

TEST_F(gpu_nodes_test, a_processor_needs_none) {
    put_nvidia("0000:17:00.0", 0);
    put("/dev/dri/renderD128");
    EXPECT_EQ(sorted("cpu:0:Portable Computing Language"), names{});
    EXPECT_FALSE(nodes_of_gpu("cpu:0:Portable Computing Language", root_).nvidia);
}

TEST_F(gpu_nodes_test, other_makers_gpus_have_nodes_of_their_own_too) {
    put_nvidia("0000:17:00.0", 0);
    put("/dev/dri/renderD128");
    put("/dev/dri/card0");
    put("/dev/dri/renderD129");
    put("/sys/bus/pci/devices/0000:03:00.0/drm/renderD129/dev");
    put("/sys/bus/pci/devices/0000:03:00.0/drm/card7/dev"); // nothing in /dev
    put("/sys/bus/pci/devices/0000:04:00.0/drm/renderD128/dev");
    EXPECT_EQ(sorted("pci:0000:03:00.0"), (names{"/dev/dri/renderD129", "/dev/kfd"}));
    EXPECT_FALSE(nodes_of_gpu("pci:0000:03:00.0", root_).nvidia);
}

TEST_F(gpu_nodes_test, a_gpu_that_the_host_does_not_explain_gets_all_of_them_and_it_is_said) {
    put_nvidia("0000:17:00.0", 0);
    const gpu_nodes nodes = nodes_of_gpu("pci:0000:18:00.0", root_);
    EXPECT_NE(nodes.problem.find("0000:18:00.0"), std::string::npos);
    EXPECT_NE(std::ranges::find(nodes.devices, "/dev/nvidia31"), nodes.devices.end());
    put("/proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: x\nDevice Minor: \t none\n");
    EXPECT_NE(nodes_of_gpu("pci:0000:18:00.0", root_).problem, "");
}

TEST_F(gpu_nodes_test, whoever_looks_for_the_gpu_sees_all) {
    for (const char* selector : {"", "0", "1.0", "H100", "pci:", "pci:../../etc", "pci:0000:17:00.0/.."}) {
        const gpu_nodes nodes = nodes_of_gpu(selector, root_);
        EXPECT_NE(std::ranges::find(nodes.devices, "/dev/nvidia0"), nodes.devices.end()) << selector;
        EXPECT_EQ(nodes.problem, "") << selector;
        EXPECT_FALSE(nodes.nvidia) << "this host has none";
    }
}

TEST(own_selector, is_a_place_in_the_words_of_the_kernel) {
    EXPECT_EQ(gpu::pci_selector({0, 0x17, 0, 0}), "pci:0000:17:00.0");
    EXPECT_EQ(gpu::pci_of_selector("pci:0000:17:00.0"), "0000:17:00.0");
    EXPECT_EQ(gpu::pci_selector({0x10000, 0x17, 0, 0}), "") << "no such names";
    for (const char* other : {"pci:0000:17:00.", "pci:0000:17:00.00", "pci:0000:1G:00.0", "0000:17:00.0"})
        EXPECT_EQ(gpu::pci_of_selector(other), "") << other;
}

} // namespace
} // namespace kagemusha::worker
