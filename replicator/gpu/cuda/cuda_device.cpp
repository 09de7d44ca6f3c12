// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_device: contexts, streams, memory, modules, functions, and the queries that a guest makes of them.
#include "gpu/cuda/cuda_device.hpp"

#include <CL/cl.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "gpu/validity.hpp"
#include "proto/abi/vgpu_cuda.h"

namespace kagemusha::gpu {

// ---- the context

primary_ptr cuda_primary::retain(const cuda_api& api, CUdevice device, std::int32_t& error) {
    CUcontext native = nullptr;
    error = cuda_error(api.cuDevicePrimaryCtxRetain(&native, device));
    if (error)
        return nullptr;
    primary_ptr made(new cuda_primary(api, device, native));
    made->take_room_for_modules();
    return made;
}

// Variables of modules must lie at the same address on both hosts of a pair. NVIDIA's driver gives them room in
// chunks of 2 MiB, which it takes when the first module wants one; where a chunk lies depends on what else was
// mapped until then. On a standby that comes later that is another order: digests, for one, are prepared behind
// all of the guest's modules. So a module of ours, with a variable and a kernel, is always the first.
void cuda_primary::take_room_for_modules() {
    constexpr const char* ptx = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .global .align 8 .u64 kagemusha_first = 1;\n"
                                ".visible .entry kagemusha_first_kernel() { ret; }\n";
    make_current();
    CUfunction kernel = nullptr;
    CUdeviceptr variable = 0;
    std::size_t bytes = 0;
    if (api.cuModuleLoadData(&first_module_, ptx) != CUDA_SUCCESS)
        first_module_ = nullptr; // a module of the guest's is the first then, as far as that holds
    if (!first_module_)
        return;
    // A driver that loads what is used, and when it is, loads it now.
    api.cuModuleGetFunction(&kernel, first_module_, "kagemusha_first_kernel");
    api.cuModuleGetGlobal_v2(&variable, &bytes, first_module_, "kagemusha_first");
}

cuda_primary::~cuda_primary() {
    make_current();
    if (first_module_)
        api.cuModuleUnload(first_module_);
    staging.free_all();
    api.cuDevicePrimaryCtxRelease_v2(device);
}

void cuda_primary::make_current() const {
    thread_local CUcontext current = nullptr;
    if (current != native && api.cuCtxSetCurrent(native) == CUDA_SUCCESS)
        current = native;
}

cuda_device::cuda_device(primary_ptr primary, gpu_description description)
    : primary_(std::move(primary))
    , api_(primary_->api)
    , description_(std::move(description))
    , poller_(std::make_shared<cuda_poller>(primary_)) {}

bool cuda_device::means_lost(std::int32_t status) const {
    return status == cuda_error(CUDA_ERROR_DEINITIALIZED) ||
           status == cuda_error(CUDA_ERROR_DEVICE_UNAVAILABLE) ||
           status == cuda_error(CUDA_ERROR_ECC_UNCORRECTABLE);
}

// ---- streams

cuda_queue::~cuda_queue() {
    if (!owned)
        return;
    primary->make_current();
    primary->api.cuStreamDestroy_v2(native); // what is in it is still done
}

// ---- arenas

cuda_memory::~cuda_memory() {
    const cuda_api& api = primary->api;
    primary->make_current();
    if (allocated)
        api.cuMemFree_v2(address); // waits by itself
    if (mapped) {
        api.cuCtxSynchronize();
        api.cuMemUnmap(address, bytes);
    }
    if (handle)
        api.cuMemRelease(handle);
}

// ---- modules and functions

cuda_program::~cuda_program() {
    if (!native)
        return;
    primary->make_current();
    primary->api.cuCtxSynchronize(); // as for arenas: its kernels may run
    primary->api.cuModuleUnload(native);
}

namespace {

// Whether an image has kernels that print: they call vprintf, and parts of a fat binary may be compressed.
bool may_print(std::span<const std::byte> image) {
    static constexpr std::string_view name = "vprintf";
    constexpr std::uint32_t fat_binary = 0xba55ed50;
    const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
    return (image.size() >= sizeof fat_binary &&
            std::memcmp(image.data(), &fat_binary, sizeof fat_binary) == 0) ||
           text.find(name) != text.npos;
}

} // namespace

std::int32_t cuda_device::create_program(host_context&, vgpu_program_kind kind,
                                         std::span<const std::byte> content,
                                         std::unique_ptr<host_program>& out) {
    if (kind != VGPU_PROGRAM_BINARY && kind != VGPU_PROGRAM_IL)
        return CL_INVALID_VALUE;
    primary_->make_current();
    auto made = std::make_unique<cuda_program>();
    made->primary = primary_;
    if (kind == VGPU_PROGRAM_IL) { // to be linked
        made->image.assign(content.begin(), content.end());
        out = std::move(made);
        return CL_SUCCESS;
    }
    if (may_print(content))
        poller_->expect_text();
    std::vector<std::byte> image(content.begin(), content.end());
    image.push_back(std::byte{0}); // PTX has no other end
    if (const CUresult result = api_.cuModuleLoadData(&made->native, image.data()))
        return cuda_error(result);
    constexpr std::size_t most_kept = 64u << 20;
    if (image.size() <= most_kept)
        made->loadable = std::move(image);
    out = std::move(made);
    return CL_SUCCESS;
}

bool cuda_device::move_variable(cuda_program& program, const char* name, CUdeviceptr wanted) {
    constexpr unsigned attempts = 16;
    std::vector<CUmodule> elsewhere; // loaded until the end, so that the next one lies somewhere else
    bool found = false;
    while (!program.loadable.empty() && !found && elsewhere.size() < attempts) {
        CUmodule again = nullptr;
        CUdeviceptr address = 0;
        std::size_t bytes = 0;
        if (api_.cuModuleLoadData(&again, program.loadable.data()) != CUDA_SUCCESS)
            break;
        found = api_.cuModuleGetGlobal_v2(&address, &bytes, again, name) == CUDA_SUCCESS && address == wanted;
        elsewhere.push_back(found ? std::exchange(program.native, again) : again);
    }
    for (const CUmodule one : elsewhere)
        api_.cuModuleUnload(one);
    return found;
}

std::int32_t cuda_device::build_program(host_program&, const std::string&) {
    return CL_SUCCESS;
}

// ---- what a guest creates

struct cuda_device::native_creation {
    cuda_device& device;
    const cuda_api& api = device.api_;

