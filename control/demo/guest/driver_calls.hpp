// SPDX-License-Identifier: GPL-2.0-or-later
//
// How a program of a guest calls the CUDA driver when it opens the library by itself, so that no libcuda is needed to
// build it. FUNCTIONS(X) names each function that it calls, as X(cuInit):
//
//   KAGEMUSHA_CUDA_CALLS(cu, FUNCTIONS, "job");
//   if (!cu.load(path)) return 1;             // it has printed why: "job: …"
//   cu.need(cu.cuInit(0), "cuInit(0)");       // ends the program with status 1 where a call fails
#pragma once

#include "proto/cuda/cuda.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#define KAGEMUSHA_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
#define KAGEMUSHA_CUDA_FIND(name)                                                                            \
    name = reinterpret_cast<decltype(name)>(dlsym(library, #name));                                          \
    all = all && name;

#define KAGEMUSHA_CUDA_CALLS(instance, FUNCTIONS, prefix)                                                    \
    struct {                                                                                                 \
        FUNCTIONS(KAGEMUSHA_CUDA_MEMBER)                                                                     \
        bool load(const char* path) {                                                                        \
            void* const library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);                            \
            if (!library) {                                                                                  \
                std::printf(prefix ": %s\n", dlerror());                                                     \
                return false;                                                                                \
            }                                                                                                \
            bool all = true;                                                                                 \
            FUNCTIONS(KAGEMUSHA_CUDA_FIND)                                                                   \
            if (!all)                                                                                        \
                std::printf(prefix ": libcuda.so.1 has not all functions\n");                                \
            return all;                                                                                      \
        }                                                                                                    \
        void need(CUresult result, const char* what) const {                                                 \
            if (result == CUDA_SUCCESS)                                                                      \
                return;                                                                                      \
            const char* name = "?";                                                                          \
            cuGetErrorName(result, &name);                                                                   \
            std::printf(prefix ": %s: %s\n", what, name);                                                    \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } instance
