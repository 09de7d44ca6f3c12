// SPDX-License-Identifier: GPL-2.0-or-later
// What kernels print, and what becomes of a context in which a kernel failed. Each fault is a run of its own: on a
// GPU nothing else works in the process afterwards.
#include "check.hpp"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace check {

namespace {

const char source[] = R"(
.version 6.0
.target sm_50
.address_size 64

.extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 arguments);
.extern .func __assertfail (.param .b64 what, .param .b64 file, .param .b32 line, .param .b64 where, .param .b64 bytes);
.global .align 1 .b8 format[22] = {98, 108, 111, 99, 107, 32, 37, 117, 44, 32, 37, 117, 44, 32, 37, 46, 50, 102, 33, 10, 0, 0};
.global .align 1 .b8 what[6] = {49, 32, 62, 32, 50, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.global .align 1 .b8 where[2] = {107, 0};

.visible .entry prints(.param .u32 n)
{
    .local .align 8 .b8 room[16];
    .reg .b32 %r<4>;
    .reg .f64 %f1;
    .reg .b64 %d<5>;
    mov.u32 %r1, %ctaid.x;
    ld.param.u32 %r2, [n];
    mov.f64 %f1, 0d3FF8000000000000;
    mov.u64 %d1, room;
    cvta.local.u64 %d2, %d1;
    st.local.u32 [%d1], %r1;
    st.local.u32 [%d1+4], %r2;
    st.local.f64 [%d1+8], %f1;
    mov.u64 %d3, format;
    cvta.global.u64 %d4, %d3;
    {
    .param .b64 a0;
    .param .b64 a1;
    .param .b32 r0;
    st.param.b64 [a0], %d4;
    st.param.b64 [a1], %d2;
    call.uni (r0), vprintf, (a0, a1);
    ld.param.b32 %r3, [r0];
    }
    ret;
}

.visible .entry asserts()
{
    .reg .b64 %d<8>;
    mov.u64 %d1, what;
    cvta.global.u64 %d2, %d1;
    mov.u64 %d3, file;
    cvta.global.u64 %d4, %d3;
    mov.u64 %d5, where;
    cvta.global.u64 %d6, %d5;
    mov.u64 %d7, 1;
    {
    .param .b64 a0;
    .param .b64 a1;
    .param .b32 a2;
    .param .b64 a3;
    .param .b64 a4;
    st.param.b64 [a0], %d2;
    st.param.b64 [a1], %d4;
    st.param.b32 [a2], 12;
    st.param.b64 [a3], %d6;
    st.param.b64 [a4], %d7;
    call.uni __assertfail, (a0, a1, a2, a3, a4);
    }
    ret;
}

.visible .entry traps()
{
    trap;
    ret;
}

.visible .entry strays()
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    mov.u64 %d1, 64;
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
)";

CUfunction function_of(const char* name) {
    CUmodule module = nullptr;
    CUfunction f = nullptr;
    NEED(cuModuleLoadData(&module, source));
    NEED(cuModuleGetFunction(&f, module, name));
    return f;
}

// What is written to standard output while `run` runs.
template <class Run>
std::string text_of(Run run) {
    std::fflush(stdout);
    std::FILE* const file = std::tmpfile();
    const int before = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    run();
    std::fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    std::fseek(file, 0, SEEK_END);
    std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
    std::rewind(file);
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
}

void fault(const char* name, CUresult wanted, CUresult also) {
    const CUfunction f = function_of(name);
    CUdeviceptr memory = 0;
    NEED(cuMemAlloc_v2(&memory, 64));
    NEED(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    const CUresult first = cu.cuCtxSynchronize();
    EXPECT(first == wanted || first == also);
    // It stays: no call of this context works any more.
    char octet = 0;
    EXPECT(cu.cuMemAlloc_v2(&memory, 64) == first);
    EXPECT(cu.cuMemcpyDtoH_v2(&octet, memory, 1) == first);
    EXPECT(cu.cuCtxSynchronize() == first);
}

} // namespace

void prints() {
    const CUfunction f = function_of("prints");
    std::uint32_t n = 42;
    const std::string text = text_of([&] {
        void* parameters[] = {&n};
        for (n = 42; n < 44; ++n)
            NEED(cuLaunchKernel(f, 2, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
        NEED(cuCtxSynchronize());
    });
    // Blocks of one launch print in any order; one launch is behind the other.
    const std::string first[] = {"block 0, 42, 1.50!\nblock 1, 42, 1.50!\n",
                                 "block 1, 42, 1.50!\nblock 0, 42, 1.50!\n"};
    const std::string second[] = {"block 0, 43, 1.50!\nblock 1, 43, 1.50!\n",
                                  "block 1, 43, 1.50!\nblock 0, 43, 1.50!\n"};
    bool known = false;
    for (const std::string& a : first)
        for (const std::string& b : second)
            known = known || text == a + b;
    EXPECT(known);
}

void fault_assert() {
    fault("asserts", CUDA_ERROR_ASSERT, CUDA_ERROR_ASSERT);
}
void fault_trap() {
    fault("traps", CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_LAUNCH_FAILED);
}
void fault_address() {
    fault("strays", CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED);
}

} // namespace check
