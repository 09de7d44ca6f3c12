// SPDX-License-Identifier: GPL-2.0-or-later
//
// Streams and events. How streams wait for the legacy one is the host's driver's business: commands reach it
// in the order of the program's calls, whatever stream they are for.
#include "capture.hpp"
#include "driver.hpp"
#include "node_work.hpp"
#include "pinned.hpp"

#include <algorithm>

namespace kagemusha::cuda {
namespace {

constexpr unsigned external = 1; // CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL: a node, in a capture

constexpr int urgent = -1; // of two priorities, which are what every GPU has

// The program learns that the event has happened.
CUresult arrived(const recording& one) {
    return one.is_first_look() ? pinned_arrived(one.behind()) : CUDA_SUCCESS;
}

std::shared_ptr<const recording> last_of(event& one) {
    const std::lock_guard held(one.mutex);
    return one.last;
}

// Of an event whose last record may be part of a graph, which nobody can wait for.
CUresult refuse_captured(event& one) {
    if (one.owner->detours.load(std::memory_order_acquire) == 0)
        return CUDA_SUCCESS;
    const std::lock_guard held(one.owner->detour_mutex);
    if (!one.captured_in)
        return CUDA_SUCCESS;
    one.captured_in->is_invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

template <class Body>
CUresult of_event(CUevent handle, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        auto* const one = object_of<event>(the_driver().events, handle);
        return one ? one->owner->broken_or(body(*one)) : CUDA_ERROR_INVALID_HANDLE;
    });
}

} // namespace

CUresult finish(stream& where) {
    const queue_place over = where.place();
    CUresult error = pinned_waits(*where.owner);
    if (!error)
        error = cuda_result(opencl::finish_queue(*where.native));
    return error ? error : pinned_arrived(over);
}

std::unique_ptr<stream> make_stream(context& owner, unsigned flags, int priority, CUresult& error) {
    static std::atomic<std::uint64_t> last{2}; // before: the two that are no objects
    auto made = std::make_unique<stream>();
    made->owner = &owner;
    made->flags = flags;
    made->priority = std::clamp(priority, urgent, 0);
    made->number = ++last;
    const cl_command_queue_properties properties =
        CL_QUEUE_PROFILING_ENABLE | (flags & CU_STREAM_NON_BLOCKING ? VGPU_QUEUE_NON_BLOCKING : 0) |
        (made->priority == urgent ? VGPU_QUEUE_URGENT : 0);
    made->native =
        opencl::make_object<opencl::queue>(owner.native, properties, std::vector<cl_queue_properties>{});
    error = made->native ? cuda_result(made->native->create()) : CUDA_ERROR_OUT_OF_MEMORY;
    return error ? nullptr : std::move(made);
}

CUresult mark(stream& where, opencl::ref<opencl::event>& made) {
    cl_event handle = nullptr;
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()), CL_COMMAND_MARKER, 0,
                            nullptr, &handle);
    if (call.error() != CL_SUCCESS)
        return cuda_result(call.error());
    auto command = opencl::make_command<vgpu_cmd_sync>(VGPU_CMD_MARKER);
    if (const cl_int error = call.send(command); error != CL_SUCCESS)
        return cuda_result(error);
    made = opencl::ref<opencl::event>::adopt(opencl::from_handle<opencl::event>(handle));
    made->user_references.store(0);
    return CUDA_SUCCESS;
}

CUresult wait_in_stream(stream& where, opencl::event& awaited) {
    const auto id = opencl::to_handle<cl_event>(&awaited);
    opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()), CL_COMMAND_BARRIER, 1,
                            &id, nullptr);
    if (call.error() != CL_SUCCESS)
        return cuda_result(call.error());
    const sending counted(where);
    auto command = opencl::make_command<vgpu_cmd_sync>(VGPU_CMD_BARRIER);
    return cuda_result(call.send(command));
}

// ---- work of streams

CUresult host_work::run(stream& where) {
    const CUresult result = where.owner->broken_or(finish(where));
    if (result == CUDA_SUCCESS && where.owner->broken.load() == CUDA_SUCCESS) {
        const in_callback theirs;
        function(data);
    }
    return result;
}

