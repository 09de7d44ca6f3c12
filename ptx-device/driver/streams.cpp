// SPDX-License-Identifier: GPL-2.0-or-later
// Streams and events. A stream's work is done when the call returns, so waiting is asking whether a kernel
// failed.
#include "device.hpp"

#include <chrono>
#include <optional>

struct CUstream_st {
    unsigned flags = 0;
    unsigned long long id = 0;
};
struct CUevent_st {
    unsigned flags = 0;
    std::optional<std::chrono::steady_clock::time_point> recorded;
};

using namespace kagemusha::ptx_driver;

namespace {

// Never destroyed: programs call from exit handlers, too.
auto& events = *new std::set<CUevent>; // under the device's lock
unsigned long long last_id = 2;        // those of the two streams that are no objects come first

// A call about a stream, or about an event if there is one.
CUresult about(const call& c, CUstream s) {
    return c.result != CUDA_SUCCESS ? c.result : is_stream(c, s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult about(const call& c, CUevent e) {
    return c.result != CUDA_SUCCESS ? c.result
           : events.contains(e)     ? CUDA_SUCCESS
                                    : CUDA_ERROR_INVALID_HANDLE;
}

} // namespace

CUresult cuStreamCreate(CUstream* out, unsigned int flags) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *out = new CUstream_st{flags, ++last_id};
    c.c->streams.insert(*out);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int) {
    return cuStreamCreate(out, flags);
}

CUresult cuStreamDestroy_v2(CUstream s) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || c.c->streams.erase(s) == 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_HANDLE;
    delete s;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream s, unsigned int* flags) {
    const call c(call::needs::context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS || flags == nullptr)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *flags = c.c->streams.contains(s) ? s->flags : 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream s, int* priority) {
    const call c(call::needs::context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS || priority == nullptr)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *priority = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream s, unsigned long long* id) {
    const call c(call::needs::context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS || id == nullptr)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *id = c.c->streams.contains(s) ? s->id : s == CU_STREAM_PER_THREAD ? 2 : 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream s, CUcontext* out) {
    const call c(call::needs::context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS || out == nullptr)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUcontext>(c.c);
    return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(CUstream s, CUdevice* out) {
    const call c(call::needs::context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS || out == nullptr)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s) {
    return about(call(call::needs::working_context), s);
}
CUresult cuStreamSynchronize(CUstream s) {
    return about(call(call::needs::working_context), s);
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int) {
    const call c(call::needs::working_context);
    const CUresult r = about(c, s);
    return r != CUDA_SUCCESS ? r : about(c, e);
}

CUresult cuStreamAddCallback(CUstream s, CUstreamCallback* callback, void* data, unsigned int flags) {
    CUresult status = CUDA_SUCCESS;
    {
        const call c(call::needs::context);
        if (const CUresult r = about(c, s); r != CUDA_SUCCESS || callback == nullptr || flags != 0)
            return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
        status = c.c->failed;
    }
    call::is_in_callback = true;
    callback(s, status, data); // without the lock: it may not call CUDA, but it may take its time
    call::is_in_callback = false;
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream s, CUhostFn* function, void* data) {
    {
        const call c(call::needs::working_context);
        if (const CUresult r = about(c, s); r != CUDA_SUCCESS || function == nullptr)
            return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    }
    call::is_in_callback = true;
    function(data);
    call::is_in_callback = false;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || out == nullptr || flags > 7)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    *out = new CUevent_st{flags, std::nullopt};
    events.insert(*out);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || events.erase(e) == 0)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_HANDLE;
    delete e;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s) {
    const call c(call::needs::working_context);
    if (const CUresult r = about(c, s); r != CUDA_SUCCESS)
        return r;
    const CUresult r = about(c, e);
    if (r == CUDA_SUCCESS)
        e->recorded = std::chrono::steady_clock::now();
    return r;
}

CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned int flags) {
    return flags <= 1 ? cuEventRecord(e, s) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventQuery(CUevent e) {
    return about(call(call::needs::working_context), e);
}
CUresult cuEventSynchronize(CUevent e) {
    return about(call(call::needs::working_context), e);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    const call c(call::needs::working_context);
    for (CUevent e : {start, end}) {
        if (const CUresult r = about(c, e); r != CUDA_SUCCESS)
            return r;
        if (!e->recorded || (e->flags & CU_EVENT_DISABLE_TIMING) != 0)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    if (milliseconds == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    *milliseconds = std::chrono::duration<float, std::milli>(*end->recorded - *start->recorded).count();
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}
