// SPDX-License-Identifier: GPL-2.0-or-later
// worker_process: see worker_process.hpp.
//
// Order matters: whatever needs more than the sandbox allows comes before it, and every thread after it,
// because Landlock and the system-call filter hold for the thread that entered them and for its children
// only.
#include "worker/worker_process.hpp"
#include "gpu/own_selector.hpp"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/look_window.hpp"
#include "base/unique_fd.hpp"
#include "worker/address_window.hpp"
#include "worker/answering_broker.hpp"
#include "worker/doorbell.hpp"
#include "worker/gpu_nodes.hpp"
#include "worker/host_reach.hpp"
#include "worker/linker_broker.hpp"
#include "worker/linker_client.hpp"
#include "worker/look_for.hpp"
#include "worker/ring.hpp"
#include "worker/sandbox.hpp"
#include "worker/setup.hpp"
#include "worker/shared_gpu.hpp"
#include "worker/wire.hpp"
#include "worker/worker_output.hpp"

namespace kagemusha::worker {

namespace {

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

// Where a driver puts variables of modules follows from where this process has room and from what else takes
// some. So that both hosts of a pair come to the same, everything from here on is mapped downwards from one
// address, and no thread has a heap of its own.
void place_addresses(const setup_message& message) {
    if (message.backend != std::string_view("cuda"))
        return;
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_MAX, 0); // large pieces, which come and go, are the heap's too
    if (const std::string error = close_addresses_above(driver_end); !error.empty())
        std::fprintf(stderr, "variables of modules may lie elsewhere on a standby: %s\n", error.c_str());
}

// Maps guest memory. The descriptors are closed: with one in hand a kernel could cut the file, and QEMU would
// fault.
std::string map_regions(const setup_message& message, std::vector<unique_fd>& descriptors,
                        std::vector<gpu::region_view>& regions) {
    std::size_t next = first_region_descriptor(message);
    for (std::uint32_t i = 0; i < message.region_count; ++i) {
        const setup_region& region = message.regions[i];
        if (region.present == 0) {
            regions.push_back({nullptr, 0});
            continue;
        }
        void* at = mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        descriptors[next].get(), static_cast<off_t>(region.file_offset));
        if (at == MAP_FAILED)
            return system_error("guest memory can't be mapped");
        descriptors[next++].reset();
        madvise(at, region.bytes, MADV_DONTDUMP); // a crash must not write the guest's memory to disk
        regions.push_back({static_cast<std::byte*>(at), region.bytes});
    }
    return "";
}

// Who asks the driver for programs of CUDA's runtime. Without it they get an error, and others do not need it.
void start_answering(const setup_message& message) {
    if (message.backend != std::string_view("cuda") || message.probe != 0)
        return;
    signal(SIGPIPE, SIG_IGN); // the broker may be killed first
    answering_options options;
    options.driver = driver_option(message.options);
    options.mode = static_cast<sandbox_mode>(message.sandbox);
    options.nodes = nodes_of_gpu(message.gpu);
    options.max_bytes = message.max_worker_bytes;
    std::string error;
    unique_fd connection = start_answering_broker(options, error);
    if (connection)
        gpu::use_validity_witness(make_answering_client(std::move(connection)));
    else
        std::fprintf(stderr, "programs of CUDA's runtime can't be answered: %s\n", error.c_str());
}

// Everything between the setup message and the closed sandbox. The brokers are started before guest memory is
// mapped, so that they have none of it.
std::string prepare(sandbox& box, const setup_message& message, std::vector<unique_fd>& descriptors,
                    std::vector<gpu::region_view>& regions) {
    start_answering(message);
    box.isolate(private_directory_bytes);
    if (message.sandbox != static_cast<std::uint32_t>(sandbox_mode::off)) {
        private_directory directory = box.directory();
        std::string error;
        unique_fd broker = start_link_broker(directory, static_cast<sandbox_mode>(message.sandbox), error);
        if (!broker)
            return error;
        if (error = box.move_into(std::move(directory)); !error.empty())
            return error;
        use_link_broker(std::move(broker));
    }
    return map_regions(message, descriptors, regions);
}

// Waits until there is something to read: for a while by looking, then until the device rings.
void wait_for_news(ring_reader& requests, int bell, base::look_window& window) {
    const auto begin = std::chrono::steady_clock::now();
    const auto has_news = [&] { return requests.has_news(); };
    while (!look_for(window.now(), has_news) && requests.prepare_sleep()) {
        pollfd fd{bell, POLLIN, 0};
        poll(&fd, 1, -1);
        quiet_doorbell(bell);
    }
    window.waited(std::chrono::steady_clock::now() - begin);
}

