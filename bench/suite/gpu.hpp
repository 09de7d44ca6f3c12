// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the programs of the suite share: one device with an in-order queue, errors that end the program with a
// sentence, reproducible input. Nothing in here knows of Kagemusha.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace suite {

// Ends the program (status 1) unless the call succeeded. `what` is named in the message.
void need(cl_int error, const char* what);

// The same numbers everywhere.
class numbers {
public:
    explicit numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
    std::uint32_t next();
    std::uint32_t below(std::uint32_t bound) { return next() % bound; }
    float unit() { return static_cast<float>(next() >> 8) / static_cast<float>(1 << 23) - 1.0f; } // [-1, 1)

private:
    std::uint64_t state_;
};

// The first 65,521 of them again and again, because an emulated guest is slow at making them. That is a
// prime, so neighbouring rows of a matrix and neighbouring pages differ.
std::vector<float> floats(std::size_t count, std::uint64_t seed);

// Memory on the device; owns it.
class buffer {
public:
    buffer(cl_context context, std::size_t bytes, cl_mem_flags flags = CL_MEM_READ_WRITE);
    buffer(buffer&& other) noexcept;
    buffer& operator=(buffer&& other) = delete;
    ~buffer();
    cl_mem get() const { return memory_; }
    std::size_t bytes() const { return bytes_; }

private:
    cl_mem memory_{};
    std::size_t bytes_;
};

// A kernel with its arguments; owns it.
class kernel {
public:
    kernel(cl_program program, const char* name);
    kernel(kernel&& other) noexcept;
    kernel& operator=(kernel&& other) = delete;
    ~kernel();

    template <typename... Arguments>
    kernel& with(const Arguments&... arguments) {
        cl_uint index = 0;
        (set(index++, arguments), ...);
        return *this;
    }
    cl_kernel get() const { return kernel_; }

private:
    void set(cl_uint index, const buffer& memory);
    void set(cl_uint index, cl_uint value);
    void set(cl_uint index, float value);

    cl_kernel kernel_{};
};

// The first device of the first platform, as most programs take it, or the one that SUITE_DEVICE names:
// "P.D", platform and device as the OpenCL loader counts them, from 0.
class gpu {
public:
    gpu();
    gpu(const gpu&) = delete;
    gpu& operator=(const gpu&) = delete;
    ~gpu();

    std::string name() const;
    std::string driver() const;
    std::string platform() const;
    buffer make(std::size_t bytes, cl_mem_flags flags = CL_MEM_READ_WRITE) const {
        return {context_, bytes, flags};
    }
    template <typename T>
    buffer upload(const std::vector<T>& data) const {
        buffer made(context_, data.size() * sizeof(T));
        write(made, data.data());
        return made;
    }
    template <typename T>
    std::vector<T> download(const buffer& from) const {
        std::vector<T> data(from.bytes() / sizeof(T));
        read(from, data.data());
        return data;
    }
    // Builds the source; its kernels live as long as they are held.
    std::vector<kernel> build(const char* source, std::initializer_list<const char*> names) const;

    void write(const buffer& to, const void* data) const;                        // waits
    void read(const buffer& from, void* data) const;                             // waits
    void copy(const buffer& from, const buffer& to) const;                       // enqueued
    void launch(const kernel& what, std::size_t x, std::size_t group = 0) const; // enqueued
    void launch(const kernel& what, std::size_t x, std::size_t y, std::size_t group) const;
    void finish() const;
    cl_command_queue queue() const { return queue_; }

private:
    void choose();
    std::string text(cl_device_info what) const;

    cl_platform_id platform_{};
    cl_device_id device_{};
    cl_context context_{};
    cl_command_queue queue_{};
};

} // namespace suite
