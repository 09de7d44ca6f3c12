// SPDX-License-Identifier: GPL-2.0-or-later
//
// Arrays (images on the wire), textures and surfaces of arrays or memory, and links of modules.
#pragma once

#include "driver.hpp"

namespace kagemusha::cuda {

struct array {
    context* owner = nullptr;
    opencl::ref<opencl::memory> native;
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    std::size_t element_bytes = 0;

    // Elements of a row, rows, slices or layers; 1 where there are none.
    opencl::triple size() const {
        return {shape.Width, shape.Height ? shape.Height : 1, shape.Depth ? shape.Depth : 1};
    }
};

// A texture or a surface. The program's handle of it is the host's number: kernels are given it.
struct texture {
    std::uint64_t id = 0; // on the wire
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC how{};
    bool surface = false;
};

// What cuLinkAddData was given, each a program of its own, and what came of it.
struct link_state {
    context* owner = nullptr;
    std::vector<opencl::ref<opencl::program>> inputs;
    std::vector<std::byte> image;
};

// Channels of this format as the wire has them; false: there is no such format.
struct wire_format {
    cl_channel_order order = 0;
    cl_channel_type type = 0;
    std::size_t bytes = 0; // of an element
};
bool format_of(CUarray_format format, unsigned channels, wire_format& made);

// A context that ends has none of these any more. Its mutex is held.
void end_arrays(context& dead);

} // namespace kagemusha::cuda
