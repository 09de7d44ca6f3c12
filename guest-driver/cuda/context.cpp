// SPDX-License-Identifier: GPL-2.0-or-later
//
// Contexts: each device's primary one, those that a program makes, and every thread's stack of current ones.
#include "arrays.hpp"
#include "capture.hpp"
#include "driver.hpp"
#include "export_tables.hpp"
#include "lasting.hpp"
#include "pinned.hpp"

#include "guest-driver/opencl/query.hpp"

#include <algorithm>
#include <new>
#include <unistd.h>

namespace kagemusha::cuda {
namespace {

// The calling thread's current contexts, the last on top.
std::vector<context*>& current_stack() {
    return lasting_of_thread<std::vector<context*>, struct current_contexts>();
}

// Errors after which the GPU's context is of no use any more.
bool breaks_context(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
        return true;
    default:
        return false;
    }
}

CUresult start_context(context& made, device& gpu, unsigned flags) {
    auto link = gpu.native->link();
    if (!link)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    static std::atomic<std::uint64_t> last{0};
    made.number = ++last;
    made.gpu = &gpu;
    made.flags = flags;
    made.native = opencl::make_object<opencl::context>(*gpu.native, std::move(link),
                                                       std::vector<cl_context_properties>{});
    CUresult error = made.native ? cuda_result(made.native->create()) : CUDA_ERROR_OUT_OF_MEMORY;
    if (error)
        return error;
    made.legacy = std::make_unique<stream>();
    made.legacy->owner = &made;
    made.legacy->number = 1;
    made.legacy->native = opencl::make_object<opencl::queue>(
        made.native, CL_QUEUE_PROFILING_ENABLE | VGPU_QUEUE_LEGACY, std::vector<cl_queue_properties>{});
    error = made.legacy->native ? cuda_result(made.legacy->native->create()) : CUDA_ERROR_OUT_OF_MEMORY;
    if (error)
        return error;
    the_driver().contexts.add(&made);
    return CUDA_SUCCESS;
}

std::unique_ptr<context> make_context(device& gpu, unsigned flags, CUresult& error) {
    auto made = std::make_unique<context>();
    error = start_context(*made, gpu, flags);
    return error ? nullptr : std::move(made);
}

// What the program still had in it goes; its handles are wrong from here on.
void end_context(context& dead) {
    driver& self = the_driver();
    end_context_storage(dead);
    self.contexts.remove(&dead);
    dead.synchronise();
    {
        const std::lock_guard held(dead.detour_mutex);
        for (stream* one : std::vector<stream*>(dead.streams.begin(), dead.streams.end()))
            forget_in_captures(*one);
        if (dead.per_thread)
            forget_in_captures(*dead.per_thread);
    }
    end_mappings(dead);
    end_pinned(dead);
    const std::lock_guard held(dead.mutex);
    for (stream* one : dead.streams) {
        self.streams.remove(one);
        delete one;
    }
    for (event* one : dead.events) {
        self.events.remove(one);
        delete one;
    }
    for (module* one : dead.modules) {
        for (const auto& [name, member] : one->functions) {
            self.functions.remove(member.get());
            dead.native->link().destroy(VGPU_OBJECT_KERNEL, member->id);
        }
        for (const auto& [name, member] : one->variables)
            dead.arenas.erase(member.address);
        self.modules.remove(one);
        delete one;
    }
    end_arrays(dead);
    const std::lock_guard device_held(dead.gpu->mutex);
    for (const auto& [address, arena] : dead.arenas) {
        dead.gpu->arenas.release(address);
        dead.gpu->used_bytes -= arena->bytes();
    }
}

CUcontext handle_of(context* one) {
    return reinterpret_cast<CUcontext>(one);
}

// The context of a handle; null: there is none. A primary one that a runtime has the handle of begins when it is
// made current, without having been retained.
context* to_make_current(CUcontext handle) {
    driver& self = the_driver();
    if (auto* const one = object_of<context>(self.contexts, handle))
        return one;
    for (const auto& gpu : self.devices) {
        const std::lock_guard held(gpu->mutex);
        context* const primary = gpu->primary.get();
        if (handle && gpu->primary_is_known && handle == handle_of(primary) &&
            (self.contexts.has(primary) || start_context(*primary, *gpu, gpu->primary_flags) == CUDA_SUCCESS))
            return primary;
    }
    return nullptr;
}

} // namespace

