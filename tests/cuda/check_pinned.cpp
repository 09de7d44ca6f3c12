// SPDX-License-Identifier: GPL-2.0-or-later
// Kernels that read and write the program's pinned memory, and what else may look at it.
#include "check.hpp"
#include "check_source.hpp"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace check {

namespace {

constexpr std::uint32_t count = 5000, bias = 5;
using words = std::vector<std::uint32_t>;

// mix: every second word from the `first`th on is added to. tally: *sum += by, once for each thread. reach: as bump
// for one word, whose address is in memory. crawl: adds up to n in a loop before it stores the sum. octets: every
// second byte is set.
constexpr char source[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry mix(.param .u64 at, .param .u32 n, .param .u32 by, .param .u32 first)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [by];
    ld.param.u32 %r7, [first];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    shl.b32 %r6, %r6, 1;
    add.s32 %r6, %r6, %r7;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %d2, %r6, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r7, [%d3];
    add.s32 %r7, %r7, %r2;
    st.global.u32 [%d3], %r7;
END:
    ret;
}

.visible .entry octets(.param .u64 at, .param .u32 n, .param .u32 value)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    shl.b32 %r6, %r6, 1;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    cvt.u64.u32 %d2, %r6;
    add.s64 %d3, %d1, %d2;
    st.global.u8 [%d3], %r2;
END:
    ret;
}

.visible .entry tally(.param .u64 sum, .param .u32 by)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [sum];
    ld.param.u32 %r1, [by];
    cvt.u64.u32 %d2, %r1;
    red.global.add.u64 [%d1], %d2;
    ret;
}

.visible .entry reach(.param .u64 table, .param .u32 by)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [table];
    ld.param.u32 %r1, [by];
    ld.global.u64 %d2, [%d1];
    ld.global.u32 %r2, [%d2];
    add.s32 %r2, %r2, %r1;
    st.global.u32 [%d2], %r2;
    ret;
}

.visible .entry crawl(.param .u64 at, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
LOOP:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra DONE;
    add.s32 %r2, %r2, %r3;
    add.s32 %r3, %r3, 1;
    bra LOOP;
DONE:
    st.global.u32 [%d1], %r2;
    ret;
}
)";

struct kernels_of {
    CUmodule module = nullptr, shared = nullptr;
    CUfunction mix = nullptr, octets = nullptr, tally = nullptr, reach = nullptr, crawl = nullptr,
               bump = nullptr;

    kernels_of() {
        NEED(cuModuleLoadData(&module, source));
        NEED(cuModuleLoadData(&shared, bump_source));
        NEED(cuModuleGetFunction(&mix, module, "mix"));
        NEED(cuModuleGetFunction(&octets, module, "octets"));
        NEED(cuModuleGetFunction(&tally, module, "tally"));
        NEED(cuModuleGetFunction(&reach, module, "reach"));
        NEED(cuModuleGetFunction(&crawl, module, "crawl"));
        NEED(cuModuleGetFunction(&bump, shared, "bump"));
    }
    ~kernels_of() {
        NEED(cuModuleUnload(shared));
        NEED(cuModuleUnload(module));
    }
};

template <class... Argument>
void launch(CUfunction function, unsigned threads, CUstream where, Argument... values) {
    void* parameters[] = {&values...};
    constexpr unsigned block = 128;
    const unsigned blocks = threads <= block ? 1 : (threads + block - 1) / block;
    NEED(cuLaunchKernel(function, blocks, 1, 1, threads < block ? threads : block, 1, 1, 0, where, parameters,
                        nullptr));
}

CUdeviceptr address_of(const void* memory) {
    return reinterpret_cast<CUdeviceptr>(memory);
}

struct pinned_words {
    std::uint32_t* at = nullptr;

