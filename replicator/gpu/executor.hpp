// SPDX-License-Identifier: GPL-2.0-or-later
// executor: the one implementation of every op. Takes decoded ops of one open file in order, keeps the handle
// maps, drives a GPU backend and reports answers and completions. The primary feeds it ops of the guest, the
// standby the same ops from the log.
//
// Threads: execute() is called by one thread. The sink is called by that thread or by threads of the GPU's
// runtime (event callbacks), one call at a time per executor is not guaranteed: sinks are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/port.hpp"
#include "proto/abi/vgpu_protocol.h"

namespace kagemusha::gpu {

class task_gate;      // gpu/task_gate.hpp
class backend_device; // gpu/backend_module.hpp: one GPU of one backend, made by gpu/backend.hpp

// Where a region number of a segment is in this address space.
struct region_view {
    std::byte* base;
    std::uint64_t bytes;
};

class executor_sink {
public:
    // Exactly once per request, after every payload of it has been read or written.
    virtual void on_done(std::uint64_t token, const vgpu_response& response) = 0;
    // See worker::port_sink::on_written. Not called for what on_done() says as soon.
    virtual void on_written(std::uint64_t token, std::uint32_t payload) = 0;
    virtual void on_record(std::span<const std::byte> record) = 0; // vgpu_record_*, file number 0
    virtual void on_gpu_lost(std::uint32_t detail) = 0; // the GPU's driver reports a lost device; once
    // Before anything is reported as complete, once a program that may print was created: what kernels
    // printed so far must reach the guest first, so this drains the process's standard output.
    virtual void before_completion() {}

protected:
    ~executor_sink() = default;
};

class executor {
public:
    // `regions` outlives the executor and does not change; index = region number. A region with bytes 0 does
    // not exist.
    executor(std::shared_ptr<backend_device> device, std::span<const region_view> regions,
             executor_sink& sink);
    // Waits for nothing that a guest controls, only for sink calls and copies that are running right now:
    // fails user events that were not set, releases native objects, reports nothing any more. Copies of our
    // own stop touching guest memory; what was handed to a GPU's driver may still be read or written until
    // the process ends.
    ~executor();

    executor(const executor&) = delete;
    executor& operator=(const executor&) = delete;

    // Decodes and executes one request. Does not wait for the GPU, except in calls that must (build, info).
    void execute(const worker::request_view& request);

    // Asks this gate from now on. Before the first execute(); the gate outlives the executor and everything
    // that it has enqueued.
    void set_gate(task_gate& gate);

    // See worker::port::progress. Any thread. Also grows while a compiler works, up to a limit.
    std::uint64_t progress() const;

private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

} // namespace kagemusha::gpu