    std::int32_t operator()(const resolved<codec::op_create_context>& r) const {
        const auto& [place] = r.parts;
        place = std::make_unique<cuda_context>();
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_queue>& r) const {
        const auto& [place, context] = r.parts;
        const std::uint64_t properties = r.op.c->properties;
        if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
            return CL_INVALID_QUEUE_PROPERTIES;
        device.primary_->make_current();
        auto made = std::make_unique<cuda_queue>();
        made->primary = device.primary_;
        made->lane = device.next_lane_++;
        if (!(properties & VGPU_QUEUE_LEGACY)) {
            const unsigned flags =
                properties & VGPU_QUEUE_NON_BLOCKING ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
            int least = 0, greatest = 0;
            if (properties & VGPU_QUEUE_URGENT)
                api.cuCtxGetStreamPriorityRange(&least, &greatest);
            if (const CUresult result = api.cuStreamCreateWithPriority(&made->native, flags, greatest))
                return cuda_error(result);
            made->owned = true;
        }
        place = std::move(made);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_arena>& r) const {
        const auto& [place, context] = r.parts;
        const std::uint64_t address = r.op.c->address, bytes = r.op.c->bytes;
        device.primary_->make_current();
        auto made = std::make_unique<cuda_memory>();
        made->primary = device.primary_;
        made->address = address;
        made->bytes = bytes;
        CUresult error = CUDA_SUCCESS;
        if (made->range = cuda_addresses::reserve(api, error); !made->range)
            return cuda_error(error);
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.primary_->device};
        if (const CUresult result = api.cuMemCreate(&made->handle, bytes, &properties, 0))
            return cuda_error(result);
        if (const CUresult result = api.cuMemMap(address, bytes, 0, made->handle, 0))
            return cuda_error(result);
        made->mapped = true;
        const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        if (const CUresult result = api.cuMemSetAccess(address, bytes, &access, 1))
            return cuda_error(result);
        if (const CUresult result = clear(address, bytes))
            return cuda_error(result);
        place = std::move(made);
        return CL_SUCCESS;
    }
    // What a program has not written is the same on both hosts of a pair. Waits for nothing else.
    CUresult clear(CUdeviceptr address, std::size_t bytes) const {
        CUstream stream = nullptr;
        CUresult result = api.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
        if (result != CUDA_SUCCESS)
            return result;
        result = api.cuMemsetD8Async(address, 0, bytes, stream);
        if (result == CUDA_SUCCESS)
            result = api.cuStreamSynchronize(stream);
        api.cuStreamDestroy_v2(stream);
        return result;
    }
    // A guest has no use for it, because nobody tells it the address; replication has.
    std::int32_t operator()(const resolved<codec::op_create_buffer>& r) const {
        const auto& [place, context, content] = r.parts;
        device.primary_->make_current();
        auto made = std::make_unique<cuda_memory>();
        made->primary = device.primary_;
        made->bytes = r.op.c->bytes;
        if (content)
            return CL_INVALID_OPERATION;
        if (const CUresult result = api.cuMemAlloc_v2(&made->address, made->bytes))
            return cuda_error(result);
        made->allocated = true;
        place = std::move(made);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_variable>& r) const {
        const auto& [place, of] = r.parts;
        auto& program = static_cast<cuda_program&>(of);
        const std::string name(r.op.name);
        device.primary_->make_current();
        auto made = std::make_unique<cuda_memory>();
        made->primary = device.primary_;
        if (const CUresult result =
                api.cuModuleGetGlobal_v2(&made->address, &made->bytes, program.native, name.c_str()))
            return cuda_error(result);
        if (made->bytes != r.op.c->bytes || (made->address != r.op.c->address &&
                                             !device.move_variable(program, name.c_str(), r.op.c->address)))
            return VGPU_CUDA_OTHER_ADDRESS;
        made->address = r.op.c->address;
        program.loadable = {};
        place = std::move(made);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_kernel>& r) const {
        const auto& [place, program] = r.parts;
        if (!static_cast<cuda_program&>(program).native)
            return CL_INVALID_PROGRAM_EXECUTABLE;
        device.primary_->make_current();
        static_cast<cuda_program&>(program).loadable = {};
        auto made = std::make_unique<cuda_kernel>();
        const std::string name(r.op.name);
        if (const CUresult result = api.cuModuleGetFunction(
                &made->native, static_cast<cuda_program&>(program).native, name.c_str()))
            return cuda_error(result);
        std::size_t offset = 0, bytes = 0;
        while (made->parameters.size() < VGPU_CUDA_MAX_PARAMETERS &&
               api.cuFuncGetParamInfo(made->native, made->parameters.size(), &offset, &bytes) ==
                   CUDA_SUCCESS) {
            made->parameters.push_back({offset, bytes});
            made->block.resize(std::max(made->block.size(), offset + bytes));
        }
        api.cuFuncGetAttribute(&made->shared_limit, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                               made->native);
        place = std::move(made);
        return CL_SUCCESS;
    }
    std::int32_t operator()(const resolved<codec::op_create_image>& r) const {
        const auto& [place, context, content, buffer] = r.parts;
        return content || buffer ? CL_INVALID_OPERATION : device.create_array(*r.op.c, place);
    }
    std::int32_t operator()(const resolved<codec::op_create_texture>& r) const {
        const auto& [place, context, memory] = r.parts;
        return device.create_texture(*r.op.c, memory, place);
    }
    // What CUDA has not: parts of buffers as objects, samplers of OpenCL's.
    std::int32_t operator()(const auto&) const { return CL_INVALID_OPERATION; }
};

