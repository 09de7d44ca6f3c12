// SPDX-License-Identifier: GPL-2.0-or-later
// cuda_link: several images become one, by the driver's linker.
#include <CL/cl.h>

#include <elf.h>

#include <cstring>

#include "gpu/cuda/cuda_device.hpp"

namespace kagemusha::gpu {

namespace {

// What an image is, by how it begins. The guest's program said it too, and there is no need to believe it.
CUjitInputType kind_of(std::span<const std::byte> image) {
    const auto begins = [&](const void* magic, std::size_t bytes) {
        return image.size() >= bytes && std::memcmp(image.data(), magic, bytes) == 0;
    };
    constexpr std::uint32_t fat_binary = 0xba55ed50;
    constexpr std::uint16_t cuda_machine = 190;
    if (begins(&fat_binary, sizeof fat_binary))
        return CU_JIT_INPUT_FATBINARY;
    if (begins("!<arch>\n", 8))
        return CU_JIT_INPUT_LIBRARY;
    if (!begins(ELFMAG, SELFMAG))
        return CU_JIT_INPUT_PTX;
    std::uint16_t machine = 0;
    if (image.size() >= sizeof(Elf64_Ehdr))
        std::memcpy(&machine, image.data() + offsetof(Elf64_Ehdr, e_machine), sizeof machine);
    return machine == cuda_machine ? CU_JIT_INPUT_CUBIN : CU_JIT_INPUT_OBJECT;
}

CUresult link(const cuda_api& api, CUlinkState state, std::span<host_program* const> inputs,
              std::vector<std::byte>& image) {
    for (host_program* const one : inputs) {
        std::vector<std::byte>& input = static_cast<cuda_program*>(one)->image;
        const CUjitInputType kind = kind_of(input);
        if (kind == CU_JIT_INPUT_PTX && input.back() != std::byte{0})
            input.push_back(std::byte{0}); // as for a module
        if (const CUresult result =
                api.cuLinkAddData_v2(state, kind, input.data(), input.size(), nullptr, 0, nullptr, nullptr))
            return result;
    }
    void* made = nullptr;
    std::size_t bytes = 0;
    if (const CUresult result = api.cuLinkComplete(state, &made, &bytes))
        return result;
    const auto* const first = static_cast<const std::byte*>(made);
    image.assign(first, first + bytes);
    return CUDA_SUCCESS;
}

} // namespace

std::int32_t cuda_device::link_program(host_context&, const std::string&,
                                       std::span<host_program* const> inputs,
                                       std::unique_ptr<host_program>& out) {
    for (host_program* const one : inputs) {
        const auto& input = static_cast<const cuda_program&>(*one);
        if (input.native || input.linked || input.image.empty())
            return CL_INVALID_PROGRAM;
    }
    primary_->make_current();
    CUlinkState state = nullptr;
    if (const CUresult result = api_.cuLinkCreate_v2(0, nullptr, nullptr, &state))
        return cuda_error(result);
    auto made = std::make_unique<cuda_program>();
    made->primary = primary_;
    made->linked = true;
    const CUresult result = link(api_, state, inputs, made->image);
    api_.cuLinkDestroy(state);
    if (result != CUDA_SUCCESS)
        return cuda_error(result);
    out = std::move(made);
    return CL_SUCCESS;
}

} // namespace kagemusha::gpu
