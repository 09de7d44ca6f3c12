// SPDX-License-Identifier: GPL-2.0-or-later
//
// The one place that knows every class of objects: how one is destroyed by its kind.
#include "device.hpp"
#include "event.hpp"
#include "kernel.hpp"
#include "memory.hpp"
#include "program.hpp"
#include "queue.hpp"
#include "sampler.hpp"

namespace kagemusha::opencl {
namespace {

template <class T>
void destroy(object* dead) noexcept {
    T* const typed = static_cast<T*>(dead);
    typed->~T();
    free_slot(T::kind_of_class, typed);
}

} // namespace

void destroy_object(object* dead) noexcept {
    switch (dead->kind) {
    case object_kind::context:
        return destroy<context>(dead);
    case object_kind::queue:
        return destroy<queue>(dead);
    case object_kind::memory:
        return destroy<memory>(dead);
    case object_kind::sampler:
        return destroy<sampler>(dead);
    case object_kind::program:
        return destroy<program>(dead);
    case object_kind::kernel:
        return destroy<kernel>(dead);
    case object_kind::event:
        return destroy<event>(dead);
    case object_kind::device:
        return destroy<device>(dead);
    case object_kind::platform:
        return destroy<platform>(dead);
    case object_kind::none:
    case object_kind::count:
        return;
    }
}

} // namespace kagemusha::opencl
