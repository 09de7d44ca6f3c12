// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels, written in PTX here, against the same computation on the processor.
#include "check.hpp"

#include <cstdint>
#include <vector>

namespace check {

namespace {

// add: c[i] = a[i] + b[i] + k for i < n. sum: the block's numbers, in shared memory of its launch, to
// c[block].
const char source[] = R"(
.version 6.0
.target sm_50
.address_size 64

.extern .shared .align 4 .b8 room[];

.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n, .param .u32 k)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %d<10>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [k];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %d4, %r6, 4;
    add.s64 %d5, %d1, %d4;
    add.s64 %d6, %d2, %d4;
    add.s64 %d7, %d3, %d4;
    ld.global.u32 %r7, [%d5];
    ld.global.u32 %r8, [%d6];
    add.s32 %r9, %r7, %r8;
    add.s32 %r9, %r9, %r2;
    st.global.u32 [%d7], %r9;
END:
    ret;
}

.visible .entry sum(.param .u64 a, .param .u64 c)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [c];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d3, %r4, 4;
    add.s64 %d4, %d1, %d3;
    ld.global.u32 %r5, [%d4];
    mov.u32 %r6, room;
    shl.b32 %r7, %r3, 2;
    add.s32 %r8, %r6, %r7;
    st.shared.u32 [%r8], %r5;
    bar.sync 0;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra END;
    mov.u32 %r9, 0;
    mov.u32 %r10, 0;
LOOP:
    ld.shared.u32 %r11, [%r6];
    add.s32 %r9, %r9, %r11;
    add.s32 %r6, %r6, 4;
    add.s32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, %r2;
    @%p2 bra LOOP;
    mul.wide.u32 %d5, %r1, 4;
    add.s64 %d6, %d2, %d5;
    st.global.u32 [%d6], %r9;
END:
    ret;
}
)";

constexpr std::uint32_t block = 128, blocks = 37, count = block * blocks;

CUdeviceptr upload(const std::vector<std::uint32_t>& numbers) {
    CUdeviceptr made = 0;
    NEED(cuMemAlloc_v2(&made, numbers.size() * 4));
    NEED(cuMemcpyHtoD_v2(made, numbers.data(), numbers.size() * 4));
    return made;
}

std::vector<std::uint32_t> download(CUdeviceptr from, std::size_t number) {
    std::vector<std::uint32_t> made(number);
    NEED(cuMemcpyDtoH_v2(made.data(), from, number * 4));
    return made;
}

} // namespace

void kernels() {
    CUmodule module = nullptr;
    CUfunction add = nullptr, sum = nullptr, none = nullptr;
    NEED(cuModuleLoadData(&module, source));
    NEED(cuModuleGetFunction(&add, module, "add"));
    NEED(cuModuleGetFunction(&sum, module, "sum"));
    EXPECT_RESULT(cuModuleGetFunction(&none, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    int threads = 0;
    NEED(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, add));
    EXPECT(threads >= static_cast<int>(block));

    std::vector<std::uint32_t> a(count), b(count);
    for (std::uint32_t i = 0; i < count; ++i) {
        a[i] = i * 2654435761u;
        b[i] = i ^ 0x5bd1e995u;
    }
    CUdeviceptr da = upload(a), db = upload(b), dc = upload(std::vector<std::uint32_t>(count));
    std::uint32_t n = count - 5;
    for (std::uint32_t k = 0; k < 50; ++k) {
        void* parameters[] = {&da, &db, &dc, &n, &k};
        NEED(cuLaunchKernel(add, blocks, 1, 1, block, 1, 1, 0, nullptr, parameters, nullptr));
    }
    auto got = download(dc, count);
    bool right = true;
    for (std::uint32_t i = 0; i < count; ++i)
        right = right && got[i] == (i < n ? a[i] + b[i] + 49 : 0);
    EXPECT(right);

    // The same parameters as one block; dynamic shared memory.
    struct {
        CUdeviceptr a, c;
    } packed{da, dc};
    std::size_t packed_bytes = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                     CU_LAUNCH_PARAM_END};
    NEED(cuLaunchKernel(sum, blocks, 1, 1, block, 1, 1, block * 4, nullptr, nullptr, extra));
    NEED(cuCtxSynchronize());
    got = download(dc, blocks);
    for (std::uint32_t i = 0; i < blocks; ++i) {
        std::uint32_t wanted = 0;
        for (std::uint32_t t = 0; t < block; ++t)
            wanted += a[i * block + t];
        EXPECT(got[i] == wanted);
    }
    for (const CUdeviceptr memory : {da, db, dc})
        NEED(cuMemFree_v2(memory));
    NEED(cuModuleUnload(module));
}

} // namespace check
