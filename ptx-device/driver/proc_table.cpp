// SPDX-License-Identifier: GPL-2.0-or-later
// cuGetProcAddress: the function behind a name without its version. Names that CUDA gave a new form have it
// here; the forms with a per-thread stream are the same, because every call completes before it returns.
#include "absent.h"
#include "api.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace {

void* function_of(std::string_view name) {
    const auto* const first = kagemusha_ptx_names;
    const auto* const last = first + kagemusha_ptx_name_count;
    const auto* const found =
        std::lower_bound(first, last, name, [](const kagemusha_ptx_name& n, std::string_view wanted) {
            return n.name < wanted;
        });
    return found != last && found->name == name ? found->function : nullptr;
}

} // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    if (symbol == nullptr || function == nullptr || cuda_version < 0 || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *function = nullptr;
    const std::string name(symbol);
    // A form that is implemented goes before one that is not.
    for (const char* version : {"_v2", ""}) {
        void* const found = function_of(name + version);
        if (found != nullptr && (*function == nullptr || kagemusha_ptx_is_absent(*function) != 0))
            *function = found;
    }
    if (status != nullptr)
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, nullptr);
}
