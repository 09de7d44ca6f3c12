// SPDX-License-Identifier: GPL-2.0-or-later
// session: one open file's executor with everything around it that a worker has, for tests. Requests are
// encoded streams, exactly what a guest sends.
//
// The same tests run on every backend. What a backend cannot do is declared in its row of `cases` and a test
// that needs it is skipped by name (needs()), so nothing passes silently.
#pragma once

#include <CL/cl.h>

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codec/encode.hpp"
#include "gpu/backend.hpp"
#include "gpu/executor.hpp"

namespace kagemusha::gpu::conformance {

struct backend_case {
    std::string name;
    std::string backend;
    std::string options;
    bool moves_bytes;   // reads give what was written
    bool executes;      // kernels run
    bool images;        // images and samplers
    bool checks_source; // a wrong source does not build
    bool prints;        // printf of kernels comes out
};

const std::vector<backend_case>& cases();

// What an executor reported, in order of arrival.
class recording_sink final : public executor_sink {
public:
    void on_done(std::uint64_t token, const vgpu_response& response) override;
    void on_written(std::uint64_t token, std::uint32_t payload) override;
    void on_record(std::span<const std::byte> record) override;
    void on_gpu_lost(std::uint32_t detail) override;
    void before_completion() override;

    vgpu_response wait_done(std::uint64_t token);
    vgpu_record_completion wait_event(std::uint64_t event);
    vgpu_record_queue_error wait_queue_error();
    std::uint32_t wait_lost();
    bool has_event(std::uint64_t event);
    bool has_done(std::uint64_t token);
    // Payloads of this request that were told to be written before this event's completion, or before its
    // answer.
    std::vector<std::uint32_t> written_before(std::uint64_t event, std::uint64_t token);
    std::vector<std::uint64_t> completion_order();
    // Errors of the queue that were told before this event's completion.
    std::size_t queue_errors_before(std::uint64_t event, std::uint64_t queue);
    std::size_t drains();
    void fail_if_called(const char* when); // from here on a call is a failure of the test

private:
    template <class Ready>
    void wait(Ready&& ready, const char* what);
    void check_open();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, vgpu_response> done_;
    std::map<std::uint64_t, vgpu_record_completion> events_;
    std::vector<std::uint64_t> order_;
    std::map<std::uint64_t, std::vector<std::uint32_t>> written_;                                 // by token
    std::map<std::uint64_t, std::map<std::uint64_t, std::vector<std::uint32_t>>> written_before_; // by event
    std::vector<vgpu_record_queue_error> queue_errors_;
    std::map<std::uint64_t, std::size_t> queue_errors_told_;                            // by queue
    std::map<std::uint64_t, std::map<std::uint64_t, std::size_t>> queue_errors_before_; // the same, by event
    std::vector<std::uint32_t> lost_;
    std::size_t drains_ = 0;
    const char* closed_ = nullptr;
};

constexpr std::uint64_t region_bytes = 32u << 20;

class session {
public:
    explicit session(const std::string& backend, const std::string& options,
                     const std::string& selector = "");
    ~session();

    // Executes a stream and waits for its answer.
    vgpu_response submit(const codec::stream_builder& stream);
    std::uint64_t submit_only(const codec::stream_builder& stream); // gives the token
    // A call that must succeed.
    void ok(const codec::stream_builder& stream);

    std::uint64_t new_id() { return next_id_++; }
    std::byte* guest(std::uint64_t offset = 0) { return memory_.get() + offset; }
    template <class T>
    T* guest_as(std::uint64_t offset = 0) {
        return reinterpret_cast<T*>(guest(offset));
    }

    // Objects, made and checked.
    std::uint64_t context();
    std::uint64_t queue(std::uint64_t context, std::uint64_t properties = 0);
    std::uint64_t buffer(std::uint64_t context, std::uint64_t bytes, std::uint64_t flags = CL_MEM_READ_WRITE);
    std::uint64_t program(std::uint64_t context, std::string_view source);
    std::uint64_t kernel(std::uint64_t program, std::string_view name);
    std::uint64_t user_event(std::uint64_t context);

    // The whole buffer between guest memory and GPU, waited for. 0 or the command's error.
    std::int32_t write(std::uint64_t queue, std::uint64_t buffer, std::uint64_t guest_offset,
                       std::uint64_t bytes);
    std::int32_t read(std::uint64_t queue, std::uint64_t buffer, std::uint64_t guest_offset,
                      std::uint64_t bytes);
    void finish(std::uint64_t queue);

    // A query's answer; `result` gets its error code.
    std::vector<std::byte> info(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                                std::uint64_t index, std::int32_t& result);
    std::string info_text(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                          std::uint64_t index = 0);
    template <class T>
    T info_value(std::uint32_t subject, std::uint32_t name, std::uint64_t object, std::uint64_t index = 0) {
        std::int32_t result = 0;
        const auto bytes = info(subject, name, object, index, result);
        EXPECT_EQ(result, 0);
        EXPECT_EQ(bytes.size(), sizeof(T));
        T value{};
        if (bytes.size() == sizeof(T))
            std::memcpy(&value, bytes.data(), sizeof(T));
        return value;
    }

    recording_sink sink;
    std::unique_ptr<executor> under_test;
    std::string error; // why there is no executor

private:
    struct unmap {
        void operator()(std::byte* p) const;
    };
    std::unique_ptr<std::byte, unmap> memory_;
    region_view regions_[2];
    std::uint64_t next_id_ = 1, next_token_ = 1;
};

class backend_test : public testing::TestWithParam<backend_case> {
protected:
    void SetUp() override;
    // A session on the backend under test. More than one may be alive.
    std::unique_ptr<session> open();

    std::unique_ptr<session> s;
};

} // namespace kagemusha::gpu::conformance

// Skips a test that needs what the backend is declared not to have.
#define KAGEMUSHA_NEEDS(capability)                                                                          \
    if (!GetParam().capability)                                                                              \
    GTEST_SKIP() << "the backend '" << GetParam().name << "' is declared without: " #capability
