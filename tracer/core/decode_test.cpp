// SPDX-License-Identifier: GPL-2.0-or-later
//
// Every instruction that the core carries out is executed by the processor too, and memory, registers and
// flags are compared. What the processor of this machine does not have is left out and said.
#include "tracer/core/alu.h"
#include "tracer/core/decode.h"
#include "tracer/core/test_store_encodings.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace {

using namespace tracer_test;

constexpr std::size_t page = 4096;
constexpr u64 compared_flags =
    KVT_FLAG_CF | KVT_FLAG_PF | KVT_FLAG_AF | KVT_FLAG_ZF | KVT_FLAG_SF | KVT_FLAG_DF | KVT_FLAG_OF;

// What the assembly below loads and stores; offsets are written there.
struct machine_state {
    std::array<u64, 16> gpr{};
    u64 flags = 0x202;
    u64 width = 16; // of the vector registers that are loaded: 16, 32, or 64, and 32 registers then
    alignas(64) std::array<std::array<u8, 64>, 32> vector{};
};
static_assert(offsetof(machine_state, flags) == 128);
static_assert(offsetof(machine_state, width) == 136);
static_assert(offsetof(machine_state, vector) == 192);

extern "C" void tracer_test_execute(machine_state* state, const void* code);

asm(R"(
    .text
    .type tracer_test_execute, @function
tracer_test_execute:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    push %rdi
    push %rsi
    cmpq $32, 136(%rdi)
    je 1f
    ja 3f
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    movdqa 192+64*\n(%rdi), %xmm\n
    .endr
    jmp 2f
1:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    vmovdqa 192+64*\n(%rdi), %ymm\n
    .endr
    jmp 2f
3:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    vmovdqa64 192+64*\n(%rdi), %zmm\n
    .endr
2:
    pushq 128(%rdi)
    popfq
    mov 0(%rdi), %rax
    mov 8(%rdi), %rcx
    mov 16(%rdi), %rdx
    mov 24(%rdi), %rbx
    mov 40(%rdi), %rbp
    mov 48(%rdi), %rsi
    mov 64(%rdi), %r8
    mov 72(%rdi), %r9
    mov 80(%rdi), %r10
    mov 88(%rdi), %r11
    mov 96(%rdi), %r12
    mov 104(%rdi), %r13
    mov 112(%rdi), %r14
    mov 120(%rdi), %r15
    mov 56(%rdi), %rdi
    call *(%rsp)
    xchg %rdi, 8(%rsp)
    mov %rax, 0(%rdi)
    mov %rcx, 8(%rdi)
    mov %rdx, 16(%rdi)
    mov %rbx, 24(%rdi)
    mov %rbp, 40(%rdi)
    mov %rsi, 48(%rdi)
    mov %r8, 64(%rdi)
    mov %r9, 72(%rdi)
    mov %r10, 80(%rdi)
    mov %r11, 88(%rdi)
    mov %r12, 96(%rdi)
    mov %r13, 104(%rdi)
    mov %r14, 112(%rdi)
    mov %r15, 120(%rdi)
    pushfq
    popq 128(%rdi)
    cld
    mov 8(%rsp), %rax
    mov %rax, 56(%rdi)
    add $16, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
    .size tracer_test_execute, .-tracer_test_execute
)");

struct arena {
    u8* base = nullptr;
    std::size_t bytes = 0;

    arena(std::size_t size, int protection) : bytes(size) {
        void* const made = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        base = made == MAP_FAILED ? nullptr : static_cast<u8*>(made);
    }
    ~arena() {
        if (base)
            munmap(base, bytes);
    }
    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;
};

struct testbed {
    arena memory{4 * page, PROT_READ | PROT_WRITE};
    arena code{page, PROT_READ | PROT_WRITE | PROT_EXEC};
    std::vector<u8> scratch = std::vector<u8>(kvt_scratch_bytes());
    machine_state state;
    kvt_access access{this, read_vector, read_destination};
    kvt_plan plan{};
    kvt_cpu cpu{};

    static bool read_vector(void* context, u32 index, u32 bytes, u8* to) {
        const auto& self = *static_cast<testbed*>(context);
        if (index >= (self.state.width == 64 ? 32 : 16) || bytes > self.state.width)
            return false;
        std::memcpy(to, self.state.vector[index].data(), bytes);
        return true;
    }

    static bool read_destination(void* context, u64 address, u32 bytes, u8* to) {
        const auto& self = *static_cast<testbed*>(context);
        const u64 start = reinterpret_cast<std::uintptr_t>(self.memory.base);
        if (address < start || address - start > self.memory.bytes - bytes)
            return false;
        std::memcpy(to, reinterpret_cast<const void*>(address), bytes);
        return true;
    }

