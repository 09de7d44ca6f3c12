// SPDX-License-Identifier: GPL-2.0-or-later
// Modules, functions and launches.
#include "device.hpp"
#include "jit.hpp"

#include "ptx-device/machine/launch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace {

loaded_module* known(const call& c, CUmodule h) {
    auto* const m = reinterpret_cast<loaded_module*>(h);
    return c.c->modules.contains(m) ? m : nullptr;
}

kernel* known(const call& c, CUfunction h) {
    auto* const wanted = reinterpret_cast<kernel*>(h);
    for (const auto& [m, owner] : c.c->modules) {
        for (const auto& [name, k] : m->kernels)
            if (k.get() == wanted)
                return wanted;
    }
    return nullptr;
}

CUresult load(const call& c, const void* image, const error_log& log, CUmodule* out) {
    std::vector<std::string> texts;
    if (const CUresult r = texts_of(image, unknown_length, texts); r != CUDA_SUCCESS) {
        log.write(no_ptx);
        return r;
    }
    built_program built(c.d);
    if (const CUresult r = built.build(texts, log); r != CUDA_SUCCESS)
        return r;
    auto made = std::make_unique<loaded_module>();
    made->code = std::move(built.code);
    made->variables = std::move(built.variables);
    built.variables.clear();
    made->owner = c.c;
    for (const auto& [name, function] : made->code.entries) {
        auto k = std::make_unique<kernel>();
        k->code = function;
        k->name = name;
        k->dynamic_limit = shared_default - std::min(shared_default, function->shared_bytes);
        made->kernels[name] = std::move(k);
    }
    loaded_module* const m = made.get();
    for (const auto& [name, k] : m->kernels)
        k->in = reinterpret_cast<CUmodule>(m);
    c.c->modules[m] = std::move(made);
    *out = reinterpret_cast<CUmodule>(m);
    return CUDA_SUCCESS;
}

CUresult result_of(const machine::outcome& o) {
    switch (o.fault) {
    case machine::fault_kind::none:
        return CUDA_SUCCESS;
    case machine::fault_kind::illegal_address:
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    case machine::fault_kind::misaligned:
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    case machine::fault_kind::trap:
        return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case machine::fault_kind::assertion:
        return CUDA_ERROR_ASSERT;
    case machine::fault_kind::bad_call:
        return CUDA_ERROR_INVALID_PC;
    case machine::fault_kind::stack:
        return CUDA_ERROR_HARDWARE_STACK_ERROR;
    case machine::fault_kind::deadlock:
    case machine::fault_kind::too_long:
        return CUDA_ERROR_LAUNCH_TIMEOUT;
    }
    return CUDA_ERROR_LAUNCH_FAILED;
}

