// SPDX-License-Identifier: GPL-2.0-or-later
// device: the one device of this library, its memory and its contexts.
//
// Everything runs at once, in the thread that calls, under one lock: a stream's work has completed when the
// call that made it returns. That is what "in order" asks, and nothing is gained by more threads in an
// interpreter.
#pragma once

#include "api.hpp"

#include "ptx-device/machine/heap.hpp"
#include "ptx-device/machine/memory_map.hpp"
#include "ptx-device/machine/program.hpp"
#include "ptx-device/machine/texture.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

struct CUarray_st;

namespace kagemusha::ptx_driver {

constexpr const char* device_name = "Kagemusha PTX on CPU";
constexpr int driver_version = 12000;
constexpr int capability_major = 8;
constexpr int capability_minor = 0;
constexpr std::size_t memory_bytes = std::size_t{8} << 30;
constexpr std::size_t granularity = std::size_t{2} << 20;
constexpr unsigned shared_default = 48u << 10;
constexpr unsigned shared_optin = 99u << 10;
constexpr unsigned block_threads = 1024;

struct context;

struct kernel {
    const machine::function* code = nullptr;
    CUmod_st* in = nullptr;
    std::string name;
    unsigned dynamic_limit = shared_default; // of dynamic shared memory
};

struct loaded_module {
    machine::program code;
    std::vector<CUdeviceptr> variables;
    std::map<std::string, std::unique_ptr<kernel>> kernels;
    context* owner = nullptr;
};

// Handles are never reused for another kind: a set for each says which are valid.
struct context {
    bool primary = false;
    unsigned flags = 0;
    CUresult failed = CUDA_SUCCESS; // sticky: every call that computes gives it from now on
    std::map<loaded_module*, std::unique_ptr<loaded_module>> modules;
    std::set<CUdeviceptr> allocations;
    std::set<CUstream> streams;
    std::size_t heap_bytes = std::size_t{8} << 20; // for malloc in kernels, CU_LIMIT_MALLOC_HEAP_SIZE
    std::unique_ptr<machine::device_heap> heap;    // made for the first kernel that calls it
    CUdeviceptr heap_memory = 0;
};

// What a program wants to read of a texture or surface again.
struct texture_description {
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC how{};
    context* owner = nullptr;
};

class device {
public:
    static device& one();

    std::mutex lock;
    bool started = false;
    machine::memory_map memory;
    std::map<CUdeviceptr, std::size_t> allocations;
    std::map<CUdeviceptr, std::size_t> placed;  // of them, those of take_at(): bytes of whole pages
    std::map<CUdeviceptr, std::size_t> host;    // pinned memory of the program
    std::map<CUdeviceptr, unsigned> host_flags; // of it, as they were given
    std::size_t used = 0;
    machine::texture_table textures;
    CUtexObject last_texture = 0;        // the largest number that was given out
    std::set<CUtexObject> free_textures; // smaller ones that nobody has
    std::map<std::uint64_t, texture_description> texture_descriptions; // of the same numbers
    std::map<CUarray, std::unique_ptr<CUarray_st>> arrays;
    std::map<context*, std::unique_ptr<context>> contexts;
    context* primary = nullptr;
    unsigned primary_users = 0;
    unsigned primary_flags = 0;

    // Zeroed memory that kernels may touch; 0: there is none.
    CUdeviceptr take(std::size_t bytes);
    void give_back(CUdeviceptr address);
    // The same for variables of a module, at an address that follows from `place` where nothing is there yet: a
    // copy of a program on another host has its variables at the same addresses.
    CUdeviceptr take_at(std::uint64_t place, std::size_t bytes);
    context* make_context(unsigned flags, bool is_primary);
    void destroy(context* c);
};

// The calling thread's contexts; the last is current.
std::vector<context*>& stack();

// What most calls begin with: the device is locked for their time, and a context that has not failed is
// current.
struct call {
    // This thread runs a function of the program that a stream calls, which may not call CUDA.
    static thread_local bool is_in_callback;

    std::unique_lock<std::mutex> locked;
    device& d;
    context* c = nullptr;
    CUresult result = CUDA_SUCCESS;

    enum class needs { driver, context, working_context };
    explicit call(needs n);
};

bool is_stream(const call& c, CUstream s);

// An allocation is gone, of which a pool may know. With the device locked.
void freed(CUdeviceptr address, std::size_t bytes);

// A library's kernel, which may stand where a function is launched. Not with the device locked.
bool is_kernel(CUfunction h);

} // namespace kagemusha::ptx_driver

// Memory with a shape: rows one after another, in memory of the device.
struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    kagemusha::ptx_driver::context* owner = nullptr;
    CUdeviceptr base = 0;
    std::size_t element = 0; // bytes
    std::size_t pitch = 0, slice = 0;

    std::size_t height() const { return shape.Height != 0 ? shape.Height : 1; }
    std::size_t depth() const { return shape.Depth != 0 ? shape.Depth : 1; }
};
