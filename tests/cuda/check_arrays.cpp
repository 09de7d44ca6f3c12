// SPDX-License-Identifier: GPL-2.0-or-later
// Rectangles and boxes, arrays, textures, surfaces and links, against the same on the processor.
#include "check.hpp"

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace check {

namespace {

#define ARRAY_FUNCTIONS(X)                                                                                   \
    X(cuArrayCreate_v2)                                                                                      \
    X(cuArray3DCreate_v2)                                                                                    \
    X(cuArray3DGetDescriptor_v2)                                                                             \
    X(cuArrayDestroy)                                                                                        \
    X(cuMemcpy2D_v2)                                                                                         \
    X(cuMemcpy2DAsync_v2)                                                                                    \
    X(cuMemcpy3D_v2)                                                                                         \
    X(cuMemcpyHtoA_v2)                                                                                       \
    X(cuMemcpyAtoD_v2)                                                                                       \
    X(cuMemsetD2D8_v2)                                                                                       \
    X(cuMemsetD2D32Async)                                                                                    \
    X(cuTexObjectCreate)                                                                                     \
    X(cuTexObjectDestroy)                                                                                    \
    X(cuTexObjectGetResourceDesc)                                                                            \
    X(cuSurfObjectCreate)                                                                                    \
    X(cuSurfObjectDestroy)                                                                                   \
    X(cuLinkCreate_v2)                                                                                       \
    X(cuLinkAddData_v2)                                                                                      \
    X(cuLinkComplete)                                                                                        \
    X(cuLinkDestroy)

struct array_api {
#define ARRAY_MEMBER(name) decltype(&::name) name;
    ARRAY_FUNCTIONS(ARRAY_MEMBER)
#undef ARRAY_MEMBER
};

const array_api& arrays_of_library() {
    static const array_api all = [] {
        array_api made{};
        const auto find = [&]<class Function>(Function& function, const char* name) {
            function = reinterpret_cast<Function>(dlsym(cu.library, name));
            if (!function) {
                std::printf("the library has no %s\n", name);
                std::exit(1);
            }
        };
#define ARRAY_FIND(name) find(made.name, #name);
        ARRAY_FUNCTIONS(ARRAY_FIND)
#undef ARRAY_FIND
        return made;
    }();
    return all;
}
#define NEED_ARRAY(call) check::need(arrays_of_library().call, #call, __FILE__, __LINE__)
#define EXPECT_ARRAY_RESULT(call, result)                                                                    \
    check::expect(arrays_of_library().call == (result), #call " is not " #result, __FILE__, __LINE__)

std::vector<unsigned char> numbers(std::size_t bytes) {
    std::vector<unsigned char> made(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        made[i] = static_cast<unsigned char>(i * 2654435761u >> 11);
    return made;
}

std::vector<unsigned char> bytes_of(CUdeviceptr from, std::size_t bytes) {
    std::vector<unsigned char> made(bytes);
    NEED(cuMemcpyDtoH_v2(made.data(), from, bytes));
    return made;
}

CUDA_MEMCPY3D host_to_device(const void* from, std::size_t from_pitch, std::size_t from_rows, CUdeviceptr to,
                             std::size_t to_pitch, std::size_t to_rows) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = from;
    c.srcPitch = from_pitch;
    c.srcHeight = from_rows;
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstDevice = to;
    c.dstPitch = to_pitch;
    c.dstHeight = to_rows;
    return c;
}

// A box in the middle of a memory of 40 x 12 x 5 bytes, from one of 33 x 9 x 4.
void boxes_of_memory() {
    constexpr std::size_t from_pitch = 33, from_rows = 9, pitch = 40, rows = 12, slices = 5;
    const auto sent = numbers(from_pitch * from_rows * 4);
    CUdeviceptr memory = 0, other = 0;
    NEED(cuMemAlloc_v2(&memory, pitch * rows * slices));
    NEED(cuMemAlloc_v2(&other, 64 * rows * slices));
    NEED(cuMemsetD8_v2(memory, 7, pitch * rows * slices));
    CUDA_MEMCPY3D c = host_to_device(sent.data(), from_pitch, from_rows, memory, pitch, rows);
    c.srcXInBytes = 2, c.srcY = 1, c.srcZ = 1;
    c.dstXInBytes = 5, c.dstY = 3, c.dstZ = 2;
    c.WidthInBytes = 17, c.Height = 6, c.Depth = 3;
    NEED_ARRAY(cuMemcpy3D_v2(&c));
    std::vector<unsigned char> wanted(pitch * rows * slices, 7);
    for (std::size_t z = 0; z < c.Depth; ++z)
        for (std::size_t y = 0; y < c.Height; ++y)
            std::memcpy(&wanted[((z + 2) * rows + y + 3) * pitch + 5],
                        &sent[((z + 1) * from_rows + y + 1) * from_pitch + 2], c.WidthInBytes);
    EXPECT(bytes_of(memory, wanted.size()) == wanted);

    // The same box from there into rows of 64 bytes, and as a rectangle back to the program.
    NEED(cuMemsetD8_v2(other, 9, 64 * rows * slices));
    CUDA_MEMCPY3D inside = host_to_device(nullptr, pitch, rows, other, 64, rows);
    inside.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    inside.srcDevice = memory;
    inside.srcXInBytes = 5, inside.srcY = 3, inside.srcZ = 2;
    inside.WidthInBytes = 17, inside.Height = 6, inside.Depth = 3;
    NEED_ARRAY(cuMemcpy3D_v2(&inside));
    std::vector<unsigned char> got(20 * 6, 1);
    CUDA_MEMCPY2D back{};
    back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    back.srcDevice = other + 64 * rows; // the second slice
    back.srcPitch = 64;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost = got.data();
    back.dstPitch = 20;
    back.WidthInBytes = 17, back.Height = 6;
    NEED_ARRAY(cuMemcpy2DAsync_v2(&back, nullptr));
    NEED(cuStreamSynchronize(nullptr));
    bool right = true;
    for (std::size_t y = 0; y < 6; ++y) {
        right = right && std::memcmp(&got[y * 20], &wanted[(3 * rows + y + 3) * pitch + 5], 17) == 0;
        right = right && (y == 5 || got[y * 20 + 17] == 1); // nothing between the rows
    }
    EXPECT(right);
    EXPECT(bytes_of(other, 64)[17] == 9);

    back.srcPitch = 16; // shorter than a row
    EXPECT_ARRAY_RESULT(cuMemcpy2D_v2(&back), CUDA_ERROR_INVALID_VALUE);
    back.srcPitch = 64;
    back.srcDevice = 0x10; // nobody's
    EXPECT_ARRAY_RESULT(cuMemcpy2D_v2(&back), CUDA_ERROR_INVALID_VALUE);
    NEED(cuMemFree_v2(memory));
    NEED(cuMemFree_v2(other));
}

void sets() {
    CUdeviceptr memory = 0;
    NEED(cuMemAlloc_v2(&memory, 64 * 8));
    NEED(cuMemsetD8_v2(memory, 1, 64 * 8));
    NEED_ARRAY(cuMemsetD2D8_v2(memory + 2, 64, 5, 10, 4));
    NEED_ARRAY(cuMemsetD2D32Async(memory + 64 * 5, 64, 0x01020304, 3, 2, nullptr));
    NEED(cuStreamSynchronize(nullptr));
    std::vector<unsigned char> wanted(64 * 8, 1);
    for (std::size_t y = 0; y < 4; ++y)
        std::memset(&wanted[y * 64 + 2], 5, 10);
    for (std::size_t y = 5; y < 7; ++y)
        for (std::size_t x = 0; x < 12; ++x)
            wanted[y * 64 + x] = static_cast<unsigned char>(4 - x % 4);
    EXPECT(bytes_of(memory, 64 * 8) == wanted);
    NEED(cuMemFree_v2(memory));
}

// ---- arrays

CUarray make_array(std::size_t width, std::size_t height, std::size_t depth, CUarray_format format,
                   unsigned channels, unsigned flags) {
    const CUDA_ARRAY3D_DESCRIPTOR shape{width, height, depth, format, channels, flags};
    CUarray made = nullptr;
    NEED_ARRAY(cuArray3DCreate_v2(&made, &shape));
    return made;
}

// All of an array from or to the program's memory without gaps.
void move_array(CUarray array, void* host, bool to_array) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    NEED_ARRAY(cuArray3DGetDescriptor_v2(&shape, array));
    const std::size_t texel = shape.NumChannels * (shape.Format == CU_AD_FORMAT_UNSIGNED_INT8 ? 1u : 4u);
    CUDA_MEMCPY3D c{};
    c.WidthInBytes = shape.Width * texel;
    c.Height = shape.Height ? shape.Height : 1;
    c.Depth = shape.Depth ? shape.Depth : 1;
    (to_array ? c.srcMemoryType : c.dstMemoryType) = CU_MEMORYTYPE_HOST;
    (to_array ? c.dstMemoryType : c.srcMemoryType) = CU_MEMORYTYPE_ARRAY;
    if (to_array) {
        c.srcHost = host;
        c.srcPitch = c.WidthInBytes;
        c.srcHeight = c.Height;
        c.dstArray = array;
    } else {
        c.dstHost = host;
        c.dstPitch = c.WidthInBytes;
        c.dstHeight = c.Height;
        c.srcArray = array;
    }
    NEED_ARRAY(cuMemcpy3D_v2(&c));
}

void copies_of_arrays() {
    const auto sent = numbers(13 * 7 * 4);
    const CUarray flat = make_array(13, 7, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0);
    move_array(flat, const_cast<unsigned char*>(sent.data()), true);
    std::vector<unsigned char> got(sent.size());
    move_array(flat, got.data(), false);
    EXPECT(got == sent);
    // A part of it into memory with a pitch, and that into another array.
    CUdeviceptr memory = 0;
    NEED(cuMemAlloc_v2(&memory, 64 * 5));
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    c.srcArray = flat;
    c.srcXInBytes = 8, c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstDevice = memory;
    c.dstPitch = 64;
    c.WidthInBytes = 40, c.Height = 5;
    NEED_ARRAY(cuMemcpy2D_v2(&c));
    const CUarray other = make_array(10, 5, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0);
    CUDA_MEMCPY2D into{};
    into.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    into.srcDevice = memory;
    into.srcPitch = 64;
    into.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    into.dstArray = other;
    into.WidthInBytes = 40, into.Height = 5;
    NEED_ARRAY(cuMemcpy2D_v2(&into));
    std::vector<unsigned char> part(40 * 5);
    move_array(other, part.data(), false);
    bool right = true;
    for (std::size_t y = 0; y < 5; ++y)
        right = right && std::memcmp(&part[y * 40], &sent[(y + 1) * 52 + 8], 40) == 0;
    EXPECT(right);
    into.Height = 6; // beyond the array
    EXPECT_ARRAY_RESULT(cuMemcpy2D_v2(&into), CUDA_ERROR_INVALID_VALUE);

    const CUDA_ARRAY_DESCRIPTOR row{100, 0, CU_AD_FORMAT_FLOAT, 1};
    CUarray line = nullptr;
    NEED_ARRAY(cuArrayCreate_v2(&line, &row));
    NEED_ARRAY(cuMemcpyHtoA_v2(line, 40, sent.data(), 80));
    NEED_ARRAY(cuMemcpyAtoD_v2(memory, line, 44, 60));
    EXPECT(std::memcmp(bytes_of(memory, 60).data(), sent.data() + 4, 60) == 0);
    for (const CUarray array : {flat, other, line})
        NEED_ARRAY(cuArrayDestroy(array));
    NEED(cuMemFree_v2(memory));
}

// ---- textures and surfaces

const char texture_source[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry flat(.param .u64 t, .param .u64 out, .param .f32 scale)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<8>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [t];
    ld.param.u64 %d2, [out];
    ld.param.f32 %f7, [scale];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    cvt.rn.f32.u32 %f1, %r1;
    cvt.rn.f32.u32 %f2, %r2;
    fma.rn.f32 %f1, %f1, %f7, 0f3F000000;
    fma.rn.f32 %f2, %f2, %f7, 0f3F000000;
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%d1, {%f1, %f2}];
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r3, %r2, %r3, %r1;
    mul.wide.u32 %d3, %r3, 16;
    add.s64 %d4, %d2, %d3;
    st.global.v4.f32 [%d4], {%f3, %f4, %f5, %f6};
    ret;
}

.visible .entry line(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [t];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%d1, {%r1}];
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d2, %d3;
    st.global.u32 [%d4], %r2;
    ret;
}