// The arguments as one buffer; what `extra` names is one already.
CUresult arguments_of(const machine::function& f, void** params, void** extra,
                      std::vector<std::uint8_t>& out) {
    out.assign(f.entry_param_bytes, 0);
    if (params != nullptr) {
        for (std::size_t k = 0; k < f.params.size(); k++) {
            if (params[k] == nullptr)
                return CUDA_ERROR_INVALID_VALUE;
            std::memcpy(out.data() + f.params[k].offset, params[k], f.params[k].bytes);
        }
        return CUDA_SUCCESS;
    }
    const void* buffer = nullptr;
    std::size_t bytes = 0;
    for (std::size_t k = 0; extra != nullptr && extra[k] != CU_LAUNCH_PARAM_END; k += 2)
        if (extra[k] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[k + 1];
        else if (extra[k] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[k + 1] != nullptr)
            bytes = *static_cast<const std::size_t*>(extra[k + 1]);
        else
            return CUDA_ERROR_INVALID_VALUE;
    if (out.empty())
        return CUDA_SUCCESS;
    if (bytes < out.size() || buffer == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(out.data(), buffer, out.size());
    return CUDA_SUCCESS;
}

CUresult check_shape(const kernel& k, const machine::launch_request& r) {
    const std::uint64_t threads = std::uint64_t{r.threads[0]} * r.threads[1] * r.threads[2];
    for (unsigned d = 0; d < 3; d++) {
        if (r.grid[d] == 0 || r.threads[d] == 0 || (d > 0 && r.grid[d] > 65535) || r.grid[d] > 0x7fffffff ||
            r.threads[d] > block_threads || (d == 2 && r.threads[d] > 64)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (r.dynamic_shared > k.dynamic_limit)
        return CUDA_ERROR_INVALID_VALUE;
    const std::uint32_t* most = k.code->max_threads;
    if (most[0] != 0 && k.code->exact_threads && !std::equal(most, most + 3, r.threads))
        return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t limit = most[0] != 0 ? std::uint64_t{most[0]} * most[1] * most[2] : block_threads;
    if (threads > std::min<std::uint64_t>(limit, block_threads))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

constexpr std::uint64_t heap_place = 0x6b61676568656170; // any number

machine::device_heap* heap_for(const call& c, const machine::program& code) {
    context& owner = *c.c;
    if (code.uses_heap && owner.heap == nullptr && owner.heap_bytes != 0) {
        // As variables: what kernels keep of its addresses is the same in a copy of a program on another host.
        owner.heap_memory = c.d.take_at(heap_place, owner.heap_bytes);
        if (owner.heap_memory != 0)
            owner.heap = std::make_unique<machine::device_heap>(owner.heap_memory, owner.heap_bytes);
    }
    return owner.heap.get();
}

CUresult launch(CUfunction function, machine::launch_request r, CUstream stream, void** params,
                void** extra) {
    if (is_kernel(function)) {
        if (const CUresult bad = cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(function));
            bad != CUDA_SUCCESS) {
            return bad;
        }
    }
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const kernel* k = known(c, function);
    if (k == nullptr || !is_stream(c, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult bad = check_shape(*k, r); bad != CUDA_SUCCESS)
        return bad;
    if (r.cooperative && std::uint64_t{r.grid[0]} * r.grid[1] * r.grid[2] > 1024)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    std::vector<std::uint8_t> buffer;
    if (const CUresult bad = arguments_of(*k->code, params, extra, buffer); bad != CUDA_SUCCESS)
        return bad;
    r.code = &reinterpret_cast<loaded_module*>(k->in)->code;
    r.kernel = k->code;
    r.params = buffer;
    r.memory = &c.d.memory;
    r.textures = &c.d.textures;
    r.heap = heap_for(c, *r.code);
    r.print = [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); };
    const machine::outcome o = machine::run_grid(r);
    std::fflush(stdout); // who waits for the kernel finds all that it printed
    c.c->failed = result_of(o);
    if (o.fault == machine::fault_kind::assertion) {
        std::fprintf(stderr, "%s\n", o.message.c_str());
    } else if (o.fault != machine::fault_kind::none) {
        std::fprintf(stderr, "%s: %s, line %u of its PTX: error %d\n", device_name, o.function.c_str(),
                     o.line, static_cast<int>(c.c->failed));
    }
    // As on a GPU the launch itself went well: the next call that waits says that the kernel did not.
    return CUDA_SUCCESS;
}

} // namespace

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (out == nullptr || image == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    return load(c, image, error_log(count, options, values), out);
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
    return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr);
}

CUresult cuModuleUnload(CUmodule h) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    loaded_module* const m = known(c, h);
    if (m == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    for (CUdeviceptr v : m->variables)
        c.d.give_back(v);
    c.c->modules.erase(m);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule h, const char* name) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    loaded_module* const m = known(c, h);
    if (out == nullptr || name == nullptr || m == nullptr)
        return m == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    const auto it = m->kernels.find(name);
    if (it == m->kernels.end())
        return CUDA_ERROR_NOT_FOUND;
    *out = reinterpret_cast<CUfunction>(it->second.get());
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule h, const char* name) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    loaded_module* const m = known(c, h);
    if (name == nullptr || m == nullptr)
        return m == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    const auto it = m->code.globals.find(name);
    if (it == m->code.globals.end())
        return CUDA_ERROR_NOT_FOUND;
    if (address != nullptr)
        *address = it->second.address;
    if (bytes != nullptr)
        *bytes = it->second.bytes;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction h) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const kernel* k = known(c, h);
    if (value == nullptr || k == nullptr)
        return k == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    const machine::function& f = *k->code;
    const auto& code = reinterpret_cast<loaded_module*>(k->in)->code;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = static_cast<int>(
            f.max_threads[0] != 0 ? f.max_threads[0] * f.max_threads[1] * f.max_threads[2] : block_threads);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = static_cast<int>(f.shared_bytes);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = static_cast<int>(f.local_bytes);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = static_cast<int>(std::min(f.slots, 255u));
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = static_cast<int>(code.ptx_version / 100 * 10 + code.ptx_version % 100);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = capability_major * 10 + capability_minor;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = static_cast<int>(k->dynamic_limit);
        return CUDA_SUCCESS;
    default:
        if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        *value = 0;
        return CUDA_SUCCESS;
    }
}

