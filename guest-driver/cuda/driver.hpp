// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the files of the CUDA driver share: devices, contexts, the objects behind CUDA's handles, and how a
// function of the API begins and ends. Below it is the OpenCL driver's own machinery (connection, queue,
// event, memory): a stream is an in-order queue, an event is that of a marker, a module is a program.
//
// A handle is the address of an object that is in a table as long as it lives, so a wrong one is an error and
// no crash.
//
// Locks, outermost first: registry (which objects live), context::mutex (its memory). The machinery's come
// after.
#pragma once

#include "address_space.hpp"
#include "guest-driver/opencl/context.hpp"
#include "guest-driver/opencl/enqueue.hpp"
#include "guest-driver/opencl/memory.hpp"
#include "guest-driver/opencl/program.hpp"
#include "guest-driver/opencl/queue.hpp"
#include "proto/abi/vgpu_cuda.h"
#include "proto/cuda/cuda.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace kagemusha::cuda {

struct array;
struct context;
struct link_state;
struct texture;

struct device {
    CUdevice number = 0;
    opencl::ref<opencl::device> native;
    vgpu_cuda_device known{}; // the host's answer; a query takes no round trip

    std::mutex mutex;
    address_space arenas{VGPU_ARENA_ALIGNMENT}; // addresses for arenas; they differ from another device's
    std::uint64_t used_bytes = 0;               // of arenas
    std::atomic<bool> has_textures{false};      // the host said so
    std::unique_ptr<context> primary;           // made when it is first retained, and kept
    unsigned primary_uses = 0, primary_flags = 0;
};

struct stream {
    opencl::ref<opencl::queue> native;
    context* owner = nullptr;
    std::atomic<std::uint64_t> sent{0}; // commands

    std::mutex mutex;
    opencl::ref<opencl::event> asked; // cuStreamQuery's marker, behind
    std::uint64_t asked_at = 0;       // so many commands
};

struct event {
    context* owner = nullptr;
    unsigned flags = 0;
    std::mutex mutex;
    opencl::ref<opencl::event> last; // of the last record; null: never recorded
};

struct function {
    struct module* owner = nullptr;
    std::string name;
    std::uint64_t id = 0;
    std::int32_t attributes[VGPU_CUDA_FUNCTION_ATTRIBUTES]{};
    std::vector<vgpu_cuda_parameter> parameters;
    std::size_t block_bytes = 0; // of all parameters
};

struct variable {
    opencl::ref<opencl::memory> native;
    std::uint64_t address = 0, bytes = 0;
};

struct module {
    context* owner = nullptr;
    opencl::ref<opencl::program> native;
    std::map<std::string, std::unique_ptr<function>> functions; // with context::mutex
    std::map<std::string, variable> variables;                  // the same
};

struct context {
    device* gpu = nullptr;
    opencl::ref<opencl::context> native;
    unsigned flags = 0;
    std::unique_ptr<stream> legacy;

    /// A kernel's fault stays: each later call in this context gives it.
    std::atomic<CUresult> broken{CUDA_SUCCESS};
    /// Commands that were sent to streams, and how many of them all streams were waited for.
    std::atomic<std::uint64_t> sent{0}, finished{0};

    std::mutex mutex;
    std::unique_ptr<stream> per_thread;
    std::unordered_set<stream*> streams;
    std::unordered_set<event*> events;
    std::unordered_set<module*> modules;
    std::unordered_set<array*> arrays;
    std::unordered_set<link_state*> links;
    std::unordered_map<std::uint64_t, std::shared_ptr<texture>> textures; // by handle
    address_space pieces{512};
    /// By address: arenas, and variables of modules.
    std::map<std::uint64_t, opencl::ref<opencl::memory>> arenas;

    /// The arena or variable that these bytes are in; null if they are in none.
    opencl::memory* arena_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t& offset);
    /// Waits for every stream.
    CUresult synchronise();
    CUresult broken_or(CUresult result);
};

/// Counts a command when it was sent: who waits meanwhile need not know of it.
class sending {
public:
    explicit sending(stream& to) : to_(to) {}
    ~sending() {
        to_.sent.fetch_add(1, std::memory_order_release);
        to_.owner->sent.fetch_add(1, std::memory_order_release);
    }
    sending(const sending&) = delete;
    sending& operator=(const sending&) = delete;

private:
    stream& to_;
};

/// Objects that programs have handles of.
class registry {
public:
    void add(const void* object) {
        const std::lock_guard held(mutex_);
        live_.insert(object);
    }
    void remove(const void* object) {
        const std::lock_guard held(mutex_);
        live_.erase(object);
    }
    bool has(const void* object) {
        const std::lock_guard held(mutex_);
        return live_.contains(object);
    }

private:
    std::mutex mutex_;
    std::unordered_set<const void*> live_;
};

struct driver {
    registry arrays, contexts, events, functions, links, modules, streams;
    std::vector<std::unique_ptr<device>> devices;
    std::atomic<bool> ready{false};
};
driver& the_driver();

/// The object of a handle, or null. The names of CUDA's handles are nobody's, so they are only addresses.
template <class Object, class Handle>
Object* object_of(registry& of, Handle handle) {
    auto* const object = reinterpret_cast<Object*>(handle);
    return object && of.has(object) ? object : nullptr;
}

/// The calling thread's current context; null with the error that a function gives then.
context* current(CUresult& error);

/// A stream of the current context, or null with the error.
stream* stream_of(CUstream handle, CUresult& error);

/// The device of this number; null: there is none.
device* device_of(CUdevice number);

/// A program's buffers for what a compiler says are given nothing: the host's driver compiles as it does without
/// any option.
void clear_logs(unsigned option_count, const CUjit_option* options, void** values);

/// What the host or the machinery answered.
CUresult cuda_result(cl_int error);

/// Runs a function of the API: nothing is thrown into a program.
template <class Body>
CUresult guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        return CUDA_ERROR_UNKNOWN;
    }
}

/// The same in the current context.
template <class Body>
CUresult in_context(Body&& body) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        context* const where = current(error);
        return where ? where->broken_or(body(*where)) : error;
    });
}

/// The same in a stream of it.
template <class Body>
CUresult in_stream(CUstream handle, Body&& body) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        stream* const where = stream_of(handle, error);
        return where ? where->owner->broken_or(body(*where)) : error;
    });
}

} // namespace kagemusha::cuda

/// Of a function that the library exports.
#define KAGEMUSHA_EXPORT extern "C" __attribute__((visibility("default")))
