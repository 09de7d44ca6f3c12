// SPDX-License-Identifier: GPL-2.0-or-later
//
// What every handle that the program sees points at. The dispatch table comes first (the ICD loader reads it
// there), then the state that tells a live object of one kind from anything else, then two reference counts:
//
//  - `user_references`: what clRetain… and clRelease… count and the info queries report;
//  - `references`: one for all of the user's together, plus one for each ref<> inside the driver (a kernel
//  holds its program, …).
//
// Objects live in chunks that are never given back, each holding slots of one kind, and a table finds the
// chunk of an address without a lock. So a handle is checked by looking at memory that is known to be ours:
// NULL, garbage, a handle of another kind and a released object all give the standard's CL_INVALID_… and not
// a crash.
#pragma once

#include "opencl_headers.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace kagemusha::opencl {

enum class object_kind : std::uint32_t {
    none = 0,
    platform,
    device,
    context,
    queue,
    memory,
    sampler,
    program,
    kernel,
    event,
    count,
};

// The table that clients call through; defined in dispatch.cpp.
extern const cl_icd_dispatch dispatch_table;

struct object {
    explicit object(object_kind object_kind) noexcept;
    ~object();
    object(const object&) = delete;
    object& operator=(const object&) = delete;

    void retain() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;

    // clRetain…: the caller has checked that the object lives.
    void retain_for_user() noexcept;
    // clRelease…: false if the user holds no reference.
    bool release_for_user() noexcept;

    const cl_icd_dispatch* const dispatch;
    std::atomic<std::uint32_t> state; // live mark of `kind`, or 0
    const object_kind kind;
    std::atomic<std::uint32_t> references{1};
    std::atomic<std::uint32_t> user_references{0};
};

static_assert(offsetof(object, dispatch) == 0, "the ICD loader reads the dispatch table from the first word");

// Memory for one object, zeroed when never used before; null when there is none.
void* allocate_slot(object_kind kind, std::size_t bytes) noexcept;
void free_slot(object_kind kind, void* slot) noexcept;

// Whether `handle` is a live object of this kind.
bool is_live(const void* handle, object_kind kind) noexcept;

// Destroys the object by its kind (object_kinds.cpp).
void destroy_object(object* dead) noexcept;

// An owner inside the driver.
template <class T>
class ref {
public:
    ref() noexcept = default;
    // Takes over a reference that the caller holds.
    static ref adopt(T* object) noexcept {
        ref result;
        result.object_ = object;
        return result;
    }
    explicit ref(T* object) noexcept : object_(object) {
        if (object_)
            object_->retain();
    }
    ref(const ref& other) noexcept : ref(other.object_) {}
    ref(ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    ref& operator=(ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~ref() {
        if (object_)
            object_->release();
    }

    T* get() const noexcept { return object_; }
    T* operator->() const noexcept { return object_; }
    T& operator*() const noexcept { return *object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }
    T* detach() noexcept { return std::exchange(object_, nullptr); }

private:
    T* object_ = nullptr;
};

// A new object with one reference, or null when memory is out.
template <class T, class... Arguments>
ref<T> make_object(Arguments&&... arguments) {
    void* const slot = allocate_slot(T::kind_of_class, sizeof(T));
    if (!slot)
        return {};
    try {
        return ref<T>::adopt(new (slot) T(std::forward<Arguments>(arguments)...));
    } catch (...) {
        free_slot(T::kind_of_class, slot);
        throw;
    }
}

// The object behind a handle of the program, or null if it is not a live one of the class' kind.
template <class T, class Handle>
T* from_handle(Handle handle) noexcept {
    void* const address = reinterpret_cast<void*>(handle);
    return is_live(address, T::kind_of_class) ? static_cast<T*>(static_cast<object*>(address)) : nullptr;
}

// A handle for a query: the caller gets no reference.
template <class Handle, class T>
Handle to_handle(const T* object) noexcept {
    return reinterpret_cast<Handle>(const_cast<T*>(object));
}

// Gives the object to the program with one reference of the user.
template <class Handle, class T>
Handle hand_out(ref<T> object) noexcept {
    object->user_references.store(1, std::memory_order_relaxed);
    return reinterpret_cast<Handle>(object.detach());
}

// errcode_ret of the functions that create something.
template <class Handle>
Handle fail(cl_int* errcode, cl_int error) noexcept {
    if (errcode)
        *errcode = error;
    return nullptr;
}

inline void succeed(cl_int* errcode) noexcept {
    if (errcode)
        *errcode = CL_SUCCESS;
}

} // namespace kagemusha::opencl