std::int32_t cuda_device::create(const creation& what) {
    return std::visit(native_creation{*this}, what);
}

// ---- queries

std::int32_t cuda_device::info(const info_query& query, std::vector<std::byte>& result) {
    primary_->make_current();
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_DEVICE)
        return describe_device(result);
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_MEMORY) {
        std::size_t free_bytes = 0, total = 0;
        if (const CUresult error = api_.cuMemGetInfo_v2(&free_bytes, &total))
            return cuda_error(error);
        const vgpu_cuda_memory answer{free_bytes, total};
        return give(result, answer);
    }
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_LIMITS)
        return describe_limits(result);
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_TENSOR_MAP)
        return encode_tensor_map(query.input, result);
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_UNSUPPORTED)
        return CL_SUCCESS; // the device has read it
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_TABLES)
        return describe_tables(result);
    if (query.subject == VGPU_INFO_DEVICE && query.name == VGPU_CUDA_VALIDITY)
        return answer_for_driver(query.input, result);
    if (query.subject == VGPU_INFO_PROGRAM && query.name == VGPU_CUDA_VARIABLE)
        return describe_variable(static_cast<const cuda_program&>(*query.program), query.input, result);
    if (query.subject == VGPU_INFO_KERNEL && query.name == VGPU_CUDA_KERNEL)
        return describe_kernel(static_cast<const cuda_kernel&>(*query.kernel), result);
    if (query.subject == VGPU_INFO_KERNEL_SUB_GROUP && query.name == VGPU_CUDA_CLUSTERS)
        return count_clusters(static_cast<cuda_kernel&>(*query.kernel), query.input, result);
    if (query.subject == VGPU_INFO_PROGRAM && query.name == VGPU_CUDA_FUNCTIONS)
        return list_functions(static_cast<const cuda_program&>(*query.program), result);
    if (query.subject == VGPU_INFO_PROGRAM && query.name == VGPU_CUDA_IMAGE) {
        const auto& program = static_cast<const cuda_program&>(*query.program);
        result = program.linked ? program.image : std::vector<std::byte>{};
        return program.linked ? CL_SUCCESS : CL_INVALID_PROGRAM_EXECUTABLE;
    }
    return CL_INVALID_VALUE;
}

