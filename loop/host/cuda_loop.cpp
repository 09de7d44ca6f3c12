// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_loop: see device_loop.hpp. CUDA's driver API, opened when it is wanted: programs of OpenCL need no libcuda.
#include <dlfcn.h>

#include <cerrno>
#include <cmath>

#include "loop/core/mailbox.hpp"
#include "loop/host/device_loop.hpp"
#include "proto/cuda/cuda.h"

namespace kagemusha::loop {
namespace {

#define LOOP_CUDA_FUNCTIONS(X)                                                                               \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGet)                                                                                           \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease_v2)                                                                          \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuModuleUnload)                                                                                        \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemsetD8_v2)                                                                                         \
    X(cuMemcpyHtoDAsync_v2)                                                                                  \
    X(cuMemcpyDtoHAsync_v2)                                                                                  \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamDestroy_v2)                                                                                    \
    X(cuEventCreate)                                                                                         \
    X(cuEventRecord)                                                                                         \
    X(cuEventElapsedTime)                                                                                    \
    X(cuEventDestroy_v2)                                                                                     \
    X(cuLaunchKernel)                                                                                        \
    X(cuLaunchHostFunc)

struct driver {
#define LOOP_MEMBER(name) decltype(&::name) name = nullptr;
    LOOP_CUDA_FUNCTIONS(LOOP_MEMBER)
#undef LOOP_MEMBER

    explicit driver(const char* path) {
        // Never closed: a driver's threads may go on.
        void* const library = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW);
        if (library == nullptr)
            throw failure(ENODEV, std::string("CUDA has no driver here: ") + dlerror());
#define LOOP_FIND(name)                                                                                      \
    name = reinterpret_cast<decltype(name)>(dlsym(library, #name));                                          \
    if ((name) == nullptr)                                                                                   \
        throw failure(ENODEV, "the CUDA driver has no " #name "()");
        LOOP_CUDA_FUNCTIONS(LOOP_FIND)
#undef LOOP_FIND
    }
    void need(CUresult result, const char* what) const {
        if (result == CUDA_SUCCESS)
            return;
        const char* name = "an unknown error";
        cuGetErrorName(result, &name);
        throw failure(EIO, std::string(what) + " failed: " + name);
    }
};

class cuda_loop final : public device_loop {
public:
    explicit cuda_loop(const kagemusha_loop_options& options)
        : device_loop(options), cu_(options.driver), items_(options.items != 0 ? options.items : 64) {
        cu_.need(cu_.cuInit(0), "cuInit");
        cu_.need(cu_.cuDeviceGet(&device_, 0), "cuDeviceGet");
        cu_.need(cu_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
        try {
            prepare(options);
        } catch (...) {
            release();
            throw;
        }
    }
    ~cuda_loop() override { release(); }

private:
    void prepare(const kagemusha_loop_options& options) {
        cu_.need(cu_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
        cu_.need(cu_.cuModuleLoadData(&module_, options.image), "the program: cuModuleLoadData");
        cu_.need(cu_.cuModuleGetFunction(&kernel_, module_, "kagemusha_loop"),
                 "the program: cuModuleGetFunction(\"kagemusha_loop\")");
        cu_.need(cu_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        for (CUevent& one : times_)
            cu_.need(cu_.cuEventCreate(&one, 0), "cuEventCreate");
        cu_.need(cu_.cuMemAlloc_v2(&inbox_, inbox_bytes(lanes_)), "cuMemAlloc");
        cu_.need(cu_.cuMemAlloc_v2(&outbox_, outbox_bytes_.size()), "cuMemAlloc");
        cu_.need(cu_.cuMemAlloc_v2(&state_, state_bytes()), "cuMemAlloc");
        cu_.need(cu_.cuMemsetD8_v2(state_, 0, state_bytes()), "cuMemsetD8");
    }
    void release() {
        cu_.cuCtxSetCurrent(context_);
        if (stream_ != nullptr) {
            cu_.cuStreamSynchronize(stream_); // no callback comes after it
            cu_.cuStreamDestroy_v2(stream_);
        }
        for (const CUevent one : times_)
            if (one != nullptr)
                cu_.cuEventDestroy_v2(one);
        for (const CUdeviceptr one : {inbox_, outbox_, state_})
            if (one != 0)
                cu_.cuMemFree_v2(one);
        if (module_ != nullptr)
            cu_.cuModuleUnload(module_);
        cu_.cuDevicePrimaryCtxRelease_v2(device_);
    }

    void enqueue(std::uint32_t callbacks) override {
        std::uint64_t bytes = lane_state_bytes_;
        std::uint32_t token = callbacks;
        void* arguments[] = {&inbox_, &outbox_, &state_, &bytes, &token};
        cu_.need(cu_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); // the caller may be another thread
        cu_.need(cu_.cuMemcpyHtoDAsync_v2(inbox_, inbox_bytes_.data(), inbox_bytes_.size(), stream_),
                 "cuMemcpyHtoDAsync");
        cu_.need(cu_.cuEventRecord(times_[0], stream_), "cuEventRecord");
        cu_.need(cu_.cuLaunchKernel(kernel_, lanes_, 1, 1, items_, 1, 1, 0, stream_, arguments, nullptr),
                 "cuLaunchKernel");
        cu_.need(cu_.cuEventRecord(times_[1], stream_), "cuEventRecord");
        cu_.need(cu_.cuMemcpyDtoHAsync_v2(outbox_bytes_.data(), outbox_, outbox_bytes_.size(), stream_),
                 "cuMemcpyDtoHAsync");
        cu_.need(cu_.cuLaunchHostFunc(stream_, report_end, ended_pointer()), "cuLaunchHostFunc");
    }
    std::uint64_t wait() override {
        cu_.need(cu_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
        cu_.need(cu_.cuStreamSynchronize(stream_), "the device loop");
        float ms = 0;
        const bool known = cu_.cuEventElapsedTime(&ms, times_[0], times_[1]) == CUDA_SUCCESS && ms > 0;
        return known ? static_cast<std::uint64_t>(std::llround(double{ms} * 1e6)) : 0;
    }

    const driver cu_;
    const std::uint32_t items_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUstream stream_ = nullptr;
    CUevent times_[2] = {};
    CUdeviceptr inbox_ = 0, outbox_ = 0, state_ = 0;
};

} // namespace

std::unique_ptr<device_loop> make_cuda_loop(const kagemusha_loop_options& options) {
    return std::make_unique<cuda_loop>(options);
}

} // namespace kagemusha::loop
