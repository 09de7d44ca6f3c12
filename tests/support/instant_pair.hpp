// SPDX-License-Identifier: GPL-2.0-or-later
// instant_pair: a primary and its standby in one thread, for tests of what the mirror decides. Both execute on
// the null backend at once, so nothing here waits or depends on time; the test says when the standby executes
// what of the log.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#include "mirror/capture/primary_shadow.hpp"
#include "tests/support/ideal_agent.hpp"
#include "tests/support/instant_device.hpp"
#include "tests/support/memory_log.hpp"
#include "tests/support/replayer.hpp"

namespace kagemusha::mirror::testing {

struct instant_pair {
    explicit instant_pair(bool with_agents = true,
                          primary_shadow_options options = {0, max_registry_bytes, 5})
        : regions{{primary.memory.data(), primary.memory.size()}} {
        agent_factory agents;
        if (with_agents) {
            agents = [this](std::uint32_t file, session_shadow& state, core::mirror_port& device,
                            log_sink& l) -> std::unique_ptr<session_agent> {
                auto agent = std::make_unique<ideal_agent>(primary, file, state, device, l);
                agent->allowed = agents_may_finish;
                agent->patience = agent_patience;
                made[file] = agent.get();
                return agent;
            };
        }
        mirror = std::make_unique<primary_shadow>(*primary.device, log, std::move(agents), regions, options);
        primary.device->set_tap(mirror.get());
    }
    ~instant_pair() {
        primary.device.reset(); // before its tap
    }

    instant_device primary{test_device::role::primary};
    instant_device standby{test_device::role::standby, 16 * instant_device::guest_bytes};
    memory_log log;
    replayer replay{standby, standby.memory, log, replayer::answers::at_once};
    std::vector<region_address> regions;
    std::map<std::uint32_t, ideal_agent*> made;
    bool agents_may_finish = true;
    int agent_patience = 0;
    std::unique_ptr<primary_shadow> mirror;

    // Submits, lets the worker answer, gives the answer.
    vgpu_response run(std::uint32_t file, const stream_builder& b) {
        const std::uint64_t token = primary.submit(file, b);
        primary.dispatch();
        const vgpu_response* r = primary.answer_of(token);
        require(r != nullptr, "the primary did not answer");
        return *r;
    }
    template <class F>
    vgpu_response run(std::uint32_t file, F&& build)
        requires std::is_invocable_v<F, stream_builder&>
    {
        stream_builder b;
        build(b);
        return run(file, b);
    }
    void open(std::uint32_t file) { primary.open(file); }
    void close(std::uint32_t file) { primary.close(file); }
};

} // namespace kagemusha::mirror::testing
