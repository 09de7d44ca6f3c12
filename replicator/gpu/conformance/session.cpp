// SPDX-License-Identifier: GPL-2.0-or-later
// session: see session.hpp.
#include "gpu/conformance/session.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>

namespace kagemusha::gpu::conformance {

namespace {

// Only ends a test that would wait for ever; no test measures time.
constexpr std::chrono::seconds patience{30};

} // namespace

const std::vector<backend_case>& cases() {
    static const std::vector<backend_case> all = {
        {"opencl", "opencl", "", true, true, true, true, true},
        {"opencl_staging", "opencl", "transfer=staging", true, true, true, true, true},
        {"opencl_direct", "opencl", "transfer=direct", true, true, true, true, true},
        {"opencl_pinned", "opencl", "transfer=pinned", true, true, true, true, true},
        {"opencl_pinned_polling", "opencl", "transfer=pinned,completion=poll", true, true, true, true, true},
        {"opencl_polling", "opencl", "transfer=staging,completion=poll", true, true, true, true, true},
        {"null", "null", "", false, false, false, false, false},
        {"null_memory", "null", "memory=1", true, false, false, false, false},
        {"faulty_null", "faulty", "backend=null,memory=1", true, false, false, false, false},
        {"faulty_opencl", "faulty", "backend=opencl", true, true, true, true, true},
        // Slow on every command: shows what a test forgot to wait for.
        {"faulty_slow", "faulty", "backend=null,memory=1,on=command:*,do=delay:1", true, false, false, false,
         false},
    };
    return all;
}

void recording_sink::check_open() {
    if (closed_)
        ADD_FAILURE() << "the executor called its sink " << closed_;
}

void recording_sink::on_done(std::uint64_t token, const vgpu_response& response) {
    const std::lock_guard lock(mutex_);
    check_open();
    if (!done_.emplace(token, response).second)
        ADD_FAILURE() << "request " << token << " was answered twice";
    changed_.notify_all();
}

void recording_sink::on_written(std::uint64_t token, std::uint32_t payload) {
    const std::lock_guard lock(mutex_);
    check_open();
    if (done_.contains(token))
        ADD_FAILURE() << "a payload of request " << token << " was written behind its answer";
    written_[token].push_back(payload);
}

void recording_sink::on_record(std::span<const std::byte> record) {
    const std::lock_guard lock(mutex_);
    check_open();
    vgpu_record header;
    std::memcpy(&header, record.data(), sizeof(header));
    EXPECT_EQ(header.bytes, record.size());
    EXPECT_EQ(header.file, 0u);
    EXPECT_EQ(header.pad, 0u);
    if (header.type == VGPU_RECORD_COMPLETION) {
        vgpu_record_completion completion;
        ASSERT_EQ(record.size(), sizeof(completion));
        std::memcpy(&completion, record.data(), sizeof(completion));
        if (!events_.emplace(completion.event, completion).second)
            ADD_FAILURE() << "event " << completion.event << " completed twice";
        order_.push_back(completion.event);
        written_before_[completion.event] = written_;
        queue_errors_before_[completion.event] = queue_errors_told_;
    } else if (header.type == VGPU_RECORD_QUEUE_ERROR) {
        vgpu_record_queue_error error;
        ASSERT_EQ(record.size(), sizeof(error));
        std::memcpy(&error, record.data(), sizeof(error));
        queue_errors_.push_back(error);
        ++queue_errors_told_[error.queue];
    } else {
        ADD_FAILURE() << "an executor does not send records of type " << header.type;
    }
    changed_.notify_all();
}

void recording_sink::on_gpu_lost(std::uint32_t detail) {
    const std::lock_guard lock(mutex_);
    check_open();
    lost_.push_back(detail);
    changed_.notify_all();
}

void recording_sink::before_completion() {
    const std::lock_guard lock(mutex_);
    check_open();
    ++drains_;
}

template <class Ready>
void recording_sink::wait(Ready&& ready, const char* what) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, ready)) {
        std::fprintf(stderr, "nothing happened for %lld s while waiting for %s\n",
                     static_cast<long long>(patience.count()), what);
        std::abort();
    }
}

vgpu_response recording_sink::wait_done(std::uint64_t token) {
    wait([&] { return done_.contains(token); }, "an answer");
    const std::lock_guard lock(mutex_);
    return done_.at(token);
}

vgpu_record_completion recording_sink::wait_event(std::uint64_t event) {
    wait([&] { return events_.contains(event); }, "a completion");
    const std::lock_guard lock(mutex_);
    return events_.at(event);
}

vgpu_record_queue_error recording_sink::wait_queue_error() {
    wait([&] { return !queue_errors_.empty(); }, "a queue error");
    const std::lock_guard lock(mutex_);
    const vgpu_record_queue_error first = queue_errors_.front();
    queue_errors_.erase(queue_errors_.begin());
    return first;
}

std::uint32_t recording_sink::wait_lost() {
    wait([&] { return !lost_.empty(); }, "a lost GPU");
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(lost_.size(), 1u);
    return lost_.front();
}

bool recording_sink::has_event(std::uint64_t event) {
    const std::lock_guard lock(mutex_);
    return events_.contains(event);
}

bool recording_sink::has_done(std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    return done_.contains(token);
}

std::vector<std::uint64_t> recording_sink::completion_order() {
    const std::lock_guard lock(mutex_);
    return order_;
}

std::size_t recording_sink::queue_errors_before(std::uint64_t event, std::uint64_t queue) {
    const std::lock_guard lock(mutex_);
    return queue_errors_before_.at(event)[queue];
}

