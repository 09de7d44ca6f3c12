// SPDX-License-Identifier: GPL-2.0-or-later
// What is behind the opaque handle of kagemusha/device.h, for the sources of this folder.
#pragma once

#include <kagemusha/device.h>

#include <ctime>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device.hpp"
#include "ffi/replication.hpp"
#include "worker/gpu_executor.hpp"
#include "worker/process_port.hpp"

namespace kagemusha::ffi {

// A file descriptor that is closed with its owner.
class owned_fd {
public:
    explicit owned_fd(int fd) : fd_(fd) {}
    owned_fd(owned_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    owned_fd(const owned_fd&) = delete;
    ~owned_fd() {
        if (fd_ >= 0)
            close(fd_);
    }
    int get() const { return fd_; }

private:
    int fd_;
};

inline std::uint64_t clock_ns(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(t.tv_nsec);
}
inline std::uint64_t now_ns() {
    return clock_ns(CLOCK_MONOTONIC);
}
inline std::uint64_t now_ms() {
    return now_ns() / 1'000'000;
}
// For what several processes of one machine tell of one story.
inline std::uint64_t boot_ns() {
    return clock_ns(CLOCK_BOOTTIME);
}

inline std::string text_of(const char* s) {
    return s ? s : "";
}

template <class T>
T or_default(T value, T standard) {
    return value != 0 ? value : standard;
}

} // namespace kagemusha::ffi

struct kagemusha_device {
    kagemusha::worker::worker_options worker; // regions: descriptors owned by region_files
    std::vector<kagemusha::ffi::owned_fd> region_files;
    std::vector<kagemusha::gpu::region_view> views; // in-process
    kagemusha::worker::executor_factory executors;  // in-process; empty: worker processes
    std::string gpu_name;
    // A loss that the guest is not told of (kagemusha_device_hold_failures()). Written by the device's
    // thread, the text read by any.
    std::mutex failure_mutex;
    std::string failure;
    std::atomic<bool> failed = false;
    std::function<void()> room;       // the caller's callback, if it has one
    kagemusha_device_limits limits{}; // of the guest; a standby's own device has larger ones
    std::unique_ptr<kagemusha::ffi::replication> replication; // null: neither primary nor standby
    std::unique_ptr<kagemusha::core::device> core;            // last, so that it ends first

    std::unique_ptr<kagemusha::worker::port> make_port(std::string& error);
    // Memory that workers know under this number, beside what add_region() gave.
    void add_worker_region(std::uint32_t region, int fd, std::uint64_t bytes, std::byte* base);
};
