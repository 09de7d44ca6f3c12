// SPDX-License-Identifier: GPL-2.0-or-later
// The library as a program sees it: loaded by path, functions by name.
#include "proto/cuda/cuda.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

// A function of the library under test, by its name.
#define CALL(name) get<decltype(&name)>(#name)

namespace {

class ptx_driver : public testing::Test {
protected:
    void SetUp() override {
        library = dlopen(KAGEMUSHA_PTX_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library, nullptr) << dlerror();
        ASSERT_EQ(CALL(cuInit)(0), CUDA_SUCCESS);
        ASSERT_EQ(CALL(cuCtxCreate_v2)(&context, 0, 0), CUDA_SUCCESS);
    }
    void TearDown() override { EXPECT_EQ(CALL(cuCtxDestroy_v2)(context), CUDA_SUCCESS); }

    template <class F>
    F get(const char* name) {
        auto* f = reinterpret_cast<F>(dlsym(library, name));
        EXPECT_NE(f, nullptr) << name;
        return f;
    }

    CUmodule load(const std::string& body) {
        const std::string text = ".version 7.0\n.target sm_70\n.address_size 64\n" + body;
        CUmodule m = nullptr;
        EXPECT_EQ(CALL(cuModuleLoadData)(&m, text.c_str()), CUDA_SUCCESS);
        return m;
    }

    void* library = nullptr;
    CUcontext context = nullptr;
};

const char* const add = R"(
.visible .global .u32 bias = 5;
.visible .entry add(.param .u32 n, .param .u64 a)
{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	ld.param.u32 %r1, [n];
	ld.param.u64 %rd1, [a];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r2, %r2, %r3, %r4;
	setp.ge.u32 %p, %r2, %r1;
	@%p exit;
	mad.wide.u32 %rd2, %r2, 4, %rd1;
	ld.global.u32 %r3, [%rd2];
	ld.global.u32 %r5, [bias];
	add.u32 %r3, %r3, %r5;
	st.global.u32 [%rd2], %r3;
	ret;
}
)";

