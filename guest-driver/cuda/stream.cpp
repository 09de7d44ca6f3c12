// SPDX-License-Identifier: GPL-2.0-or-later
//
// Streams and events. How streams wait for the legacy one is the host's driver's business: commands reach it
// in the order of the program's calls, whatever stream they are for.
#include "driver.hpp"

namespace kagemusha::cuda {
namespace {

std::unique_ptr<stream> make_stream(context& owner, unsigned flags, CUresult& error) {
    auto made = std::make_unique<stream>();
    made->owner = &owner;
    const cl_command_queue_properties properties =
        CL_QUEUE_PROFILING_ENABLE | (flags & CU_STREAM_NON_BLOCKING ? VGPU_QUEUE_NON_BLOCKING : 0);
    made->native =
        opencl::make_object<opencl::queue>(owner.native, properties, std::vector<cl_queue_properties>{});
    error = made->native ? cuda_result(made->native->create()) : CUDA_ERROR_OUT_OF_MEMORY;
    return error ? nullptr : std::move(made);
}

CUresult finish(stream& where) {
    return cuda_result(opencl::finish_queue(*where.native));
}

/// The event of a marker behind everything in the stream.
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

opencl::ref<opencl::event> last_of(event& one) {
    const std::lock_guard held(one.mutex);
    return one.last;
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
        where->per_thread = make_stream(*where, CU_STREAM_DEFAULT, error);
    return where->per_thread.get();
}

KAGEMUSHA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int) {
    return in_context([&](context& where) {
        if (!handle || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
            return CUDA_ERROR_INVALID_VALUE;
        CUresult error = CUDA_SUCCESS;
        auto made = make_stream(where, flags, error);
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
    return in_stream(handle, finish);
}

// Asks with a marker behind what was sent so far, once for each number of commands.
KAGEMUSHA_EXPORT CUresult cuStreamQuery(CUstream handle) {
    return in_stream(handle, [](stream& where) {
        const std::lock_guard held(where.mutex);
        const std::uint64_t sent = where.sent.load(std::memory_order_acquire);
        if (sent == 0)
            return CUDA_SUCCESS;
        if (!where.asked || where.asked_at != sent) {
            if (const CUresult error = mark(where, where.asked))
                return error;
            where.asked_at = sent;
            where.native->owner().link().flush(where.native.get());
        }
        return where.asked->is_over() ? cuda_result(where.asked->status()) : CUDA_ERROR_NOT_READY;
    });
}

KAGEMUSHA_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned int flags) {
    return in_stream(handle, [&](stream& where) {
        auto* const one = object_of<event>(the_driver().events, awaited);
        if (!one)
            return CUDA_ERROR_INVALID_HANDLE;
        if (flags > 1)
            return CUDA_ERROR_INVALID_VALUE;
        const opencl::ref<opencl::event> last = last_of(*one);
        if (!last || last->status() == CL_COMPLETE || one->owner != where.owner)
            // Of another context: it is waited for here, where both can be seen.
            return last ? cuda_result(opencl::wait_blocking(*last, *last->where())) : CUDA_SUCCESS;
        const auto id = opencl::to_handle<cl_event>(last.get());
        opencl::enqueueing call(opencl::to_handle<cl_command_queue>(where.native.get()), CL_COMMAND_BARRIER,
                                1, &id, nullptr);
        if (call.error() != CL_SUCCESS)
            return cuda_result(call.error());
        const sending counted(where);
        auto command = opencl::make_command<vgpu_cmd_sync>(VGPU_CMD_BARRIER);
        return cuda_result(call.send(command));
    });
}

// Both call the program's function when everything before it is done, and nothing behind it begins before it
// has returned: here by doing it before they return themselves.
KAGEMUSHA_EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn* function, void* user_data) {
    const CUresult result = function ? cuStreamSynchronize(handle) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        function(user_data);
    return result;
}

KAGEMUSHA_EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback* callback, void* user_data,
                                              unsigned int flags) {
    if (!callback || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuStreamSynchronize(handle);
    if (result == CUDA_SUCCESS)
        callback(handle, result, user_data);
    return result;
}

KAGEMUSHA_EXPORT CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
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

KAGEMUSHA_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
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

KAGEMUSHA_EXPORT CUresult cuEventRecord(CUevent handle, CUstream where) {
    return in_stream(where, [&](stream& in) {
        auto* const one = object_of<event>(the_driver().events, handle);
        if (!one || one->owner != in.owner)
            return CUDA_ERROR_INVALID_HANDLE;
        opencl::ref<opencl::event> made;
        const sending counted(in);
        if (const CUresult error = mark(in, made))
            return error;
        const std::lock_guard held(one->mutex);
        one->last = std::move(made);
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuEventQuery(CUevent handle) {
    return of_event(handle, [](event& one) {
        const auto last = last_of(one);
        if (!last)
            return CUDA_SUCCESS;
        if (!last->is_over())
            last->where()->owner().link().flush(last->where());
        return last->is_over() ? cuda_result(last->status()) : CUDA_ERROR_NOT_READY;
    });
}

KAGEMUSHA_EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return of_event(handle, [](event& one) {
        const auto last = last_of(one);
        return last ? cuda_result(opencl::wait_blocking(*last, *last->where())) : CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return of_event(start, [&](event& first) {
        auto* const second = object_of<event>(the_driver().events, end);
        if (!milliseconds)
            return CUDA_ERROR_INVALID_VALUE;
        if (!second || ((first.flags | second->flags) & CU_EVENT_DISABLE_TIMING))
            return CUDA_ERROR_INVALID_HANDLE;
        const auto from = last_of(first), to = last_of(*second);
        if (!from || !to)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!from->is_over() || !to->is_over())
            return CUDA_ERROR_NOT_READY;
        const auto ns = static_cast<double>(static_cast<std::int64_t>(to->times().end - from->times().end));
        *milliseconds = static_cast<float>(ns / 1e6);
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
