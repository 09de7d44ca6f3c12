// SPDX-License-Identifier: GPL-2.0-or-later
//
// Links: several images, most often PTX, become one. Each piece goes to the host as the program adds it; the
// host's linker makes the image, and it comes back, because programs load it as any other, or keep it.
#include "arrays.hpp"
#include "image.hpp"

#include "guest-driver/opencl/query.hpp"

#include <cstdio>
#include <memory>

namespace kagemusha::cuda {
namespace {

constexpr std::size_t most_inputs = 1024;

link_state* known(CUlinkState handle) {
    return object_of<link_state>(the_driver().links, handle);
}

CUresult add(link_state& to, const void* data, std::size_t bytes) {
    if (bytes == 0 || bytes > VGPU_MAX_PROGRAM_BYTES || to.inputs.size() >= most_inputs || !to.image.empty())
        return CUDA_ERROR_INVALID_VALUE;
    auto made = opencl::make_object<opencl::program>(to.owner->native);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (const cl_int error = made->create(VGPU_PROGRAM_IL, data, bytes))
        return cuda_result(error);
    to.inputs.push_back(std::move(made));
    return CUDA_SUCCESS;
}

CUresult complete(link_state& all) {
    opencl::connection& link = all.owner->native->link();
    std::vector<std::uint64_t> inputs;
    for (const auto& one : all.inputs)
        inputs.push_back(one->id());
    auto made = opencl::make_object<opencl::program>(all.owner->native);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto command = opencl::make_command<vgpu_cmd_link_program>(VGPU_CMD_LINK_PROGRAM);
    command.id = made->id();
    command.context = all.owner->native->id();
    command.input_count = static_cast<__u32>(inputs.size());
    const opencl::part ids{inputs.data(), inputs.size() * sizeof inputs[0]};
    if (const CUresult error = cuda_result(link.call(opencl::make_outgoing(command, {&ids, 1}))))
        return error;
    made->set_created();
    opencl::answer image = opencl::ask(link, {VGPU_INFO_PROGRAM, VGPU_CUDA_IMAGE, made->id()});
    if (image.error != CL_SUCCESS || image.bytes.empty())
        return image.error != CL_SUCCESS ? cuda_result(image.error) : CUDA_ERROR_UNKNOWN;
    all.image = std::move(image.bytes);
    return CUDA_SUCCESS;
}

} // namespace

// Options say how to compile; the host's linker does it as without any.
KAGEMUSHA_EXPORT CUresult cuLinkCreate_v2(unsigned int option_count, CUjit_option* options, void** values,
                                          CUlinkState* handle) {
    return in_context([&](context& where) {
        if (!handle || (option_count > 0 && (!options || !values)))
            return CUDA_ERROR_INVALID_VALUE;
        clear_logs(option_count, options, values);
        auto made = std::make_unique<link_state>();
        made->owner = &where;
        const std::lock_guard held(where.mutex);
        where.links.insert(made.get());
        the_driver().links.add(made.get());
        *handle = reinterpret_cast<CUlinkState>(made.release());
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, size_t bytes,
                                           const char*, unsigned int, CUjit_option*, void**) {
    return in_context([&](context&) {
        link_state* const to = known(handle);
        if (!to)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!data || type < CU_JIT_INPUT_CUBIN || type > CU_JIT_INPUT_LIBRARY)
            return type == CU_JIT_INPUT_NVVM ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        return add(*to, data, bytes);
    });
}

KAGEMUSHA_EXPORT CUresult cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path,
                                           unsigned int, CUjit_option*, void**) {
    return in_context([&](context&) {
        link_state* const to = known(handle);
        if (!to)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!path || type < CU_JIT_INPUT_CUBIN || type > CU_JIT_INPUT_LIBRARY)
            return type == CU_JIT_INPUT_NVVM ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "rb"), &std::fclose);
        if (!file)
            return CUDA_ERROR_FILE_NOT_FOUND;
        std::vector<char> content;
        char piece[65536];
        while (const std::size_t read = std::fread(piece, 1, sizeof piece, file.get())) {
            content.insert(content.end(), piece, piece + read);
            if (content.size() > VGPU_MAX_PROGRAM_BYTES)
                return CUDA_ERROR_INVALID_VALUE;
        }
        return add(*to, content.data(), content.size());
    });
}

KAGEMUSHA_EXPORT CUresult cuLinkComplete(CUlinkState handle, void** image, size_t* bytes) {
    return in_context([&](context&) {
        link_state* const all = known(handle);
        if (!all)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!image || all->inputs.empty())
            return CUDA_ERROR_INVALID_VALUE;
        if (all->image.empty())
            if (const CUresult error = complete(*all))
                return error;
        *image = all->image.data();
        if (bytes)
            *bytes = all->image.size();
        return CUDA_SUCCESS;
    });
}

KAGEMUSHA_EXPORT CUresult cuLinkDestroy(CUlinkState handle) {
    return guarded([&] {
        link_state* const dead = known(handle);
        if (!dead)
            return CUDA_ERROR_INVALID_HANDLE;
        the_driver().links.remove(dead);
        const std::lock_guard held(dead->owner->mutex);
        dead->owner->links.erase(dead);
        delete dead;
        return CUDA_SUCCESS;
    });
}

} // namespace kagemusha::cuda