    // What the core says of this instruction in the present state.
    const kvt_plan& decode(const std::vector<u8>& instruction) {
        std::copy(state.gpr.begin(), state.gpr.end(), cpu.gpr);
        cpu.ip = reinterpret_cast<std::uintptr_t>(code.base);
        cpu.flags = state.flags;
        cpu.is_64_bit = true;
        kvt_decode(scratch.data(), instruction.data(), static_cast<u32>(instruction.size()), &cpu, &access,
                   &plan);
        return plan;
    }

    // Carries the plan out on paper: memory as it must be.
    std::vector<u8> predict() {
        std::vector<u8> expected(memory.base, memory.base + memory.bytes);
        const u64 start = reinterpret_cast<std::uintptr_t>(memory.base);
        u8* const to = expected.data() + (plan.address - start);
        switch (plan.what) {
        case KVT_STORE:
            std::memcpy(to, plan.data, plan.bytes);
            break;
        case KVT_FILL:
            for (u64 i = 0; i < plan.count; ++i)
                std::memcpy(to + i * plan.bytes, plan.data, plan.bytes);
            break;
        case KVT_COPY: {
            const u8* const from = expected.data() + (plan.source - start);
            for (u64 i = 0; i < plan.count; ++i)
                std::memcpy(to + i * plan.bytes, from + i * plan.bytes, plan.bytes);
            break;
        }
        case KVT_OPEN:
            break;
        }
        if (plan.what != KVT_STORE)
            kvt_plan_advance(&plan, &cpu, plan.count);
        return expected;
    }

    void execute(const std::vector<u8>& instruction) {
        u8* at = std::copy(instruction.begin(), instruction.end(), code.base);
        *at = 0xc3; // ret
        tracer_test_execute(&state, code.base);
    }
};

bool inside(const testbed& bed, u64 address, u64 bytes) {
    const u64 start = reinterpret_cast<std::uintptr_t>(bed.memory.base);
    return address >= start && bytes <= bed.memory.bytes && address - start <= bed.memory.bytes - bytes;
}

class decode_test : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_NE(bed.memory.base, nullptr);
        ASSERT_NE(bed.code.base, nullptr);
        avx = __builtin_cpu_supports("avx");
        avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl");
        bed.state.width = avx512 ? 64 : avx ? 32 : 16;
    }

    void scramble() {
        for (std::size_t i = 0; i < bed.memory.bytes; i += 8) {
            const u64 word = random();
            std::memcpy(bed.memory.base + i, &word, 8);
        }
    }

    // Registers with values that are often special; rbx, rsi, rdi point into the memory.
    s64 prepare() {
        for (u64& one : bed.state.gpr) {
            static constexpr u64 special[] = {0,      1,      0x7f,       0x80,       0xff,
                                              0x7fff, 0x8000, 0x7fffffff, 0x80000000, ~u64{0}};
            one = random() % 3 ? random() : special[random() % std::size(special)];
        }
        for (auto& one : bed.state.vector)
            for (std::size_t i = 0; i < one.size(); i += 8) {
                const u64 word = random();
                std::memcpy(one.data() + i, &word, 8);
            }
        bed.state.flags =
            0x202 |
            (random() & (KVT_FLAG_CF | KVT_FLAG_PF | KVT_FLAG_AF | KVT_FLAG_ZF | KVT_FLAG_SF | KVT_FLAG_OF));
        const u64 start = reinterpret_cast<std::uintptr_t>(bed.memory.base);
        // aligned for the moves that want it, anywhere for a third
        const u64 at = random() % 3 ? random() % 200 * 64 : random() % 12000;
        const auto displacement = static_cast<s64>(random() % 0x20000) - 0x10000;
        bed.state.gpr[3] = start + at - static_cast<u64>(displacement);
        bed.state.gpr[6] = start + random() % 6000;
        bed.state.gpr[7] = start + 8000 + random() % 100;
        bed.state.gpr[1] = random() % 2 ? random() % 40 : bed.state.gpr[1];
        if (random() % 4 == 0) // CMPXCHG finds what it expects
            std::memcpy(bed.state.gpr.data(), bed.memory.base + at, 8);
        return displacement;
    }

    // False if the core leaves it to the processor.
    bool compare(const std::vector<u8>& instruction) {
        const kvt_plan& plan = bed.decode(instruction);
        if (plan.what == KVT_OPEN) {
            ++left_out[plan.reason];
            return false;
        }
        const u64 bytes = plan.what == KVT_STORE ? plan.bytes : plan.count * plan.bytes;
        if (plan.count > 1000 || !inside(bed, plan.address, bytes) ||
            (plan.what == KVT_COPY && !inside(bed, plan.source, bytes)))
            return false;
        const bool aligned_move = plan.bytes >= 16 && plan.address % plan.bytes != 0;
        if (aligned_move) // may be one that faults
            return false;
        const std::vector<u8> expected = bed.predict();
        const kvt_cpu& after = bed.plan.after;
        bed.execute(instruction);
        std::string text;
        for (const u8 one : instruction) {
            char hex[4];
            std::snprintf(hex, sizeof hex, "%02x ", one);
            text += hex;
        }
        EXPECT_EQ(std::memcmp(expected.data(), bed.memory.base, expected.size()), 0) << text;
        for (std::size_t i = 0; i < 16; ++i)
            if (i != 4) // rsp is the test's
                EXPECT_EQ(after.gpr[i], bed.state.gpr[i]) << text << "register " << i;
        EXPECT_EQ(after.flags & compared_flags, bed.state.flags & compared_flags) << text;
        EXPECT_EQ(after.ip, reinterpret_cast<std::uintptr_t>(bed.code.base) + instruction.size()) << text;
        return true;
    }

    generator random{17};
    testbed bed;
    bool avx = false, avx512 = false;
    std::map<u32, unsigned> left_out;
};

