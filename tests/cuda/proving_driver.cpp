// SPDX-License-Identifier: GPL-2.0-or-later
//
// A CUDA driver library with a validity check of its own way, in the place of NVIDIA's: the PTX device, and a
// table whose function proves who asks and where the tables lie. proof.hpp has the proof, which is not
// NVIDIA's. What it does besides is chosen by the environment:
//   CUDA_PROVING=die|hang  the check does not return
//   CUDA_PROVING=none      there are no tables
#include "proof.hpp"

#include "proto/cuda/cuda.h"
#include "proto/cuda/export_tables.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

bool does(std::string_view what) {
    const char* const wanted = std::getenv("CUDA_PROVING");
    return wanted && what == wanted;
}

CUresult check(unsigned version, std::uint64_t seconds, void* out);

std::uint64_t interface[13] = {sizeof interface};
std::uint64_t checks[3] = {sizeof checks};

CUresult check(unsigned version, std::uint64_t seconds, void* out) {
    if (does("die"))
        ::kill(::getpid(), SIGKILL);
    while (does("hang"))
        ::pause();
    const auto proof = proof_of({version, static_cast<std::uint32_t>(::getpid()),
                                 static_cast<std::uint64_t>(::pthread_self()), seconds,
                                 reinterpret_cast<std::uintptr_t>(interface),
                                 reinterpret_cast<std::uintptr_t>(checks), checks[1]});
    std::memcpy(out, proof.data(), sizeof proof);
    return CUDA_SUCCESS;
}

} // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetExportTable(const void** table,
                                                                            const CUuuid* name) {
    constexpr CUuuid interface_name = KVG_CUDA_TABLE_INTERFACE, check_name = KVG_CUDA_TABLE_CHECK;
    checks[1] = reinterpret_cast<std::uintptr_t>(check);
    const bool is_check = std::memcmp(name, &check_name, sizeof check_name) == 0;
    if (does("none") || (!is_check && std::memcmp(name, &interface_name, sizeof interface_name) != 0))
        return CUDA_ERROR_NOT_FOUND;
    *table = is_check ? checks : interface;
    return CUDA_SUCCESS;
}