[[noreturn]] void serve(ring_reader& requests, int submission_bell, request_executor& executor,
                        worker_output& output) {
    base::look_window window(base::longest_look(std::thread::hardware_concurrency()));
    for (;;) {
        record_type type;
        std::span<const std::byte> record;
        switch (requests.read(type, record)) {
        case ring_status::nothing:
            wait_for_news(requests, submission_bell, window);
            continue;
        case ring_status::broken:
            std::fprintf(stderr, "the ring of requests is broken\n");
            _exit(1);
        case ring_status::ok:
            break;
        }
        const auto request = type == record_type::request ? decode_request(record) : std::nullopt;
        if (request) {
            executor.execute(*request);
        } else if (record.size() >= sizeof(request_header)) {
            // The device sends none like this: a kernel scribbled over the ring.
            request_header header;
            std::memcpy(&header, record.data(), sizeof header);
            vgpu_response response{};
            response.status = VGPU_STATUS_MALFORMED;
            response.failed_offset = UINT32_MAX;
            output.on_done(header.token, response);
        }
    }
}

} // namespace

int run_worker(const factory_maker& make_factory) {
    setup_message message;
    std::vector<int> received;
    const std::string setup_error = receive_setup(setup_fd, message, received);
    std::vector<unique_fd> descriptors;
    for (const int fd : received)
        descriptors.emplace_back(fd);
    if (!setup_error.empty()) {
        std::fprintf(stderr, "%s\n", setup_error.c_str());
        return 1;
    }

    void* at = mmap(nullptr, sizeof(channel_memory), PROT_READ | PROT_WRITE, MAP_SHARED,
                    descriptors[setup_ring_memory].get(), 0);
    if (at == MAP_FAILED) {
        std::fprintf(stderr, "%s\n", system_error("the rings can't be mapped").c_str());
        return 1;
    }
    descriptors[setup_ring_memory].reset();
    madvise(at, sizeof(channel_memory), MADV_DONTFORK); // the brokers have no business in it
    auto& channel = *static_cast<channel_memory*>(at);
    // These live as long as the process: threads of the GPU's runtime use them until _exit().
    auto& output = *new worker_output(channel, std::move(descriptors[setup_completion_bell]));
    auto& regions = *new std::vector<gpu::region_view>;

    gpu::see_only(message.gpu);
    // Once for each QEMU, before any worker has guest memory; a process with one thread that nothing is taken
    // from.
    if (message.probe != 0 &&
        (message.backend == std::string_view("opencl") || message.backend == std::string_view("cuda"))) {
        const reach_decision decision = decide_reach(ask_host(""));
        if (decision.what == reach::all_memory) {
            output.refused(decision.sentence);
            _exit(1);
        }
        if (decision.what == reach::unknown)
            std::fprintf(stderr, "%s\n", decision.sentence.c_str());
    }

    std::unique_ptr<shared_gpu> share;
    if (message.share != 0)
        share = shared_gpu::open(std::move(descriptors[setup_fixed_count]),
                                 std::move(descriptors[setup_fixed_count + 1]));

    sandbox box(static_cast<sandbox_mode>(message.sandbox), nodes_of_gpu(message.gpu));
    std::string error = prepare(box, message, descriptors, regions);
    if (error.empty())
        error = output.capture_standard_output();
    place_addresses(message);
    if (error.empty())
        error = box.enter(message.max_worker_bytes);
    for (const std::string& layer : box.missing())
        std::fprintf(stderr, "sandbox without: %s\n", layer.c_str());
    for (const std::string& note : box.notes())
        std::fprintf(stderr, "%s\n", note.c_str());
    opened_executor opened;
    if (error.empty()) {
        opened = make_factory(message.backend, message.gpu, message.options)(regions, output);
        error = opened.error;
    }
    if (!opened.executor) {
        output.refused(error.empty() ? "the GPU can't be opened" : error);
        _exit(1);
    }
    if (message.probe != 0 && !opened.own_selector.empty())
        output.opened(opened.own_selector);
    output.ready(opened.gpu_name);
    if (message.probe != 0)
        _exit(0);

    if (share)
        opened.executor = gated_executor(std::move(opened.executor), *share.release());
    request_executor& executor = *opened.executor.release();
    output.start(executor, setup_fd);
    ring_reader requests(channel.submission_ring(), max_request_bytes);
    serve(requests, descriptors[setup_submission_bell].get(), executor, output);
}

} // namespace kagemusha::worker