    explicit pinned_words(std::size_t number = count) {
        void* made = nullptr;
        NEED(cuMemHostAlloc(&made, number * 4, 0));
        at = static_cast<std::uint32_t*>(made);
        std::iota(at, at + number, 0u);
    }
    ~pinned_words() { NEED(cuMemFreeHost(at)); }
    CUdeviceptr gpu() const { return address_of(at); }
    words all(std::size_t number = count) const { return {at, at + number}; }
};

words bumped(words of, std::uint32_t by) {
    for (std::uint32_t& one : of)
        one += by + bias;
    return of;
}

CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    NEED(cuStreamCreate(&made, flags));
    return made;
}

// The program stores here and there, and the kernel adds to all: both see everything of the other.
void in_turn(const kernels_of& k) {
    const pinned_words memory;
    CUstream stream = make_stream();
    words wanted = memory.all();
    std::mt19937 random(1);
    for (std::uint32_t round = 0; round < 60; ++round) {
        for (std::uint32_t i = 0; i < round * 10; ++i) {
            const std::uint32_t where = random() % count;
            memory.at[where] = wanted[where] = random();
        }
        launch(k.bump, count, stream, memory.gpu(), count, round);
        launch(k.bump, count, stream, memory.gpu(), count, 1u);
        wanted = bumped(bumped(wanted, round), 1);
        NEED(cuStreamSynchronize(stream));
        EXPECT(memory.all() == wanted);
    }
    NEED(cuStreamDestroy_v2(stream));
}

// A part of it, also by a pointer into its middle; what is beside is the program's.
void parts(const kernels_of& k) {
    const pinned_words memory;
    words wanted = memory.all();
    launch(k.bump, 100, nullptr, memory.gpu() + 1000 * 4, 100u, 7u);
    memory.at[999] = memory.at[1100] = wanted[999] = wanted[1100] = 77; // while it runs
    NEED(cuCtxSynchronize());
    for (std::uint32_t i = 1000; i < 1100; ++i)
        wanted[i] += 7 + bias;
    EXPECT(memory.all() == wanted);
}

// Kernels write every second word or byte while the program writes those between.
void beside_each_other(const kernels_of& k) {
    const pinned_words memory;
    CUstream stream = make_stream();
    words wanted = memory.all();
    for (std::uint32_t round = 1; round < 8; ++round) {
        launch(k.mix, count / 2, stream, memory.gpu(), count, round, 0u);
        for (std::uint32_t i = 1; i < count; i += 2)
            memory.at[i] = wanted[i] = i * round;
        launch(k.mix, count / 2, stream, memory.gpu(), count, 100u, 1u); // reads what was stored
        for (std::uint32_t i = 0; i < count; ++i)
            wanted[i] += i % 2 ? 100 : round;
        NEED(cuStreamSynchronize(stream));
        EXPECT(memory.all() == wanted);
    }
    auto* const octets = reinterpret_cast<unsigned char*>(memory.at);
    launch(k.octets, 1000, stream, memory.gpu(), 2000u, 0xabu);
    for (unsigned i = 1; i < 2000; i += 2)
        octets[i] = static_cast<unsigned char>(i / 2);
    NEED(cuStreamSynchronize(stream));
    bool right = true;
    for (unsigned i = 0; i < 2000; ++i)
        right = right && octets[i] == (i % 2 ? static_cast<unsigned char>(i / 2) : 0xab);
    EXPECT(right);
    NEED(cuStreamDestroy_v2(stream));
}

void atomics(const kernels_of& k) {
    const pinned_words memory;
    auto* const sum = reinterpret_cast<std::uint64_t*>(memory.at + 100);
    *sum = 1;
    CUstream streams[] = {make_stream(), make_stream(), make_stream(CU_STREAM_DEFAULT)};
    for (std::uint32_t i = 0; i < 30; ++i)
        launch(k.tally, 64, streams[i % 3], address_of(sum), i);
    NEED(cuCtxSynchronize());
    EXPECT(*sum == 1 + 64 * (29 * 30 / 2));
    EXPECT(memory.at[99] == 99 && memory.at[102] == 102);
    for (CUstream one : streams)
        NEED(cuStreamDestroy_v2(one));
}

