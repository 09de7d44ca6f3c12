// SPDX-License-Identifier: GPL-2.0-or-later
// device_loop: the GPU's end: has the program, launches the device loop with an inbox, reads its outbox. Thin: what
// is launched, and when, is decided by loop.cpp and core/. One for OpenCL, one for CUDA's driver.
//
// A launch is a write, a kernel and a read of an in-order queue. Its end is a number in an eventfd, which a
// callback of OpenCL or CUDA writes: so sockets can be served meanwhile. One launch at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kagemusha/loop.h"

namespace kagemusha::loop {

// A failure of the GPU's library or of a system call, as a sentence.
struct failure : std::runtime_error {
    failure(int number, const std::string& text) : std::runtime_error(text), error(number) {}
    int error; // an errno
};

// Functions throw failure.
class device_loop {
public:
    struct times {
        std::uint64_t device_ns = 0, elapsed_ns = 0;
    };

    virtual ~device_loop();
    device_loop(const device_loop&) = delete;
    device_loop& operator=(const device_loop&) = delete;

    int ended_fd() const { return ended_; } // readable when a launch is over
    bool runs() const { return runs_; }

    // `callbacks`: the token. The inbox is kept until finish().
    void start(std::uint32_t callbacks, std::vector<std::byte> inbox);
    // After ended_fd() was readable.
    times finish();
    std::span<const std::byte> outbox(std::uint32_t lane) const;

protected:
    explicit device_loop(const kagemusha_loop_options& options);

    std::size_t state_bytes() const;
    // By a thread of the GPU's library: the launch is over. `ended`: ended_fd() as a pointer.
    static void report_end(void* ended);
    void* ended_pointer() const;

    const std::uint32_t lanes_;
    const std::uint64_t lane_state_bytes_; // the program's own
    std::vector<std::byte> inbox_bytes_, outbox_bytes_;

private:
    // What is in inbox_bytes_ to the GPU, the kernel, the outbox into outbox_bytes_, report_end().
    virtual void enqueue(std::uint32_t callbacks) = 0;
    // → the kernel's time; 0: not known
    virtual std::uint64_t wait() = 0;

    int ended_ = -1;
    bool runs_ = false;
    std::uint64_t started_ns_ = 0;
};

std::unique_ptr<device_loop> make_opencl_loop(const kagemusha_loop_options& options);
std::unique_ptr<device_loop> make_cuda_loop(const kagemusha_loop_options& options);
std::unique_ptr<device_loop> make_device_loop(const kagemusha_loop_options& options);

} // namespace kagemusha::loop
