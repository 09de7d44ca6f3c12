// SPDX-License-Identifier: GPL-2.0-or-later
// placed_thread: see placed_thread.hpp.
#include "worker/placed_thread.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

namespace kagemusha::worker {

namespace {

constexpr std::uint64_t stack_bytes = 8u << 20;
constexpr std::uint64_t page = 4096;

std::string error_text(const std::string& what, int number) {
    return what + ": " + std::strerror(number);
}

// A thread with this stack; an error number.
int start(std::uint64_t stack, void* (*body)(void*), void* argument, pthread_t& made) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int error = pthread_attr_setstack(&attributes, reinterpret_cast<void*>(stack), stack_bytes);
    if (error == 0)
        error = pthread_create(&made, &attributes, body, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

std::uint64_t self() {
    return static_cast<std::uint64_t>(pthread_self());
}

// How far before the end of a stack pthread_self() is.
std::string measure(std::uint64_t& distance) {
    void* const memory =
        mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED)
        return error_text("no memory for a thread", errno);
    const auto stack = reinterpret_cast<std::uint64_t>(memory);
    std::uint64_t at = 0;
    pthread_t thread{};
    const int error = start(
        stack,
        [](void* place) -> void* {
            *static_cast<std::uint64_t*>(place) = self();
            return nullptr;
        },
        &at, thread);
    if (error == 0)
        pthread_join(thread, nullptr);
    munmap(memory, stack_bytes);
    distance = stack + stack_bytes - at;
    return error == 0 ? "" : error_text("no thread", error);
}

struct task {
    std::uint64_t wanted;
    std::function<void()> body;
};

} // namespace

std::string run_thread_at(std::uint64_t wanted, std::function<void()> body) {
    std::uint64_t distance = 0;
    if (std::string error = measure(distance); !error.empty())
        return error;
    const std::uint64_t end = wanted + distance, stack = end - stack_bytes;
    const std::uint64_t first = stack & ~(page - 1), last = (end + page - 1) & ~(page - 1);
    void* const place = reinterpret_cast<void*>(first);
    void* const got = mmap(place, last - first, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != place)
        return error_text("a thread can't be where the program's is", got == MAP_FAILED ? errno : EEXIST);
    auto run = std::make_unique<task>(task{wanted, std::move(body)});
    pthread_t thread{};
    const int error = start(
        stack,
        [](void* raw) -> void* {
            const std::unique_ptr<task> mine(static_cast<task*>(raw));
            if (self() == mine->wanted)
                mine->body();
            return nullptr;
        },
        run.get(), thread);
    if (error != 0)
        return error_text("no thread", error);
    std::ignore = run.release(); // the thread has it
    if (static_cast<std::uint64_t>(thread) != wanted)
        return "the C library puts threads elsewhere than the program's";
    pthread_detach(thread);
    return "";
}

} // namespace kagemusha::worker
