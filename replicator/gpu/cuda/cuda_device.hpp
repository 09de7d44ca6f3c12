// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_device: one device of a library with the CUDA driver API. Files:
//   cuda_api        the library
//   cuda_addresses  the range of addresses that arenas lie in
//   cuda_module     lists and opens devices
//   cuda_device     contexts, streams, arenas, modules, functions, queries
//   cuda_commands   enqueue: transfers, copies, sets, launches, markers
//   cuda_boxes      the transfers and copies with pitches, and those of arrays
//   cuda_clusters   queries about clusters of blocks
//   cuda_tensor_maps  tensor maps, which the driver encodes
//   cuda_textures   arrays, textures, surfaces
//   cuda_link       linking of modules
//   cuda_event      completions
//   cuda_staging    pinned memory, through which bytes go
//
// An executor has one native context, the device's primary one, whatever number of contexts its guest makes:
// what keeps guests apart is that each session has a worker process of its own.
#pragma once

#include <CL/cl.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gpu/backend_module.hpp"
#include "gpu/cuda/cuda_addresses.hpp"
#include "gpu/cuda/cuda_api.hpp"
#include "gpu/cuda/cuda_event.hpp"
#include "gpu/cuda/cuda_staging.hpp"

namespace kagemusha::gpu {

// The answer to a query is this.
template <class Answer>
std::int32_t give(std::vector<std::byte>& result, const Answer& answer) {
    const auto view = std::as_bytes(std::span(&answer, 1));
    result.assign(view.begin(), view.end());
    return CL_SUCCESS;
}

// The primary context, retained. Objects hold it, so that it is the last to go.
class cuda_primary {
public:
    // nullptr with CUDA's error.
    static std::shared_ptr<cuda_primary> retain(const cuda_api& api, CUdevice device, std::int32_t& error);
    ~cuda_primary();
    cuda_primary(const cuda_primary&) = delete;
    cuda_primary& operator=(const cuda_primary&) = delete;

    // Of the calling thread; what this backend does is called on the executor's thread and on the poller's.
    void make_current() const;

    const cuda_api& api;
    const CUdevice device;
    const CUcontext native;
    cuda_staging staging;

private:
    cuda_primary(const cuda_api& a, CUdevice d, CUcontext n) : api(a), device(d), native(n), staging(a) {}
    void take_room_for_modules();

    CUmodule first_module_ = nullptr;
};
using primary_ptr = std::shared_ptr<cuda_primary>;

struct cuda_context final : host_context {};

struct cuda_queue final : host_queue {
    ~cuda_queue() override;
    primary_ptr primary;
    CUstream native = nullptr;
    bool owned = false;     // not the legacy stream
    std::uint64_t lane = 0; // never the same for two queues
};

struct cuda_memory final : host_memory {
    // Waits for the GPU: memory in use cannot be unmapped. A guest's driver waits before it destroys an
    // arena, so there is nothing left to wait for; a guest that does not holds up nobody but itself.
    ~cuda_memory() override;
    primary_ptr primary;
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    bool allocated = false; // by the driver, wherever it likes
    bool mapped = false;
    std::shared_ptr<const cuda_addresses> range; // keeps the address reserved
    CUmemGenericAllocationHandle handle = 0;
};

// An array, which is an image on the wire.
struct cuda_array final : host_memory {
    ~cuda_array() override;
    primary_ptr primary;
    CUarray native = nullptr;
    std::uint32_t element_bytes = 0;
    bool layers_are_rows = false; // of one dimension: the wire counts its layers as rows
};

struct cuda_texture final : host_sampler {
    ~cuda_texture() override;
    primary_ptr primary;
    unsigned long long native = 0; // of a texture or a surface
    bool surface = false;
};

struct cuda_program final : host_program {
    ~cuda_program() override;
    primary_ptr primary;
    CUmodule native = nullptr;    // of a module
    std::vector<std::byte> image; // else what is to be linked, or was
    // A module's, with a 0 behind it, as long as it may be loaded again: until it has a variable or a function.
    std::vector<std::byte> loadable;
    bool linked = false;
};

// A function lives as long as its module, which a guest may destroy first: then the driver refuses to launch
// it.
struct cuda_kernel final : host_kernel {
    CUfunction native = nullptr;
    struct parameter {
        std::size_t offset, bytes;
    };
    std::vector<parameter> parameters;
    std::vector<std::byte> block;   // all parameters, as the last launch was given them
    std::uint64_t shared_bytes = 0; // of dynamic shared memory
    int shared_limit = 0;           // what the driver lets a launch have of it
    bool wide_clusters = false;     // the driver was told that clusters may be larger than each GPU has them
};

// What a program allows its functions (cuFuncSetAttribute) is its library's to check. Here a launch, or a question
// about one, asks for what it needs.
std::int32_t raise_limits(const cuda_api& api, cuda_kernel& kernel, std::uint64_t shared, bool wide);

class cuda_device final : public backend_device {
public:
    cuda_device(primary_ptr primary, gpu_description description);

