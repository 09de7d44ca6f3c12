// SPDX-License-Identifier: GPL-2.0-or-later
// Contexts: the device's primary one, and others. A context whose kernel failed gives that error until it is
// destroyed.
#include "device.hpp"

#include <algorithm>

using namespace kagemusha::ptx_driver;

namespace {

CUcontext handle(context* c) {
    return reinterpret_cast<CUcontext>(c);
}
context* known(const call& c, CUcontext h) {
    auto* const found = reinterpret_cast<context*>(h);
    return c.d.contexts.contains(found) ? found : nullptr;
}

} // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice number) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || number != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
    if (out == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (c.d.primary == nullptr)
        c.d.primary = c.d.make_context(c.d.primary_flags, true);
    c.d.primary_users++;
    *out = handle(c.d.primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice number) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || number != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
    if (c.d.primary != nullptr) {
        c.d.destroy(c.d.primary);
        c.d.primary = nullptr;
        c.d.primary_users = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number) {
    {
        const call c(call::needs::driver);
        if (c.result != CUDA_SUCCESS || number != 0)
            return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
        if (c.d.primary_users == 0)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (--c.d.primary_users > 0)
            return CUDA_SUCCESS;
    }
    return cuDevicePrimaryCtxReset_v2(number);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice number, unsigned int flags) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || number != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    c.d.primary_flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned int* flags, int* active) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || number != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
    if (flags == nullptr || active == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = c.d.primary_flags;
    *active = c.d.primary != nullptr;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice number) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || number != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_DEVICE;
    if (out == nullptr || (flags & ~CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    context* const made = c.d.make_context(flags, false);
    stack().push_back(made);
    *out = handle(made);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext h) {
    const call c(call::needs::driver);
    context* const found = c.result == CUDA_SUCCESS ? known(c, h) : nullptr;
    if (found == nullptr || found->primary)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_CONTEXT;
    if (!stack().empty() && stack().back() == found)
        stack().pop_back();
    c.d.destroy(found);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext h) {
    const call c(call::needs::driver);
    context* const found = c.result == CUDA_SUCCESS ? known(c, h) : nullptr;
    if (found == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_CONTEXT;
    stack().push_back(found);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || stack().empty())
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_CONTEXT;
    if (out != nullptr)
        *out = handle(stack().back());
    stack().pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext h) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || (h != nullptr && known(c, h) == nullptr))
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_CONTEXT;
    if (!stack().empty())
        stack().pop_back();
    if (h != nullptr)
        stack().push_back(known(c, h));
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || out == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *out = stack().empty() ? nullptr : handle(stack().back());
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* out) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || out == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || flags == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *flags = c.c->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext h, unsigned int* version) {
    const call c(call::needs::driver);
    if (c.result != CUDA_SUCCESS || version == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    if (h != nullptr && known(c, h) == nullptr)
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    for (int* value : {least, greatest})
        if (value != nullptr)
            *value = 0; // all are equal
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    return call(call::needs::working_context).result;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || value == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    switch (limit) {
    case CU_LIMIT_STACK_SIZE:
        *value = 512u << 10;
        return CUDA_SUCCESS;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
        *value = 1u << 20;
        return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        *value = c.c->heap_bytes;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
}

// Every thread has all of its stack from the start, and what is printed is printed at once: there is nothing
// to set within what the device has.
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    switch (limit) {
    case CU_LIMIT_STACK_SIZE:
        return value <= (512u << 10) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
        return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        if (c.c->heap != nullptr || value > memory_bytes / 2) // a kernel has used it
            return CUDA_ERROR_INVALID_VALUE;
        c.c->heap_bytes = value;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
}