unsigned wanted() {
    const char* const text = std::getenv("KAGE_TRACER_INSTRUCTIONS");
    return text ? static_cast<unsigned>(std::atoi(text)) : 60000;
}

TEST_F(decode_test, what_the_processor_does_is_what_the_core_says) {
    const auto general = general_forms();
    const auto vectors = vector_forms();
    const unsigned count = wanted();
    unsigned done = 0, tried = 0;
    const unsigned kinds = avx512 ? 5 : avx ? 4 : 3;
    std::array<unsigned, 5> by_kind{};
    scramble();
    while (done < count && !HasFailure()) {
        ASSERT_LT(tried++, count * 10 + 1000);
        const s64 displacement = prepare();
        const unsigned kind = static_cast<unsigned>(random() % kinds);
        std::vector<u8> instruction;
        bool with_index = false;
        switch (kind) {
        case 0:
            with_index = random() % 4 == 0;
            if (with_index)
                bed.state.gpr[3] -= 2 * bed.state.gpr[6];
            instruction = encode(general[random() % general.size()], random, displacement, with_index, false);
            break;
        case 1:
            instruction = encode(vectors[random() % vectors.size()], random, displacement, false, true);
            break;
        case 2:
            instruction = encode_string(random);
            break;
        case 3:
            instruction = encode_vex(random, displacement);
            break;
        default:
            instruction = encode_evex(random, displacement);
            break;
        }
        if (compare(instruction)) {
            ++done;
            ++by_kind[kind];
        }
    }
    std::printf("%u instructions agreed: %u general, %u SSE, %u string, %u AVX, %u AVX-512%s\n", done,
                by_kind[0], by_kind[1], by_kind[2], by_kind[3], by_kind[4],
                avx512 ? ""
                : avx  ? " (this processor has no AVX-512)"
                       : " (this processor has no AVX)");
    for (std::size_t kind = 0; kind < kinds; ++kind)
        EXPECT_GT(by_kind[kind], count / 20);
}

TEST_F(decode_test, a_rip_relative_store_goes_where_it_says) {
    prepare();
    std::vector<u8> instruction{0xc6, 0x05, 0, 0, 0, 0, 0x5a}; // mov byte [rip + disp], 0x5a
    const auto distance = static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(bed.memory.base + 77) -
                                                    reinterpret_cast<std::intptr_t>(bed.code.base + 7));
    std::memcpy(instruction.data() + 2, &distance, 4);
    EXPECT_TRUE(compare(instruction));
    EXPECT_EQ(bed.memory.base[77], 0x5a);
}