std::vector<std::uint32_t> recording_sink::written_before(std::uint64_t event, std::uint64_t token) {
    const std::lock_guard lock(mutex_);
    return written_before_.at(event)[token];
}

std::size_t recording_sink::drains() {
    const std::lock_guard lock(mutex_);
    return drains_;
}

void recording_sink::fail_if_called(const char* when) {
    const std::lock_guard lock(mutex_);
    closed_ = when;
}

void session::unmap::operator()(std::byte* p) const {
    munmap(p, region_bytes);
}

session::session(const std::string& backend, const std::string& options, const std::string& selector)
    : memory_(static_cast<std::byte*>(mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)))
    , regions_{{memory_.get(), region_bytes}, {memory_.get() + region_bytes / 2, 4096}} {
    if (memory_.get() == MAP_FAILED)
        std::abort();
    open_result opened = open_gpu(backend, selector, options);
    error = opened.error;
    if (opened.device)
        under_test = std::make_unique<executor>(std::move(opened.device), regions_, sink);
}

session::~session() {
    under_test.reset();
    sink.fail_if_called("after the executor was destroyed");
}

std::uint64_t session::submit_only(const codec::stream_builder& stream) {
    const std::uint64_t token = next_token_++;
    // The stream is a copy that dies with this call, as a worker's may.
    std::vector<std::uint64_t> copy((stream.stream().size() + 7) / 8);
    std::memcpy(copy.data(), stream.stream().data(), stream.stream().size());
    under_test->execute({token, std::as_bytes(std::span(copy)), stream.payloads(), stream.segments()});
    std::memset(copy.data(), 0xee, copy.size() * 8);
    return token;
}

vgpu_response session::submit(const codec::stream_builder& stream) {
    return sink.wait_done(submit_only(stream));
}

void session::ok(const codec::stream_builder& stream) {
    const vgpu_response response = submit(stream);
    EXPECT_EQ(response.status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
    EXPECT_EQ(response.result, 0);
}

std::uint64_t session::context() {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_context(id));
    return id;
}

std::uint64_t session::queue(std::uint64_t context, std::uint64_t properties) {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_queue(id, context, properties));
    return id;
}

std::uint64_t session::buffer(std::uint64_t context, std::uint64_t bytes, std::uint64_t flags) {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_buffer(id, context, bytes, flags));
    return id;
}

std::uint64_t session::program(std::uint64_t context, std::string_view source) {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_program(id, context, source));
    ok(codec::stream_builder().build_program(id));
    return id;
}

std::uint64_t session::kernel(std::uint64_t program, std::string_view name) {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_kernel(id, program, name));
    return id;
}

std::uint64_t session::user_event(std::uint64_t context) {
    const std::uint64_t id = new_id();
    ok(codec::stream_builder().create_user_event(id, context));
    return id;
}

std::int32_t session::write(std::uint64_t queue, std::uint64_t buffer, std::uint64_t guest_offset,
                            std::uint64_t bytes) {
    const std::uint64_t event = new_id();
    codec::stream_builder b;
    const auto data = b.payload(false, 0, guest_offset, bytes);
    b.write_buffer({queue, event}, buffer, 0, data);
    ok(b);
    return sink.wait_event(event).status;
}

std::int32_t session::read(std::uint64_t queue, std::uint64_t buffer, std::uint64_t guest_offset,
                           std::uint64_t bytes) {
    const std::uint64_t event = new_id();
    codec::stream_builder b;
    const auto data = b.payload(true, 0, guest_offset, bytes);
    b.read_buffer({queue, event}, buffer, 0, data);
    ok(b);
    return sink.wait_event(event).status;
}

void session::finish(std::uint64_t queue) {
    const std::uint64_t event = new_id();
    ok(codec::stream_builder().marker({queue, event}));
    EXPECT_EQ(sink.wait_event(event).status, 0);
}

std::vector<std::byte> session::info(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                                     std::uint64_t index, std::int32_t& result) {
    // First the size, then the bytes, at the end of guest memory, where no test keeps anything.
    const vgpu_response size =
        submit(codec::stream_builder().info(subject, name, object, index, codec::no_payload));
    result = size.result;
    if (size.result != 0 || size.result_bytes == 0)
        return {};
    constexpr std::uint64_t room = 1u << 20;
    EXPECT_LE(size.result_bytes, room);
    codec::stream_builder b;
    const auto out = b.payload(true, 0, region_bytes - room, size.result_bytes);
    b.info(subject, name, object, index, out);
    const vgpu_response response = submit(b);
    result = response.result;
    EXPECT_EQ(response.result_bytes, size.result_bytes);
    const std::byte* at = guest(region_bytes - room);
    return {at, at + size.result_bytes};
}

std::string session::info_text(std::uint32_t subject, std::uint32_t name, std::uint64_t object,
                               std::uint64_t index) {
    std::int32_t result = 0;
    const auto bytes = info(subject, name, object, index, result);
    EXPECT_EQ(result, 0);
    return bytes.empty() ? std::string()
                         : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() - 1);
}

std::unique_ptr<session> backend_test::open() {
    const char* selector =
        GetParam().options.find("opencl") != std::string::npos || GetParam().backend == "opencl"
            ? std::getenv("KAGEMUSHA_TEST_GPU")
            : nullptr;
    return std::make_unique<session>(GetParam().backend, GetParam().options, selector ? selector : "");
}

void backend_test::SetUp() {
    s = open();
    if (!s->under_test)
        GTEST_SKIP() << s->error;
}

} // namespace kagemusha::gpu::conformance

#if defined(__SANITIZE_ADDRESS__)
// PoCL 3.1 leaks the arguments of a command that it terminates without running it. Ours are still found.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libpocl.so\n";
}
#endif
