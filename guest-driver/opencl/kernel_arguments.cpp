// SPDX-License-Identifier: GPL-2.0-or-later
//
// What clSetKernelArg is given and what that means: bytes, a memory object, a sampler or an amount of local
// memory. The kernel's description decides. Where the host's driver gives none, the value does: eight bytes
// that are the handle of a live object of this context are that object.
#include "kernel.hpp"
#include "memory.hpp"
#include "sampler.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kagemusha::opencl {
namespace {

template <class Handle>
Handle read_handle(const void* value) {
    Handle handle = nullptr;
    if (value)
        std::memcpy(&handle, value, sizeof handle);
    return handle;
}

} // namespace

cl_int kernel::set_argument(cl_uint index, std::size_t bytes, const void* value) {
    if (index >= description_->arguments.size())
        return CL_INVALID_ARG_INDEX;
    const argument_description& described = description_->arguments[index];
    const context& owner = owner_->owner();
    argument_kind kind = described.kind;
    if (kind == argument_kind::unknown) {
        kind = value ? argument_kind::bytes : argument_kind::local;
        if (value && bytes == sizeof(cl_mem)) {
            const memory* const object = from_handle<memory>(read_handle<cl_mem>(value));
            const sampler* const chosen = from_handle<sampler>(read_handle<cl_sampler>(value));
            if (object && &object->owner() == &owner)
                kind = argument_kind::memory;
            else if (chosen && &chosen->owner() == &owner)
                kind = argument_kind::sampler;
        }
    }

    switch (kind) {
    case argument_kind::memory: {
        if (bytes != sizeof(cl_mem))
            return CL_INVALID_ARG_SIZE;
        const cl_mem handle = read_handle<cl_mem>(value);
        std::uint64_t id = 0; // a null pointer, which only buffers can be
        bool loose = false;
        if (handle || described.image) {
            const memory* const object = from_handle<memory>(handle);
            if (!object)
                return CL_INVALID_MEM_OBJECT;
            if (&object->owner() != &owner ||
                (described.kind != argument_kind::unknown && object->is_buffer() == described.image))
                return CL_INVALID_MEM_OBJECT;
            id = object->id();
            loose = (object->flags() & CL_MEM_READ_ONLY) && !described.reads_only;
        }
        store(index, VGPU_ARGUMENT_MEMORY, sizeof id, &id, sizeof id, loose);
        return CL_SUCCESS;
    }
    case argument_kind::sampler: {
        if (bytes != sizeof(cl_sampler))
            return CL_INVALID_ARG_SIZE;
        const sampler* const chosen = from_handle<sampler>(read_handle<cl_sampler>(value));
        if (!chosen || &chosen->owner() != &owner)
            return CL_INVALID_SAMPLER;
        const std::uint64_t id = chosen->id();
        store(index, VGPU_ARGUMENT_SAMPLER, sizeof id, &id, sizeof id);
        return CL_SUCCESS;
    }
    case argument_kind::local:
        if (value)
            return CL_INVALID_ARG_VALUE;
        if (bytes == 0)
            return CL_INVALID_ARG_SIZE;
        store(index, VGPU_ARGUMENT_LOCAL, bytes, nullptr, 0);
        return CL_SUCCESS;
    default:
        if (!value)
            return CL_INVALID_ARG_VALUE;
        if (bytes == 0 || bytes > VGPU_MAX_COMMAND_BYTES / 2 ||
            (described.bytes != 0 && bytes != described.bytes))
            return CL_INVALID_ARG_SIZE;
        store(index, VGPU_ARGUMENT_BYTES, bytes, value, bytes);
        return CL_SUCCESS;
    }
}

void kernel::store(cl_uint index, vgpu_argument_kind kind, std::uint64_t bytes, const void* value,
                   std::size_t value_bytes, bool loose) {
    const std::lock_guard held(mutex_);
    slot& one = slots_[index];
    const bool same_form = one.set && one.kind == kind && one.value.size() == value_bytes &&
                           (kind != VGPU_ARGUMENT_LOCAL || one.bytes == bytes);
    if (!one.set)
        --unset_;
    one.set = true;
    loose_ = loose_ - std::exchange(one.loose, loose) + loose;
    one.kind = kind;
    one.bytes = bytes;
    one.value.resize(value_bytes);
    if (value_bytes > 0)
        std::memcpy(one.value.data(), value, value_bytes);
    if (!same_form)
        encoded_is_current_ = false;
    else if (encoded_is_current_ && value_bytes > 0)
        std::memcpy(encoded_.data() + one.encoded_at, value, value_bytes);
}

bool kernel::complete() {
    const std::lock_guard held(mutex_);
    return unset_ == 0;
}

void kernel::copy_arguments_of(kernel& other) {
    std::vector<slot> slots;
    std::size_t unset;
    {
        const std::lock_guard held(other.mutex_);
        slots = other.slots_;
        unset = other.unset_;
    }
    const std::lock_guard held(mutex_);
    slots_ = std::move(slots);
    unset_ = unset;
    loose_ = static_cast<unsigned>(
        std::count_if(slots_.begin(), slots_.end(), [](const slot& one) { return one.loose; }));
    encoded_is_current_ = false;
}

void kernel::encode() {
    if (encoded_is_current_)
        return;
    encoded_.clear();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        slot& one = slots_[i];
        vgpu_argument header{};
        header.index = static_cast<__u32>(i);
        header.kind = one.kind;
        header.bytes = one.bytes;
        const auto* const from = reinterpret_cast<const std::byte*>(&header);
        encoded_.insert(encoded_.end(), from, from + sizeof header);
        one.encoded_at = encoded_.size();
        encoded_.insert(encoded_.end(), one.value.begin(), one.value.end());
        encoded_.resize(padded(encoded_.size()));
    }
    encoded_is_current_ = true;
}

} // namespace kagemusha::opencl
