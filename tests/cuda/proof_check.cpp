// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a libcudart does before it trusts a driver, with the proof of proving_driver.cpp: asks for the tables,
// asks the check who it is, and compares. Arguments: the library, then what to check:
//   proves    in the first thread, in another one, and in the first one again, each proof is right
//   refuses   there is no answer, by an error; the library works on
//   no-tables cuGetExportTable gives none
#include "proof.hpp"

#include "proto/cuda/cuda.h"
#include "proto/cuda/export_tables.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace {

using check_function = CUresult (*)(unsigned version, std::uint64_t seconds, void* proof);

void expect(bool holds, const char* what) {
    if (holds)
        return;
    std::fprintf(stderr, "%s: does not hold\n", what);
    std::exit(1);
}

struct library {
    void* handle;
    template <class Function>
    Function* function(const char* name) const {
        auto* const found = reinterpret_cast<Function*>(dlsym(handle, name));
        expect(found, name);
        return found;
    }
};

struct tables {
    const std::uint64_t *interface = nullptr, *checks = nullptr;
    CUresult error;
    explicit tables(const library& from) {
        constexpr CUuuid interface_name = KVG_CUDA_TABLE_INTERFACE, check_name = KVG_CUDA_TABLE_CHECK;
        const auto get = from.function<decltype(cuGetExportTable)>("cuGetExportTable");
        const void* table = nullptr;
        error = get(&table, &interface_name);
        interface = static_cast<const std::uint64_t*>(table);
        if (!error)
            error = get(&table, &check_name);
        checks = static_cast<const std::uint64_t*>(table);
    }
    CUresult ask(unsigned version, std::uint64_t seconds, std::array<std::uint64_t, 2>& proof) const {
        return reinterpret_cast<check_function>(checks[1])(version, seconds, proof.data());
    }
};

void check_proof(const tables& of, unsigned version, std::uint64_t seconds) {
    std::array<std::uint64_t, 2> proof{};
    expect(of.ask(version, seconds, proof) == CUDA_SUCCESS, "the check answers");
    const auto right =
        proof_of({version, static_cast<std::uint32_t>(getpid()), static_cast<std::uint64_t>(pthread_self()),
                  seconds, reinterpret_cast<std::uintptr_t>(of.interface),
                  reinterpret_cast<std::uintptr_t>(of.checks), of.checks[1]});
    expect(proof == right, "the proof is this process's and this thread's");
}

void check_tables(const tables& of, const library& from) {
    expect(of.interface[0] == 13 * sizeof(std::uint64_t), "the size of the interface table");
    expect(of.checks[0] == 3 * sizeof(std::uint64_t), "the size of the check table");
    using primary_context = CUresult (*)(CUcontext* handle, CUdevice device);
    const auto primary = reinterpret_cast<primary_context>(of.interface[2]);
    CUcontext known = nullptr, retained = nullptr, again = nullptr;
    unsigned flags = 0;
    int active = 1;
    expect(primary(&known, 0) == CUDA_SUCCESS && known, "a device's primary context");
    expect(from.function<decltype(cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState")(
               0, &flags, &active) == CUDA_SUCCESS &&
               active == 0,
           "its handle alone makes no context");
    const auto retain = from.function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
    expect(retain(&retained, 0) == CUDA_SUCCESS && retained == known, "the retained one has the same handle");
    expect(from.function<decltype(cuDevicePrimaryCtxReset_v2)>("cuDevicePrimaryCtxReset_v2")(0) ==
               CUDA_SUCCESS,
           "a reset");
    expect(retain(&again, 0) == CUDA_SUCCESS && again == known, "the one after a reset, too");
    expect(from.function<decltype(cuDevicePrimaryCtxReset_v2)>("cuDevicePrimaryCtxReset_v2")(0) ==
                   CUDA_SUCCESS &&
               from.function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent")(known) == CUDA_SUCCESS &&
               from.function<decltype(cuCtxSynchronize)>("cuCtxSynchronize")() == CUDA_SUCCESS,
           "to make it current begins it");
}

} // namespace

int main(int count, char** arguments) {
    expect(count == 3, "arguments: LIBRARY proves|refuses|no-tables");
    const std::string_view wanted = arguments[2];
    const library cuda{dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL)};
    expect(cuda.handle, "the library opens");
    const tables known(cuda);
    if (wanted == "no-tables") {
        expect(known.error != CUDA_SUCCESS, "there are no tables");
    } else {
        expect(known.error == CUDA_SUCCESS, "there are tables");
        check_tables(known, cuda);
    }
    if (wanted == "proves") {
        check_proof(known, 12000, 1'800'000'000);
        check_proof(known, 12001, 1'800'000'000);
        std::thread([&] { check_proof(known, 12000, 1'800'000'001); }).join();
        check_proof(known, 12000, 1'800'000'002);
    }
    if (wanted == "refuses") {
        std::array<std::uint64_t, 2> proof{};
        expect(known.ask(12000, 1'800'000'000, proof) != CUDA_SUCCESS, "the check gives an error");
    }
    int devices = 0;
    expect(cuda.function<decltype(cuDeviceGetCount)>("cuDeviceGetCount")(&devices) == CUDA_SUCCESS &&
               devices == 1,
           "the driver works on");
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    expect(cuda.function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0) ==
                   CUDA_SUCCESS &&
               cuda.function<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent")(context) == CUDA_SUCCESS &&
               cuda.function<decltype(cuMemAlloc_v2)>("cuMemAlloc_v2")(&memory, 4096) == CUDA_SUCCESS,
           "memory");
    std::printf("%s ok\n", arguments[2]);
    return 0;
}