TEST_F(ptx_driver, SaysWhatItIs) {
    char name[64];
    ASSERT_EQ(CALL(cuDeviceGetName)(name, sizeof name, 0), CUDA_SUCCESS);
    EXPECT_STREQ(name, "Kagemusha PTX on CPU");
    EXPECT_EQ(CALL(cuDeviceGetName)(name, 5, 0), CUDA_SUCCESS);
    EXPECT_STREQ(name, "Kage");
    EXPECT_EQ(CALL(cuDeviceGetName)(name, 5, 1), CUDA_ERROR_INVALID_DEVICE);
    const char* text = nullptr;
    EXPECT_EQ(CALL(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    void* f = nullptr;
    EXPECT_EQ(CALL(cuGetProcAddress_v2)("cuMemAlloc", &f, 12000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(f, reinterpret_cast<void*>(CALL(cuMemAlloc_v2)));
    EXPECT_EQ(CALL(cuGetProcAddress_v2)("cuNothing", &f, 12000, 0, nullptr), CUDA_ERROR_NOT_FOUND);
}

TEST_F(ptx_driver, LaunchesAKernelWithBothKindsOfArguments) {
    CUmodule m = load(add);
    CUfunction f = nullptr;
    ASSERT_EQ(CALL(cuModuleGetFunction)(&f, m, "add"), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuModuleGetFunction)(&f, m, "other"), CUDA_ERROR_NOT_FOUND);
    std::vector<std::uint32_t> values(300);
    std::iota(values.begin(), values.end(), 0u);
    CUdeviceptr a = 0;
    ASSERT_EQ(CALL(cuMemAlloc_v2)(&a, 1200), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuMemcpyHtoD_v2)(a, values.data(), 1200), CUDA_SUCCESS);
    std::uint32_t n = 299;
    void* params[] = {&n, &a};
    ASSERT_EQ(CALL(cuLaunchKernel)(f, 3, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
    CUdeviceptr bias = 0;
    std::size_t bytes = 0;
    ASSERT_EQ(CALL(cuModuleGetGlobal_v2)(&bias, &bytes, m, "bias"), CUDA_SUCCESS);
    EXPECT_EQ(bytes, 4u);
    ASSERT_EQ(CALL(cuMemsetD32_v2)(bias, 1000, 1), CUDA_SUCCESS);
    char buffer[16] = {};
    std::memcpy(buffer, &n, 4);
    std::memcpy(buffer + 8, &a, 8);
    std::size_t size = sizeof buffer;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    ASSERT_EQ(CALL(cuLaunchKernel)(f, 3, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuCtxSynchronize)(), CUDA_SUCCESS);
    std::vector<std::uint32_t> result(300);
    ASSERT_EQ(CALL(cuMemcpyDtoH_v2)(result.data(), a, 1200), CUDA_SUCCESS);
    for (std::uint32_t i = 0; i < 300; i++)
        EXPECT_EQ(result[i], i < 299 ? i + 1005 : i);
    std::size_t offset = 0;
    EXPECT_EQ(CALL(cuFuncGetParamInfo)(f, 1, &offset, &bytes), CUDA_SUCCESS);
    EXPECT_EQ(offset, 8u);
    EXPECT_EQ(CALL(cuFuncGetParamInfo)(f, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CALL(cuMemcpyHtoD_v2)(a, values.data(), 1201), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CALL(cuLaunchKernel)(f, 1, 1, 1, 1025, 1, 1, 0, nullptr, params, nullptr),
              CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ptx_driver, AFaultSticksToItsContext) {
    CUmodule m = load(add);
    CUfunction f = nullptr;
    ASSERT_EQ(CALL(cuModuleGetFunction)(&f, m, "add"), CUDA_SUCCESS);
    std::uint32_t n = 1;
    CUdeviceptr nowhere = 0x1000;
    void* params[] = {&n, &nowhere};
    EXPECT_EQ(CALL(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr a = 0;
    EXPECT_EQ(CALL(cuMemAlloc_v2)(&a, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUcontext other = nullptr;
    ASSERT_EQ(CALL(cuCtxCreate_v2)(&other, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuMemAlloc_v2)(&a, 16), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuCtxDestroy_v2)(other), CUDA_SUCCESS);
}

TEST_F(ptx_driver, RefusesImagesWithAReason) {
    CUmodule m = nullptr;
    char log[200] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    const char* text = ".version 7.0\n.target sm_70\n.address_size 64\n.entry k() { wmma.load.a; ret; }\n";
    EXPECT_EQ(CALL(cuModuleLoadDataEx)(&m, text, 2, options, values), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(std::string(log), "line 4: wmma: the instruction is not supported");
    const char elf[64] = "\x7f" // as long as the header, which is read without a length
                         "ELF\x02\x01";
    EXPECT_EQ(CALL(cuModuleLoadData)(&m, elf), CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT_EQ(CALL(cuModuleLoadData)(&m, ""), CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(ptx_driver, FindsPlainPtxInAFatBinary) {
    const std::string text = std::string(".version 7.0\n.target sm_70\n.address_size 64\n") + add;
    std::vector<std::uint8_t> fat(16 + 64 + 8 + 64 + text.size() + 1);
    const auto put = [&](std::size_t at, auto value) { std::memcpy(fat.data() + at, &value, sizeof value); };
    const auto entry = [&](std::size_t at, std::uint16_t kind, std::uint64_t size) {
        put(at, kind);
        put(at + 4, std::uint32_t{64});
        put(at + 8, size);
        put(at + 28, std::uint32_t{70});
    };
    put(0, std::uint32_t{0xba55ed50});
    put(4, std::uint16_t{1});
    put(6, std::uint16_t{16});
    put(8, std::uint64_t{fat.size() - 16});
    entry(16, 2, 8); // machine code
    entry(16 + 72, 1, text.size() + 1);
    std::memcpy(fat.data() + 16 + 72 + 64, text.data(), text.size());
    struct {
        std::uint32_t magic = 0x466243b1, version = 1;
        const void* data = nullptr;
        const void* more = nullptr;
    } wrapper;
    wrapper.data = fat.data();
    CUmodule m = nullptr;
    EXPECT_EQ(CALL(cuModuleLoadData)(&m, &wrapper), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuModuleLoadData)(&m, fat.data()), CUDA_SUCCESS);
    put(16 + 72 + 8, std::uint64_t{1} << 40); // a length that lies
    EXPECT_EQ(CALL(cuModuleLoadData)(&m, fat.data()), CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(ptx_driver, MapsMemoryAtAWantedAddress) {
    constexpr std::size_t size = std::size_t{2} << 20;
    constexpr CUdeviceptr wanted = 0x300000000000;
    CUdeviceptr at = 0;
    ASSERT_EQ(CALL(cuMemAddressReserve)(&at, 2 * size, 0, wanted, 0), CUDA_SUCCESS);
    ASSERT_EQ(at, wanted);
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(CALL(cuMemCreate)(&handle, size, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuMemMap)(at + size, size, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuMemsetD8_v2)(at + size, 1, 1), CUDA_ERROR_INVALID_VALUE); // not opened yet
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ASSERT_EQ(CALL(cuMemSetAccess)(at + size, size, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuMemsetD8_v2)(at + size, 7, size), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuMemsetD8_v2)(at, 7, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CALL(cuMemAddressFree)(at, 2 * size), CUDA_ERROR_INVALID_VALUE); // still mapped
    EXPECT_EQ(CALL(cuMemRelease)(handle), CUDA_SUCCESS);
    unsigned char last = 0;
    EXPECT_EQ(CALL(cuMemcpyDtoH_v2)(&last, at + 2 * size - 1, 1), CUDA_SUCCESS); // the mapping keeps it
    EXPECT_EQ(last, 7);
    EXPECT_EQ(CALL(cuMemUnmap)(at + size, size), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuMemcpyDtoH_v2)(&last, at + size, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CALL(cuMemAddressFree)(at, 2 * size), CUDA_SUCCESS);
}

TEST_F(ptx_driver, StreamsAndEventsAreInOrder) {
    CUstream s = nullptr;
    CUevent a = nullptr;
    CUevent b = nullptr;
    ASSERT_EQ(CALL(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuEventCreate)(&a, 0), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuEventCreate)(&b, 0), CUDA_SUCCESS);
    float ms = -1;
    EXPECT_EQ(CALL(cuEventElapsedTime)(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CALL(cuEventRecord)(a, s), CUDA_SUCCESS);
    int order = 0;
    EXPECT_EQ(CALL(cuLaunchHostFunc)(s, [](void* p) { *static_cast<int*>(p) += 1; }, &order), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuEventRecord)(b, s), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuStreamSynchronize)(s), CUDA_SUCCESS);
    EXPECT_EQ(order, 1);
    EXPECT_EQ(CALL(cuEventElapsedTime)(&ms, a, b), CUDA_SUCCESS);
    EXPECT_GE(ms, 0);
    EXPECT_EQ(CALL(cuStreamDestroy_v2)(s), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuStreamSynchronize)(s), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(CALL(cuEventDestroy_v2)(a), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuEventDestroy_v2)(b), CUDA_SUCCESS);
}

// A standby that came later makes those that there are, and must give each its number.
TEST_F(ptx_driver, TheNumberOfATextureFollowsFromThoseThatThereAre) {
    CUdeviceptr memory = 0;
    ASSERT_EQ(CALL(cuMemAlloc_v2)(&memory, 64), CUDA_SUCCESS);
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {memory, CU_AD_FORMAT_UNSIGNED_INT8, 1, 64};
    CUDA_TEXTURE_DESC how = {};
    const auto make = [&] {
        CUtexObject made = 0;
        EXPECT_EQ(CALL(cuTexObjectCreate)(&made, &resource, &how, nullptr), CUDA_SUCCESS);
        return made;
    };
    const CUtexObject first = make(), second = make(), third = make();
    EXPECT_EQ(CALL(cuTexObjectDestroy)(second), CUDA_SUCCESS);
    EXPECT_EQ(CALL(cuTexObjectDestroy)(first), CUDA_SUCCESS);
    EXPECT_EQ(make(), first);
    EXPECT_EQ(make(), second);
    EXPECT_EQ(make(), third + 1);
    EXPECT_EQ(CALL(cuMemFree_v2)(memory), CUDA_SUCCESS);
}

// A picture of 4 × 2 texels of two bytes, in rows of 32 bytes, copied as a rectangle and read by coordinates.
TEST_F(ptx_driver, ReadsATexture) {
    CUmodule m = load(R"(
.visible .entry read(.param .u64 object, .param .u64 out, .param .f32 dx)
{
	.reg .b32 %r<8>;
	.reg .f32 %f<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [object];
	ld.param.u64 %rd2, [out];
	ld.param.f32 %f3, [dx];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %tid.y;
	cvt.rn.f32.u32 %f1, %r1;
	cvt.rn.f32.u32 %f2, %r2;
	add.f32 %f1, %f1, %f3;
	tex.2d.v4.u32.f32 {%r3, %r4, %r5, %r6}, [%rd1, {%f1, %f2}];
	mad.lo.u32 %r7, %r2, 5, %r1;
	mad.wide.u32 %rd3, %r7, 8, %rd2;
	st.global.v2.u32 [%rd3], {%r3, %r4};
	ret;
}
)");
    const unsigned char picture[16] = {0, 10, 1, 11, 2, 12, 3, 13, 4, 14, 5, 15, 6, 16, 7, 17};
    CUdeviceptr memory = 0;
    CUdeviceptr out = 0;
    ASSERT_EQ(CALL(cuMemAlloc_v2)(&memory, 64), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuMemAlloc_v2)(&out, 80), CUDA_SUCCESS);
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = picture;
    copy.srcPitch = 8;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = memory;
    copy.dstPitch = 32;
    copy.WidthInBytes = 8;
    copy.Height = 2;
    ASSERT_EQ(CALL(cuMemcpy2D_v2)(&copy), CUDA_SUCCESS);
    copy.dstY = 1;
    EXPECT_EQ(CALL(cuMemcpy2D_v2)(&copy), CUDA_ERROR_INVALID_VALUE);
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {memory, CU_AD_FORMAT_UNSIGNED_INT8, 2, 4, 2, 32};
    CUDA_TEXTURE_DESC how = {};
    how.addressMode[0] = how.addressMode[1] = CU_TR_ADDRESS_MODE_CLAMP;
    how.flags = 1; // integers
    CUtexObject object = 0;
    ASSERT_EQ(CALL(cuTexObjectCreate)(&object, &resource, &how, nullptr), CUDA_SUCCESS);
    CUfunction f = nullptr;
    ASSERT_EQ(CALL(cuModuleGetFunction)(&f, m, "read"), CUDA_SUCCESS);
    float dx = 0.25f;
    void* params[] = {&object, &out, &dx};
    std::uint32_t result[20] = {};
    ASSERT_EQ(CALL(cuLaunchKernel)(f, 1, 1, 1, 5, 2, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(CALL(cuMemcpyDtoH_v2)(result, out, 80), CUDA_SUCCESS);
    for (unsigned y = 0; y < 2; y++) {
        for (unsigned x = 0; x < 5; x++) {
            EXPECT_EQ(result[(y * 5 + x) * 2], y * 4 + std::min(x, 3u));
            EXPECT_EQ(result[(y * 5 + x) * 2 + 1], 10 + y * 4 + std::min(x, 3u));
        }
    }
    EXPECT_EQ(CALL(cuTexObjectDestroy)(object), CUDA_SUCCESS);
    how.flags = 0;
    how.filterMode = CU_TR_FILTER_MODE_LINEAR;
    ASSERT_EQ(CALL(cuTexObjectCreate)(&object, &resource, &how, nullptr), CUDA_SUCCESS);
    dx = 1.0f; // between texels 0 and 1
    ASSERT_EQ(CALL(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr), CUDA_SUCCESS);
    float halves[2] = {};
    ASSERT_EQ(CALL(cuMemcpyDtoH_v2)(halves, out, 8), CUDA_SUCCESS);
    EXPECT_FLOAT_EQ(halves[0], 0.5f / 255);
    EXPECT_FLOAT_EQ(halves[1], 10.5f / 255);
}

} // namespace