std::int32_t cuda_device::describe_device(std::vector<std::byte>& result) const {
    vgpu_cuda_device answer{};
    int version = 0;
    std::size_t bytes = 0;
    CUuuid uuid{};
    for (const CUresult error :
         {api_.cuDriverGetVersion(&version), api_.cuDeviceTotalMem_v2(&bytes, primary_->device),
          api_.cuDeviceGetUuid(&uuid, primary_->device),
          api_.cuDeviceGetName(answer.name, sizeof answer.name, primary_->device)})
        if (error != CUDA_SUCCESS)
            return cuda_error(error);
    answer.driver_version = static_cast<__u32>(version);
    answer.memory_bytes = bytes;
    std::memcpy(answer.uuid, uuid.bytes, sizeof answer.uuid);
    for (unsigned a = 1; a < VGPU_CUDA_DEVICE_ATTRIBUTES; ++a) {
        int value = 0;
        if (api_.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(a), primary_->device) !=
            CUDA_SUCCESS)
            continue;
        answer.attributes[a] = value;
        answer.known[a / 8] |= static_cast<__u8>(1u << a % 8);
    }
    return give(result, answer);
}

std::int32_t cuda_device::describe_limits(std::vector<std::byte>& result) const {
    vgpu_cuda_limits answer{};
    for (unsigned l = 0; l < VGPU_CUDA_MAX_LIMITS; ++l) {
        std::size_t value = 0;
        if (api_.cuCtxGetLimit(&value, static_cast<CUlimit>(l)) != CUDA_SUCCESS)
            continue;
        answer.value[l] = value;
        answer.known |= 1u << l;
    }
    return give(result, answer);
}

