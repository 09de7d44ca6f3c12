// SPDX-License-Identifier: GPL-2.0-or-later
//
// What single calls of the CUDA driver API take in the caller, of any library: NVIDIA's own, or the guest's over
// the loopback. One JSON object on a line; run both in turn and compare (README.md).
//
//   kagemusha_cuda_speed [LIBRARY]              single calls
//   kagemusha_cuda_speed LIBRARY gpu-bound      kernels of 19 ms (of an H200), one behind the other: what the GPU does
#include "proto/cuda/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr char module_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry nothing(.param .u64 p)\n{\n\tret;\n}\n";
constexpr std::size_t copy_bytes = std::size_t{64} << 20;

void* library;

template <class Function>
Function* find(const char* name) {
    auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
    if (found)
        return found;
    std::fprintf(stderr, "the library has no %s\n", name);
    std::exit(1);
}
#define FIND(name) const auto call_##name = find<decltype(name)>(#name)

void must(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS)
        return;
    std::fprintf(stderr, "%s: CUDA's error %d\n", what, static_cast<int>(result));
    std::exit(1);
}

double now_ns() {
    using namespace std::chrono;
    return static_cast<double>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

double middle(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

// The middle of `rounds` times of `body`, in nanoseconds.
template <class Body>
double time_of(int rounds, Body&& body) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
        const double begin = now_ns();
        body();
        times.push_back(now_ns() - begin);
    }
    return middle(std::move(times));
}
struct measured {
    double launch_ns, launches_per_s, launch_and_wait_ns, alloc_ns, free_ns, htod, dtoh, htod_pinned,
        dtoh_pinned;
    double beside_pinned_ns, with_pinned_ns[3]; // launch and wait
    double query_ns, rows_ns, htod_16, dtoh_16; // what LUPINE publishes figures of
};

void measure_launches(measured& out) {
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuStreamCreate);
    FIND(cuStreamSynchronize);
    FIND(cuLaunchKernel);
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    CUstream stream = nullptr;
    must(call_cuModuleLoadData(&module, module_text), "cuModuleLoadData");
    must(call_cuModuleGetFunction(&kernel, module, "nothing"), "cuModuleGetFunction");
    must(call_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    std::uint64_t parameter = 0;
    void* parameters[] = {&parameter};
    const auto launch = [&](int times) {
        for (int i = 0; i < times; ++i)
            must(call_cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
                 "cuLaunchKernel");
    };
    const auto wait = [&] { must(call_cuStreamSynchronize(stream), "cuStreamSynchronize"); };
    constexpr int warm_up = 20000, launches = 400000, burst = 256;
    launch(warm_up);
    wait();
    out.launch_ns = time_of(400, [&] { launch(burst); }) / burst;
    wait();
    const double begin = now_ns();
    launch(launches);
    wait();
    out.launches_per_s = launches / ((now_ns() - begin) / 1e9);
    out.launch_and_wait_ns = time_of(2000, [&] {
        launch(1);
        wait();
    });
}

// Pinned memory that is there, and then a kernel gets a pointer to it, of which the program has stored one word.
void measure_pinned(measured& out) {
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuStreamSynchronize);
    FIND(cuLaunchKernel);
    FIND(cuMemHostAlloc);
    FIND(cuMemFreeHost);
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    must(call_cuModuleLoadData(&module, module_text), "cuModuleLoadData");
    must(call_cuModuleGetFunction(&kernel, module, "nothing"), "cuModuleGetFunction");
    const auto take = [&](std::size_t bytes, bool named, int times) {
        void* memory = nullptr;
        must(call_cuMemHostAlloc(&memory, bytes, 0), "cuMemHostAlloc");
        std::memset(memory, 1, bytes);
        volatile std::uint64_t* const word = static_cast<std::uint64_t*>(memory);
        std::uint64_t parameter = named ? reinterpret_cast<std::uint64_t>(memory) : 0;
        void* parameters[] = {&parameter};
        const double ns = time_of(times, [&] {
            word[1] = word[1] + 1;
            must(call_cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
                 "cuLaunchKernel");
            must(call_cuStreamSynchronize(nullptr), "cuStreamSynchronize");
        });
        must(call_cuMemFreeHost(memory), "cuMemFreeHost");
        return ns;
    };
    out.beside_pinned_ns = take(4096, false, 2000);
    out.with_pinned_ns[0] = take(4096, true, 1000);
    out.with_pinned_ns[1] = take(1 << 20, true, 200);
    out.with_pinned_ns[2] = take(64 << 20, true, 15);
}

