// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the files of the CUDA driver share: devices, contexts, the objects behind CUDA's handles, and how a
// function of the API begins and ends. Below it is the OpenCL driver's own machinery (connection, queue,
// event, memory): a stream is an in-order queue, an event is that of a marker, a module is a program.
//
// A handle is the address of an object that is in a table as long as it lives, so a wrong one is an error and
// no crash.
//
// Locks, outermost first: registry (which objects live), context::detour_mutex (captures and backlogs),
// context::mutex (its memory). The machinery's come after.
#pragma once

#include "address_space.hpp"
#include "work.hpp"

#include "guest-driver/opencl/context.hpp"
#include "guest-driver/opencl/enqueue.hpp"
#include "guest-driver/opencl/memory.hpp"
#include "guest-driver/opencl/program.hpp"
#include "guest-driver/opencl/queue.hpp"
#include "proto/abi/vgpu_cuda.h"
#include "proto/cuda/cuda.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace kagemusha::cuda {

// To at least this value.
inline void raise(std::atomic<std::uint64_t>& what, std::uint64_t value) {
    std::uint64_t before = what.load(std::memory_order_relaxed);
    while (before < value && !what.compare_exchange_weak(before, value, std::memory_order_release)) {
    }
}

struct array;
struct capture;
struct context;
struct graph_node;
struct link_state;
struct memory_pool;
struct texture;

// An allocation that may be used again when everything before its cuMemFreeAsync is done.
struct freed_piece {
    std::uint64_t address = 0;
    std::shared_ptr<const recording> behind;
};

struct device {
    CUdevice number = 0;
    opencl::ref<opencl::device> native;
    vgpu_cuda_device known{}; // the host's answer; a query takes no round trip

    std::mutex mutex;
    std::optional<vgpu_cuda_limits> limits;                   // once they were asked for
    bool knows_tensor_maps = false;                           // so did the host that answered
    std::unordered_map<std::string, CUtensorMap> tensor_maps; // by what was asked
    address_space arenas{VGPU_ARENA_ALIGNMENT}; // addresses for arenas; they differ from another device's
    std::uint64_t used_bytes = 0;               // of arenas
    std::atomic<bool> has_textures{false};      // the host said so
    std::unique_ptr<context> primary;           // made when it is first retained, and kept
    unsigned primary_uses = 0, primary_flags = 0;
    bool primary_is_known = false;       // a runtime has its handle, which stays the same
    memory_pool* current_pool = nullptr; // null: the default one

    // Addresses for memory; none: there is no room. They are given back by their first.
    std::optional<std::uint64_t> reserve(std::uint64_t bytes);
    // The same apart from the others: at the end.
    std::optional<std::uint64_t> reserve_last(std::uint64_t bytes);
    void unreserve(std::uint64_t address);
};

struct stream {
    opencl::ref<opencl::queue> native;
    context* owner = nullptr;
    unsigned flags = 0;
    int priority = 0;
    std::uint64_t number = 0;                        // of its context, which cuStreamGetId makes unique
    std::atomic<std::uint64_t> sent{0}, finished{0}; // commands, and how many of them were waited for
    // How far it has been sent.
    queue_place place() const { return {native->id(), sent.load(std::memory_order_acquire)}; }

    // With context::detour_mutex.
    std::shared_ptr<backlog> waiting;       // null: it never had one
    capture* captures = nullptr;            // what is asked of it goes there
    std::vector<graph_node*> captured_last; // what the next node depends on

    std::mutex mutex;
    opencl::ref<opencl::event> asked; // cuStreamQuery's marker, behind
    std::uint64_t asked_at = 0;       // so many commands
};

struct event {
    context* owner = nullptr;
    unsigned flags = 0;
    std::mutex mutex;
    std::shared_ptr<const recording> last; // null: never recorded

    // With context::detour_mutex: the last record was captured, behind these nodes.
    capture* captured_in = nullptr;
    std::vector<graph_node*> captured_last;
};

struct function {
    struct module* owner = nullptr;
    std::string name;
    std::uint64_t id = 0;
    std::int32_t attributes[VGPU_CUDA_FUNCTION_ATTRIBUTES]{};
    std::vector<vgpu_cuda_parameter> parameters;
    std::size_t block_bytes = 0; // of all parameters
    // What the program set (cuFuncSetAttribute). The host makes room for what a launch asks for.
    std::atomic<int> shared_limit{0}, carveout{-1};
    std::atomic<bool> wide_clusters{false};
};

struct variable {
    opencl::ref<opencl::memory> native;
    std::uint64_t address = 0, bytes = 0;
};

