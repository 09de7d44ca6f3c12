// SPDX-License-Identifier: GPL-2.0-or-later
// Links: texts are collected, put together once to see whether they fit, and kept as text in the image.
#include "jit.hpp"

#include <cstdio>
#include <memory>

struct CUlinkState_st {
    kagemusha::ptx_driver::context* owner = nullptr;
    std::vector<std::string> texts;
    std::vector<std::uint8_t> image;
    kagemusha::ptx_driver::error_log log;
};

using namespace kagemusha;
using namespace kagemusha::ptx_driver;

namespace {

// Never destroyed: programs call from exit handlers, too.
auto& states = *new std::map<CUlinkState, std::unique_ptr<CUlinkState_st>>; // under the device's lock

constexpr std::size_t most_texts = 4096, most_bytes = std::size_t{1} << 30;

CUresult add(CUlinkState state, CUjitInputType type, const void* data, std::size_t bytes) {
    const call c(call::needs::context);
    if (c.result != CUDA_SUCCESS || !states.contains(state))
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_HANDLE;
    if (data == nullptr || bytes == 0 || !state->image.empty())
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_CUBIN && type != CU_JIT_INPUT_FATBINARY) {
        state->log.write("this device links PTX: it reads neither object files nor libraries");
        return type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY || type == CU_JIT_INPUT_NVVM
                   ? CUDA_ERROR_NO_BINARY_FOR_GPU
                   : CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t together = bytes;
    for (const std::string& text : state->texts)
        together += text.size();
    if (state->texts.size() >= most_texts || together > most_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    std::vector<std::string> texts;
    if (const CUresult r = texts_of(data, bytes, texts); r != CUDA_SUCCESS) {
        state->log.write(no_ptx);
        return r;
    }
    for (std::string& text : texts) {
        if (const auto parsed = ptx::parse(text); !parsed.ok) {
            state->log.write(parsed.why.text());
            return CUDA_ERROR_INVALID_PTX;
        }
        state->texts.push_back(std::move(text));
    }
    return CUDA_SUCCESS;
}

} // namespace

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values, CUlinkState* out) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || out == nullptr)
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<CUlinkState_st>();
    made->owner = c.c;
    made->log = error_log(count, options, values);
    *out = made.get();
    states[*out] = std::move(made);
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char*,
                          unsigned int, CUjit_option*, void**) {
    return add(state, type, data, bytes);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                          CUjit_option*, void**) {
    if (path == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "rb"), &std::fclose);
    if (file == nullptr)
        return CUDA_ERROR_FILE_NOT_FOUND;
    std::vector<char> content;
    char piece[65536];
    while (const std::size_t n = std::fread(piece, 1, sizeof piece, file.get())) {
        content.insert(content.end(), piece, piece + n);
        if (content.size() > ptx::limits::text)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return add(state, type, content.data(), content.size());
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS || !states.contains(state))
        return c.result != CUDA_SUCCESS ? c.result : CUDA_ERROR_INVALID_HANDLE;
    if (image == nullptr || state->texts.empty())
        return CUDA_ERROR_INVALID_VALUE;
    if (state->image.empty()) {
        built_program tried(c.d);
        if (const CUresult r = tried.build(state->texts, state->log); r != CUDA_SUCCESS)
            return r;
        state->image = linked_image(state->texts);
    }
    *image = state->image.data();
    if (bytes != nullptr)
        *bytes = state->image.size();
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
    const call c(call::needs::driver);
    return c.result != CUDA_SUCCESS   ? c.result
           : states.erase(state) != 0 ? CUDA_SUCCESS
                                      : CUDA_ERROR_INVALID_HANDLE;
}
