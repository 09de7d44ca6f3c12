// SPDX-License-Identifier: GPL-2.0-or-later
//
// Memory objects: their state, and the functions of the API that buffers and images share.
#include "memory.hpp"

#include "api.hpp"

#include <algorithm>
#include <bit>
#include <sys/mman.h>

namespace kagemusha::opencl {

memory::memory(ref<context> owner, cl_mem_object_type type, cl_mem_flags flags, std::size_t bytes)
    : object(kind_of_class)
    , owner_(std::move(owner))
    , id_(owner_->link().new_id())
    , type_(type)
    , flags_(flags)
    , bytes_(bytes) {}

memory::~memory() {
    for (auto one = destructor_callbacks_.rbegin(); one != destructor_callbacks_.rend(); ++one)
        one->first(to_handle<cl_mem>(this), one->second);
    if (staging_ && staging_bytes_)
        munmap(staging_, staging_bytes_);
    else if (staging_)
        owner_->link().unmap_window(staging_); // before the buffer goes: nothing is sent to it afterwards
    if (created_)
        owner_->link().destroy(VGPU_OBJECT_MEMORY, id_);
}

std::byte* memory::host_view() {
    if (is_sub_buffer()) {
        std::byte* const whole = parent_->host_view();
        return whole ? whole + origin_ : nullptr;
    }
    if (host_pointer_)
        return static_cast<std::byte*>(host_pointer_);
    const std::lock_guard held(mutex_);
    if (!staging_ && is_buffer() && (flags_ & CL_MEM_ALLOC_HOST_PTR)) {
        const window_view shown = owner_->link().map_window({owner_->id(), id_, bytes_});
        staging_ = shown.address;
        window_traced_ = shown.traced;
        if (window_traced_)
            owner_->note_window();
    }
    if (!staging_) {
        void* const made =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED)
            return nullptr;
        staging_ = static_cast<std::byte*>(made);
        staging_bytes_ = bytes_;
    }
    return staging_;
}

void memory::keep_view(std::uint64_t changes) {
    if (!is_buffer() || parent_ || host_pointer_ || !(flags_ & CL_MEM_READ_ONLY))
        return;
    const std::lock_guard held(mutex_);
    view_kept_ = changes;
}

bool memory::view_is_kept(std::uint64_t changes) {
    if (has_parts_.load(std::memory_order_relaxed))
        return false;
    const std::lock_guard held(mutex_);
    return view_kept_ == changes;
}

void memory::add_mapping(const mapping& added) {
    const std::lock_guard held(mutex_);
    mappings_.push_back(added);
}

bool memory::remove_mapping(const void* address, mapping& removed) {
    const std::lock_guard held(mutex_);
    const auto found = std::find_if(mappings_.rbegin(), mappings_.rend(),
                                    [&](const mapping& one) { return one.address == address; });
    if (found == mappings_.rend())
        return false;
    removed = *found;
    mappings_.erase(std::next(found).base());
    return true;
}

std::uint32_t memory::map_count() {
    const std::lock_guard held(mutex_);
    return static_cast<std::uint32_t>(mappings_.size());
}

void memory::add_destructor_callback(destructor_callback function, void* data) {
    const std::lock_guard held(mutex_);
    destructor_callbacks_.emplace_back(function, data);
}

cl_int check_memory_flags(cl_mem_flags flags, const void* host_pointer) {
    constexpr cl_mem_flags access = CL_MEM_READ_WRITE | CL_MEM_WRITE_ONLY | CL_MEM_READ_ONLY;
    constexpr cl_mem_flags host_access =
        CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS;
    constexpr cl_mem_flags known = access | host_access | CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR |
                                   CL_MEM_COPY_HOST_PTR | CL_MEM_KERNEL_READ_AND_WRITE;
    if ((flags & ~known) || std::popcount(flags & access) > 1 || std::popcount(flags & host_access) > 1)
        return CL_INVALID_VALUE;
    if ((flags & CL_MEM_USE_HOST_PTR) && (flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR)))
        return CL_INVALID_VALUE;
    const bool wants_pointer = flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR);
    return wants_pointer == (host_pointer != nullptr) ? CL_SUCCESS : CL_INVALID_HOST_PTR;
}

cl_mem_flags forwarded_memory_flags(cl_mem_flags flags) {
    return flags & ~cl_mem_flags{CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR};
}

namespace api {

cl_int retain_mem_object(cl_mem handle) {
    memory* const one = from_handle<memory>(handle);
    if (!one)
        return CL_INVALID_MEM_OBJECT;
    one->retain_for_user();
    return CL_SUCCESS;
}

cl_int release_mem_object(cl_mem handle) {
    memory* const one = from_handle<memory>(handle);
    return one && one->release_for_user() ? CL_SUCCESS : CL_INVALID_MEM_OBJECT;
}

cl_int set_mem_object_destructor_callback(cl_mem handle, void(CL_CALLBACK* notify)(cl_mem, void*),
                                          void* user_data) {
    memory* const one = from_handle<memory>(handle);
    if (!one)
        return CL_INVALID_MEM_OBJECT;
    if (!notify)
        return CL_INVALID_VALUE;
    one->add_destructor_callback(notify, user_data);
    return CL_SUCCESS;
}

cl_int get_mem_object_info(cl_mem handle, cl_mem_info name, size_t size, void* value, size_t* size_ret) {
    const info_answer to(size, value, size_ret);
    memory* const one = from_handle<memory>(handle);
    if (!one)
        return CL_INVALID_MEM_OBJECT;
    switch (name) {
    case CL_MEM_TYPE:
        return to.value(one->type());
    case CL_MEM_FLAGS:
        return to.value(one->flags());
    case CL_MEM_SIZE:
        return to.value(one->bytes());
    case CL_MEM_HOST_PTR: {
        std::byte* pointer = static_cast<std::byte*>(one->host_pointer());
        if (one->is_sub_buffer() && one->parent()->host_pointer())
            pointer = static_cast<std::byte*>(one->parent()->host_pointer()) + one->origin();
        return to.value<void*>(pointer);
    }
    case CL_MEM_MAP_COUNT:
        return to.value<cl_uint>(one->map_count());
    case CL_MEM_REFERENCE_COUNT:
        return to.value<cl_uint>(one->user_references.load());
    case CL_MEM_CONTEXT:
        return to.value(to_handle<cl_context>(&one->owner()));
    case CL_MEM_ASSOCIATED_MEMOBJECT:
        return to.value(to_handle<cl_mem>(one->parent()));
    case CL_MEM_OFFSET:
        return to.value(one->origin());
    case CL_MEM_USES_SVM_POINTER:
        return to.value<cl_bool>(CL_FALSE);
    case CL_MEM_PROPERTIES:
        return to.array(std::span<const cl_mem_properties>(one->properties()));
    default:
        return CL_INVALID_VALUE;
    }
}

} // namespace api
} // namespace kagemusha::opencl