void measure_allocations(measured& out) {
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    CUdeviceptr warm = 0;
    must(call_cuMemAlloc_v2(&warm, 4096), "cuMemAlloc"); // what small pieces are of
    std::vector<CUdeviceptr> pieces(256);
    const auto each = static_cast<double>(pieces.size());
    std::vector<double> allocations, frees;
    for (int i = 0; i < 200; ++i) {
        const double start = now_ns();
        for (CUdeviceptr& one : pieces)
            must(call_cuMemAlloc_v2(&one, 4096), "cuMemAlloc");
        const double made = now_ns();
        for (const CUdeviceptr one : pieces)
            must(call_cuMemFree_v2(one), "cuMemFree");
        allocations.push_back((made - start) / each);
        frees.push_back((now_ns() - made) / each);
    }
    out.alloc_ns = middle(std::move(allocations));
    out.free_ns = middle(std::move(frees));
}

void measure_copies(measured& out) {
    FIND(cuMemAlloc_v2);
    FIND(cuMemcpyHtoD_v2);
    FIND(cuMemcpyDtoH_v2);
    FIND(cuMemHostAlloc);
    CUdeviceptr large = 0;
    must(call_cuMemAlloc_v2(&large, copy_bytes), "cuMemAlloc");
    std::vector<char> pageable(copy_bytes, 1);
    void* pinned = nullptr;
    must(call_cuMemHostAlloc(&pinned, copy_bytes, 0), "cuMemHostAlloc");
    std::fill_n(static_cast<char*>(pinned), copy_bytes, 2);
    const auto to = [&](const void* from) {
        return copy_bytes / time_of(15, [&] { must(call_cuMemcpyHtoD_v2(large, from, copy_bytes), "HtoD"); });
    };
    const auto from = [&](void* into) {
        return copy_bytes / time_of(15, [&] { must(call_cuMemcpyDtoH_v2(into, large, copy_bytes), "DtoH"); });
    };
    out.htod = to(pageable.data());
    out.dtoh = from(pageable.data());
    out.htod_pinned = to(pinned);
    out.dtoh_pinned = from(pinned);
}