// What the program may know by an event, and by another stream that waited for it.
void events(const kernels_of& k) {
    const pinned_words memory, other;
    CUstream one = make_stream(), two = make_stream();
    CUevent done = nullptr;
    NEED(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    words wanted = memory.all();
    for (std::uint32_t round = 0; round < 12; ++round) {
        launch(k.bump, count, one, memory.gpu(), count, round);
        wanted = bumped(wanted, round);
        NEED(cuEventRecord(done, one));
        launch(k.crawl, 1, one, other.gpu(), 20000u); // behind it, and not waited for
        if (round % 3 == 0) {
            NEED(cuEventSynchronize(done));
        } else if (round % 3 == 1) {
            while (cu.cuEventQuery(done) == CUDA_ERROR_NOT_READY) {
            }
        } else {
            NEED(cuStreamWaitEvent(two, done, 0));
            NEED(cuStreamSynchronize(two));
        }
        EXPECT(memory.all() == wanted);
    }
    NEED(cuCtxSynchronize());
    launch(k.crawl, 1, one, other.gpu(), 30000u);
    while (cu.cuStreamQuery(one) == CUDA_ERROR_NOT_READY) {
    }
    EXPECT(other.at[0] == std::uint32_t(30000ull * 29999 / 2));
    // Stored for one stream, and read by another that has not to wait for the first.
    memory.at[3] = wanted[3] = 1234;
    launch(k.crawl, 1, one, other.gpu(), 50000u);
    launch(k.crawl, 1, one, other.gpu() + 4, 10u);
    launch(k.bump, count, two, memory.gpu(), count, 9u);
    NEED(cuStreamSynchronize(two));
    EXPECT(memory.all() == bumped(wanted, 9));
    NEED(cuEventDestroy_v2(done));
    NEED(cuStreamDestroy_v2(one));
    EXPECT(cu.cuCtxSynchronize() == CUDA_SUCCESS && other.at[1] == 45); // of a stream that is gone
    NEED(cuStreamDestroy_v2(two));
}

// A kernel finds the pointer in memory, where the program put it.
void by_memory(const kernels_of& k) {
    const pinned_words memory;
    CUdeviceptr table = 0, pointer = 0;
    NEED(cuMemAlloc_v2(&table, 8));
    NEED(cuMemHostGetDevicePointer_v2(&pointer, memory.at + 17, 0));
    EXPECT(pointer == memory.gpu() + 17 * 4);
    NEED(cuMemcpyHtoD_v2(table, &pointer, 8));
    for (std::uint32_t round = 0; round < 5; ++round) {
        memory.at[17] = round * 100;
        launch(k.reach, 1, nullptr, table, 3u);
        NEED(cuCtxSynchronize());
        EXPECT(memory.at[17] == round * 100 + 3 && memory.at[16] == 16 && memory.at[18] == 18);
    }
    NEED(cuMemFree_v2(table));
}

// Copies and sets are in order with kernels, whichever side calls the memory its own.
void copies(const kernels_of& k) {
    const pinned_words memory, second;
    CUstream stream = make_stream();
    CUdeviceptr device = 0;
    NEED(cuMemAlloc_v2(&device, count * 4));
    words wanted = memory.all(), got(count);
    // Before any kernel has it: the copy is on its way when the kernel comes.
    NEED(cuMemsetD32Async(device, 11, count, stream));
    NEED(cuMemcpyDtoHAsync_v2(memory.at, device, count * 4, stream));
    launch(k.bump, count, stream, memory.gpu(), count, 1u);
    NEED(cuMemcpyHtoDAsync_v2(device, memory.at, count * 4, stream));
    NEED(cuMemcpyDtoHAsync_v2(second.at, device, count * 4, stream));
    NEED(cuStreamSynchronize(stream));
    wanted = bumped(words(count, 11), 1);
    EXPECT(memory.all() == wanted && second.all() == wanted);
    // Without a wait between, and from both sides.
    memory.at[5] = wanted[5] = 55;
    launch(k.bump, count, stream, memory.gpu(), count, 2u);
    NEED(cuMemcpyHtoDAsync_v2(device, memory.at, count * 4, stream));
    launch(k.bump, count, stream, device, count, 0u);
    NEED(cuMemcpyDtoHAsync_v2(memory.at + 100, device + 400, 4000, stream));
    launch(k.bump, count, stream, memory.gpu(), count, 3u);
    NEED(cuStreamSynchronize(stream));
    wanted = bumped(wanted, 2);
    for (std::uint32_t i = 100; i < 1100; ++i)
        wanted[i] += bias;
    wanted = bumped(wanted, 3);
    EXPECT(memory.all() == wanted);
    // A store that no kernel has seen, copied.
    memory.at[300] = wanted[300] = 3;
    NEED(cuMemcpyHtoD_v2(device + 1200, memory.at + 300, 4));
    NEED(cuMemcpyDtoH_v2(got.data(), device + 1200, 4));
    EXPECT(got[0] == 3);
    // A copy of what was there before the program stored: the copy is later, and counts.
    NEED(cuMemcpyHtoD_v2(device, memory.at, count * 4));
    memory.at[200] = 1;
    NEED(cuMemcpyDtoH_v2(memory.at, device, count * 4));
    EXPECT(memory.all() == wanted);
    // Sets, and a kernel's result that a copy which waits brings.
    NEED(cuMemsetD32Async(memory.gpu() + 40, 99, 10, stream));
    NEED(cuStreamSynchronize(stream));
    std::fill_n(wanted.begin() + 10, 10, 99);
    EXPECT(memory.all() == wanted);
    launch(k.bump, count, nullptr, memory.gpu(), count, 4u);
    NEED(cuMemcpy(address_of(got.data()), memory.gpu(), count * 4));
    wanted = bumped(wanted, 4);
    EXPECT(got == wanted && memory.all() == wanted);
    launch(k.bump, count, nullptr, memory.gpu(), count, 5u);
    NEED(cuMemcpyDtoH_v2(got.data(), device, 4));
    wanted = bumped(wanted, 5);
    EXPECT(memory.all() == wanted);
    NEED(cuMemFree_v2(device));
    NEED(cuStreamDestroy_v2(stream));
}

// The program's own memory, from anywhere in a page to anywhere in another.
void registered(const kernels_of& k) {
    words memory(count);
    std::iota(memory.begin(), memory.end(), 0u);
    words wanted = memory;
    std::uint32_t* const first = memory.data() + 333;
    constexpr std::uint32_t part = 3000;
    CUdeviceptr at = 0;
    NEED(cuMemHostRegister_v2(first, part * 4, CU_MEMHOSTREGISTER_DEVICEMAP));
    NEED(cuMemHostGetDevicePointer_v2(&at, first, 0));
    EXPECT(at % 4 == 0);
    for (std::uint32_t round = 0; round < 5; ++round) {
        launch(k.bump, part, nullptr, at, part, round);
        memory[0] = memory[count - 1] = wanted[0] = wanted[count - 1] = round;
        for (std::uint32_t i = 333; i < 333 + part; ++i)
            wanted[i] += round + bias;
        NEED(cuStreamSynchronize(nullptr));
        EXPECT(memory == wanted);
        memory[400] = wanted[400] = round;
    }
    launch(k.bump, part, nullptr, at, part, 50u);
    NEED(cuMemHostUnregister(first)); // the kernel is behind it, and its result there
    for (std::uint32_t i = 333; i < 333 + part; ++i)
        wanted[i] += 50 + bias;
    EXPECT(memory == wanted);
    EXPECT_RESULT(cuMemHostGetDevicePointer_v2(&at, first, 0), CUDA_ERROR_INVALID_VALUE);
}

void attributes() {
    void* memory = nullptr;
    NEED(cuMemHostAlloc(&memory, 100, CU_MEMHOSTALLOC_DEVICEMAP));
    const auto about = [&]<class Value>(Value value, CUpointer_attribute which) {
        NEED(cuPointerGetAttribute(&value, which, address_of(memory) + 8));
        return value;
    };
    EXPECT(about(0u, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_HOST);
    EXPECT(about(CUdeviceptr{}, CU_POINTER_ATTRIBUTE_DEVICE_POINTER) == address_of(memory) + 8);
    EXPECT(about(CUdeviceptr{}, CU_POINTER_ATTRIBUTE_HOST_POINTER) == address_of(memory) + 8);
    EXPECT(about(CUdeviceptr{}, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == address_of(memory));
    EXPECT(about(std::size_t{}, CU_POINTER_ATTRIBUTE_RANGE_SIZE) == 100);
    CUdeviceptr at = 0;
    int can = 0;
    NEED(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0));
    EXPECT(can == 1);
    EXPECT_RESULT(cuMemHostGetDevicePointer_v2(&at, memory, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_RESULT(cuMemHostGetDevicePointer_v2(&at, &at, 0), CUDA_ERROR_INVALID_VALUE);
    NEED(cuMemFreeHost(memory));
    EXPECT_RESULT(cuMemHostGetDevicePointer_v2(&at, memory, 0), CUDA_ERROR_INVALID_VALUE);
}

// Freed while kernels use it, and made again: nothing of the old is in the new.
void comes_and_goes(const kernels_of& k) {
    for (std::uint32_t round = 0; round < 10; ++round) {
        const pinned_words memory;
        launch(k.crawl, 1, nullptr, memory.gpu(), 20000u);
        if (round % 2 == 0)
            continue; // freed with the kernel on its way
        NEED(cuCtxSynchronize());
        EXPECT(memory.at[0] == std::uint32_t(20000ull * 19999 / 2) && memory.at[1] == 1);
    }
}

// Its own function in the stream: sees what was before it, and is seen behind it.
void host_functions(const kernels_of& k) {
    struct told {
        std::uint32_t* memory;
        std::uint32_t seen;
    };
    const pinned_words memory;
    CUstream stream = make_stream();
    for (std::uint32_t round = 0; round < 5; ++round) {
        told what{memory.at, 0};
        memory.at[8] = round;
        launch(k.bump, count, stream, memory.gpu(), count, 1u);
        NEED(cuLaunchHostFunc(
            stream,
            [](void* data) {
                auto& one = *static_cast<told*>(data);
                one.seen = one.memory[8];
                one.memory[9] = 4000;
            },
            &what));
        launch(k.bump, count, stream, memory.gpu(), count, 2u);
        NEED(cuStreamSynchronize(stream));
        EXPECT(what.seen == round + 1 + bias);
        EXPECT(memory.at[8] == round + 3 + 2 * bias && memory.at[9] == 4000 + 2 + bias);
    }
    NEED(cuStreamDestroy_v2(stream));
}

// Memory that one context made, in kernels of another.
void two_contexts(const kernels_of& k) {
    const pinned_words memory;
    CUcontext first = nullptr, second = nullptr, popped = nullptr;
    NEED(cuCtxGetCurrent(&first));
    words wanted = memory.all();
    launch(k.bump, count, nullptr, memory.gpu(), count, 1u);
    NEED(cuCtxSynchronize());
    wanted = bumped(wanted, 1);
    NEED(cuCtxCreate_v2(&second, 0, 0));
    {
        const kernels_of there;
        for (std::uint32_t round = 0; round < 5; ++round) {
            memory.at[round] = wanted[round] = 3;
            launch(there.bump, count, nullptr, memory.gpu(), count, round);
            wanted = bumped(wanted, round);
            NEED(cuCtxSynchronize());
            EXPECT(memory.all() == wanted);
        }
    }
    NEED(cuCtxPopCurrent_v2(&popped));
    NEED(cuCtxSetCurrent(first));
    launch(k.bump, count, nullptr, memory.gpu(), count, 2u);
    NEED(cuCtxSynchronize());
    wanted = bumped(wanted, 2);
    EXPECT(memory.all() == wanted);
    NEED(cuCtxDestroy_v2(second));
    // And the other way round: the context that showed it to kernels ends.
    const pinned_words kept;
    NEED(cuCtxCreate_v2(&second, 0, 0));
    {
        const kernels_of there;
        launch(there.bump, count, nullptr, kept.gpu(), count, 1u);
        NEED(cuCtxSynchronize());
    }
    NEED(cuCtxDestroy_v2(second));
    NEED(cuCtxSetCurrent(first));
    EXPECT(kept.at[1] == 1 + 1 + bias);
    launch(k.bump, count, nullptr, kept.gpu(), count, 1u);
    NEED(cuCtxSynchronize());
    EXPECT(kept.at[1] == 1 + 2 * (1 + bias));
}

// Each thread has its stream, and its half of one piece.
void threads(const kernels_of& k) {
    const pinned_words memory;
    CUcontext context = nullptr;
    NEED(cuCtxGetCurrent(&context));
    std::atomic<int> wrong{0};
    const auto work = [&](std::uint32_t first) {
        NEED(cuCtxSetCurrent(context));
        CUstream stream = make_stream();
        std::uint32_t* const half = memory.at + first;
        words wanted(half, half + count / 2);
        for (std::uint32_t round = 0; round < 40; ++round) {
            for (std::uint32_t i = round; i < count / 2; i += 100)
                half[i] = wanted[i] = round * i + first;
            launch(k.bump, count / 2, stream, address_of(half), count / 2, round);
            NEED(cuStreamSynchronize(stream));
            wanted = bumped(wanted, round);
            wrong += wanted != words(half, half + count / 2);
        }
        NEED(cuStreamDestroy_v2(stream));
    };
    std::thread other(work, count / 2);
    work(0);
    other.join();
    EXPECT(wrong == 0);
}

// More than the GPU has: an error where it is shown to kernels, and none before.
void too_large() {
    constexpr std::size_t room = std::size_t{64} << 20;
    std::size_t free = 0, total = 0;
    void* memory = nullptr;
    CUdeviceptr at = 0;
    NEED(cuMemGetInfo_v2(&free, &total));
    if (total > std::size_t{16} << 30 || cu.cuMemHostAlloc(&memory, total + room, 0) != CUDA_SUCCESS)
        return; // which would take a machine's memory, or is what a driver refuses
    EXPECT_RESULT(cuMemHostGetDevicePointer_v2(&at, memory, 0), CUDA_ERROR_OUT_OF_MEMORY);
    NEED(cuMemFreeHost(memory));
}

// More than a copy of one command, and changes all over it.
void large(const kernels_of& k) {
    constexpr std::uint32_t number = 3 << 20;
    const pinned_words memory(number);
    words wanted = memory.all(number);
    for (std::uint32_t round = 1; round < 4; ++round) {
        for (std::uint32_t i = round; i < number; i += 65537)
            memory.at[i] = wanted[i] = i ^ round;
        launch(k.bump, 1000, nullptr, memory.gpu() + (number - 1000) * 4, 1000u, round);
        launch(k.bump, 1000, nullptr, memory.gpu(), 1000u, round);
        NEED(cuCtxSynchronize());
        for (std::uint32_t i = 0; i < 1000; ++i) {
            wanted[i] += round + bias;
            wanted[number - 1000 + i] += round + bias;
        }
        EXPECT(memory.all(number) == wanted);
    }
}

} // namespace

void pinned() {
    const kernels_of k;
    in_turn(k);
    parts(k);
    beside_each_other(k);
    atomics(k);
    events(k);
    by_memory(k);
    copies(k);
    registered(k);
    attributes();
    comes_and_goes(k);
    host_functions(k);
    two_contexts(k);
    threads(k);
    too_large();
    large(k);
}

} // namespace check