context* current(CUresult& error) {
    driver& self = the_driver();
    const auto& stack = current_stack();
    error = !self.ready                        ? CUDA_ERROR_NOT_INITIALIZED
            : stack.empty() || !stack.back()   ? CUDA_ERROR_INVALID_CONTEXT
            : !self.contexts.has(stack.back()) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                               : stack.back()->broken.load(std::memory_order_relaxed);
    return error ? nullptr : stack.back();
}

CUresult context::broken_or(CUresult result) {
    if (breaks_context(result))
        broken.store(result, std::memory_order_relaxed);
    return result;
}

std::vector<stream*> context::all_streams() {
    std::vector<stream*> all(streams.begin(), streams.end());
    all.push_back(legacy.get());
    if (per_thread)
        all.push_back(per_thread.get());
    return all;
}

std::vector<queue_place> context::places() {
    std::vector<queue_place> all;
    const std::lock_guard held(mutex);
    for (const stream* one : all_streams())
        all.push_back(one->place());
    return all;
}

CUresult context::synchronise() {
    const CUresult earlier = settle_all(*this);
    const bool fetches = pinned_shown.load(std::memory_order_acquire) != 0;
    const auto over = fetches ? places() : std::vector<queue_place>();
    const CUresult stored = fetches ? send_pinned(*this) : CUDA_SUCCESS;
    CUresult result = finish_sent();
    if (fetches && !result)
        result = fetch_pinned(over);
    return earlier ? earlier : result ? result : stored;
}

CUresult context::finish_sent() {
    const std::uint64_t wanted = sent.load(std::memory_order_acquire);
    if (finished.load(std::memory_order_acquire) >= wanted)
        return CUDA_SUCCESS;
    std::vector<opencl::ref<opencl::queue>> queues;
    {
        const std::lock_guard held(mutex);
        for (const stream* one : all_streams())
            queues.push_back(one->native);
    }
    CUresult first = CUDA_SUCCESS;
    for (const auto& one : queues)
        if (const CUresult result = cuda_result(opencl::finish_queue(*one)); result && !first)
            first = result;
    raise(finished, wanted);
    return first;
}

KAGEMUSHA_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice number) {
    return of_device(number, [&](device& one) {
        if (!handle)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one.mutex);
        CUresult error = CUDA_SUCCESS;
        if (!one.primary)
            one.primary = make_context(one, one.primary_flags, error);
        else if (!the_driver().contexts.has(one.primary.get())) // a handle was given out, or it was reset
            error = start_context(*one.primary, one, one.primary_flags);
        if (error)
            return error;
        ++one.primary_uses;
        *handle = handle_of(one.primary.get());
        return CUDA_SUCCESS;
    });
}

namespace {

CUresult end_primary(device& one, bool reset) {
    std::unique_ptr<context> dead;
    {
        const std::lock_guard held(one.mutex);
        if (!reset && one.primary_uses == 0)
            return CUDA_ERROR_INVALID_CONTEXT;
        one.primary_uses = reset ? one.primary_uses : one.primary_uses - 1;
        if (reset || one.primary_uses == 0)
            dead = std::move(one.primary);
    }
    if (!dead)
        return CUDA_SUCCESS;
    if (the_driver().contexts.has(dead.get()))
        end_context(*dead);
    const std::lock_guard held(one.mutex);
    if (one.primary_is_known && !one.primary) { // the next one has the same handle
        context* const place = dead.get();
        place->~context();
        new (place) context;
        one.primary = std::move(dead);
    }
    return CUDA_SUCCESS;
}

} // namespace