.visible .entry solid(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<5>;
    .reg .f32 %f<8>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [t];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    mov.u32 %r3, %tid.z;
    cvt.rn.f32.u32 %f1, %r1;
    cvt.rn.f32.u32 %f2, %r2;
    cvt.rn.f32.u32 %f3, %r3;
    tex.3d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%d1, {%f1, %f2, %f3, %f3}];
    mov.u32 %r4, %ntid.y;
    mad.lo.s32 %r4, %r3, %r4, %r2;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r4, %r3, %r1;
    mul.wide.u32 %d3, %r4, 4;
    add.s64 %d4, %d2, %d3;
    st.global.f32 [%d4], %f4;
    ret;
}

.visible .entry layers(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [t];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    cvt.rn.f32.u32 %f1, %r1;
    mov.f32 %f2, 0f00000000;
    tex.a2d.v4.u32.f32 {%r3, %r4, %r5, %r6}, [%d1, {%r2, %f1, %f2, %f2}];
    mov.u32 %r7, %ntid.x;
    mad.lo.s32 %r7, %r2, %r7, %r1;
    mul.wide.u32 %d3, %r7, 4;
    add.s64 %d4, %d2, %d3;
    st.global.u32 [%d4], %r3;
    ret;
}

.visible .entry surface(.param .u64 s)
{
    .reg .b32 %r<5>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [s];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    shl.b32 %r1, %r1, 2;
    suld.b.2d.b32.trap %r3, [%d1, {%r1, %r2}];
    add.s32 %r4, %r3, 1000;
    sust.b.2d.b32.trap [%d1, {%r1, %r2}], %r4;
    ret;
}
)";

