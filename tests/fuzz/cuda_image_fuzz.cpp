// SPDX-License-Identifier: GPL-2.0-or-later
// Any bytes as an image of CUDA code. The PTX device finds the texts in it and reads nothing behind its end; the
// guest's driver finds how long it claims to be and reads no more than that.
#include "guest-driver/cuda/image.hpp"
#include "proto/abi/vgpu_protocol.h"
#include "ptx-device/driver/image.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

using namespace kagemusha;

namespace {

// As much memory as an image can claim to have: both of its tables lie within the limit, and each of their
// entries names something within it.
std::byte* largest_image() {
    constexpr std::size_t bytes = 4 * VGPU_MAX_PROGRAM_BYTES;
    static auto* const place = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (place == MAP_FAILED)
        std::abort();
    return place;
}

bool is_wrapper(const std::uint8_t* data, std::size_t size) {
    constexpr std::uint32_t magic = 0x466243b1; // followed by a pointer, which nobody can check
    return size >= sizeof magic && std::memcmp(data, &magic, sizeof magic) == 0;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto exact = std::make_unique<std::uint8_t[]>(size); // so that reading behind it is noticed
    std::memcpy(exact.get(), data, size);
    std::vector<std::string> texts;
    if (size > 0 && ptx_driver::texts_of(exact.get(), size, texts) == CUDA_SUCCESS && texts.empty())
        std::abort();

    if (is_wrapper(data, size))
        return 0;
    std::byte* const place = largest_image();
    std::memcpy(place, data, size);
    if (const auto image = cuda::image_at(place); image && image->size() > VGPU_MAX_PROGRAM_BYTES)
        std::abort();
    std::memset(place, 0, size);
    return 0;
}
