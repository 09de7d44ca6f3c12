// SPDX-License-Identifier: GPL-2.0-or-later
// The parts of gpu/ that are pure: payloads, gate, handle map, options and selectors, fault script, kernel
// signatures, the tables of queries, the list of GPUs as text.
#include <CL/cl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "gpu/backend.hpp"
#include "gpu/copy_crew.hpp"
#include "gpu/faulty/fault_script.hpp"
#include "gpu/gpus.hpp"
#include "gpu/guest_memory.hpp"
#include "gpu/handle_map.hpp"
#include "gpu/info_table.hpp"
#include "gpu/null/kernel_signature.hpp"

namespace kagemusha::gpu {
namespace {

std::shared_ptr<rundown_gate> open_gate() {
    return std::make_shared<rundown_gate>();
}

TEST(guest_payload, JoinsAdjacentRunsOnly) {
    std::byte memory[100] = {};
    guest_payload p(open_gate());
    p.append(memory, 10);
    p.append(memory + 10, 5);
    p.append(memory + 20, 5);
    ASSERT_EQ(p.runs().size(), 2u);
    EXPECT_EQ(p.runs()[0].bytes, 15u);
    EXPECT_EQ(p.runs()[1].offset, 15u);
    EXPECT_EQ(p.bytes(), 20u);
    EXPECT_EQ(p.contiguous(), nullptr);
}

TEST(guest_payload, ReadsAndWritesAcrossRuns) {
    std::byte memory[64] = {};
    guest_payload p(open_gate());
    p.append(memory + 40, 3);
    p.append(memory + 0, 4);
    p.append(memory + 20, 5);
    std::byte in[12];
    for (int i = 0; i < 12; ++i)
        in[i] = static_cast<std::byte>(i + 1);
    ASSERT_TRUE(p.write(0, in, 12));
    EXPECT_EQ(memory[40], std::byte{1});
    EXPECT_EQ(memory[0], std::byte{4});
    EXPECT_EQ(memory[24], std::byte{12});
    EXPECT_EQ(memory[4], std::byte{0});
    for (std::uint64_t offset = 0; offset < 12; ++offset)
        for (std::uint64_t n = 0; n + offset <= 12; ++n) {
            std::byte out[12] = {};
            ASSERT_TRUE(p.read(offset, out, n));
            for (std::uint64_t i = 0; i < 12; ++i)
                ASSERT_EQ(out[i], i < n ? in[offset + i] : std::byte{0});
        }
}

TEST(guest_payload, ARangeBehindTheEndIsOurMistakeAndAborts) {
    std::byte memory[8] = {}, out[16];
    guest_payload p(open_gate());
    p.append(memory, 8);
    EXPECT_DEATH(p.read(1, out, 8), "");
    EXPECT_DEATH(p.read(~std::uint64_t{0}, out, 2), "");
}

TEST(guest_payload, NothingIsTouchedBehindAClosedGate) {
    std::byte memory[8] = {}, data[8] = {std::byte{1}};
    auto gate = open_gate();
    guest_payload p(gate);
    p.append(memory, 8);
    gate->close();
    EXPECT_FALSE(p.write(0, data, 8));
    EXPECT_FALSE(p.read(0, data, 8));
    EXPECT_FALSE(p.write_box({8, 1, 1}, {}, data, {}));
    EXPECT_EQ(memory[0], std::byte{0});
}

TEST(rundown_gate, CloseWaitsForThoseInside) {
    for (int round = 0; round < 200; ++round) {
        rundown_gate gate;
        std::atomic<bool> closed = false;
        std::atomic<int> late = 0;
        std::vector<std::thread> users;
        for (int i = 0; i < 3; ++i)
            users.emplace_back([&] {
                while (gate.enter()) {
                    if (closed)
                        ++late;
                    gate.leave();
                }
            });
        gate.close();
        closed = true;
        for (auto& t : users)
            t.join();
        EXPECT_EQ(late, 0);
    }
}

TEST(handle_map, OneIdOneObjectOfOneKind) {
    handle_map<int, std::string> map;
    EXPECT_EQ(map.insert(0, 1), nullptr);
    ASSERT_NE(map.insert(7, 5), nullptr);
    EXPECT_EQ(map.insert(7, std::string("x")), nullptr);
    EXPECT_EQ(map.find<std::string>(7), nullptr);
    EXPECT_EQ(*map.find<int>(7), 5);
    EXPECT_FALSE(map.erase<std::string>(7));
    EXPECT_TRUE(map.erase<int>(7));
    EXPECT_FALSE(map.erase<int>(7));
    EXPECT_NE(map.insert(7, std::string("x")), nullptr);
}

TEST(handle_map, AddressesStayWhileOthersComeAndGo) {
    handle_map<int> map;
    const int* first = map.insert(1, 11);
    for (std::uint64_t i = 2; i < 20'000; ++i)
        map.insert(i << 12, static_cast<int>(i));
    for (std::uint64_t i = 2; i < 20'000; i += 2)
        map.erase<int>(i << 12);
    EXPECT_EQ(map.find<int>(1), first);
    EXPECT_EQ(map.size(), 10'000u);
}

TEST(options, AreKeysWithValues) {
    backend_options o;
    std::string error;
    ASSERT_TRUE(parse_options("a=1,b=x:y=z,c=", o, error));
    ASSERT_EQ(o.size(), 3u);
    EXPECT_EQ(o[1].second, "x:y=z");
    EXPECT_EQ(o[2].second, "");
    EXPECT_TRUE(parse_options("", o, error));
    EXPECT_TRUE(o.empty());
    for (const char* wrong : {"a", "=1", ",a=1", "a=1,,b=2"}) {
        EXPECT_FALSE(parse_options(wrong, o, error)) << wrong;
        EXPECT_NE(error.find("key=value"), error.npos);
    }
}

TEST(open_gpu, SaysWhatIsWrong) {
    EXPECT_NE(open_gpu("cuba", "").error.find("there are: opencl, cuda, null, faulty"), std::string::npos);
    EXPECT_NE(open_gpu("null", "7").error.find("no GPU fits '7'; this host has 0: Null GPU"),
              std::string::npos);
    EXPECT_NE(open_gpu("null", "", "colour=red").error.find("colour=red"), std::string::npos);
    EXPECT_NE(open_gpu("opencl", "", "colour=red").error.find("colour=red"), std::string::npos);
    EXPECT_NE(open_gpu("faulty", "", "on=launch").error.find("no 'do='"), std::string::npos);
    EXPECT_NE(open_gpu("faulty", "", "backend=faulty").error.find("does not wrap itself"), std::string::npos);
    for (const char* selector : {"", "0", "0.0", "null", "NULL g"})
        EXPECT_TRUE(open_gpu("null", selector).device) << selector;
    EXPECT_EQ(describe(*open_gpu("faulty", "").device).name, "Faulty Null GPU");
}

TEST(choose_gpu, LeavesTheOneThatOpenGpuTakes) {
    const gpu_list all = list_gpus("null");
    ASSERT_EQ(choose_gpu(all, "").gpus.size(), 1u);
    EXPECT_EQ(choose_gpu(all, "0.0").gpus.at(0).name, all.gpus.at(0).name);
    const gpu_list none = choose_gpu(all, "7");
    EXPECT_TRUE(none.gpus.empty());
    EXPECT_NE(none.error.find("no GPU fits '7'"), std::string::npos);
    gpu_list empty;
    empty.error = "there is no OpenCL";
    EXPECT_EQ(choose_gpu(empty, "0").error, empty.error);
}

// What a process that may open one GPU only lists has other numbers.
TEST(choose_gpu, KnowsAGpuAgainAmongFewer) {
    gpu_list all;
    for (const char* selector : {"cpu:0:P", "", "pci:0000:17:00.0", "pci:0000:9a:00.0"}) {
        gpu_description gpu;
        gpu.index = static_cast<std::uint32_t>(all.gpus.size());
        gpu.own_selector = selector;
        all.gpus.push_back(gpu);
    }
    EXPECT_EQ(choose_gpu(all, "pci:0000:9a:00.0").gpus.at(0).index, 3u);
    EXPECT_EQ(choose_gpu(all, "cpu:0:P").gpus.at(0).index, 0u);
    EXPECT_TRUE(choose_gpu(all, "cpu:1:P").gpus.empty());
    EXPECT_TRUE(choose_gpu(all, "pci:0000:18:00.0").gpus.empty());
}

fault_script script(const char* text) {
    backend_options o;
    std::string error;
    fault_script s;
    EXPECT_TRUE(parse_options(text, o, error)) << error;
    EXPECT_TRUE(s.parse(o, error)) << error;
    return s;
}

std::string pattern(fault_script s, fault_point point, int count) {
    std::string out;
    for (int i = 0; i < count; ++i)
        out += s.next(point) ? 'x' : '.';
    return out;
}

TEST(fault_script, Counts) {
    EXPECT_EQ(pattern(script("on=launch,do=hang"), fault_point::launch, 5), "x....");
    EXPECT_EQ(pattern(script("on=launch:3,do=hang"), fault_point::launch, 5), "..x..");
    EXPECT_EQ(pattern(script("on=launch:3+,do=hang"), fault_point::launch, 5), "..xxx");
    EXPECT_EQ(pattern(script("on=launch:%2,do=hang"), fault_point::launch, 5), ".x.x.");
    EXPECT_EQ(pattern(script("on=launch:*,do=hang"), fault_point::launch, 3), "xxx");
    EXPECT_EQ(pattern(script("on=launch:*,do=hang"), fault_point::read, 3), "...");
    EXPECT_EQ(pattern(script("on=command:2,do=hang"), fault_point::fill, 3), ".x.");
    EXPECT_EQ(pattern(script("on=command:1,do=hang"), fault_point::build, 3), "...");
    EXPECT_EQ(pattern(script("on=any:1,do=hang"), fault_point::build, 3), "x..");
}

TEST(fault_script, TheFirstRuleThatFitsWins) {
    fault_script s = script("on=read:2,do=error:-5,on=command:*,do=delay:7");
    EXPECT_EQ(s.next(fault_point::read)->action, fault_action::delay);
    const auto second = s.next(fault_point::read);
    EXPECT_EQ(second->action, fault_action::error);
    EXPECT_EQ(second->number, -5);
    EXPECT_EQ(s.next(fault_point::launch)->number, 7);
}

TEST(fault_script, RefusesWhatItDoesNotUnderstand) {
    for (const char* wrong :
         {"on=lunch,do=hang", "on=launch:0,do=hang", "on=launch:x,do=hang", "on=launch:%,do=hang",
          "on=launch", "do=hang", "on=launch,on=read,do=hang", "on=launch,do=error", "on=launch,do=error:5",
          "on=launch,do=hang:3", "on=launch,do=delay:-1", "on=launch,do=exit:256", "on=launch,do=sing"}) {
        backend_options o;
        std::string error;
        fault_script s;
        ASSERT_TRUE(parse_options(wrong, o, error));
        EXPECT_FALSE(s.parse(o, error)) << wrong;
        EXPECT_FALSE(error.empty());
    }
}

TEST(kernel_signature, ReadsWhatPeopleWrite) {
    const auto kernels = find_kernels(R"(
#define MACRO(x) kernel void not_me(int x) { }
// kernel void nor_me(int x) {}
/* kernel void comment(int x) {} */
constant char text[] = "kernel void string(int x) {}";
__attribute__((reqd_work_group_size(8, 8, 1)))
__kernel
void first(__global float4 *restrict a, __local int b[], unsigned int c, const __constant struct thing* d,
           read_only image2d_t e, sampler_t f, __write_only image3d_t g, volatile global uint *h)
{ helper(a); }
kernel void declared_only(int x);
kernel __attribute__((vec_type_hint(float4))) void second(void) { }
kernel void third() { }
)");
    ASSERT_EQ(kernels.size(), 3u);
    EXPECT_EQ(kernels[0].name, "first");
    const auto& a = kernels[0].arguments;
    ASSERT_EQ(a.size(), 8u);
    EXPECT_EQ(a[0].type_name, "float4*");
    EXPECT_EQ(a[0].name, "a");
    EXPECT_EQ(a[0].address_qualifier, static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_GLOBAL));
    EXPECT_EQ(a[0].type_qualifier, static_cast<cl_ulong>(CL_KERNEL_ARG_TYPE_RESTRICT));
    EXPECT_EQ(a[1].address_qualifier, static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_LOCAL));
    EXPECT_EQ(a[2].type_name, "unsigned int");
    EXPECT_EQ(a[3].address_qualifier, static_cast<cl_uint>(CL_KERNEL_ARG_ADDRESS_CONSTANT));
    EXPECT_EQ(a[4].access_qualifier, static_cast<cl_uint>(CL_KERNEL_ARG_ACCESS_READ_ONLY));
    EXPECT_EQ(a[4].type_name, "image2d_t");
    EXPECT_EQ(a[5].type_name, "sampler_t");
    EXPECT_EQ(a[6].access_qualifier, static_cast<cl_uint>(CL_KERNEL_ARG_ACCESS_WRITE_ONLY));
    EXPECT_EQ(a[7].type_qualifier, static_cast<cl_ulong>(CL_KERNEL_ARG_TYPE_VOLATILE));
    EXPECT_EQ(kernels[1].name, "second");
    EXPECT_TRUE(kernels[1].arguments.empty());
    EXPECT_TRUE(kernels[2].arguments.empty());
}

TEST(kernel_signature, SurvivesNonsense) {
    std::string source = "kernel void k(global int* a, int b) { }";
    for (std::size_t i = 0; i <= source.size(); ++i) {
        find_kernels(source.substr(0, i));
        find_kernels(source.substr(i));
    }
    for (const char* s :
         {"kernel", "kernel(", "kernel )", "kernel void k(((", "/*", "\"", "#\\", "kernel __attribute__"})
        EXPECT_TRUE(find_kernels(s).empty()) << s;
}

TEST(info_table, HasNoHandlesAndNoNameTwice) {
    for (const std::uint32_t handle :
         {CL_DEVICE_PLATFORM, CL_DEVICE_PARENT_DEVICE, CL_DEVICE_REFERENCE_COUNT})
        EXPECT_EQ(find_info(VGPU_INFO_DEVICE, handle), nullptr);
    for (const std::uint32_t handle : {CL_MEM_HOST_PTR, CL_MEM_CONTEXT, CL_MEM_ASSOCIATED_MEMOBJECT})
        EXPECT_EQ(find_info(VGPU_INFO_MEMORY, handle), nullptr);
    EXPECT_EQ(find_info(VGPU_INFO_IMAGE, CL_IMAGE_BUFFER), nullptr);
    EXPECT_EQ(find_info(VGPU_INFO_PROGRAM, CL_PROGRAM_DEVICES), nullptr);
    for (std::uint32_t subject = VGPU_INFO_PLATFORM; subject <= VGPU_INFO_TIMERS; ++subject) {
        const auto names = info_names(static_cast<vgpu_info_subject>(subject));
        for (std::size_t i = 0; i < names.size(); ++i)
            for (std::size_t k = i + 1; k < names.size(); ++k)
                EXPECT_NE(names[i].name, names[k].name) << subject;
    }
}

// The queries of every extension that the guest's driver lets through (device_info.cpp there).
TEST(info_table, HasWhatExtensionsAdd) {
    for (const std::uint32_t name :
         {0x105f, // cl_khr_extended_versioning: CL_DEVICE_OPENCL_C_NUMERIC_VERSION_KHR
          0x106a, 0x106b, 0x106c, 0x106d, 0x106e, // cl_khr_device_uuid
          0x1073, 0x1074, 0x1075,                 // cl_khr_integer_dot_product
          0x40e0,                                 // cl_khr_spir
          0x4108,                                 // cl_intel_required_subgroup_size
          0x4231, 0x4232, 0x4233,                 // cl_ext_float_atomics
          0x4000, 0x4001, 0x4002, 0x4003, 0x4004, 0x4005, 0x4006, 0x4007})
        EXPECT_NE(find_info(VGPU_INFO_DEVICE, name), nullptr) << std::hex << name;
    EXPECT_NE(find_info(VGPU_INFO_KERNEL_WORK_GROUP, 0x4109), nullptr); // cl_intel_required_subgroup_size
    EXPECT_NE(find_info(VGPU_INFO_KERNEL_SUB_GROUP, 0x410a), nullptr);
    // Where the host's GPU is plugged in is none of the guest's business.
    EXPECT_EQ(find_info(VGPU_INFO_DEVICE, 0x4008), nullptr); // CL_DEVICE_PCI_BUS_ID_NV
    EXPECT_EQ(find_info(VGPU_INFO_DEVICE, 0x410f), nullptr); // CL_DEVICE_PCI_BUS_INFO_KHR
}

TEST(gpus, AsTableAndJson) {
    const gpu_list list = list_gpus("null");
    EXPECT_NE(gpu_table(list).find("*  0    0.0"), std::string::npos) << gpu_table(list);
    EXPECT_NE(gpu_json(list).find("\"name\": \"Null GPU\""), std::string::npos);
    gpu_list none;
    none.error = "there is \"none\"";
    EXPECT_EQ(gpu_table(none), "there is \"none\"\n");
    EXPECT_EQ(gpu_json(none), "{\"gpus\": [], \"error\": \"there is \\\"none\\\"\"}\n");
}

// Each byte once, whoever copies, also when several share at a time: then all but one are alone.
TEST(copy_crew, every_byte_is_in_one_part) {
    constexpr std::uint64_t sizes[] = {0,
                                       1,
                                       copy_crew::smallest_shared_bytes - 1,
                                       copy_crew::smallest_shared_bytes,
                                       copy_crew::smallest_shared_bytes + 1,
                                       copy_crew::piece_bytes * 21 + 17};
    for (const unsigned helpers : {0u, 1u, 3u}) {
        copy_crew crew(helpers);
        const auto use = [&] {
            for (int round = 0; round < 4; ++round)
                for (const std::uint64_t bytes : sizes) {
                    std::vector<std::uint8_t> taken(bytes);
                    crew.share(bytes, [&](std::uint64_t begin, std::uint64_t end) {
                        for (std::uint64_t i = begin; i < end; ++i)
                            ++taken[i];
                    });
                    ASSERT_EQ(std::count(taken.begin(), taken.end(), 1), static_cast<std::ptrdiff_t>(bytes));
                }
        };
        std::vector<std::thread> users;
        for (int i = 0; i < 3; ++i)
            users.emplace_back(use);
        for (std::thread& one : users)
            one.join();
    }
}

// A part that waits for another one ends only if two threads are at it.
TEST(copy_crew, parts_are_copied_at_a_time) {
    copy_crew crew(1);
    std::atomic<unsigned> inside = 0;
    crew.share(copy_crew::smallest_shared_bytes, [&](std::uint64_t, std::uint64_t) {
        ++inside;
        while (inside < 2)
            std::this_thread::yield();
    });
    EXPECT_EQ(inside, copy_crew::smallest_shared_bytes / copy_crew::piece_bytes);
}

} // namespace
} // namespace kagemusha::gpu
