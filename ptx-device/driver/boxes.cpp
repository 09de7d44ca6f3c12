// SPDX-License-Identifier: GPL-2.0-or-later
// Copies of rectangles and boxes, and sets of rectangles: row by row, and nothing of a copy that may not be.
#include "device.hpp"

#include <cstring>

using namespace kagemusha::ptx_driver;

namespace {

struct box {
    std::size_t bytes, height, depth;
};

// One end of a copy.
struct end {
    CUmemorytype kind;
    std::uint64_t base;
    CUarray array;
    std::size_t x, y, z, level;
    std::size_t pitch, rows; // 0: without gaps

    std::uint64_t row(std::size_t r, std::size_t s) const {
        return base + (z + s) * rows * pitch + (y + r) * pitch + x;
    }
};

// Whether all of it may be touched; fills in what was left open.
bool complete(const call& c, end& e, const box& size, bool write) {
    if (e.kind == CU_MEMORYTYPE_UNIFIED) // ours, or else the program's own
        e.kind = c.d.memory.find(e.base) != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    for (const std::size_t n : {e.x, e.y, e.z, e.pitch, e.rows, size.bytes, size.height, size.depth})
        if (n > memory_bytes) // so no sum or product below overflows for a row that exists
            return false;
    if (e.level != 0)
        return false;
    if (e.kind == CU_MEMORYTYPE_ARRAY) {
        if (!c.d.arrays.contains(e.array))
            return false;
        e.base = e.array->base;
        e.pitch = e.array->pitch;
        e.rows = e.array->height();
        return e.x % e.array->element == 0 && size.bytes % e.array->element == 0 &&
               e.x + size.bytes <= e.pitch && e.y + size.height <= e.rows &&
               e.z + size.depth <= e.array->depth();
    }
    e.pitch = e.pitch != 0 ? e.pitch : e.x + size.bytes;
    e.rows = e.rows != 0 ? e.rows : e.y + size.height;
    const bool one_row = size.height == 1 && size.depth == 1;
    if ((!one_row && e.x + size.bytes > e.pitch) || (size.depth > 1 && e.y + size.height > e.rows))
        return false;
    if (e.kind == CU_MEMORYTYPE_HOST)
        return e.base != 0;
    for (std::size_t s = 0; s < size.depth; s++) {
        for (std::size_t r = 0; r < size.height; r++)
            if (!c.d.memory.holds(e.row(r, s), size.bytes, write))
                return false;
    }
    return e.kind == CU_MEMORYTYPE_DEVICE;
}

CUresult copy(end to, end from, const box& size, CUstream stream) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!is_stream(c, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (size.bytes == 0 || size.height == 0 || size.depth == 0)
        return CUDA_SUCCESS;
    if (!complete(c, from, size, false) || !complete(c, to, size, true))
        return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t s = 0; s < size.depth; s++) {
        for (std::size_t r = 0; r < size.height; r++) {
            std::memmove(reinterpret_cast<void*>(to.row(r, s)), reinterpret_cast<const void*>(from.row(r, s)),
                         size.bytes);
        }
    }
    return CUDA_SUCCESS;
}

std::uint64_t base_of(CUmemorytype kind, const void* host, CUdeviceptr device) {
    return kind == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(host) : device;
}

CUresult copy_2d(const CUDA_MEMCPY2D* m, CUstream stream) {
    if (m == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    const end from{m->srcMemoryType,
                   base_of(m->srcMemoryType, m->srcHost, m->srcDevice),
                   m->srcArray,
                   m->srcXInBytes,
                   m->srcY,
                   0,
                   0,
                   m->srcPitch,
                   0};
    const end to{m->dstMemoryType,
                 base_of(m->dstMemoryType, m->dstHost, m->dstDevice),
                 m->dstArray,
                 m->dstXInBytes,
                 m->dstY,
                 0,
                 0,
                 m->dstPitch,
                 0};
    return copy(to, from, {m->WidthInBytes, m->Height, 1}, stream);
}

// Of a one-dimensional array, and what else there is.
end array_at(CUarray array, std::size_t offset) {
    return {CU_MEMORYTYPE_ARRAY, 0, array, offset, 0, 0, 0, 0, 0};
}
end host_at(const void* p) {
    return {CU_MEMORYTYPE_HOST, reinterpret_cast<std::uint64_t>(p), nullptr, 0, 0, 0, 0, 0, 0};
}
end device_at(CUdeviceptr p) {
    return {CU_MEMORYTYPE_DEVICE, p, nullptr, 0, 0, 0, 0, 0, 0};
}

template <class T>
CUresult set(CUdeviceptr to, std::size_t pitch, T value, std::size_t width, std::size_t height,
             CUstream stream) {
    const call c(call::needs::working_context);
    if (c.result != CUDA_SUCCESS)
        return c.result;
    if (!is_stream(c, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    end e{CU_MEMORYTYPE_DEVICE, to, nullptr, 0, 0, 0, 0, pitch, 0};
    if (width > memory_bytes || to % sizeof(T) != 0 || (height > 1 && pitch % sizeof(T) != 0) ||
        !complete(c, e, {width * sizeof(T), height, 1}, true)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t r = 0; r < height; r++) {
        T* const p = reinterpret_cast<T*>(e.row(r, 0));
        for (std::size_t k = 0; k < width; k++)
            p[k] = value;
    }
    return CUDA_SUCCESS;
}

} // namespace

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* m) {
    return copy_2d(m, nullptr);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* m) {
    return copy_2d(m, nullptr);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* m, CUstream stream) {
    return copy_2d(m, stream);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* m, CUstream stream) {
    if (m == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    const end from{m->srcMemoryType, base_of(m->srcMemoryType, m->srcHost, m->srcDevice),
                   m->srcArray,      m->srcXInBytes,
                   m->srcY,          m->srcZ,
                   m->srcLOD,        m->srcPitch,
                   m->srcHeight};
    const end to{m->dstMemoryType, base_of(m->dstMemoryType, m->dstHost, m->dstDevice),
                 m->dstArray,      m->dstXInBytes,
                 m->dstY,          m->dstZ,
                 m->dstLOD,        m->dstPitch,
                 m->dstHeight};
    return copy(to, from, {m->WidthInBytes, m->Height, m->Depth}, stream);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* m) {
    return cuMemcpy3DAsync_v2(m, nullptr);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
    return copy(array_at(to, offset), host_at(from), {bytes, 1, 1}, nullptr);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
    return copy(host_at(to), array_at(from, offset), {bytes, 1, 1}, nullptr);
}
CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    return copy(array_at(to, offset), device_at(from), {bytes, 1, 1}, nullptr);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    return copy(device_at(to), array_at(from, offset), {bytes, 1, 1}, nullptr);
}
CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
    return copy(array_at(to, to_offset), array_at(from, from_offset), {bytes, 1, 1}, nullptr);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char v, size_t width, size_t height) {
    return set(to, pitch, v, width, height, nullptr);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short v, size_t width, size_t height) {
    return set(to, pitch, v, width, height, nullptr);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int v, size_t width, size_t height) {
    return set(to, pitch, v, width, height, nullptr);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char v, size_t width, size_t height,
                           CUstream s) {
    return set(to, pitch, v, width, height, s);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short v, size_t width, size_t height,
                            CUstream s) {
    return set(to, pitch, v, width, height, s);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int v, size_t width, size_t height,
                            CUstream s) {
    return set(to, pitch, v, width, height, s);
}
