// SPDX-License-Identifier: GPL-2.0-or-later
// The whole device as QEMU sees it: arbitrary requests, tables and streams into the C interface, with the
// executor and the null backend on a thread of this process. Besides what the sanitizers find, it checks the
// interface's promises: each request is answered exactly once, records are well formed and of a file that is
// open, a reset leaves nothing.
#include <kagemusha/device.h>

#include <poll.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "fuzz_input.hpp"
#include "proto/abi/vgpu_protocol.h"

using namespace kagemusha;

namespace {

constexpr std::uint64_t region_bytes = 1u << 20;
constexpr unsigned max_actions = 200;

void require(bool condition, const char* promise) {
    if (!condition) {
        std::fprintf(stderr, "broken promise: %s\n", promise);
        std::abort();
    }
}

struct guest {
    std::set<std::uint64_t> unanswered;
    std::set<std::uint32_t> open_files;
    std::set<std::uint32_t> lost_files;
    std::uint32_t last_status = 0;
    unsigned room = 64;
};

void on_done(void* user_data, std::uint64_t token, const vgpu_response* r) {
    auto& g = *static_cast<guest*>(user_data);
    require(g.unanswered.erase(token) == 1, "a request is answered exactly once");
    require(r->status <= VGPU_STATUS_NO_MEMORY && r->pad == 0 && r->value == 0, "an answer is well formed");
    require(r->result <= 0 && r->result_bytes <= VGPU_MAX_RESULT_BYTES, "a result is in bounds");
    g.last_status = r->status;
}

int on_record(void* user_data, const void* record, std::size_t bytes) {
    auto& g = *static_cast<guest*>(user_data);
    if (g.room == 0)
        return -EAGAIN;
    --g.room;
    vgpu_record r;
    require(bytes >= sizeof(r) && bytes <= VGPU_MAX_RECORD_BYTES && bytes % 8 == 0,
            "a record has a record's length");
    std::memcpy(&r, record, sizeof(r));
    require(r.bytes == bytes && r.pad == 0, "a record knows its length");
    require(g.open_files.contains(r.file), "a record is of an open file");
    require(!g.lost_files.contains(r.file), "LOST is the last record of its file");
    if (r.type == VGPU_RECORD_LOST)
        g.lost_files.insert(r.file);
    return 0;
}

// One device for all inputs: a reset must leave nothing behind.
struct environment {
    guest g;
    std::vector<std::byte> memory = std::vector<std::byte>(region_bytes);
    kagemusha_device* device = nullptr;

    environment() {
        kagemusha_device_config config;
        kagemusha_device_config_init(&config);
        config.name = "fuzz";
        config.backend = "null";
        config.in_process = 1;
        config.max_files = 3;
        config.max_requests_per_file = 16;
        config.max_events_per_file = 8;
        config.max_objects_per_file = 64;
        config.max_memory_bytes = 1u << 22;
        config.hang_timeout_ms = 0;
        config.callbacks.request_done = on_done;
        config.callbacks.record = on_record;
        config.user_data = &g;
        char error[256];
        const int result = kagemusha_device_create(&config, &device, error, sizeof(error));
        require(result == 0, error);
        require(kagemusha_device_add_region(device, 0, -1, 0, region_bytes, memory.data(), error,
                                            sizeof(error)) == 0,
                error);
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static environment e;
    guest& g = e.g;
    static std::uint64_t token = 0;
    g.room = 64;
    fuzz::reader in({data, size});
    for (unsigned n = 0; n < max_actions && !in.empty(); ++n) {
        const auto what =
            static_cast<fuzz::action>(in.value<std::uint8_t>() % static_cast<unsigned>(fuzz::action::count));
        const std::uint32_t file = in.value<std::uint8_t>() % 5;
        switch (what) {
        case fuzz::action::open:
            g.unanswered.insert(++token);
            kagemusha_device_open_file(e.device, file, token);
            require(!g.unanswered.contains(token), "OPEN is answered at once");
            if (g.last_status == VGPU_STATUS_OK)
                require(g.open_files.insert(file).second, "a file is opened once");
            break;
        case fuzz::action::close:
            g.unanswered.insert(++token);
            kagemusha_device_close_file(e.device, file, token);
            require(!g.unanswered.contains(token), "CLOSE is answered at once");
            g.open_files.erase(file);
            g.lost_files.erase(file);
            break;
        case fuzz::action::submit: {
            const fuzz::submit_input s = fuzz::submit_input::read(in);
            g.unanswered.insert(++token);
            kagemusha_request r{};
            r.token = token;
            r.file = file;
            r.completion_count = s.completion_count;
            r.stream = s.stream.data();
            r.stream_bytes = s.stream_bytes;
            r.payload_count = static_cast<std::uint32_t>(s.payloads.size());
            r.payloads = s.payloads.data();
            r.segment_count = static_cast<std::uint32_t>(s.segments.size());
            r.segments = s.segments.data();
            kagemusha_device_submit(e.device, &r);
            break;
        }
        case fuzz::action::dispatch: {
            pollfd p{kagemusha_device_poll_fd(e.device), POLLIN, 0};
            poll(&p, 1, g.unanswered.empty() ? 0 : 1);
            kagemusha_device_dispatch(e.device);
            break;
        }
        case fuzz::action::reset:
            kagemusha_device_reset(e.device);
            require(g.unanswered.empty(), "a reset answers everything");
            g.open_files.clear();
            g.lost_files.clear();
            break;
        case fuzz::action::event_space:
            g.room = 64;
            kagemusha_device_event_space(e.device);
            break;
        case fuzz::action::no_room:
            g.room = 0;
            break;
        case fuzz::action::count:
            break;
        }
    }
    kagemusha_device_reset(e.device);
    require(g.unanswered.empty(), "a reset answers everything");
    g.open_files.clear();
    g.lost_files.clear();
    kagemusha_device_stats stats{};
    stats.struct_bytes = sizeof(stats);
    kagemusha_device_get_stats(e.device, &stats);
    require(stats.files_open == 0 && stats.requests_in_flight == 0 && stats.objects == 0 &&
                stats.memory_bytes == 0,
            "a reset leaves nothing");
    require(stats.workers_lost == 0, "the executor breaks no rule, whatever a guest sends");
    return 0;
}
