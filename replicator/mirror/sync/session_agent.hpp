// SPDX-License-Identifier: GPL-2.0-or-later
// session_agent: what primary_shadow wants of a file's agent: sync_agent in production, one that copies memory
// by itself in tests of everything else. The methods are those of sync_agent, which explains them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "mirror/sync/sync_agent.hpp"

namespace kagemusha::mirror {

class session_agent {
public:
    virtual ~session_agent() = default;
    virtual void start_sync() = 0;
    virtual bool ready_to_finish() const = 0;
    virtual void finish_sync() = 0;
    virtual void stop() = 0;
    virtual void prepare() = 0;
    virtual bool take_digest(bool everything) = 0;
    virtual void on_digest_result(log_sequence entry, std::span<const std::uint64_t> different) = 0;
    virtual void before_submit() = 0;
    virtual void after_submit() = 0;
    virtual void after_read() {}
    virtual bool ships() const { return false; }
    virtual void on_done(std::uint64_t token, const vgpu_response& response) = 0;
    virtual void on_record(std::span<const std::byte> record) = 0;
    virtual void on_lost() = 0;
    virtual void on_tick() = 0;
    virtual std::string waiting() const = 0;
    virtual bool waits_for_guest() const = 0;
    virtual bool idle() const = 0;
    virtual const agent_counters& counters() const = 0;
};

// Makes the agent of a file; all arguments outlive it.
using agent_factory = std::function<std::unique_ptr<session_agent>(std::uint32_t file, session_shadow& state,
                                                                   core::mirror_port& device, log_sink& log)>;

// sync_agent.
agent_factory make_agent_factory(agent_memory& memory, const agent_options& options);

} // namespace kagemusha::mirror
