// SPDX-License-Identifier: GPL-2.0-or-later
// What a driver is asked when its context is taken, before a guest's first object: with a driver of a few
// functions, which writes it down.
#include "gpu/cuda/cuda_device.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace kagemusha::gpu {
namespace {

std::vector<std::string> calls;
CUresult load_result;
CUcontext context_of_driver() {
    static int it;
    return reinterpret_cast<CUcontext>(&it);
}
CUmodule module_of_driver() {
    static int it;
    return reinterpret_cast<CUmodule>(&it);
}

CUresult retain(CUcontext* out, CUdevice) {
    calls.emplace_back("retain");
    *out = context_of_driver();
    return CUDA_SUCCESS;
}
CUresult release(CUdevice) {
    calls.emplace_back("release");
    return CUDA_SUCCESS;
}
CUresult set_current(CUcontext) {
    return CUDA_SUCCESS;
}
CUresult load(CUmodule* out, const void* image) {
    calls.emplace_back("load");
    const std::string_view ptx(static_cast<const char*>(image));
    EXPECT_NE(ptx.find(".visible .global"), ptx.npos) << "it has a variable";
    EXPECT_NE(ptx.find(".visible .entry"), ptx.npos) << "it has a kernel";
    *out = module_of_driver();
    return load_result;
}
CUresult unload(CUmodule module) {
    EXPECT_EQ(module, module_of_driver());
    calls.emplace_back("unload");
    return CUDA_SUCCESS;
}
CUresult get_function(CUfunction*, CUmodule, const char*) {
    calls.emplace_back("kernel");
    return CUDA_SUCCESS;
}
CUresult get_global(CUdeviceptr*, std::size_t*, CUmodule, const char*) {
    calls.emplace_back("variable");
    return CUDA_SUCCESS;
}

class cuda_primary_fixture : public testing::Test {
protected:
    cuda_primary_fixture() {
        calls.clear();
        load_result = CUDA_SUCCESS;
        api.cuDevicePrimaryCtxRetain = retain;
        api.cuDevicePrimaryCtxRelease_v2 = release;
        api.cuCtxSetCurrent = set_current;
        api.cuModuleLoadData = load;
        api.cuModuleUnload = unload;
        api.cuModuleGetFunction = get_function;
        api.cuModuleGetGlobal_v2 = get_global;
    }
    cuda_api api{};
    std::int32_t error = -1;
};

TEST_F(cuda_primary_fixture, AModuleOfOursIsTheFirst) {
    primary_ptr primary = cuda_primary::retain(api, 0, error);
    ASSERT_TRUE(primary);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(calls, (std::vector<std::string>{"retain", "load", "kernel", "variable"}));
    calls.clear();
    primary.reset();
    EXPECT_EQ(calls, (std::vector<std::string>{"unload", "release"}));
}

TEST_F(cuda_primary_fixture, ADriverThatLoadsNoneIsUsedAllTheSame) {
    load_result = CUDA_ERROR_OUT_OF_MEMORY;
    primary_ptr primary = cuda_primary::retain(api, 0, error);
    ASSERT_TRUE(primary);
    primary.reset();
    EXPECT_EQ(calls, (std::vector<std::string>{"retain", "load", "release"}));
}

} // namespace
} // namespace kagemusha::gpu
