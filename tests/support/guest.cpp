// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/guest.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>

#include "mirror/log/stream_events.hpp"

namespace kagemusha::test {

namespace {

std::set<host*>& hosts() {
    static std::set<host*> all;
    return all;
}

} // namespace

temporary_directory::temporary_directory() : path_("/tmp/kagemusha-test-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
}
temporary_directory::~temporary_directory() {
    std::filesystem::remove_all(path_);
}

kagemusha_device_config config_of(const backend_case& b, bool second) {
    kagemusha_device_config c;
    kagemusha_device_config_init(&c);
    const char* gpu = std::getenv("KAGEMUSHA_TEST_GPU");
    if (const char* other = std::getenv("KAGEMUSHA_TEST_STANDBY_GPU"); second && other)
        gpu = other;
    c.gpu = b.executes && gpu ? gpu : "";
    c.name = "test";
    c.backend = b.backend;
    c.options = b.options;
    c.in_process = b.in_process;
    c.sandbox = 1;
    c.vm_id = "a-vm";
    c.epoch_ms = 5;
    c.heartbeat_ms = 50;
    c.heartbeat_budget_ms = 10'000; // of a machine that runs many tests at once
    c.digest_interval_ms = 0;       // when the test asks
    return c;
}

host::host(const kagemusha_device_config& config) {
    kagemusha_device_config c = config;
    c.user_data = this;
    c.callbacks.request_done = [](void* self, std::uint64_t token, const vgpu_response* response) {
        static_cast<host*>(self)->on_done(token, *response);
    };
    c.callbacks.record = [](void* self, const void* record, std::size_t bytes) {
        static_cast<host*>(self)->on_record(record, bytes);
        return 0;
    };
    c.callbacks.memory_written = [](void* self, const kagemusha_segment* ranges, std::size_t count) {
        for (const kagemusha_segment& range : std::span(ranges, count))
            static_cast<host*>(self)->on_written(range);
    };
    c.callbacks.log = [](void*, int level, const char* line) {
        if (level <= KAGEMUSHA_LOG_WARNING || std::getenv("KAGEMUSHA_TEST_VERBOSE"))
            std::fprintf(stderr, "log %d: %s\n", level, line);
    };
    char error[512] = "";
    if (kagemusha_device_create(&c, &device_, error, sizeof error) != 0) {
        ADD_FAILURE() << error;
        std::abort(); // nothing of the test makes sense without
    }
    hosts().insert(this);
}

host::~host() {
    hosts().erase(this);
    kagemusha_device_destroy(device_);
}

kagemusha_replication_status host::status() const {
    kagemusha_replication_status s{};
    s.struct_bytes = sizeof s;
    kagemusha_device_get_replication_status(device_, &s);
    return s;
}

kagemusha_device_stats host::stats() const {
    kagemusha_device_stats s{};
    s.struct_bytes = sizeof s;
    kagemusha_device_get_stats(device_, &s);
    return s;
}

void host::pump() {
    std::vector<pollfd> fds;
    for (const host* h : hosts())
        fds.push_back({kagemusha_device_poll_fd(h->device_), POLLIN, 0});
    // Not for ever: what is waited for may be told by a status, which has no descriptor.
    poll(fds.data(), fds.size(), 5);
    for (const host* h : hosts())
        kagemusha_device_dispatch(h->device_);
}

bool host::wait(const std::function<bool()>& done, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
        if (std::chrono::steady_clock::now() > deadline) {
            ADD_FAILURE() << "waited in vain for: " << what;
            for (const host* h : hosts()) {
                const auto s = h->status();
                ADD_FAILURE() << "role " << s.role << " state " << s.state << " appended " << s.appended
                              << " sent " << s.sent << " received " << s.received << " executed "
                              << s.executed << " epoch " << s.epoch << "/" << s.committed_epoch << " digests "
                              << s.digests_compared << " degraded: " << s.degraded;
            }
            return false;
        }
        pump();
    }
    return true;
}

