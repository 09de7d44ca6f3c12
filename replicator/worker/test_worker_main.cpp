// SPDX-License-Identifier: GPL-2.0-or-later
// A worker for the tests of process_port. With the name "garbage N" it breaks the rules of the rings in the
// N-th way; otherwise it is the real worker around an executor that does what the first word of a stream
// says.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <string_view>
#include <thread>

#include "worker/launcher.hpp"
#include "worker/ring.hpp"
#include "worker/setup.hpp"
#include "worker/test_worker.hpp"
#include "worker/worker_process.hpp"

namespace kagemusha::worker {
namespace {

class test_executor final : public request_executor {
public:
    test_executor(std::span<const gpu::region_view> regions, gpu::executor_sink& sink)
        : regions_(regions), sink_(sink) {}

    void execute(const request_view& request) override {
        ++progress_;
        vgpu_response response{};
        response.value = request.stream.size();
        switch (test_command_of(request.stream)) {
        case test_command::echo:
            response.result_bytes = request.segments.size();
            break;
        case test_command::record:
            complete(request.token);
            break;
        case test_command::lose_gpu:
            return sink_.on_gpu_lost(99);
        case test_command::crash:
            std::signal(SIGSEGV, SIG_DFL); // sanitizers have a handler of their own
            std::raise(SIGSEGV);
            break;
        case test_command::print:
            for (int i = 0; i < 20000; ++i)
                std::printf("line %d\n", i);
            sink_.before_completion();
            complete(request.token);
            break;
        case test_command::invert:
            for (const kagemusha_segment& segment : request.segments) {
                std::byte* at = regions_[segment.region].base + segment.offset;
                for (std::uint64_t i = 0; i < segment.bytes; ++i)
                    at[i] = ~at[i];
            }
            break;
        case test_command::flood_log:
            for (int i = 0; i < 100000; ++i)
                std::fprintf(stderr, "flood \x1b %d\n", i);
            break;
        case test_command::report_pid:
            response.value = static_cast<std::uint64_t>(getpid());
            break;
        case test_command::thread: {
            std::promise<pid_t> id;
            std::thread([&id] {
                id.set_value(gettid());
                for (;;)
                    pause();
            }).detach();
            response.value = static_cast<std::uint64_t>(id.get_future().get());
            break;
        }
        case test_command::hang:
            for (;;)
                pause();
        }
        sink_.on_done(request.token, response);
    }
    std::uint64_t progress() const override { return progress_; }

private:
    void complete(std::uint64_t event) {
        vgpu_record_completion record{};
        record.record = {VGPU_RECORD_COMPLETION, sizeof record, 0, 0};
        record.event = event;
        sink_.on_record(std::as_bytes(std::span(&record, 1)));
    }

    std::span<const gpu::region_view> regions_;
    gpu::executor_sink& sink_;
    std::atomic<std::uint64_t> progress_ = 0;
};

executor_factory make_test_factory(std::string backend, std::string gpu, std::string) {
    return [=](std::span<const gpu::region_view> regions, gpu::executor_sink& sink) -> opened_executor {
        if (backend == "refuse")
            return {nullptr, "", "there is no GPU \x1b here"};
        if (backend == "crash")
            std::abort();
        if (backend == "hang")
            pause();
        return {std::make_unique<test_executor>(regions, sink), "test GPU " + gpu, "", "cpu:0:test"};
    };
}

// Breaks the rules of the rings, then waits to be killed.
[[noreturn]] void send_garbage(unsigned way) {
    setup_message message;
    std::vector<int> descriptors;
    if (!receive_setup(setup_fd, message, descriptors).empty())
        _exit(3);
    auto* channel = static_cast<channel_memory*>(mmap(nullptr, sizeof(channel_memory), PROT_READ | PROT_WRITE,
                                                      MAP_SHARED, descriptors[setup_ring_memory], 0));
    const std::uint64_t one = 1;
    std::mt19937_64 random(way);
    ring_writer writer(channel->completion_ring());
    const std::span<const std::byte> four(reinterpret_cast<const std::byte*>(&one), 4);
    switch (way) {
    case 0: // an index far beyond the ring
        channel->completion.written = ~std::uint64_t{0};
        break;
    case 1: // a frame longer than what was written
        writer.write(record_type::guest, {&four, 1});
        channel->completion_data[0] = std::byte{255};
        break;
    case 2: // a record that is too short for its type
        writer.write(record_type::done, {&four, 1});
        break;
    case 3: // a type that does not exist
        writer.write(static_cast<record_type>(1000), {&four, 1});
        break;
    case 4: // noise
        for (auto& byte : channel->completion_data)
            byte = static_cast<std::byte>(random());
        channel->completion.written = 4096;
        break;
    case 5: // a request's index that goes back: seen when the device submits
        channel->submission.read = 1 << 30;
        break;
    case 6: // a guest's record that is not as long as it says
        writer.write(record_type::guest, {&four, 1});
        break;
    case 8: // makes its ends blocking, fills its own and lets the device fill the other
        for (const int fd : {descriptors[setup_submission_bell], descriptors[setup_completion_bell]})
            fcntl(fd, F_SETFL, 0);
        fcntl(descriptors[setup_completion_bell], F_SETFL, O_NONBLOCK);
        while (write(descriptors[setup_completion_bell], &one, sizeof one) > 0) {
        }
        fcntl(descriptors[setup_completion_bell], F_SETFL, 0);
        writer.write(record_type::guest,
                     {&four, 0}); // broken: the test waits for it when it has rung long enough
        for (;;) {
            channel->submission.read = channel->submission.written.load();
            channel->submission.reader_sleeps = 1;
        }
    default: // never sends anything, never reads anything
        break;
    }
    for (;;) {
        if (write(descriptors[setup_completion_bell], &one, sizeof one) < 0)
            pause();
        usleep(1000);
    }
}

} // namespace
} // namespace kagemusha::worker

int main(int, char** argv) {
    using namespace kagemusha::worker;
    if (argv[1] == std::string_view(launcher_word))
        return run_launcher(std::atoi(argv[2]), argv[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    constexpr std::string_view garbage = "garbage ";
    const std::string_view name = argv[1];
    if (name.starts_with(garbage))
        send_garbage(static_cast<unsigned>(std::strtoul(argv[1] + garbage.size(), nullptr, 10)));
    return run_worker(make_test_factory);
}
