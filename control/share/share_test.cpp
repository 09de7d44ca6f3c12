// SPDX-License-Identifier: GPL-2.0-or-later
#include "control/share/gpu_of_host.hpp"
#include "control/share/share_status.hpp"
#include "control/share/vm_share.hpp"
#include "control/status/replication_status.hpp"
#include "control/vm/described_share.hpp"
#include "share/core/terms.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace kagemusha::control {
namespace {

std::string errors_of(const std::string& keys, vm_description* out = nullptr) {
    std::vector<std::string> errors;
    const auto vm = parse_vm_description("name = \"a\"\n[[disk]]\npath = \"d.img\"\n[gpu]\n" + keys,
                                         "vm.toml", "/vms", errors);
    if (vm && out)
        *out = *vm;
    std::string all;
    for (const auto& error : errors)
        all += error + "\n";
    return all;
}

described_gpu gpu_with(const std::string& keys) {
    vm_description vm;
    EXPECT_EQ(errors_of(keys, &vm), "");
    return vm.gpu.value_or(described_gpu{});
}

std::string property(const described_gpu& gpu, const std::string& name) {
    const auto found = std::ranges::find(gpu.properties, name, &std::pair<std::string, std::string>::first);
    return found == gpu.properties.end() ? std::string() : found->second;
}

TEST(described_share, a_vm_without_the_keys_shares_with_nobody) {
    EXPECT_FALSE(gpu_with("backend = \"opencl\"\n").share);
}

TEST(described_share, every_key_is_read) {
    const auto gpu = gpu_with("share = 25\ncap = 50\npriority = 3\nmemory = \"8G\"\npolicy = \"fixed\"\n");
    ASSERT_TRUE(gpu.share);
    const auto hello = hello_of(*gpu.share, "web", true);
    EXPECT_EQ(hello.share_permille, 250u);
    EXPECT_EQ(hello.cap_permille, 500u);
    EXPECT_EQ(hello.priority, 3u);
    EXPECT_EQ(hello.memory_bytes, 8ull << 30);
    EXPECT_EQ(hello.flags, SHARE_IS_STANDBY | SHARE_HAS_POLICY);
    EXPECT_EQ(hello.policy, static_cast<std::uint32_t>(share::policy_kind::fixed));
    EXPECT_STREQ(hello.vm, "web");
}

TEST(described_share, mistakes_are_told) {
    EXPECT_NE(errors_of("share = 101\n").find("1 to 100"), std::string::npos);
    EXPECT_NE(errors_of("share = 0\n").find("1 to 100"), std::string::npos);
    EXPECT_NE(errors_of("priority = 8\n").find("0 to 7"), std::string::npos);
    EXPECT_NE(errors_of("policy = \"best\"\n").find("round-robin"), std::string::npos);
    EXPECT_NE(errors_of("profile = \"2/3\"\n").find("there is no profile \"2/3\""), std::string::npos);
    EXPECT_NE(errors_of("profile = \"1/4\"\nshare = 10\n").find("give it, or them"), std::string::npos);
    EXPECT_NE(errors_of("share = 50\ncap = 25\n").find("'cap' is less than 'share'"), std::string::npos);
    EXPECT_NE(errors_of("memory = \"1G\"\n[gpu.properties]\nmax-memory = \"2G\"\n").find("give one"),
              std::string::npos);
}

TEST(described_share, a_quota_is_a_limit_of_the_device) {
    auto gpu = gpu_with("memory = \"8G\"\n");
    EXPECT_EQ(limit_memory(gpu, 0), "");
    EXPECT_EQ(property(gpu, "max-memory"), "8589934592");
    EXPECT_EQ(property(gpu, "max-file-memory"), "8589934592");
}

TEST(described_share, a_profile_is_a_part_of_time_and_memory) {
    auto gpu = gpu_with("profile = \"1/4\"\n");
    EXPECT_NE(limit_memory(gpu, 0), "") << "of a GPU whose memory nobody knows";
    EXPECT_EQ(limit_memory(gpu, 80ull << 30), "");
    EXPECT_EQ(property(gpu, "max-memory"), std::to_string(20ull << 30));
    EXPECT_EQ(hello_of(*gpu.share, "web", false).share_permille, 250u);
}

TEST(gpu_of_host, what_the_lister_says_is_read) {
    const auto gpus = parse_gpus(R"({"gpus": [{"name": "H200", "memory_bytes": 150000000000,
                                     "own_selector": "pci:0000:17:00.0"}, {"name": "odd"}, 3]})");
    ASSERT_EQ(gpus.size(), 2u);
    EXPECT_EQ(gpus[0].selector, "pci:0000:17:00.0");
    EXPECT_EQ(gpus[0].memory_bytes, 150000000000u);
    EXPECT_NE(share_socket_name(gpus[0]), share_socket_name(gpus[1]));
    for (const char* rubbish : {"", "3", "{}", "{\"gpus\": 3}"})
        EXPECT_TRUE(parse_gpus(rubbish).empty()) << rubbish;
}