CUresult cuFuncSetAttribute(CUfunction h, CUfunction_attribute attribute, int value) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    kernel* const k = known(c, h);
    if (k == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return CUDA_SUCCESS; // a hint
    const unsigned most = shared_optin - std::min(shared_optin, k->code->shared_bytes);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        static_cast<unsigned>(value) > most) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    k->dynamic_limit = static_cast<unsigned>(value);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction h, size_t index, size_t* offset, size_t* bytes) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const kernel* k = known(c, h);
    if (k == nullptr || offset == nullptr)
        return k == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (index >= k->code->params.size())
        return CUDA_ERROR_INVALID_VALUE;
    *offset = k->code->params[index].offset;
    if (bytes != nullptr)
        *bytes = k->code->params[index].bytes;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void** parameters, void** extra) {
    machine::launch_request r;
    const std::uint32_t sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    std::copy(sizes, sizes + 3, r.grid);
    std::copy(sizes + 3, sizes + 6, r.threads);
    r.dynamic_shared = shared_bytes;
    return launch(function, r, stream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void** parameters) {
    machine::launch_request r;
    const std::uint32_t sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    std::copy(sizes, sizes + 3, r.grid);
    std::copy(sizes + 3, sizes + 6, r.threads);
    r.dynamic_shared = shared_bytes;
    r.cooperative = true;
    return launch(function, r, stream, parameters, nullptr);
}

// Clusters: this device has none, as its attribute says.
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
    if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
        return CUDA_ERROR_INVALID_VALUE;
    machine::launch_request r;
    std::copy(&config->gridDimX, &config->gridDimX + 3, r.grid);
    std::copy(&config->blockDimX, &config->blockDimX + 3, r.threads);
    r.dynamic_shared = config->sharedMemBytes;
    for (unsigned int k = 0; k < config->numAttrs; k++) {
        const CUlaunchAttribute& a = config->attrs[k];
        const auto& cluster = a.value.clusterDim;
        if (a.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            r.cooperative = a.value.cooperative != 0;
        } else if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
                   std::uint64_t{cluster.x} * cluster.y * cluster.z > 1) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return launch(function, r, config->hStream, parameters, extra);
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule h) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const loaded_module* m = known(c, h);
    if (count == nullptr || m == nullptr)
        return m == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned int>(m->kernels.size());
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned int room, CUmodule h) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const loaded_module* m = known(c, h);
    if (out == nullptr || m == nullptr)
        return m == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    for (auto it = m->kernels.begin(); it != m->kernels.end() && room != 0; ++it, room--)
        *out++ = reinterpret_cast<CUfunction>(it->second.get());
    return CUDA_SUCCESS;
}

namespace {

CUresult about(CUfunction h, const void* out, kernel*& k) {
    const call c(call::needs::context);
    k = c.result == CUDA_SUCCESS ? known(c, h) : nullptr;
    return c.result != CUDA_SUCCESS ? c.result
           : k == nullptr           ? CUDA_ERROR_INVALID_HANDLE
           : out == nullptr         ? CUDA_ERROR_INVALID_VALUE
                                    : CUDA_SUCCESS;
}

} // namespace

CUresult cuFuncGetName(const char** out, CUfunction h) {
    kernel* k = nullptr;
    const CUresult r = about(h, out, k);
    if (r == CUDA_SUCCESS)
        *out = k->name.c_str();
    return r;
}
CUresult cuFuncGetModule(CUmodule* out, CUfunction h) {
    kernel* k = nullptr;
    const CUresult r = about(h, out, k);
    if (r == CUDA_SUCCESS)
        *out = k->in;
    return r;
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* out, CUfunction h) {
    kernel* k = nullptr;
    const CUresult r = about(h, out, k);
    if (r == CUDA_SUCCESS)
        *out = CU_FUNCTION_LOADING_STATE_LOADED;
    return r;
}
CUresult cuFuncLoad(CUfunction h) {
    kernel* k = nullptr;
    return about(h, h, k);
}
CUresult cuFuncSetCacheConfig(CUfunction h, CUfunc_cache) {
    return cuFuncLoad(h); // a hint
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction h, int block_size,
                                                     size_t dynamic) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    const kernel* k = known(c, h);
    if (k == nullptr || blocks == nullptr || block_size <= 0)
        return k == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t shared = std::max<std::uint64_t>(k->code->shared_bytes + dynamic, 1);
    const std::uint64_t by_threads = 2048u / static_cast<unsigned>(block_size);
    *blocks = block_size > static_cast<int>(block_threads)
                  ? 0
                  : static_cast<int>(std::min({by_threads, (100u << 10) / shared, std::uint64_t{32}}));
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction h, int block_size,
                                                              size_t dynamic, unsigned int) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, h, block_size, dynamic);
}

// One multiprocessor, which is one thread of the host: a block of any size occupies it as well as another.
CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, CUfunction h,
                                          CUoccupancyB2DSize dynamic_of, size_t dynamic, int limit) {
    int most = 0, blocks = 0;
    if (grid_size == nullptr || block_size == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, h);
    most = limit > 0 ? std::min(limit, most) : most;
    if (r == CUDA_SUCCESS) {
        r = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, h, most,
                                                        dynamic_of != nullptr ? dynamic_of(most) : dynamic);
    }
    if (r == CUDA_SUCCESS) {
        *block_size = most;
        *grid_size = blocks;
    }
    return r;
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamic, CUfunction h, int blocks, int block_size) {
    kernel* k = nullptr;
    const CUresult r = about(h, dynamic, k);
    if (r != CUDA_SUCCESS || blocks <= 0 || block_size <= 0)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    const std::size_t each =
        std::min<std::size_t>((100u << 10) / static_cast<unsigned>(blocks), shared_optin);
    *dynamic = each - std::min<std::size_t>(each, k->code->shared_bytes);
    return CUDA_SUCCESS;
}
