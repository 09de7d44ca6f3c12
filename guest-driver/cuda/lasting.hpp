// SPDX-License-Identifier: GPL-2.0-or-later
//
// Objects that are there as long as anything may call this library: exit handlers of programs and of the runtimes
// above it do so after the destructors of our own objects would have run, and after those of the first thread.
// -Wexit-time-destructors finds what does not last (.clang-tidy).
#pragma once

#include <unistd.h>

#include <memory>

namespace kagemusha::cuda {

// An object of the process', which nobody destroys.
template <class T>
T& lasting() {
    return *new T;
}

// The calling thread's object for this tag. Threads but the first one take theirs with them when they end.
template <class T, class Tag>
T& lasting_of_thread() {
    thread_local T* const made = new T;
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wexit-time-destructors" // the first thread's owns nothing
#endif
    thread_local const std::unique_ptr<T> owner(gettid() != getpid() ? made : nullptr);
#ifdef __clang__
#pragma clang diagnostic pop
#endif
    return *made;
}

} // namespace kagemusha::cuda