struct texture_kernels {
    CUmodule module = nullptr;
    CUdeviceptr out = 0;

    texture_kernels() {
        NEED(cuModuleLoadData(&module, texture_source));
        NEED(cuMemAlloc_v2(&out, 65536));
    }
    ~texture_kernels() {
        NEED(cuMemFree_v2(out));
        NEED(cuModuleUnload(module));
    }
    // 4-byte results, as many as asked for.
    template <class T>
    std::vector<T> run(const char* name, unsigned blocks, unsigned x, unsigned y, unsigned z,
                       unsigned long long object, std::size_t count, float scale = 1) {
        CUfunction f = nullptr;
        NEED(cuModuleGetFunction(&f, module, name));
        void* parameters[] = {&object, &out, &scale};
        NEED(cuLaunchKernel(f, blocks, 1, 1, x, y, z, 0, nullptr, parameters, nullptr));
        std::vector<T> got(count);
        NEED(cuMemcpyDtoH_v2(got.data(), out, count * 4));
        return got;
    }
};

unsigned long long make_texture(const CUDA_RESOURCE_DESC& resource, CUfilter_mode filter, unsigned flags,
                                CUaddress_mode beyond = CU_TR_ADDRESS_MODE_CLAMP) {
    CUDA_TEXTURE_DESC how{};
    how.addressMode[0] = how.addressMode[1] = how.addressMode[2] = beyond;
    how.filterMode = filter;
    how.flags = flags;
    how.borderColor[0] = how.borderColor[1] = 0.25f;
    CUtexObject made = 0;
    NEED_ARRAY(cuTexObjectCreate(&made, &resource, &how, nullptr));
    return made;
}