CUresult primary_context(device& of, CUcontext& handle) {
    const std::lock_guard held(of.mutex);
    if (!of.primary)
        of.primary = std::make_unique<context>(); // who retains it, or makes it current, starts it
    of.primary_is_known = true;
    handle = handle_of(of.primary.get());
    return CUDA_SUCCESS;
}

KAGEMUSHA_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number) {
    return of_device(number, [](device& one) { return end_primary(one, false); });
}

KAGEMUSHA_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice number) {
    return of_device(number, [](device& one) { return end_primary(one, true); });
}

KAGEMUSHA_ANSWERED CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice number, unsigned int flags) {
    return of_device(number, [&](device& one) {
        if (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK))
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one.mutex);
        one.primary_flags = flags;
        if (one.primary)
            one.primary->flags = flags;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned int* flags, int* active) {
    return of_device(number, [&](device& one) {
        if (!flags || !active)
            return CUDA_ERROR_INVALID_VALUE;
        const std::lock_guard held(one.mutex);
        *flags = one.primary_flags;
        *active = one.primary && the_driver().contexts.has(one.primary.get());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuCtxCreate_v2(CUcontext* handle, unsigned int flags, CUdevice number) {
    return of_device(number, [&](device& one) {
        if (!handle || (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)))
            return CUDA_ERROR_INVALID_VALUE;
        CUresult error = CUDA_SUCCESS;
        auto made = make_context(one, flags, error);
        if (!made)
            return error;
        current_stack().push_back(made.get());
        *handle = handle_of(made.release());
        return CUDA_SUCCESS;
    });
}

// Later forms have parameters for what this library does not have: parts of a GPU, and graphics.
KAGEMUSHA_EXPORT CUresult cuCtxCreate_v3(CUcontext* handle, void* affinity, int count, unsigned int flags,
                                         CUdevice number) {
    return affinity || count != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
                                  : cuCtxCreate_v2(handle, flags, number);
}
KAGEMUSHA_EXPORT CUresult cuCtxCreate_v4(CUcontext* handle, void* parameters, unsigned int flags,
                                         CUdevice number) {
    return parameters ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(handle, flags, number);
}

KAGEMUSHA_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    return guarded([&] {
        auto* const dead = object_of<context>(the_driver().contexts, handle);
        if (!dead)
            return CUDA_ERROR_INVALID_CONTEXT;
        {
            const std::lock_guard held(dead->gpu->mutex);
            if (dead->gpu->primary.get() == dead)
                return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (!current_stack().empty() && current_stack().back() == dead)
            current_stack().pop_back();
        end_context(*dead);
        delete dead;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    return guarded([&] {
        context* const one = to_make_current(handle);
        if (!one)
            return CUDA_ERROR_INVALID_CONTEXT;
        current_stack().push_back(one);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
    if (current_stack().empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (handle)
        *handle = handle_of(current_stack().back());
    current_stack().pop_back();
    return CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuCtxSetCurrent(CUcontext handle) {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        context* const one = to_make_current(handle);
        if (handle && !one)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (!current_stack().empty())
            current_stack().pop_back();
        if (one)
            current_stack().push_back(one);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetCurrent(CUcontext* handle) {
    if (!the_driver().ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = current_stack().empty() ? nullptr : handle_of(current_stack().back());
    return CUDA_SUCCESS;
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetDevice(CUdevice* number) {
    return in_context([&](const context& one) {
        if (!number)
            return CUDA_ERROR_INVALID_VALUE;
        *number = one.gpu->number;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
    return guarded([&] {
        if (handle && !object_of<context>(the_driver().contexts, handle))
            return CUDA_ERROR_INVALID_CONTEXT;
        if (!version)
            return CUDA_ERROR_INVALID_VALUE;
        *version = 3020;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetFlags(unsigned int* flags) {
    return in_context([&](const context& one) {
        if (!flags)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = one.flags;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxSetFlags(unsigned int flags) {
    return in_context([&](context& one) {
        if (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK))
            return CUDA_ERROR_INVALID_VALUE;
        one.flags = flags;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
    return guarded([&] {
        CUresult error = CUDA_ERROR_INVALID_CONTEXT;
        const context* const one =
            handle ? object_of<context>(the_driver().contexts, handle) : current(error);
        if (!one || !id)
            return one ? CUDA_ERROR_INVALID_VALUE : error;
        *id = one->number;
        return CUDA_SUCCESS;
    });
}

std::optional<std::size_t> limit_of_host(device& gpu, unsigned limit) {
    const std::lock_guard held(gpu.mutex);
    if (!gpu.limits) {
        const auto link = gpu.native->link();
        const auto told =
            link ? opencl::ask(*link, {VGPU_INFO_DEVICE, VGPU_CUDA_LIMITS}).as<vgpu_cuda_limits>()
                 : std::nullopt;
        gpu.knows_tensor_maps = told.has_value();
        // A host that does not know the question: what NVIDIA's driver begins with.
        gpu.limits =
            told.value_or(vgpu_cuda_limits{.value = {1024, 1u << 20, 8u << 20}, .known = 7, .pad = 0});
    }
    if (limit >= VGPU_CUDA_MAX_LIMITS || !(gpu.limits->known >> limit & 1))
        return std::nullopt;
    return gpu.limits->value[limit];
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    return in_context([&](context& one) {
        if (!value)
            return CUDA_ERROR_INVALID_VALUE;
        const auto begins = limit_of_host(*one.gpu, limit);
        if (!begins)
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
        const std::lock_guard held(one.mutex);
        const auto set = one.limits.find(limit);
        *value = set != one.limits.end() ? set->second : *begins;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    return in_context([&](context& one) {
        const auto begins = limit_of_host(*one.gpu, limit);
        if (!begins || limit >= CU_LIMIT_SHMEM_SIZE) // those are only asked for
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
        const bool is_hint =
            limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY || limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
        if (value > *begins && !is_hint)
            return CUDA_ERROR_NOT_SUPPORTED; // nobody tells the host
        const std::lock_guard held(one.mutex);
        one.limits[limit] = value;
        return CUDA_SUCCESS;
    });
}

// Hints.
KAGEMUSHA_ANSWERED CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
    return in_context([&](context&) {
        if (!config)
            return CUDA_ERROR_INVALID_VALUE;
        *config = CU_FUNC_CACHE_PREFER_NONE;
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuCtxSetCacheConfig(CUfunc_cache) {
    return in_context([](context&) { return CUDA_SUCCESS; });
}
KAGEMUSHA_ANSWERED CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
    return in_context([&](context&) {
        if (!config)
            return CUDA_ERROR_INVALID_VALUE;
        *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
        return CUDA_SUCCESS;
    });
}
KAGEMUSHA_ANSWERED CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
    return in_context([](context&) { return CUDA_SUCCESS; });
}
KAGEMUSHA_ANSWERED CUresult cuCtxResetPersistingL2Cache() {
    return in_context([](context&) { return CUDA_SUCCESS; });
}

// Nothing here measures.
KAGEMUSHA_ANSWERED CUresult cuProfilerStart() {
    return in_context([](context&) { return CUDA_SUCCESS; });
}
KAGEMUSHA_ANSWERED CUresult cuProfilerStop() {
    return in_context([](context&) { return CUDA_SUCCESS; });
}

KAGEMUSHA_EXPORT CUresult cuCtxSynchronize() {
    return in_context([](context& one) {
        const CUresult error = refuse_captures(one);
        return error ? error : one.synchronise();
    });
}

} // namespace kagemusha::cuda
