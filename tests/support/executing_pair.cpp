// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/support/executing_pair.hpp"

#include <poll.h>

#include <span>

#include "worker/gpu_executor.hpp"
#include "worker/in_process_port.hpp"

namespace kagemusha::mirror::testing {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t guest_memory_bytes = 64 * mib, read_at = 32 * mib;
constexpr std::uint64_t arena_memory_bytes = 128 * mib, peek_at = 64 * mib; // which the log never reaches

core::port_factory ports_of(const std::string& backend, const std::string& options,
                            std::vector<gpu::region_view> regions) {
    // KAGEMUSHA_TEST_GPU chooses the OpenCL device, also the one that the faulty backend wraps.
    const char* selector = std::getenv("KAGEMUSHA_TEST_GPU");
    const bool wraps = backend == "faulty" && selector;
    const auto executor =
        worker::gpu_executor_factory(backend, backend == "opencl" && selector ? selector : "",
                                     wraps ? options + ",gpu=" + selector : options);
    return [executor, regions](std::uint32_t, std::string& error) {
        return worker::make_in_process_port(executor, regions, error);
    };
}

std::uint64_t steady_ms() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

} // namespace

executing_pair::executing_pair(pair_options options)
    : guest_(guest_memory_bytes)
    , arena_(arena_memory_bytes)
    , memory(1, options.agent_bytes)
    , primary(test_device::role::primary,
              ports_of(options.backend, options.options, {{guest_.base(), guest_.bytes()}, memory.view()}),
              {guest_.bytes(), options.agent_bytes})
    , standby(test_device::role::standby,
              ports_of(options.standby_backend, options.standby_options, {{arena_.base(), arena_.bytes()}}),
              {arena_.bytes()})
    , replay(standby, {arena_.base(), peek_at}, log, replayer::answers::in_time)
    , regions_{{guest_.base(), guest_.bytes()}} {
    log.copies_at_once = true;
    primary_shadow_options o;
    o.digest_interval_ms = options.digest_interval_ms;
    mirror = std::make_unique<primary_shadow>(*primary.device, log, make_agent_factory(memory, options.agent),
                                              regions_, o);
    primary.device->set_tap(mirror.get());
    primary.now_ms = standby.now_ms = steady_ms();
    wait([this, token = primary.open(the_file)] { return answered(token); });
}

executing_pair::~executing_pair() {
    primary.device.reset(); // the tap outlives it
    standby.device.reset(); // it answers what is in flight
}

void executing_pair::fill(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset,
                          std::uint64_t bytes, std::uint32_t seed) {
    for (std::uint64_t i = 0; i < bytes; ++i)
        guest(i)[0] = static_cast<std::byte>((i + offset) * 7 + seed * 13 + i / 255);
    write(queue, buffer, 0, bytes, offset);
}

std::vector<std::byte> executing_pair::on_primary(std::uint64_t queue, std::uint64_t buffer,
                                                  std::uint64_t bytes) {
    read(queue, buffer, read_at, bytes);
    return {guest(read_at), guest(read_at + bytes)};
}

std::vector<std::byte> executing_pair::on_standby(std::uint64_t queue, std::uint64_t buffer,
                                                  std::uint64_t bytes) {
    settle();
    const std::uint64_t event = new_id();
    stream_builder b;
    const auto data = b.payload(true, 0, peek_at, bytes);
    run_on_standby(b.read_buffer({queue, event}, buffer, 0, data), event);
    return {arena_.base() + peek_at, arena_.base() + peek_at + bytes};
}

void executing_pair::run_on_standby(const stream_builder& b, std::uint64_t event) {
    const std::uint64_t token = standby.submit(the_file, b);
    wait([&] { return standby.answer_of(token) && standby.completed(event); });
    EXPECT_EQ(standby.status(event), 0);
}

void executing_pair::corrupt(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset,
                             std::uint8_t byte) {
    settle();
    const std::uint64_t event = new_id();
    run_on_standby(
        stream_builder().fill_buffer({queue, event}, buffer, offset, 1, std::as_bytes(std::span(&byte, 1))),
        event);
}

void executing_pair::attach() {
    log.synced_at.clear();
    mirror->start_sync();
    wait([&] { return is_synced() || !failed_why().empty(); });
    EXPECT_EQ(failed_why(), "");
    settle();
}

void executing_pair::drop_log() {
    replay.drop();
    EXPECT_TRUE(standby.failures.empty()) << standby.failures.front();
}

void executing_pair::settle() {
    // What the agent has in flight for content or digests has memory.
    wait([&] { return replay.idle() && mirror->waiting().empty() && memory.blocks() == 0; });
    EXPECT_TRUE(standby.failures.empty()) << standby.failures.front();
    EXPECT_TRUE(standby.lines.empty()) << standby.lines.front();
}

agent_counters executing_pair::digest(bool everything) {
    const std::uint64_t before = mirror->counters().digests;
    mirror->request_digest(everything);
    wait([&] { return mirror->counters().digests > before; });
    settle();
    return mirror->counters();
}

void executing_pair::step() {
    pollfd fds[] = {{primary.device->poll_fd(), POLLIN, 0}, {standby.device->poll_fd(), POLLIN, 0}};
    poll(fds, 2, 1);
    primary.now_ms = standby.now_ms = steady_ms();
    primary.device->dispatch(primary.now_ms);
    standby.device->dispatch(standby.now_ms);
    replay.run();
    for (auto& [entry, different] : replay.take_compared()) {
        differences[entry] = different;
        mirror->on_digest_result(entry, different);
    }
}

} // namespace kagemusha::mirror::testing