struct module {
    context* owner = nullptr;
    opencl::ref<opencl::program> native;
    // With context::mutex.
    std::map<std::string, std::unique_ptr<function>> functions;
    std::map<std::string, variable> variables;
    std::vector<std::string> names; // of all of its functions, once they were asked for
    bool names_known = false;
};

struct context {
    device* gpu = nullptr;
    opencl::ref<opencl::context> native;
    unsigned flags = 0;
    std::unique_ptr<stream> legacy;
    std::uint64_t number = 0; // never the same for two

    // By CUlimit, what the program set; what it did not is as the host's driver has it.
    std::map<unsigned, std::size_t> limits; // with the mutex

    // A kernel's fault stays: each later call in this context gives it.
    std::atomic<CUresult> broken{CUDA_SUCCESS};
    // Commands that were sent to streams, and how many of them all streams were waited for.
    std::atomic<std::uint64_t> sent{0}, finished{0};

    // Backlogs with something in them, and captures: while there are none, work runs at once.
    std::atomic<unsigned> detours{0};
    // The first error of work that ran when its caller was gone, until somebody waits.
    std::atomic<CUresult> late{CUDA_SUCCESS};
    void note_late(CUresult error) {
        CUresult none = CUDA_SUCCESS;
        if (error)
            late.compare_exchange_strong(none, error, std::memory_order_relaxed);
    }
    CUresult take_late() {
        return late.load(std::memory_order_relaxed) == CUDA_SUCCESS ? CUDA_SUCCESS
                                                                    : late.exchange(CUDA_SUCCESS);
    }
    std::mutex detour_mutex;
    std::unordered_set<capture*> captures;

    std::mutex mutex;
    std::unique_ptr<stream> per_thread;
    std::unordered_set<stream*> streams;
    std::unordered_set<event*> events;
    std::unordered_set<module*> modules;
    std::unordered_set<array*> arrays;
    std::unordered_set<link_state*> links;
    std::unordered_map<std::uint64_t, std::shared_ptr<texture>> textures; // by handle
    address_space pieces{512};
    // By address: arenas, and variables of modules.
    std::map<std::uint64_t, opencl::ref<opencl::memory>> arenas;
    std::map<std::uint64_t, std::uint64_t> mapped; // by cuMemMap: bytes by address
    std::deque<freed_piece> freed;                 // in the order of a stream
    std::map<std::uint64_t, memory_pool*> pool_of; // allocations that are a pool's

    // With pinned_mutex: what moves pinned memory that kernels reach, and the last that it moved to the GPU.
    std::unique_ptr<stream> pinned_copies;
    opencl::ref<opencl::event> pinned_sent;

    // The memory object that this address is in: an arena or a variable; null if it is in none.
    opencl::ref<opencl::memory> arena_of(std::uint64_t address, std::uint64_t& offset);
    // The same for bytes that must lie in one.
    opencl::memory* arena_of(std::uint64_t address, std::uint64_t bytes, std::uint64_t& offset);
    // What a program mapped there (cuMemMap). context::mutex is held.
    std::optional<address_space::piece> find_mapping(std::uint64_t address) const;
    // A variable of a module, the same.
    std::optional<address_space::piece> find_variable(std::uint64_t address) const;
    // Whether all of these bytes are the GPU's.
    bool has(std::uint64_t address, std::uint64_t bytes);
    // Waits for every stream, and for what waits for its turn in one.
    CUresult synchronise();
    // Waits for what was sent to streams, and not for what waits for its turn.
    CUresult finish_sent();
    // How far each stream has been sent.
    std::vector<queue_place> places();
    std::vector<stream*> all_streams(); // context::mutex is held
    CUresult broken_or(CUresult result);
};

// Counts a command when it was sent: who waits meanwhile need not know of it.
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

// Objects that programs have handles of.
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
    registry arrays, contexts, events, functions, graph_execs, graph_nodes, graphs, kernels, libraries, links,
        modules, pools, streams;
    std::vector<std::unique_ptr<device>> devices;
    std::atomic<bool> ready{false};
};
driver& the_driver();

// The object of a handle, or null. The names of CUDA's handles are nobody's, so they are only addresses.
template <class Object, class Handle>
Object* object_of(registry& of, Handle handle) {
    auto* const object = reinterpret_cast<Object*>(handle);
    return object && of.has(object) ? object : nullptr;
}

// The calling thread's current context; null with the error that a function gives then.
context* current(CUresult& error);

// A stream of the current context, or null with the error.
stream* stream_of(CUstream handle, CUresult& error);