void textures_of_memory(texture_kernels& kernels) {
    constexpr std::size_t width = 20, height = 6, pitch = 512;
    const auto sent = numbers(pitch * height);
    CUdeviceptr memory = 0;
    NEED(cuMemAlloc_v2(&memory, pitch * height));
    NEED(cuMemcpyHtoD_v2(memory, sent.data(), sent.size()));
    CUDA_RESOURCE_DESC rows{};
    rows.resType = CU_RESOURCE_TYPE_PITCH2D;
    rows.res.pitch2D = {memory, CU_AD_FORMAT_UNSIGNED_INT8, 2, width, height, pitch};
    const auto nearest = make_texture(rows, CU_TR_FILTER_MODE_POINT, 0);
    auto got = kernels.run<float>("flat", height, width, 1, 1, nearest, width * height * 4);
    bool right = true;
    for (std::size_t y = 0; y < height; ++y)
        for (std::size_t x = 0; x < width; ++x) {
            const float* const texel = &got[(y * width + x) * 4];
            right = right && std::abs(texel[0] - sent[y * pitch + x * 2] / 255.0f) < 1e-6f &&
                    std::abs(texel[1] - sent[y * pitch + x * 2 + 1] / 255.0f) < 1e-6f;
        }
    EXPECT(right);
    CUDA_RESOURCE_DESC again{};
    NEED_ARRAY(cuTexObjectGetResourceDesc(&again, nearest));
    EXPECT(again.resType == rows.resType && again.res.pitch2D.devPtr == memory);
    NEED_ARRAY(cuTexObjectDestroy(nearest));

    // A quarter of the way between two texels: the reference says weights of eight bits.
    const auto between = make_texture(rows, CU_TR_FILTER_MODE_LINEAR, 0);
    got = kernels.run<float>("flat", height, width, 1, 1, between, width * height * 4, 0.25f);
    right = true;
    for (std::size_t y = 0; y < height; ++y)
        for (std::size_t x = 0; x < width; ++x) {
            const std::size_t column = x / 4, row = y / 4;
            const float a = x % 4 * 0.25f, b = y % 4 * 0.25f;
            const auto at = [&](std::size_t c, std::size_t r) {
                return sent[std::min(r, height - 1) * pitch + std::min(c, width - 1) * 2] / 255.0f;
            };
            const float wanted = (1 - b) * ((1 - a) * at(column, row) + a * at(column + 1, row)) +
                                 b * ((1 - a) * at(column, row + 1) + a * at(column + 1, row + 1));
            right = right && std::abs(got[(y * width + x) * 4] - wanted) < 0.01f;
        }
    EXPECT(right);
    NEED_ARRAY(cuTexObjectDestroy(between));

    CUDA_RESOURCE_DESC linear{};
    linear.resType = CU_RESOURCE_TYPE_LINEAR;
    linear.res.linear = {memory, CU_AD_FORMAT_UNSIGNED_INT32, 1, 256};
    const auto words = make_texture(linear, CU_TR_FILTER_MODE_POINT, CU_TRSF_READ_AS_INTEGER);
    const auto integers = kernels.run<std::uint32_t>("line", 1, 64, 1, 1, words, 64);
    EXPECT(std::memcmp(integers.data(), sent.data(), 256) == 0);
    NEED_ARRAY(cuTexObjectDestroy(words));
    NEED(cuMemFree_v2(memory));
}

