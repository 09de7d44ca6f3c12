// SPDX-License-Identifier: GPL-2.0-or-later
// executing_pair: a primary and its standby with executors on threads of this process, for tests of the agent:
// real content on real backends, the log carried from one to the other by hand. One file, number 1.
//
// A failure of a replication's own command on the standby fails the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mirror/capture/primary_shadow.hpp"
#include "tests/support/agent_region.hpp"
#include "tests/support/guest_calls.hpp"
#include "tests/support/memory_log.hpp"
#include "tests/support/replayer.hpp"
#include "tests/support/test_device.hpp"

namespace kagemusha::mirror::testing {

using codec::argument_builder;

constexpr std::uint32_t the_file = 1;

struct pair_options {
    std::string backend = "opencl", options;
    std::string standby_backend = "opencl", standby_options;
    std::uint64_t agent_bytes = std::uint64_t{16} << 20;
    agent_options agent;
    std::uint32_t digest_interval_ms = 0; // 0: when the test asks
};

class executing_pair final : public test::guest_calls {
    mapping guest_, arena_;

public:
    explicit executing_pair(pair_options options = {});
    ~executing_pair();

    // ---- the guest

    std::byte* guest(std::uint64_t offset = 0) { return guest_.base() + offset; }
    std::uint64_t submit(const stream_builder& b) override { return primary.submit(the_file, b); }
    bool answered(std::uint64_t token) const override { return primary.answer_of(token) != nullptr; }
    vgpu_response answer(std::uint64_t token) const override { return *primary.answer_of(token); }
    bool completed(std::uint64_t event) const override { return primary.completed(event); }
    std::int32_t status_of(std::uint64_t event) const override { return primary.status(event); }
    // Bytes that depend on `seed`, written through guest memory.
    void fill(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset, std::uint64_t bytes,
              std::uint32_t seed);
    std::vector<std::byte> on_primary(std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes);

    // ---- the standby, behind the log's back

    std::vector<std::byte> on_standby(std::uint64_t queue, std::uint64_t buffer, std::uint64_t bytes);
    void run_on_standby(const stream_builder& b, std::uint64_t event);
    // Makes the standby differ.
    void corrupt(std::uint64_t queue, std::uint64_t buffer, std::uint64_t offset, std::uint8_t byte);

    // ---- the mirror

    bool is_synced() const { return !log.synced_at.empty(); } // since the last attach()
    std::string failed_why() const { return log.failures.empty() ? "" : log.failures.back(); }
    void attach();
    // The link is gone, and what was in it.
    void drop_log();
    // Until the log is executed and the agent has nothing left to do.
    void settle();
    agent_counters digest(bool everything = true);
    template <class Done>
    void wait(Done&& done) {
        const auto begin = std::chrono::steady_clock::now();
        while (!done()) {
            step();
            if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60)) {
                std::fprintf(stderr, "nothing happens any more (%zu of %zu entries executed; %s)\n",
                             static_cast<std::size_t>(replay.executed), log.items.size(),
                             mirror->waiting().c_str());
                std::abort();
            }
        }
    }
    void step();

    std::map<log_sequence, std::vector<std::uint64_t>> differences; // that the standby found

    agent_region memory;
    memory_log log;
    test_device primary, standby;
    replayer replay;
    std::unique_ptr<primary_shadow> mirror;

private:
    bool wait_until(const std::function<bool()>& done, const char*) override {
        wait(done);
        return true;
    }

    std::vector<region_address> regions_;
};

} // namespace kagemusha::mirror::testing