std::int32_t cuda_device::describe_tables(std::vector<std::byte>& result) const {
    validity_witness* const witness = the_validity_witness();
    vgpu_cuda_tables answer{};
    if (!witness)
        return CL_INVALID_OPERATION;
    if (const std::int32_t error = witness->tables(answer))
        return error;
    return give(result, answer);
}

std::int32_t cuda_device::answer_for_driver(std::span<const std::byte> input,
                                            std::vector<std::byte>& result) const {
    validity_witness* const witness = the_validity_witness();
    vgpu_cuda_question question{};
    if (!witness)
        return CL_INVALID_OPERATION;
    if (input.size() != sizeof question)
        return CL_INVALID_VALUE;
    std::memcpy(&question, input.data(), sizeof question);
    CUuuid uuid{}; // a guest's device is one GPU, which the driver there has to see as the only one
    if (const CUresult error = api_.cuDeviceGetUuid(&uuid, primary_->device))
        return cuda_error(error);
    vgpu_cuda_proof answer{};
    if (const std::int32_t error =
            witness->ask(question, std::as_bytes(std::span(uuid.bytes)).first<16>(), answer))
        return error;
    return give(result, answer);
}

std::int32_t cuda_device::describe_variable(const cuda_program& program, std::span<const std::byte> name,
                                            std::vector<std::byte>& result) const {
    const std::string text(reinterpret_cast<const char*>(name.data()), name.size());
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    if (text.empty() || text.find('\0') != std::string::npos)
        return CL_INVALID_VALUE;
    if (const CUresult error = api_.cuModuleGetGlobal_v2(&address, &bytes, program.native, text.c_str()))
        return cuda_error(error);
    const vgpu_cuda_variable answer{address, bytes};
    return give(result, answer);
}

std::int32_t cuda_device::describe_kernel(const cuda_kernel& kernel, std::vector<std::byte>& result) const {
    vgpu_cuda_kernel answer{};
    for (unsigned a = 0; a < VGPU_CUDA_FUNCTION_ATTRIBUTES; ++a) {
        int value = 0;
        if (api_.cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(a), kernel.native) ==
            CUDA_SUCCESS)
            answer.attributes[a] = value;
    }
    answer.parameter_count = static_cast<__u32>(kernel.parameters.size());
    give(result, answer);
    for (const cuda_kernel::parameter& p : kernel.parameters) {
        const vgpu_cuda_parameter wire{static_cast<__u32>(p.offset), static_cast<__u32>(p.bytes)};
        const auto one = std::as_bytes(std::span(&wire, 1));
        result.insert(result.end(), one.begin(), one.end());
    }
    return CL_SUCCESS;
}

std::int32_t cuda_device::list_functions(const cuda_program& program, std::vector<std::byte>& result) const {
    unsigned count = 0;
    if (const CUresult error = api_.cuModuleGetFunctionCount(&count, program.native))
        return cuda_error(error);
    std::vector<CUfunction> functions(count);
    if (const CUresult error = api_.cuModuleEnumerateFunctions(functions.data(), count, program.native))
        return cuda_error(error);
    for (const CUfunction one : functions) {
        const char* name = nullptr;
        if (const CUresult error = api_.cuFuncGetName(&name, one))
            return cuda_error(error);
        const auto text = std::as_bytes(std::span(name, std::strlen(name) + 1));
        result.insert(result.end(), text.begin(), text.end());
    }
    return CL_SUCCESS;
}

// ---- what CUDA has not

std::int32_t cuda_device::create_user_event(host_context&, std::unique_ptr<host_event>& out) {
    out = std::make_unique<cuda_user_event>();
    return CL_SUCCESS;
}
std::int32_t cuda_device::set_spec_constant(host_program&, std::uint32_t, std::span<const std::byte>) {
    return CL_INVALID_OPERATION;
}
std::int32_t cuda_device::compile_program(host_program&, const std::string&, std::span<host_program* const>,
                                          std::span<const char* const>) {
    return CL_INVALID_OPERATION;
}
} // namespace kagemusha::gpu
