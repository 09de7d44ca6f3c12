// SPDX-License-Identifier: GPL-2.0-or-later
// guest_session: see test_guest_session.hpp.
#include "worker/test_guest_session.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace kagemusha::worker {

namespace {

enum : std::uint64_t { context = 1, queue, buffer };
constexpr std::uint64_t log_offset = 4096, source_offset = 65536;
constexpr std::uint32_t cl_program_build_log = 0x1183;
// Enough for PoCL; real GPUs' runtimes want more.
#ifndef KAGEMUSHA_TEST_WORKER_GIB
#define KAGEMUSHA_TEST_WORKER_GIB 4
#endif

} // namespace

std::string cpu_device() {
    // PoCL's names begin with the driver's, which newer versions call "cpu".
    static const std::string found = [] {
        for (const char* part : {"pthread-", "cpu-"}) {
            worker_options options;
            options.name = "cpu-device";
            options.backend = "opencl";
            options.gpu = part;
            options.worker_path = KAGEMUSHA_BUILT_WORKER;
            std::string error;
            // As the device does: its workers get the nodes of this one only.
            if (const probed_gpu probed = probe_gpu(options, 60000, error); !probed.name.empty())
                return probed.own_selector;
        }
        return std::string();
    }();
    return found;
}

guest_session::guest_session(std::string gpu, sandbox_mode sandbox, std::string share,
                             std::uint64_t out_bytes) {
    region_.reset(memfd_create("guest", MFD_CLOEXEC));
    if (ftruncate(region_.get(), guest_memory_bytes) != 0)
        std::abort();
    void* at = mmap(nullptr, guest_memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region_.get(), 0);
    if (at == MAP_FAILED)
        std::abort();
    memory_ = static_cast<std::byte*>(at);

    worker_options options;
    options.name = "guest-session";
    options.backend = "opencl";
    options.gpu = std::move(gpu);
    options.worker_path = KAGEMUSHA_BUILT_WORKER;
    options.sandbox = sandbox;
    options.share = std::move(share);
    options.max_worker_bytes = std::uint64_t{KAGEMUSHA_TEST_WORKER_GIB} << 30;
    options.regions.push_back({region_.get(), 0, guest_memory_bytes});
    options.log = [this](kagemusha_log_level level, const std::string& line) {
        if (level <= KAGEMUSHA_LOG_INFO)
            log_.push_back(line);
    };
    std::string error;
    port_ = start_worker(options, error);
    if (!port_) {
        log_.push_back(error);
        return;
    }
    builder_.create_context(context);
    if (!call() || answer_.result != 0)
        return;
    builder_.create_queue(queue, context);
    if (!call() || answer_.result != 0)
        return;
    builder_.create_buffer(buffer, context, out_bytes);
    opened_ = call() && answer_.result == 0;
}

guest_session::~guest_session() {
    if (port_)
        end_port(*port_);
    munmap(memory_, guest_memory_bytes);
}

std::string guest_session::whole_log() const {
    std::string all;
    for (const auto& line : log_)
        all += line + "\n";
    return all;
}

bool guest_session::call() {
    const std::uint64_t token = ++token_;
    const std::size_t answers = sink_.done.size();
    const request_view request{token, builder_.stream(), builder_.payloads(), builder_.segments()};
    const bool accepted = port_->submit(request) == submit_result::accepted;
    port_->kick();
    builder_.clear();
    if (!accepted ||
        !drain_until(*port_, sink_, [&] { return sink_.done.size() > answers || !sink_.lost.empty(); }))
        return false;
    if (sink_.done.size() == answers)
        return false;
    answer_ = sink_.done.back().response;
    return answer_.status == VGPU_STATUS_OK;
}

std::int32_t guest_session::build(std::string_view source, std::string_view options) {
    program_ = next_id_++;
    kernel_ = next_id_++;
    std::memcpy(memory_ + source_offset, source.data(), source.size());
    const auto content = builder_.payload(false, 0, source_offset, source.size());
    builder_.create_program(program_, context, VGPU_PROGRAM_SOURCE, content);
    if (!call() || answer_.result != 0)
        return answer_.result;
    builder_.build_program(program_, options);
    if (!call() || answer_.result != 0)
        return answer_.result;
    builder_.create_kernel(kernel_, program_, "k");
    call();
    return answer_.result;
}

std::string guest_session::build_log() {
    const auto result = builder_.payload(true, 0, log_offset, 32768);
    builder_.info(VGPU_INFO_PROGRAM_BUILD, cl_program_build_log, program_, 0, result);
    if (!call())
        return "";
    const std::size_t bytes = std::min<std::uint64_t>(answer_.result_bytes, 32768);
    return std::string(reinterpret_cast<const char*>(memory_) + log_offset, bytes);
}

void guest_session::launch(std::int64_t argument) {
    codec::argument_builder arguments;
    arguments.memory(0, buffer).scalar(1, argument);
    codec::launch_size size;
    size.local[0] = size.local[1] = size.local[2] = 1;
    builder_.launch({queue, 0, {}}, kernel_, size, arguments);
    builder_.flush(queue);
    const request_view request{++token_, builder_.stream(), builder_.payloads(), builder_.segments()};
    port_->submit(request);
    port_->kick();
    builder_.clear();
}

std::uint64_t guest_session::launch_with_event(std::int64_t argument, std::uint64_t items,
                                               std::uint64_t ended) {
    const std::uint64_t event = next_id_++;
    codec::argument_builder arguments;
    arguments.memory(0, buffer).scalar(1, argument);
    codec::launch_size size;
    size.global[0] = items;
    size.local[0] = 64;
    size.local[1] = size.local[2] = 1;
    builder_.launch({queue, event, {}}, kernel_, size, arguments);
    builder_.flush(queue);
    if (ended != 0)
        builder_.destroy(VGPU_OBJECT_EVENT, ended);
    const request_view request{++token_, builder_.stream(), builder_.payloads(), builder_.segments()};
    port_->submit(request);
    port_->kick();
    builder_.clear();
    return event;
}

guest_session::outcome guest_session::run(std::int64_t argument) {
    const std::uint64_t launched = next_id_++, read = next_id_++;
    codec::argument_builder arguments;
    arguments.memory(0, buffer).scalar(1, argument);
    codec::launch_size size;
    size.local[0] = size.local[1] = size.local[2] = 1;
    builder_.launch({queue, launched, {}}, kernel_, size, arguments);
    const auto result = builder_.payload(true, 0, 0, sizeof(results));
    builder_.read_buffer({queue, read, {launched}}, buffer, 0, result);
    builder_.flush(queue);

    outcome got;
    sink_.records.clear();
    bool read_done = false;
    const request_view request{++token_, builder_.stream(), builder_.payloads(), builder_.segments()};
    port_->submit(request);
    port_->kick();
    builder_.clear();
    drain_until(*port_, sink_, [&] {
        for (const auto& bytes : sink_.records) {
            vgpu_record_completion record;
            std::memcpy(&record, bytes.data(), std::min(sizeof record, bytes.size()));
            if (record.record.type != VGPU_RECORD_COMPLETION)
                continue;
            if (record.event == launched) {
                got.completed = true;
                got.status = record.status;
            }
            read_done |= record.event == read;
        }
        return read_done || !sink_.lost.empty();
    });
    if (read_done)
        std::memcpy(got.out.data(), memory_, sizeof(results));
    if (!sink_.lost.empty()) {
        got.lost = true;
        got.reason = sink_.lost[0].first;
        got.detail = sink_.lost[0].second;
    }
    return got;
}

} // namespace kagemusha::worker