guest::guest(const kagemusha_device_config& config, std::uint64_t memory_bytes, bool runs,
             std::uint64_t window_bytes)
    : host(config), memory_(std::make_unique<guest_memory>(memory_bytes)), runs_(runs) {
    const auto add = [this](std::uint32_t region, const guest_memory& m) {
        char error[512] = "";
        EXPECT_EQ(kagemusha_device_add_region(device(), region, m.fd(), 0, m.bytes(), m.device(), error,
                                              sizeof error),
                  0)
            << error;
    };
    add(0, *memory_);
    if (window_bytes != 0) {
        window_ = std::make_unique<guest_memory>(window_bytes);
        add(1, *window_);
    }
    if (runs)
        open(1);
}

void guest::on_written(const kagemusha_segment& range) {
    (range.region == 0 ? *memory_ : *window_).mark(range.offset, range.bytes);
}

void guest::send_ahead() {
    memory_->send(memory_copy_);
    if (window_)
        window_->send(window_copy_);
}

guest_state guest::save() {
    send_ahead();
    return {memory_copy_, window_copy_, file_, next_id_, next_token_, done_, events_, asked_, open_};
}

void guest::resume(const guest_state& state) {
    memory_->load(memory_copy_ = state.memory);
    if (window_)
        window_->load(window_copy_ = state.window);
    file_ = state.file;
    next_id_ = state.next_id;
    next_token_ = state.next_token;
    done_ = state.done;
    events_ = state.events;
    asked_ = state.asked;
    open_ = state.open;
    for (const auto& [token, request] : state.open) {
        const kagemusha_request again = request.second.request(request.first, token);
        kagemusha_device_submit(device(), &again);
    }
}

guest::~guest() {
    kagemusha_device_reset(device()); // nothing touches the memory from here on
}

void guest::on_done(std::uint64_t token, const vgpu_response& response) {
    EXPECT_TRUE(done_.emplace(token, response).second) << "answered twice: " << token;
    open_.erase(token);
}

void guest::on_record(const void* record, std::size_t bytes) {
    const auto* head = static_cast<const vgpu_record*>(record);
    if (head->type == VGPU_RECORD_COMPLETION) {
        const auto* c = static_cast<const vgpu_record_completion*>(record);
        EXPECT_EQ(bytes, sizeof *c);
        EXPECT_EQ(c->event & VGPU_HOST_ID_BIT, 0u) << "the host's own event is told";
        EXPECT_TRUE(events_.emplace(c->event, c->status).second) << "told twice: " << c->event;
        EXPECT_EQ(asked_.erase(c->event), 1u) << "nobody asked for it: " << c->event;
    } else if (head->type == VGPU_RECORD_LOST) {
        EXPECT_TRUE(may_be_lost()) << "the worker was lost";
        lost_ = true;
    }
}

void guest::open(std::uint32_t file) {
    file_ = file;
    const std::uint64_t token = next_token_++;
    kagemusha_device_open_file(device(), file, token);
    EXPECT_EQ(done_.at(token).status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
}

void guest::close(std::uint32_t file) {
    const std::uint64_t token = next_token_++;
    kagemusha_device_close_file(device(), file, token);
    wait([&] { return done_.contains(token); }, "the end of a file's worker");
    EXPECT_EQ(done_.at(token).status, static_cast<std::uint32_t>(VGPU_STATUS_OK));
}

std::uint64_t guest::submit(const codec::stream_builder& b) {
    const std::uint64_t token = next_token_++;
    if (waits_for_room)
        wait([this] { return !kagemusha_device_congested(device()); }, "room in the log");
    const auto kept = open_.emplace(token, std::pair(file_, b)).first->second;
    const kagemusha_request request = kept.second.request(file_, token);
    mirror::for_each_event({static_cast<const std::byte*>(request.stream), request.stream_bytes},
                           [this](codec::guest_id event) { asked_.insert(event); });
    kagemusha_device_submit(device(), &request);
    return token;
}

} // namespace kagemusha::test