CUresult record_work::asked(stream&) {
    if (!the_driver().events.has(recorded)) // of a graph that outlived it
        return CUDA_ERROR_INVALID_HANDLE;
    made = std::make_shared<recording>();
    const std::lock_guard held(recorded->mutex);
    recorded->last = made;
    return CUDA_SUCCESS;
}

CUresult record_work::run(stream& where) {
    opencl::ref<opencl::event> marker;
    const sending counted(where);
    const CUresult error = mark(where, marker);
    made->set(error, std::move(marker), where.place());
    return error;
}

CUresult wait_work::asked(stream& where) {
    if (!the_driver().events.has(awaited))
        return CUDA_ERROR_INVALID_HANDLE;
    last = last_of(*awaited);
    other_context = awaited->owner != where.owner;
    return CUDA_SUCCESS;
}

CUresult wait_work::run(stream& where) {
    if (!last)
        return CUDA_SUCCESS;
    CUresult error = CUDA_SUCCESS;
    const auto marker = last->marker(error);
    if (error)
        return error;
    if (marker->status() == CL_COMPLETE || other_context)
        // Of another context: it is waited for here, where both can be seen.
        error = cuda_result(opencl::wait_blocking(*marker, *marker->where()));
    else
        error = wait_in_stream(where, *marker);
    return error || !other_context ? error : arrived(*last);
}

// ---- streams

stream* stream_of(CUstream handle, CUresult& error) {
    if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        auto* const one = object_of<stream>(the_driver().streams, handle);
        error = !the_driver().ready ? CUDA_ERROR_NOT_INITIALIZED
                : !one              ? CUDA_ERROR_INVALID_HANDLE
                                    : one->owner->broken.load(std::memory_order_relaxed);
        return error ? nullptr : one;
    }
    context* const where = current(error);
    if (!where)
        return nullptr;
    if (handle != CU_STREAM_PER_THREAD)
        return where->legacy.get();
    // One for all threads: what is in order with more than it must be is still in order.
    const std::lock_guard held(where->mutex);
    if (!where->per_thread)
        where->per_thread = make_stream(*where, CU_STREAM_DEFAULT, 0, error);
    return where->per_thread.get();
}

KAGEMUSHA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int priority) {
    return in_context([&](context& where) {
        if (!handle || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
            return CUDA_ERROR_INVALID_VALUE;
        CUresult error = CUDA_SUCCESS;
        auto made = make_stream(where, flags, priority, error);
        if (!made)
            return error;
        const std::lock_guard held(where.mutex);
        where.streams.insert(made.get());
        the_driver().streams.add(made.get());
        *handle = reinterpret_cast<CUstream>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
    return cuStreamCreateWithPriority(handle, flags, 0);
}

KAGEMUSHA_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return guarded([&] {
        auto* const dead = object_of<stream>(the_driver().streams, handle);
        if (!dead)
            return CUDA_ERROR_INVALID_HANDLE;
        // What is in it is still done, and a later cuCtxSynchronize would not know of it.
        {
            const std::lock_guard held(dead->owner->detour_mutex);
            forget_in_captures(*dead);
        }
        settle(*dead);
        const CUresult result = dead->owner->broken_or(finish(*dead));
        the_driver().streams.remove(dead);
        {
            const std::lock_guard held(dead->owner->mutex);
            dead->owner->streams.erase(dead);
        }
        delete dead;
        return result;
    });
}

KAGEMUSHA_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return in_stream(handle, [](stream& where) {
        CUresult error = settle(where);
        const std::uint64_t wanted = where.sent.load(std::memory_order_acquire);
        if (error || (error = finish(where)))
            return error;
        raise(where.finished, wanted);
        return CUDA_SUCCESS;
    });
}

// Asks with a marker behind what was sent so far, once for each number of commands, unless all of it was waited
// for.
KAGEMUSHA_EXPORT CUresult cuStreamQuery(CUstream handle) {
    return in_stream(handle, [](stream& where) {
        if (where.owner->detours.load(std::memory_order_acquire) != 0) {
            const std::lock_guard held(where.owner->detour_mutex);
            if (const CUresult error = refuse_capture(where))
                return error;
            if (where.waiting && where.waiting->is_busy())
                return CUDA_ERROR_NOT_READY;
        }
        const std::lock_guard held(where.mutex);
        const std::uint64_t sent = where.sent.load(std::memory_order_acquire);
        if (where.finished.load(std::memory_order_acquire) >= sent)
            return pinned_arrived({where.native->id(), sent});
        if (!where.asked || where.asked_at != sent) {
            if (const CUresult error = mark(where, where.asked))
                return error;
            where.asked_at = sent;
            where.native->owner().link().flush(where.native.get());
        }
        if (!where.asked->is_over()) {
            const CUresult error = pinned_waits(*where.owner);
            return error ? error : CUDA_ERROR_NOT_READY;
        }
        const CUresult result = cuda_result(where.asked->status());
        return result ? result : pinned_arrived({where.native->id(), sent});
    });
}

KAGEMUSHA_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned int flags) {
    return in_stream(handle, [&](stream& where) {
        auto* const one = object_of<event>(the_driver().events, awaited);
        if (!one)
            return CUDA_ERROR_INVALID_HANDLE;
        if (flags > external)
            return CUDA_ERROR_INVALID_VALUE;
        if (flags != external && where.owner->detours.load(std::memory_order_acquire) != 0) {
            const std::lock_guard held(where.owner->detour_mutex);
            bool taken = false;
            const CUresult error = capture_wait(where, *one, taken);
            if (error || taken)
                return error;
        }
        return submit(where, wait_work(*one));
    });
}