TEST_F(decode_test, what_it_does_not_know_is_left_to_the_processor) {
    prepare();
    const auto reason = [&](std::vector<u8> code) {
        const kvt_plan& plan = bed.decode(code);
        EXPECT_EQ(plan.what, KVT_OPEN);
        return plan.reason;
    };
    EXPECT_EQ(reason({}), KVT_REASON_UNDECODED);
    EXPECT_EQ(reason({0xc7, 0x83}), KVT_REASON_UNDECODED);         // cut off
    EXPECT_EQ(reason({0x8b, 0x03}), KVT_REASON_NO_STORE);          // mov eax, [rbx]
    EXPECT_EQ(reason({0x64, 0x89, 0x03}), KVT_REASON_OPERAND);     // mov fs:[rbx], eax
    EXPECT_EQ(reason({0xd1, 0x23}), KVT_REASON_INSTRUCTION);       // shl dword [rbx], 1
    EXPECT_EQ(reason({0x0f, 0xc7, 0x0b}), KVT_REASON_INSTRUCTION); // cmpxchg8b [rbx]
    EXPECT_EQ(reason({0x67, 0xaa}), KVT_REASON_OPERAND);           // stosb to edi
    EXPECT_EQ(reason({0x0f, 0x7f, 0x03}), KVT_REASON_OPERAND);     // movq [rbx], mm0
    bed.state.gpr[3] = 0;
    EXPECT_EQ(reason({0x01, 0x03}), KVT_REASON_ACCESS); // add [0], eax: not ours to read
    bed.state.flags |= KVT_FLAG_DF;
    EXPECT_EQ(reason({0xaa}), KVT_REASON_OPERAND); // downwards
}

TEST_F(decode_test, masked_and_wide_vectors) {
    prepare();
    bed.state.width = 32;
    // vmovdqu8 [rbx]{k1}, zmm0: leaves bytes alone
    EXPECT_EQ(bed.decode({0x62, 0xf1, 0x7f, 0x49, 0x7f, 0x03}).reason, KVT_REASON_OPERAND);
    // vmovdqu64 [rbx], zmm0: wider than what this test's registers hold
    EXPECT_EQ(bed.decode({0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x03}).reason, KVT_REASON_ACCESS);
    EXPECT_EQ(bed.plan.bytes, 64u);
    // vmovdqu64 [rbx], xmm3
    const kvt_plan& plan = bed.decode({0x62, 0xf1, 0xfe, 0x08, 0x7f, 0x1b});
    EXPECT_EQ(plan.what, KVT_STORE);
    EXPECT_EQ(std::memcmp(plan.data, bed.state.vector[3].data(), 16), 0);
}

TEST_F(decode_test, a_32_bit_program) {
    prepare();
    std::copy(bed.state.gpr.begin(), bed.state.gpr.end(), bed.cpu.gpr);
    bed.cpu.ip = 0xfffffffe;
    bed.cpu.is_64_bit = false;
    bed.cpu.flags = 0x202;
    bed.cpu.gpr[3] = 0x12345678;
    const std::vector<u8> store{0x89, 0x43, 0x10}; // mov [ebx + 16], eax
    kvt_decode(bed.scratch.data(), store.data(), 3, &bed.cpu, &bed.access, &bed.plan);
    ASSERT_EQ(bed.plan.what, KVT_STORE);
    EXPECT_EQ(bed.plan.address, 0x12345688u);
    EXPECT_EQ(bed.plan.bytes, 4u);
    EXPECT_EQ(bed.plan.after.ip, 1u);
    const std::vector<u8> fill{0xf3, 0xab}; // rep stosd
    bed.cpu.gpr[1] = 0xffffffff00000005;
    bed.cpu.gpr[7] = 0xffffffff00001000;
    kvt_decode(bed.scratch.data(), fill.data(), 2, &bed.cpu, &bed.access, &bed.plan);
    ASSERT_EQ(bed.plan.what, KVT_FILL);
    EXPECT_EQ(bed.plan.count, 5u);
    EXPECT_EQ(bed.plan.address, 0x1000u);
    kvt_plan_advance(&bed.plan, &bed.cpu, 3);
    EXPECT_EQ(bed.plan.after.gpr[1], 2u);
    EXPECT_EQ(bed.plan.after.gpr[7], 0x100cu);
    EXPECT_EQ(bed.plan.after.ip, 0xfffffffeu); // not over
}

// Arbitrary bytes: the decoder stays inside its bounds whatever they say. (Fuzzed with coverage in
// tests/fuzz.)
TEST_F(decode_test, arbitrary_bytes) {
    unsigned stores = 0;
    for (unsigned round = 0; round < 200000; ++round) {
        prepare();
        std::vector<u8> code(random() % 16);
        for (u8& one : code)
            one = any(random, 256);
        const kvt_plan& plan = bed.decode(code);
        ASSERT_LE(plan.length, code.size());
        if (plan.what == KVT_OPEN)
            continue;
        ++stores;
        ASSERT_GE(plan.bytes, 1u);
        ASSERT_LE(plan.bytes, KVT_MAX_STORE_BYTES);
        ASSERT_EQ(plan.reason, KVT_REASON_NONE);
    }
    EXPECT_GT(stores, 1000u);
}

} // namespace
