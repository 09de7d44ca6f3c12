// SPDX-License-Identifier: GPL-2.0-or-later
// What a VM is made of: as this release compares it, and as version 1 did.
#include "control/vm/fingerprint.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

namespace kagemusha::control {
namespace {

struct fingerprint_test : testing::Test {
    void SetUp() override {
        char name[] = "/tmp/fingerprint-XXXXXX";
        directory = ::mkdtemp(name);
        write("kernel", "a kernel");
        write("disk", "a disk");
        vm.name = "vm";
        vm.memory_mib = 64;
        vm.qemu_options = {"-device", "virtio-balloon-pci"};
        vm.gpu.emplace();
        vm.gpu->properties = {{"max-files", "8"}, {"window-size", "64M"}};
        config.append = "quiet";
        config.kernel = directory + "/kernel";
        config.disks = {{directory + "/disk", "raw", false}, {directory + "/data", "raw", true}};
        write("data", std::string(4096, '\0'));
        config.networks = {{"user", "virtio-net-pci", "52:54:00:00:00:01"}};
    }
    void TearDown() override { std::filesystem::remove_all(directory); }
    void write(const std::string& name, const std::string& content) const {
        std::ofstream(directory + "/" + name) << content;
    }
    fingerprint made() {
        std::string error;
        auto out = fingerprint_of(vm, config, qemu, builds, error);
        EXPECT_TRUE(out) << error;
        return out.value_or(fingerprint{});
    }
    std::string value(const std::string& name) {
        for (const auto& part : made().parts)
            if (part.name == name)
                return part.value;
        return "none";
    }
    // What a peer with this one change is refused with.
    std::string refused_after(const std::function<void()>& change) {
        const auto before = made();
        change();
        return ha::why_not_movable(before.parts, made().parts);
    }
    std::string directory;
    vm_description vm;
    vm_config config;
    qemu_facts qemu{"10.0.13", "max vendor=AuthenticAMD family=15 model=107", "aes avx sse2 sse3"};
    host_builds builds{"0.1.0 build 1", "build 2", "build 3", "a processor"};
};

// Computed by hand after version 1's rules: each text behind its length in 8 bytes, files as they are.
TEST_F(fingerprint_test, version_1_sees_what_it_always_saw) {
    EXPECT_EQ(made().text, "79417005986793cd8b1ac612eb80a23d3f6947a14afea7de676e5cf1f2f51167");
    config.cpu = "EPYC-v4";
    EXPECT_NE(made().text, "79417005986793cd8b1ac612eb80a23d3f6947a14afea7de676e5cf1f2f51167")
        << "version 1 has no such VM";
}

TEST_F(fingerprint_test, each_part_that_the_guest_sees_is_compared_and_named) {
    EXPECT_EQ(refused_after([] {}), "");
    const std::pair<const char*, std::function<void()>> cases[] = {
        {"machine", [this] { config.machine = "pc-i440fx-9.2"; }},
        {"memory", [this] { vm.memory_mib = 128; }},
        {"CPUs", [this] { vm.cpus = 2; }},
        {"accelerator", [this] { config.accel = accelerator::kvm; }},
        {"CPU model", [this] { qemu.cpu = "max vendor=GenuineIntel family=6 model=85"; }},
        {"CPU features", [this] { qemu.cpu_features = "aes avx sse2 sse4-1"; }},
        {"kernel arguments", [this] { config.append = "noisy"; }},
        {"network 0", [this] { config.networks[0].mac = "52:54:00:00:00:02"; }},
        {"qemu-options", [this] { vm.qemu_options.pop_back(); }},
        {"GPU limits", [this] { vm.gpu->properties[0].second = "9"; }},
        {"kernel", [this] { write("kernel", "another"); }},
        {"disk 0", [this] { write("disk", "another"); }},
        {"disk 1", [this] { write("data", "short"); }},
        {"disk 2", [this] { config.disks.push_back({directory + "/disk", "raw", false}); }},
    };
    for (const auto& [name, change] : cases) {
        TearDown();
        vm = {};
        config = {};
        qemu = {"10.0.13", "max vendor=AuthenticAMD family=15 model=107", "aes avx sse2 sse3"};
        SetUp();
        const auto why = refused_after(change);
        EXPECT_NE(why.find("differently: " + std::string(name)), std::string::npos) << name << ": " << why;
    }
}

TEST_F(fingerprint_test, builds_do_not_refuse) {
    const auto before = made();
    builds = {"0.2.0 build 9", "build 8", "build 7", "another processor"};
    qemu.version = "10.0.14";
    const auto after = made();
    EXPECT_EQ(ha::why_not_movable(before.parts, after.parts), "");
    EXPECT_EQ(before.text, after.text);
    const auto seen = ha::allowed_differences(before.parts, after.parts);
    for (const char* name : {"release", "QEMU", "device library", "host CPU"})
        EXPECT_NE(seen.find(name), std::string::npos) << seen;
}

TEST_F(fingerprint_test, limits_are_compared_as_they_are_in_force) {
    EXPECT_NE(value("GPU limits").find("max-files=8 "), std::string::npos);
    EXPECT_NE(value("GPU limits").find("window-size=67108864"), std::string::npos);
    vm.gpu->properties = {{"max-files", "64"}};
    const auto named = value("GPU limits");
    vm.gpu->properties.clear();
    EXPECT_EQ(value("GPU limits"), named) << "the default, named or not";
    vm.gpu->properties = {{"hang-timeout-ms", "1"}};
    EXPECT_EQ(value("GPU limits"), named) << "when a host gives its GPU up is no limit of the guest's";
}

TEST_F(fingerprint_test, a_file_that_cannot_be_read_is_a_sentence) {
    config.kernel = directory + "/none";
    std::string error;
    EXPECT_FALSE(fingerprint_of(vm, config, qemu, builds, error));
    EXPECT_NE(error.find("cannot read"), std::string::npos) << error;
}

TEST(qemu_facts, features_are_words_each_once) {
    const char* printed =
        R"({"QMP": {"version": {"qemu": {"micro": 13, "minor": 0, "major": 10}, "package": ""}, "capabilities": []}}
{"return": {}, "id": 1}
{"return": {"qemu": {"micro": 13, "minor": 0, "major": 10}, "package": ""}, "id": 2}
{"return": {"model": {"name": "max", "props": {"vendor": "AuthenticAMD", "family": 15, "model": 107, "sse4-1": true, "sse4.1": true, "sse4_1": true, "avx": true, "avx512f": false, "x-internal": true, "migratable": true}}}, "id": 3}
{"return": {}, "id": 4}
)";
    std::string error;
    const auto facts = read_qemu_facts(printed, "max", error);
    ASSERT_TRUE(facts) << error;
    EXPECT_EQ(facts->version, "10.0.13");
    EXPECT_EQ(facts->cpu, "max vendor=AuthenticAMD family=15 model=107");
    EXPECT_EQ(facts->cpu_features, "avx sse4-1");
}

TEST(qemu_facts, what_qemu_refuses_is_told) {
    std::string error;
    EXPECT_FALSE(read_qemu_facts("{\"return\": {}, \"id\": 1}\n{\"error\": {\"class\": \"GenericError\", "
                                 "\"desc\": \"no such model\"}, "
                                 "\"id\": 3}\n",
                                 "nonsense", error));
    EXPECT_EQ(error, "QEMU: no such model");
    error.clear();
    EXPECT_FALSE(read_qemu_facts("", "max", error));
    EXPECT_NE(error, "");
}

} // namespace
} // namespace kagemusha::control
