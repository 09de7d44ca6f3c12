// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory objects: buffers, sub-buffers and images. The content is the GPU's; what this side keeps is the
// description, and, once the program maps the object, a host view of it: the program's own memory
// (CL_MEM_USE_HOST_PTR) or pages of ours, as large as the object and touched only where it is mapped. Mapping
// reads into that view, unmapping writes it back.
#pragma once

#include "context.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

namespace kagemusha::opencl {

// How the elements of an image lie in host memory.
struct image_shape {
    cl_image_format format{};
    cl_image_desc description{};
    std::size_t element_bytes = 0;
    std::size_t row_pitch = 0;   // of the host view
    std::size_t slice_pitch = 0; // of the host view; for a 1D array that of its rows
};

// A place in an image; arrays count their last dimension as it is used in origin and region.
using triple = std::array<std::size_t, 3>;

struct mapping {
    void* address = nullptr;
    cl_map_flags flags = 0;
    std::size_t offset = 0, bytes = 0; // buffers
    triple origin{}, region{};         // images
};

class memory : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::memory;
    using destructor_callback = void(CL_CALLBACK*)(cl_mem, void*);

    memory(ref<context> owner, cl_mem_object_type type, cl_mem_flags flags, std::size_t bytes);
    ~memory();

    context& owner() const noexcept { return *owner_; }
    const ref<context>& owner_ref() const noexcept { return owner_; }
    std::uint64_t id() const noexcept { return id_; }
    cl_mem_object_type type() const noexcept { return type_; }
    bool is_buffer() const noexcept { return type_ == CL_MEM_OBJECT_BUFFER; }
    cl_mem_flags flags() const noexcept { return flags_; }
    std::size_t bytes() const noexcept { return bytes_; }

    bool host_may_read() const noexcept {
        return !(flags_ & (CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS));
    }
    bool host_may_write() const noexcept {
        return !(flags_ & (CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS));
    }

    // The host made it; it is to be destroyed there.
    void set_created() noexcept { created_ = true; }

    // Memory of the program that is the host view.
    void set_host_pointer(void* pointer) noexcept { host_pointer_ = pointer; }
    void* host_pointer() const noexcept { return host_pointer_; }

    // A sub-buffer's buffer, or the buffer that an image shows.
    void set_parent(ref<memory> parent, std::size_t origin) {
        parent_ = std::move(parent);
        origin_ = origin;
        parent_->has_parts_.store(true, std::memory_order_relaxed);
    }
    memory* parent() const noexcept { return parent_.get(); }
    std::size_t origin() const noexcept { return origin_; }
    bool is_sub_buffer() const noexcept { return is_buffer() && parent_; }

    void set_shape(const image_shape& shape) { shape_ = shape; }
    const image_shape& shape() const noexcept { return shape_; }

    void set_properties(std::vector<cl_mem_properties> properties) { properties_ = std::move(properties); }
    const std::vector<cl_mem_properties>& properties() const noexcept { return properties_; }

    // First byte of the host view; null when there is no memory for it.
    std::byte* host_view();

    // Whether the host view is traced memory: what is stored there is sent by itself. After host_view().
    bool view_is_traced() const noexcept {
        return is_sub_buffer() ? parent_->view_is_traced() : window_traced_;
    }

    // A map need not read what the host view has already. That is known of buffers which the program has sworn
    // that kernels do not write, in a context with one queue, which is in order. `changes`: the context's, from
    // before the map or unmap that made the whole view and the buffer the same, or that asks.
    void keep_view(std::uint64_t changes);
    bool view_is_kept(std::uint64_t changes);

    void add_mapping(const mapping& added);
    // The newest mapping at this address is taken away; false if there is none.
    bool remove_mapping(const void* address, mapping& removed);
    std::uint32_t map_count();

    void add_destructor_callback(destructor_callback function, void* data);

private:
    const ref<context> owner_;
    const std::uint64_t id_;
    const cl_mem_object_type type_;
    const cl_mem_flags flags_;
    const std::size_t bytes_;
    bool created_ = false;
    void* host_pointer_ = nullptr;
    ref<memory> parent_;
    std::size_t origin_ = 0;
    image_shape shape_;
    std::vector<cl_mem_properties> properties_;

    std::mutex mutex_;
    std::byte* staging_ = nullptr;
    std::size_t staging_bytes_ = 0; // 0: it is in the window
    bool window_traced_ = false;
    std::atomic<bool> has_parts_{false};     // sub-buffers, or images that show it
    std::optional<std::uint64_t> view_kept_; // since so many changes of the context
    std::vector<mapping> mappings_;
    std::vector<std::pair<destructor_callback, void*>> destructor_callbacks_;
};

// Width, and height, depth or layers as they are used in regions; 1 where the image has none (image.cpp).
triple image_size(const memory& image);

// Reads and checks a region of an image; CL_INVALID_VALUE if it is not inside (image.cpp).
cl_int check_image_region(const memory& image, const size_t* origin_in, const size_t* region_in,
                          triple& origin, triple& region);

// Checks of cl_mem_flags that buffers and images share; gives CL_INVALID_VALUE or CL_INVALID_HOST_PTR.
cl_int check_memory_flags(cl_mem_flags flags, const void* host_pointer);

// The flags that the host is told.
cl_mem_flags forwarded_memory_flags(cl_mem_flags flags);

} // namespace kagemusha::opencl