void textures_of_arrays(texture_kernels& kernels) {
    // 5 x 4 x 3 floats, read with normalised coordinates that wrap: 1, 2, 3 … is where it began.
    const CUarray solid = make_array(5, 4, 3, CU_AD_FORMAT_FLOAT, 1, 0);
    std::vector<float> values(60);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i);
    move_array(solid, values.data(), true);
    CUDA_RESOURCE_DESC of_array{};
    of_array.resType = CU_RESOURCE_TYPE_ARRAY;
    of_array.res.array.hArray = solid;
    const auto plain = make_texture(of_array, CU_TR_FILTER_MODE_POINT, 0);
    EXPECT(kernels.run<float>("solid", 1, 5, 4, 3, plain, 60) == values);
    const auto wrapped = make_texture(of_array, CU_TR_FILTER_MODE_POINT, CU_TRSF_NORMALIZED_COORDINATES,
                                      CU_TR_ADDRESS_MODE_WRAP);
    EXPECT(kernels.run<float>("solid", 1, 4, 4, 4, wrapped, 64) == std::vector<float>(64, 0.0f));
    const auto framed = make_texture(of_array, CU_TR_FILTER_MODE_POINT, 0, CU_TR_ADDRESS_MODE_BORDER);
    const auto with_border = kernels.run<float>("solid", 1, 6, 1, 1, framed, 6);
    EXPECT(with_border[4] == 4 && with_border[5] == 0.25f);
    for (const auto texture : {plain, wrapped, framed})
        NEED_ARRAY(cuTexObjectDestroy(texture));
    NEED_ARRAY(cuArrayDestroy(solid));

    const CUarray layered = make_array(8, 2, 3, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_LAYERED);
    std::vector<std::uint32_t> words(48);
    for (std::uint32_t i = 0; i < words.size(); ++i)
        words[i] = i * 2654435761u;
    move_array(layered, words.data(), true);
    of_array.res.array.hArray = layered;
    const auto layers = make_texture(of_array, CU_TR_FILTER_MODE_POINT, CU_TRSF_READ_AS_INTEGER);
    const auto got = kernels.run<std::uint32_t>("layers", 3, 8, 1, 1, layers, 24);
    bool right = true;
    for (std::size_t layer = 0; layer < 3; ++layer)
        right = right && std::memcmp(&got[layer * 8], &words[layer * 16], 32) == 0;
    EXPECT(right);
    NEED_ARRAY(cuTexObjectDestroy(layers));
    NEED_ARRAY(cuArrayDestroy(layered));
}