// Both call the program's function when everything before it is done, and nothing behind it begins before it
// has returned.
KAGEMUSHA_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn* function, void* user_data) {
    return in_stream(handle, [&](stream& where) {
        if (!function)
            return CUDA_ERROR_INVALID_VALUE;
        return submit_host_function(where, std::make_unique<host_work>(function, user_data));
    });
}

namespace {

// As a host function, but it also hears of errors, and no graph can contain it.
struct callback_work final : work {
    callback_work(CUstream h, CUstreamCallback* f, void* d) : handle(h), callback(f), data(d) {}

    CUgraphNodeType kind() const override { return CU_GRAPH_NODE_TYPE_HOST; }
    bool can_run() const override { return false; }
    CUresult run(stream& where) override {
        const CUresult result = where.owner->broken_or(finish(where));
        const CUresult earlier = where.owner->broken.load();
        const in_callback theirs;
        callback(handle, earlier ? earlier : result, data);
        return result;
    }
    std::unique_ptr<work> copy() const override { return std::make_unique<callback_work>(*this); }

    CUstream handle;
    CUstreamCallback* callback;
    void* data;
};

} // namespace

KAGEMUSHA_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback* callback, void* user_data,
                                              unsigned int flags) {
    return in_stream(handle, [&](stream& where) {
        if (!callback || flags != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (where.owner->detours.load(std::memory_order_acquire) != 0) {
            const std::lock_guard held(where.owner->detour_mutex);
            if (const CUresult error = refuse_capture(where))
                return error;
        }
        return submit_host_function(where, std::make_unique<callback_work>(handle, callback, user_data));
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
    return in_stream(handle, [&](const stream& where) {
        if (!flags)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = where.flags;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    return in_stream(handle, [&](const stream& where) {
        if (!priority)
            return CUDA_ERROR_INVALID_VALUE;
        *priority = where.priority;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
    return in_stream(handle, [&](const stream& where) {
        if (!id)
            return CUDA_ERROR_INVALID_VALUE;
        *id = where.owner->number << 32 | where.number;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetCtx(CUstream handle, CUcontext* owner) {
    return in_stream(handle, [&](const stream& where) {
        if (!owner)
            return CUDA_ERROR_INVALID_VALUE;
        *owner = reinterpret_cast<CUcontext>(where.owner);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuStreamGetDevice(CUstream handle, CUdevice* number) {
    return in_stream(handle, [&](const stream& where) {
        if (!number)
            return CUDA_ERROR_INVALID_VALUE;
        *number = where.owner->gpu->number;
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return in_context([&](context&) {
        if (least)
            *least = 0;
        if (greatest)
            *greatest = urgent;
        return CUDA_SUCCESS;
    });
}

// ---- events

KAGEMUSHA_ANSWERED CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
    return in_context([&](context& where) {
        constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
        if (!handle || (flags & ~known))
            return flags & CU_EVENT_INTERPROCESS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<event>();
        made->owner = &where;
        made->flags = flags;
        const std::lock_guard held(where.mutex);
        where.events.insert(made.get());
        the_driver().events.add(made.get());
        *handle = reinterpret_cast<CUevent>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuEventDestroy_v2(CUevent handle) {
    return of_event(handle, [](event& dead) {
        the_driver().events.remove(&dead);
        {
            const std::lock_guard held(dead.owner->mutex);
            dead.owner->events.erase(&dead);
        }
        context& owner = *dead.owner;
        delete &dead;
        return owner.broken.load();
    });
}

KAGEMUSHA_EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream where, unsigned int flags) {
    return in_stream(where, [&](stream& in) {
        auto* const one = object_of<event>(the_driver().events, handle);
        if (!one || one->owner != in.owner)
            return CUDA_ERROR_INVALID_HANDLE;
        if (flags > external)
            return CUDA_ERROR_INVALID_VALUE;
        if (flags != external && in.owner->detours.load(std::memory_order_acquire) != 0) {
            const std::lock_guard held(in.owner->detour_mutex);
            bool taken = false;
            const CUresult error = capture_record(in, *one, taken);
            if (error || taken)
                return error;
        }
        return submit(in, record_work(*one));
    });
}

KAGEMUSHA_EXPORT CUresult cuEventRecord(CUevent handle, CUstream where) {
    return cuEventRecordWithFlags(handle, where, 0);
}

KAGEMUSHA_EXPORT CUresult cuEventQuery(CUevent handle) {
    return of_event(handle, [](event& one) {
        if (const CUresult error = refuse_captured(one))
            return error;
        const auto last = last_of(one);
        if (!last)
            return CUDA_SUCCESS;
        if (!last->is_sent())
            return CUDA_ERROR_NOT_READY;
        CUresult error = CUDA_SUCCESS;
        const auto marker = last->marker(error);
        if (error)
            return error;
        if (!marker->is_over() && (error = pinned_waits(*one.owner)))
            return error;
        if (!marker->is_over())
            marker->where()->owner().link().flush(marker->where());
        if (!marker->is_over())
            return CUDA_ERROR_NOT_READY;
        error = cuda_result(marker->status());
        return error ? error : arrived(*last);
    });
}

KAGEMUSHA_EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return of_event(handle, [](event& one) {
        if (const CUresult error = refuse_captured(one))
            return error;
        const auto last = last_of(one);
        if (!last)
            return CUDA_SUCCESS;
        CUresult error = CUDA_SUCCESS;
        const auto marker = last->marker(error);
        if (!error)
            error = pinned_waits(*one.owner);
        if (!error)
            error = cuda_result(opencl::wait_blocking(*marker, *marker->where()));
        return error ? error : arrived(*last);
    });
}

KAGEMUSHA_ANSWERED CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return of_event(start, [&](event& first) {
        auto* const second = object_of<event>(the_driver().events, end);
        if (!milliseconds)
            return CUDA_ERROR_INVALID_VALUE;
        if (!second || ((first.flags | second->flags) & CU_EVENT_DISABLE_TIMING))
            return CUDA_ERROR_INVALID_HANDLE;
        const auto began = last_of(first), ended = last_of(*second);
        if (!began || !ended)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!began->is_sent() || !ended->is_sent())
            return CUDA_ERROR_NOT_READY;
        CUresult error = CUDA_SUCCESS;
        const auto from = began->marker(error), to = ended->marker(error);
        if (!from || !to)
            return CUDA_ERROR_INVALID_HANDLE; // it could not be recorded
        if (!from->is_over() || !to->is_over())
            return CUDA_ERROR_NOT_READY;
        const auto ns = static_cast<double>(static_cast<std::int64_t>(to->times().end - from->times().end));
        *milliseconds = static_cast<float>(ns / 1e6);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_ANSWERED CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}

} // namespace kagemusha::cuda
