// SPDX-License-Identifier: GPL-2.0-or-later
//
// Kernels and their arguments. Arguments stay on this side until a launch, which carries all of them: they
// are kept in the form that the launch sends, so that launching copies one block.
#pragma once

#include "codec/op.hpp"
#include "program.hpp"

#include <atomic>
#include <mutex>
#include <vector>

namespace kagemusha::opencl {

class kernel : public object {
public:
    static constexpr object_kind kind_of_class = object_kind::kernel;

    kernel(ref<program> owner, std::string name);
    ~kernel();

    cl_int create();

    program& owner() const noexcept { return *owner_; }
    const ref<program>& owner_ref() const noexcept { return owner_; }
    std::uint64_t id() const noexcept { return id_; }
    const std::string& name() const noexcept { return name_; }
    const kernel_description& description() const noexcept { return *description_; }

    // clSetKernelArg.
    cl_int set_argument(cl_uint index, std::size_t bytes, const void* value);

    // For clCloneKernel.
    void copy_arguments_of(kernel& other);

    // Whether every argument is set.
    bool complete();

    // Whether a buffer that kernels only read is set where this one might write all the same.
    bool may_write_read_only() const noexcept { return loose_.load(std::memory_order_relaxed) > 0; }

    // Calls `use` with the view of all arguments while it cannot change.
    template <class Function>
    cl_int with_arguments(Function&& use) {
        const std::lock_guard held(mutex_);
        encode();
        return use(codec::argument_list(encoded_, static_cast<std::uint32_t>(slots_.size())));
    }

private:
    struct slot {
        bool set = false;
        bool loose = false; // see may_write_read_only()
        vgpu_argument_kind kind = VGPU_ARGUMENT_BYTES;
        std::uint64_t bytes = 0;
        std::vector<std::byte> value; // what is sent; nothing for local memory
        std::size_t encoded_at = 0;   // offset of the value in the block
    };

    void store(cl_uint index, vgpu_argument_kind kind, std::uint64_t bytes, const void* value,
               std::size_t value_bytes, bool loose = false);
    void encode();

    const ref<program> owner_;
    const std::string name_;
    const std::uint64_t id_;
    bool created_ = false;
    std::shared_ptr<const kernel_description> description_;

    std::mutex mutex_;
    std::vector<slot> slots_;
    std::size_t unset_ = 0;
    std::atomic<unsigned> loose_{0}; // slots; changed with mutex_
    std::vector<std::byte> encoded_;
    bool encoded_is_current_ = false;
};

} // namespace kagemusha::opencl