// What a limit of a context of the host's driver begins with, asked once; null where it has no such limit.
std::optional<std::size_t> limit_of_host(device& gpu, unsigned limit);

// The device of this number; null: there is none.
device* device_of(CUdevice number);

// Tells the host of a function that is not here, if it listens.
void report_unsupported(std::string_view name);

// A program's buffers for what a compiler says are given nothing: the host's driver compiles as it does without
// any option.
void clear_logs(unsigned option_count, const CUjit_option* options, void** values);

// What the host or the machinery answered.
CUresult cuda_result(cl_int error);

// Does it now, where that is possible, or puts it where its turn comes.
template <class Work>
CUresult submit(stream& where, Work made) {
    if (where.owner->detours.load(std::memory_order_acquire) == 0) [[likely]] {
        const CUresult error = made.asked(where);
        return error ? error : made.run(where);
    }
    return submit_by_detour(where, std::make_unique<Work>(std::move(made)));
}

// The event of a marker behind everything in the stream.
CUresult mark(stream& where, opencl::ref<opencl::event>& made);

// Waits for all that was sent to it, and fetches what that wrote to pinned memory.
CUresult finish(stream& where);

// What comes behind in the stream waits for the event.
CUresult wait_in_stream(stream& where, opencl::event& awaited);

// Of no program yet; null with the error.
std::unique_ptr<stream> make_stream(context& owner, unsigned flags, int priority, CUresult& error);

// Memory. context::mutex is held in all but the first.
CUresult allocate(context& where, std::size_t bytes, CUdeviceptr& address);
// Makes an arena at an address that was reserved, and ends it.
CUresult make_arena(context& where, std::uint64_t address, std::uint64_t bytes);
void end_arena(context& where, std::uint64_t address);
CUresult release_piece(context& where, std::uint64_t address);
// Copies and waits. Not with the mutex.
CUresult copy_on_device(context& where, std::uint64_t to, std::uint64_t from, std::uint64_t bytes);
// What was freed in the order of a stream, as far as the stream has come.
void release_freed(context& where);
void leave_pool(context& where, const address_space::piece& allocation);

// Memory that a program mapped in a context goes with it.
void end_mappings(context& dead);

// Bytes of the program's memory that it pinned: all of them lie in one piece of it.
bool is_pinned(const void* memory, std::size_t bytes);

// The function of a name, asked about once.
CUresult find_function(module& from, const char* name, function*& found);

// A module's image from a file; it ends with 0.
CUresult read_image(const char* path, std::string& image);

// The function of a handle, which may be a library's kernel; null with the error.
function* function_of(CUfunction handle, context& where, CUresult& error);

// This thread runs a function of the program that a stream calls: a host function or a callback. It may not call
// CUDA, because it could wait for the stream that waits for it.
class in_callback {
public:
    in_callback() { here() = true; }
    ~in_callback() { here() = false; }
    in_callback(const in_callback&) = delete;
    in_callback& operator=(const in_callback&) = delete;

    static bool& here() {
        static thread_local bool value = false;
        return value;
    }
};

// Runs a function of the API: nothing is thrown into a program.
template <class Body>
CUresult guarded(Body&& body) noexcept {
    // libgomp asks in a callback whether it is in one, and then frees its memory later.
    if (in_callback::here())
        return CUDA_ERROR_NOT_PERMITTED;
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        return CUDA_ERROR_UNKNOWN;
    }
}

// The same with a device.
template <class Body>
CUresult of_device(CUdevice number, Body&& body) noexcept {
    return guarded([&] {
        if (!the_driver().ready)
            return CUDA_ERROR_NOT_INITIALIZED;
        device* const one = device_of(number);
        return one ? body(*one) : CUDA_ERROR_INVALID_DEVICE;
    });
}

// The same in the current context.
template <class Body>
CUresult in_context(Body&& body) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        context* const where = current(error);
        return where ? where->broken_or(body(*where)) : error;
    });
}

// The same in a stream of it.
template <class Body>
CUresult in_stream(CUstream handle, Body&& body) noexcept {
    return guarded([&] {
        CUresult error = CUDA_SUCCESS;
        stream* const where = stream_of(handle, error);
        return where ? where->owner->broken_or(body(*where)) : error;
    });
}

} // namespace kagemusha::cuda

// Of a function that the library exports: one that sends commands, one that answers from what is known here, and
// one that always gives an error of the API (function_table reads this).
#define KAGEMUSHA_EXPORT extern "C" __attribute__((visibility("default")))
#define KAGEMUSHA_ANSWERED KAGEMUSHA_EXPORT
#define KAGEMUSHA_REFUSED KAGEMUSHA_EXPORT