    const gpu_description& description() const override { return description_; }
    std::int32_t info(const info_query& query, std::vector<std::byte>& result) override;
    std::int32_t answer(const query& what, std::vector<std::byte>& result) override;
    std::uint64_t program_variable_bytes(host_program&) override { return 0; }
    std::int32_t create(const creation& what) override;
    // The image of a module; it is loaded at once, and building it does nothing more.
    std::int32_t create_program(host_context& context, vgpu_program_kind kind,
                                std::span<const std::byte> content,
                                std::unique_ptr<host_program>& out) override;
    std::int32_t build_program(host_program& program, const std::string& options) override;
    std::int32_t enqueue(host_queue& queue, const command& what, std::span<host_event* const> waits,
                         bool wants_event, enqueued& out) override;
    std::int32_t mark(host_queue& queue, std::unique_ptr<host_event>& out) override;
    std::int32_t flush(host_queue&) override { return 0; } // a stream begins by itself
    bool means_lost(std::int32_t status) const override;

    std::int32_t create_user_event(host_context& context, std::unique_ptr<host_event>& out) override;

    // What CUDA has not.
    std::int32_t set_spec_constant(host_program& program, std::uint32_t constant,
                                   std::span<const std::byte> value) override;
    std::int32_t compile_program(host_program& program, const std::string& options,
                                 std::span<host_program* const> headers,
                                 std::span<const char* const> names) override;
    std::int32_t link_program(host_context& context, const std::string& options,
                              std::span<host_program* const> inputs,
                              std::unique_ptr<host_program>& out) override;

private:
    struct native_call; // cuda_commands.cpp
    struct native_creation;
    std::int32_t create_array(const vgpu_cmd_create_image& c, std::unique_ptr<host_memory>& place);
    std::int32_t make_texture(const vgpu_cmd_create_texture& c, const host_memory& memory,
                              std::unique_ptr<cuda_texture>& out);
    // One that FIND_TEXTURE made, or one of the wanted number.
    std::int32_t create_texture(const vgpu_cmd_create_texture& c, const host_memory& memory,
                                std::unique_ptr<host_sampler>& place);

    // Loads the module until the variable lies where another host has it; false: it does not.
    bool move_variable(cuda_program& program, const char* name, CUdeviceptr wanted);
    std::int32_t list_functions(const cuda_program& program, std::vector<std::byte>& result) const;
    std::int32_t describe_device(std::vector<std::byte>& result) const;
    std::int32_t describe_limits(std::vector<std::byte>& result) const;
    std::int32_t encode_tensor_map(std::span<const std::byte> input, std::vector<std::byte>& result) const;
    std::int32_t count_clusters(cuda_kernel& kernel, std::span<const std::byte> input,
                                std::vector<std::byte>& result) const;
    std::int32_t describe_tables(std::vector<std::byte>& result) const;
    std::int32_t answer_for_driver(std::span<const std::byte> input, std::vector<std::byte>& result) const;
    std::int32_t describe_variable(const cuda_program& program, std::span<const std::byte> name,
                                   std::vector<std::byte>& result) const;
    std::int32_t describe_kernel(const cuda_kernel& kernel, std::vector<std::byte>& result) const;
    std::int32_t record(cuda_queue& queue, std::span<host_event* const> waits,
                        std::unique_ptr<cuda_copy_back> rest, std::unique_ptr<host_event>& out);

    const primary_ptr primary_;
    const cuda_api& api_;
    gpu_description description_;
    std::uint64_t next_lane_ = 1;
    std::deque<std::unique_ptr<cuda_texture>> found_textures_; // nobody's yet; a few
    std::shared_ptr<cuda_poller> poller_;
};

} // namespace kagemusha::gpu