// The shapes of what LUPINE (github.com/lupinemachines/lupine) publishes figures of, so that both can be compared:
// its page on CUDA's library samples (rows of a triangle that are read one by one into pageable memory), its page
// on compression (16 pieces of 16 MiB each way, and a query).
void measure_as_lupine(measured& out) {
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemcpyHtoD_v2);
    FIND(cuMemcpyDtoH_v2);
    FIND(cuMemcpyDtoHAsync_v2);
    FIND(cuMemGetInfo_v2);
    constexpr std::size_t rows = 512, matrices = 100, row_bytes = 8 * rows;
    constexpr std::size_t piece_bytes = std::size_t{16} << 20, pieces = 16;
    std::size_t free_bytes = 0, total_bytes = 0;
    out.query_ns =
        time_of(2000, [&] { must(call_cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo"); });

    CUdeviceptr memory = 0;
    must(call_cuMemAlloc_v2(&memory, piece_bytes), "cuMemAlloc");
    std::vector<char> host(piece_bytes, 3);
    const double begin = now_ns();
    for (std::size_t i = 0; i < matrices; ++i)
        for (std::size_t row = 0; row < rows; ++row)
            must(call_cuMemcpyDtoHAsync_v2(host.data() + row * row_bytes, memory + row * row_bytes,
                                           8 * (row + 1), nullptr),
                 "cuMemcpyDtoHAsync");
    out.rows_ns = (now_ns() - begin) / (rows * matrices);
    const auto each_way = [&](auto&& copy) {
        const double start = now_ns();
        for (std::size_t i = 0; i < pieces; ++i)
            must(copy(), "a copy of 16 MiB");
        return pieces * piece_bytes / (now_ns() - start);
    };
    out.htod_16 = each_way([&] { return call_cuMemcpyHtoD_v2(memory, host.data(), piece_bytes); });
    out.dtoh_16 = each_way([&] { return call_cuMemcpyDtoH_v2(host.data(), memory, piece_bytes); });
    must(call_cuMemFree_v2(memory), "cuMemFree");
}

// Each thread does 4 * `rounds` dependent multiplications; far more threads than the GPU has places for.
constexpr char busy_text[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry busy(.param .u64 to, .param .u32 rounds)\n{\n"
    "\t.reg .f32 %f<3>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %d<4>;\n\t.reg .pred %p<2>;\n"
    "\tld.param.u64 %d1, [to];\n\tld.param.u32 %r1, [rounds];\n"
    "\tmov.u32 %r2, %ctaid.x;\n\tmov.u32 %r3, %ntid.x;\n\tmov.u32 %r4, %tid.x;\n"
    "\tmad.lo.s32 %r2, %r2, %r3, %r4;\n\tcvt.rn.f32.u32 %f1, %r2;\n"
    "\tmov.f32 %f2, 0f3F7FFFFF;\n"
    "again:\n"
    "\tfma.rn.f32 %f1, %f1, %f2, %f2;\n\tfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "\tfma.rn.f32 %f1, %f1, %f2, %f2;\n\tfma.rn.f32 %f1, %f1, %f2, %f2;\n"
    "\tsub.s32 %r1, %r1, 1;\n\tsetp.ne.s32 %p1, %r1, 0;\n\t@%p1 bra again;\n"
    "\tmul.wide.u32 %d2, %r2, 4;\n\tadd.s64 %d1, %d1, %d2;\n"
    "\tst.global.f32 [%d1], %f1;\n\tret;\n}\n";

// Seconds of 500 launches, of which a program has four on their way, as one that computes does.
double measure_gpu_bound() {
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuMemAlloc_v2);
    FIND(cuEventCreate);
    FIND(cuEventRecord);
    FIND(cuEventSynchronize);
    FIND(cuLaunchKernel);
    FIND(cuCtxSynchronize);
    constexpr unsigned blocks = 4096, threads = 256, launches = 500, ahead = 4;
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    CUdeviceptr to = 0;
    CUevent over[ahead];
    must(call_cuModuleLoadData(&module, busy_text), "cuModuleLoadData");
    must(call_cuModuleGetFunction(&kernel, module, "busy"), "cuModuleGetFunction");
    must(call_cuMemAlloc_v2(&to, std::size_t{blocks} * threads * sizeof(float)), "cuMemAlloc");
    for (CUevent& one : over)
        must(call_cuEventCreate(&one, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    std::uint32_t rounds = 120000;
    void* parameters[] = {&to, &rounds};
    const auto run = [&](unsigned times) {
        for (unsigned i = 0; i < times; ++i) {
            if (i >= ahead)
                must(call_cuEventSynchronize(over[i % ahead]), "cuEventSynchronize");
            must(call_cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, nullptr, parameters, nullptr),
                 "cuLaunchKernel");
            must(call_cuEventRecord(over[i % ahead], nullptr), "cuEventRecord");
        }
        must(call_cuCtxSynchronize(), "cuCtxSynchronize");
    };
    run(100);
    const double begin = now_ns();
    run(launches);
    return (now_ns() - begin) / 1e9;
}

} // namespace

int main(int count, char** arguments) {
    library = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    CUcontext context = nullptr;
    must(call_cuInit(0), "cuInit");
    must(call_cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(call_cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (count > 2 && std::strcmp(arguments[2], "gpu-bound") == 0) {
        std::printf("{\"gpu_bound_s\": %.4f}\n", measure_gpu_bound());
        return 0;
    }
    measured m{};
    measure_launches(m);
    measure_pinned(m);
    measure_allocations(m);
    measure_copies(m);
    measure_as_lupine(m);
    std::printf("{\"launch_ns\": %.0f, \"launches_per_s\": %.0f, \"launch_and_wait_ns\": %.0f, "
                "\"alloc_ns\": %.0f, \"free_ns\": %.0f, \"htod_gb_s\": %.2f, \"dtoh_gb_s\": %.2f, "
                "\"htod_pinned_gb_s\": %.2f, \"dtoh_pinned_gb_s\": %.2f, "
                "\"beside_pinned_ns\": %.0f, \"with_pinned_4k_ns\": %.0f, \"with_pinned_1m_ns\": %.0f, "
                "\"with_pinned_64m_ns\": %.0f, \"query_ns\": %.0f, \"rows_ns\": %.0f, "
                "\"htod_16m_gb_s\": %.2f, \"dtoh_16m_gb_s\": %.2f}\n",
                m.launch_ns, m.launches_per_s, m.launch_and_wait_ns, m.alloc_ns, m.free_ns, m.htod, m.dtoh,
                m.htod_pinned, m.dtoh_pinned, m.beside_pinned_ns, m.with_pinned_ns[0], m.with_pinned_ns[1],
                m.with_pinned_ns[2], m.query_ns, m.rows_ns, m.htod_16, m.dtoh_16);
    return 0;
}