void surfaces(texture_kernels& kernels) {
    const CUarray flat = make_array(16, 9, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST);
    std::vector<std::uint32_t> words(16 * 9);
    for (std::uint32_t i = 0; i < words.size(); ++i)
        words[i] = i * 77;
    move_array(flat, words.data(), true);
    CUDA_RESOURCE_DESC of_array{};
    of_array.resType = CU_RESOURCE_TYPE_ARRAY;
    of_array.res.array.hArray = flat;
    CUsurfObject surface = 0;
    NEED_ARRAY(cuSurfObjectCreate(&surface, &of_array));
    CUfunction f = nullptr;
    NEED(cuModuleGetFunction(&f, kernels.module, "surface"));
    void* parameters[] = {&surface};
    NEED(cuLaunchKernel(f, 9, 1, 1, 16, 1, 1, 0, nullptr, parameters, nullptr));
    std::vector<std::uint32_t> got(words.size());
    move_array(flat, got.data(), false);
    for (std::uint32_t& word : words)
        word += 1000;
    EXPECT(got == words);
    NEED_ARRAY(cuSurfObjectDestroy(surface));
    NEED_ARRAY(cuArrayDestroy(flat));
}

// ---- links

std::string part(const char* body) {
    return std::string(".version 6.0\n.target sm_50\n.address_size 64\n") + body;
}

} // namespace

void boxes() {
    boxes_of_memory();
    sets();
}

void arrays() {
    copies_of_arrays();
    texture_kernels kernels;
    textures_of_memory(kernels);
    textures_of_arrays(kernels);
    surfaces(kernels);
}

void links() {
    std::string caller = part(R"(
.extern .func (.param .b32 r) twice (.param .b32 a);
.extern .global .align 4 .u32 bias;
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, 21;
    {
    .param .b32 a0;
    .param .b32 r0;
    st.param.b32 [a0], %r1;
    call.uni (r0), twice, (a0);
    ld.param.b32 %r2, [r0];
    }
    ld.global.u32 %r3, [bias];
    add.s32 %r2, %r2, %r3;
    st.global.u32 [%d1], %r2;
    ret;
}
)");
    std::string callee = part(R"(
.visible .global .align 4 .u32 bias = 100;
.visible .func (.param .b32 r) twice (.param .b32 a)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [a];
    shl.b32 %r2, %r1, 1;
    st.param.b32 [r], %r2;
    ret;
}
)");
    CUlinkState state = nullptr;
    void* image = nullptr;
    std::size_t bytes = 0;
    NEED_ARRAY(cuLinkCreate_v2(0, nullptr, nullptr, &state));
    for (std::string* const text : {&caller, &callee})
        NEED_ARRAY(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, text->data(), text->size() + 1, "part", 0,
                                    nullptr, nullptr));
    NEED_ARRAY(cuLinkComplete(state, &image, &bytes));
    EXPECT(image && bytes > 0);
    CUmodule module = nullptr;
    CUfunction k = nullptr;
    CUdeviceptr out = 0;
    std::uint32_t got = 0;
    NEED(cuModuleLoadData(&module, image));
    NEED_ARRAY(cuLinkDestroy(state));
    NEED(cuModuleGetFunction(&k, module, "k"));
    NEED(cuMemAlloc_v2(&out, 4));
    void* parameters[] = {&out};
    NEED(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    NEED(cuMemcpyDtoH_v2(&got, out, 4));
    EXPECT(got == 142);
    NEED(cuMemFree_v2(out));
    NEED(cuModuleUnload(module));

    NEED_ARRAY(cuLinkCreate_v2(0, nullptr, nullptr, &state)); // a name that nobody defines
    NEED_ARRAY(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, caller.data(), caller.size() + 1, "part", 0, nullptr,
                                nullptr));
    EXPECT(arrays_of_library().cuLinkComplete(state, &image, &bytes) != CUDA_SUCCESS);
    NEED_ARRAY(cuLinkDestroy(state));
}

} // namespace check