shared_gpu gpu_at(std::uint64_t now_ns, std::uint64_t used_ns, std::uint64_t waited_ns) {
    shared_vm vm;
    std::strcpy(vm.row.vm, "web");
    vm.row.share_permille = 250;
    vm.row.cap_permille = 1000;
    vm.row.gpu_ns = used_ns;
    vm.row.waited_ns = waited_ns;
    vm.row.tasks = now_ns / 1000000;
    return {"H200", "fair", 1ull << 37, now_ns, {vm}};
}

TEST(share_status, rates_are_between_two_readings) {
    std::vector<shared_gpu> now{gpu_at(2'000'000'000, 1'300'000'000, 500'000'000)};
    set_shared_rates(now, {gpu_at(1'000'000'000, 1'000'000'000, 0)});
    EXPECT_NEAR(now[0].vms[0].got, 0.3, 1e-9);
    EXPECT_NEAR(now[0].vms[0].waited, 0.5, 1e-9);
    EXPECT_NEAR(now[0].vms[0].tasks_per_s, 1000, 1e-6);
    std::vector<shared_gpu> anew{gpu_at(3'000'000'000, 5, 0)};
    set_shared_rates(anew, now);
    EXPECT_EQ(anew[0].vms[0].got, 0);
}

TEST(share_status, programs_are_shown_where_they_are_asked_for) {
    const auto with_program = [](std::uint64_t now_ns, std::uint64_t used_ns, std::uint32_t worker) {
        auto gpu = gpu_at(now_ns, used_ns, 0);
        shared_program program;
        std::strcpy(program.row.vm, "web");
        program.row.worker = worker;
        program.row.gpu_ns = used_ns;
        gpu.vms[0].programs = {program};
        return gpu;
    };
    std::vector<shared_gpu> now{with_program(2'000'000'000, 1'300'000'000, 4711)};
    set_shared_rates(now, {with_program(1'000'000'000, 1'000'000'000, 4711)});
    EXPECT_NEAR(now[0].vms[0].programs[0].got, 0.3, 1e-9);
    EXPECT_EQ(shared_text(now).find("4711"), std::string::npos);
    EXPECT_NE(shared_text(now, true).find("worker 4711                    30.0"), std::string::npos)
        << shared_text(now, true);
    EXPECT_EQ(shared_json(now)[0]["vms"][0]["program_accounts"][0]["worker"], 4711);
    set_shared_rates(now, {with_program(1'000'000'000, 1'000'000'000, 9)}); // another one
    EXPECT_EQ(now[0].vms[0].programs.size(), 1u);
}

TEST(share_status, the_one_that_used_most_is_first) {
    auto gpu = gpu_at(1, 10, 0);
    auto other = gpu.vms[0];
    std::strcpy(other.row.vm, "busy");
    other.got = 0.7;
    gpu.vms.push_back(other);
    const auto text = shared_text({gpu});
    EXPECT_NE(text.find("H200, shared by 2 VMs, policy fair, 128.0 GiB"), std::string::npos) << text;
    EXPECT_LT(text.find("busy"), text.find("web"));
    EXPECT_EQ(shared_text({}), "");
    EXPECT_EQ(shared_json({gpu})[0]["vms"][0]["share_permille"], 250);
}

TEST(share_status, a_vms_status_has_its_share) {
    vm_reading vm{"web", 1, "", {}};
    vm.share = {
        {"got", 0.25}, {"waited", 0.5}, {"policy", "fair"}, {"share_permille", 250u}, {"cap_permille", 500u}};
    EXPECT_NE(status_text({vm}).find("  GPU time   25.0 %, waited 50.0 %; policy fair, 25.0 % asked, at most "
                                     "50.0 %\n"),
              std::string::npos)
        << status_text({vm});
}

} // namespace
} // namespace kagemusha::control
