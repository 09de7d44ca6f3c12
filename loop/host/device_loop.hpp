// SPDX-License-Identifier: GPL-2.0-or-later
// device_loop: the OpenCL end: builds the program, launches the device loop with an inbox, reads its outbox.
// Thin: what is launched, and when, is decided by loop.cpp and core/.
//
// A launch is a write, a kernel and a read of an in-order queue. Its end is a number in an eventfd, which an
// OpenCL callback writes: so sockets can be served meanwhile. One launch at a time.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kagemusha/loop.h"

namespace kagemusha::loop {

// A failure of OpenCL or of a system call, as a sentence.
struct failure : std::runtime_error {
    failure(int number, const std::string& text) : std::runtime_error(text), error(number) {}
    int error; // an errno
};

class device_loop {
public:
    // Throws failure.
    explicit device_loop(const kagemusha_loop_options& options);
    ~device_loop();
    device_loop(const device_loop&) = delete;
    device_loop& operator=(const device_loop&) = delete;

    int ended_fd() const { return ended_; } // readable when a launch is over
    bool runs() const { return runs_; }

    // Throws failure, as the others. `callbacks`: the token. The inbox is kept until finish().
    void start(std::uint32_t callbacks, std::vector<std::byte> inbox);
    struct times {
        std::uint64_t device_ns = 0, elapsed_ns = 0;
    };
    // After ended_fd() was readable.
    times finish();
    std::span<const std::byte> outbox(std::uint32_t lane) const;

private:
    struct released {
        void operator()(cl_context c) const { clReleaseContext(c); }
        void operator()(cl_command_queue q) const { clReleaseCommandQueue(q); }
        void operator()(cl_program p) const { clReleaseProgram(p); }
        void operator()(cl_kernel k) const { clReleaseKernel(k); }
        void operator()(cl_mem m) const { clReleaseMemObject(m); }
        void operator()(cl_event e) const { clReleaseEvent(e); }
    };
    template <typename T>
    using owned = std::unique_ptr<std::remove_pointer_t<T>, released>;

    void build(const kagemusha_loop_options& options);
    owned<cl_mem> buffer(cl_mem_flags flags, std::size_t bytes);

    const std::uint32_t lanes_;
    std::size_t items_ = 1;
    int ended_ = -1;
    bool runs_ = false;
    cl_device_id device_ = nullptr;
    owned<cl_context> context_;
    owned<cl_command_queue> queue_;
    owned<cl_program> program_;
    owned<cl_kernel> kernel_;
    std::uint32_t token_argument_ = 0;
    owned<cl_mem> inbox_, outbox_, state_;
    owned<cl_event> launch_, read_;
    std::vector<std::byte> inbox_bytes_, outbox_bytes_;
    std::uint64_t started_ns_ = 0;
};

} // namespace kagemusha::loop
