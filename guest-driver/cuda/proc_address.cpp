// SPDX-License-Identifier: GPL-2.0-or-later
//
// cuGetProcAddress: a function by its plain name and the version of CUDA that the program was written for.
// Names with a suffix are later forms of the plain one: _v2 has other parameters. _ptds and _ptsz have the stream
// of the calling thread in place of the legacy one; CMakeLists.txt says why they are the plain function here.
#include "driver.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

// Generated (CMakeLists.txt).
extern "C" {
struct row {
    const char* name;
    void* address;
    void* absent; // the same, if it is not implemented
};
extern const row kagemusha_cuda_rows[];
extern const unsigned long kagemusha_cuda_row_count;
int kagemusha_cuda_not_supported(const char* name);
}

namespace kagemusha::cuda {
namespace {

struct form {
    const char* name;
    int version; // of CUDA, since which the plain name means this form
    const char* symbol;
};

// Of the plain names of functions that are implemented and have later forms. By name, the latest form first.
constexpr form forms[] = {
    {"cuArray3DCreate", 3020, "cuArray3DCreate_v2"},
    {"cuArray3DGetDescriptor", 3020, "cuArray3DGetDescriptor_v2"},
    {"cuArrayCreate", 3020, "cuArrayCreate_v2"},
    {"cuArrayGetDescriptor", 3020, "cuArrayGetDescriptor_v2"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuCtxDestroy", 4000, "cuCtxDestroy_v2"},
    {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"},
    {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"},
    {"cuDevicePrimaryCtxReset", 11000, "cuDevicePrimaryCtxReset_v2"},
    {"cuDevicePrimaryCtxSetFlags", 11000, "cuDevicePrimaryCtxSetFlags_v2"},
    {"cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"},
    {"cuEventDestroy", 4000, "cuEventDestroy_v2"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGraphAddDependencies", 12030, "cuGraphAddDependencies_v2"},
    {"cuGraphAddDependencies", 10000, "cuGraphAddDependencies"},
    {"cuGraphAddKernelNode", 12000, "cuGraphAddKernelNode_v2"},
    {"cuGraphAddKernelNode", 10000, "cuGraphAddKernelNode"},
    {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
    {"cuGraphAddNode", 12020, "cuGraphAddNode"},
    {"cuGraphExecKernelNodeSetParams", 12000, "cuGraphExecKernelNodeSetParams_v2"},
    {"cuGraphExecKernelNodeSetParams", 10010, "cuGraphExecKernelNodeSetParams"},
    {"cuGraphExecUpdate", 12000, "cuGraphExecUpdate_v2"},
    {"cuGraphExecUpdate", 10020, "cuGraphExecUpdate"},
    {"cuGraphGetEdges", 12030, "cuGraphGetEdges_v2"},
    {"cuGraphGetEdges", 10000, "cuGraphGetEdges"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"},
    {"cuGraphInstantiate", 10000, "cuGraphInstantiate"},
    {"cuGraphKernelNodeGetParams", 12000, "cuGraphKernelNodeGetParams_v2"},
    {"cuGraphKernelNodeGetParams", 10000, "cuGraphKernelNodeGetParams"},
    {"cuGraphKernelNodeSetParams", 12000, "cuGraphKernelNodeSetParams_v2"},
    {"cuGraphKernelNodeSetParams", 10000, "cuGraphKernelNodeSetParams"},
    {"cuGraphNodeGetDependencies", 12030, "cuGraphNodeGetDependencies_v2"},
    {"cuGraphNodeGetDependencies", 10000, "cuGraphNodeGetDependencies"},
    {"cuGraphNodeGetDependentNodes", 12030, "cuGraphNodeGetDependentNodes_v2"},
    {"cuGraphNodeGetDependentNodes", 10000, "cuGraphNodeGetDependentNodes"},
    {"cuGraphRemoveDependencies", 12030, "cuGraphRemoveDependencies_v2"},
    {"cuGraphRemoveDependencies", 10000, "cuGraphRemoveDependencies"},
    {"cuLinkAddData", 6050, "cuLinkAddData_v2"},
    {"cuLinkAddFile", 6050, "cuLinkAddFile_v2"},
    {"cuLinkCreate", 6050, "cuLinkCreate_v2"},
    {"cuMemAlloc", 3020, "cuMemAlloc_v2"},
    {"cuMemAllocHost", 3020, "cuMemAllocHost_v2"},
    {"cuMemAllocPitch", 3020, "cuMemAllocPitch_v2"},
    {"cuMemFree", 3020, "cuMemFree_v2"},
    {"cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2"},
    {"cuMemGetInfo", 3020, "cuMemGetInfo_v2"},
    {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2"},
    {"cuMemHostRegister", 6050, "cuMemHostRegister_v2"},
    {"cuMemcpy2D", 3020, "cuMemcpy2D_v2"},
    {"cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2"},
    {"cuMemcpy2DUnaligned", 3020, "cuMemcpy2DUnaligned_v2"},
    {"cuMemcpy3D", 3020, "cuMemcpy3D_v2"},
    {"cuMemcpy3DAsync", 3020, "cuMemcpy3DAsync_v2"},
    {"cuMemcpyAtoA", 3020, "cuMemcpyAtoA_v2"},
    {"cuMemcpyAtoD", 3020, "cuMemcpyAtoD_v2"},
    {"cuMemcpyAtoH", 3020, "cuMemcpyAtoH_v2"},
    {"cuMemcpyDtoA", 3020, "cuMemcpyDtoA_v2"},
    {"cuMemcpyDtoD", 3020, "cuMemcpyDtoD_v2"},
    {"cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2"},
    {"cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2"},
    {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"},
    {"cuMemcpyHtoA", 3020, "cuMemcpyHtoA_v2"},
    {"cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"},
    {"cuMemsetD16", 3020, "cuMemsetD16_v2"},
    {"cuMemsetD2D16", 3020, "cuMemsetD2D16_v2"},
    {"cuMemsetD2D32", 3020, "cuMemsetD2D32_v2"},
    {"cuMemsetD2D8", 3020, "cuMemsetD2D8_v2"},
    {"cuMemsetD32", 3020, "cuMemsetD32_v2"},
    {"cuMemsetD8", 3020, "cuMemsetD8_v2"},
    {"cuModuleGetGlobal", 3020, "cuModuleGetGlobal_v2"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"},
    {"cuStreamBeginCapture", 10000, "cuStreamBeginCapture"},
    {"cuStreamDestroy", 4000, "cuStreamDestroy_v2"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"},
    {"cuStreamUpdateCaptureDependencies", 12030, "cuStreamUpdateCaptureDependencies_v2"},
    {"cuStreamUpdateCaptureDependencies", 11030, "cuStreamUpdateCaptureDependencies"},
};

const row* find(std::string_view name) {
    const row* const first = kagemusha_cuda_rows;
    const row* const last = first + kagemusha_cuda_row_count;
    const auto* const found =
        std::lower_bound(first, last, name, [](const row& r, std::string_view n) { return r.name < n; });
    return found != last && found->name == name ? found : nullptr;
}

// The form of a plain name; `too_new` if there are forms, but none that is so old.
const row* find_form(std::string_view name, int version, bool& too_new) {
    const form* const first = std::begin(forms);
    const form* const last = std::end(forms);
    for (const form* one = first; one != last; ++one) {
        if (one->name != name)
            continue;
        if (version >= one->version)
            return find(one->symbol);
        too_new = true;
    }
    return too_new ? nullptr : find(name);
}

} // namespace

KAGEMUSHA_ANSWERED CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version,
                                                cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
    return guarded([&] {
        constexpr cuuint64_t known =
            CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        if (!symbol || !function || (flags & ~known) || flags == known)
            return CUDA_ERROR_INVALID_VALUE;
        bool too_new = false;
        const row* const found = find_form(symbol, cuda_version, too_new);
        *function = found ? found->address : nullptr;
        if (status)
            *status = found     ? CU_GET_PROC_ADDRESS_SUCCESS
                      : too_new ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    });
}

KAGEMUSHA_ANSWERED CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version,
                                             cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, nullptr);
}

} // namespace kagemusha::cuda

// A program called a function that is not implemented. The host hears of it once for each, and so does somebody
// who wants to know.
extern "C" int kagemusha_cuda_not_supported(const char* name) {
    static const bool verbose = std::getenv("KAGEMUSHA_VERBOSE") != nullptr;
    static auto* const mutex = new std::mutex;
    static auto* const said = new std::set<std::string>;
    return kagemusha::cuda::guarded([&] {
        {
            const std::lock_guard held(*mutex);
            if (!said->insert(name).second)
                return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (verbose)
            std::fprintf(stderr, "kagemusha: %s is not supported\n", name);
        kagemusha::cuda::report_unsupported(name);
        return CUDA_ERROR_NOT_SUPPORTED;
    });
}
