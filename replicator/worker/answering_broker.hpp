// SPDX-License-Identifier: GPL-2.0-or-later
// answering_broker: the small process beside a worker with CUDA that starts the answering process for its
// guest's program, in namespaces of its own, and ends one that does not answer. It has no guest memory and no
// descriptor of the device; what it is given is one message of fixed size, checked (answering_protocol.hpp).
//
// One answering process at a time, of the thread that asked last: a program's libcudarts ask one after the
// other, mostly in one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "gpu/validity.hpp"
#include "worker/gpu_nodes.hpp"
#include "worker/process_port.hpp"

namespace kagemusha::worker {

struct answering_options {
    std::string driver = "libcuda.so.1";
    sandbox_mode mode = sandbox_mode::required;
    gpu_nodes nodes;
    std::uint64_t max_bytes = 0; // of private memory, as for the worker
    int answer_limit_ms = 20000; // a driver starts within a second
};

// Called by the only thread, before its sandbox; returns the connection, or an invalid one with a sentence.
unique_fd start_answering_broker(const answering_options& options, std::string& error);

// The worker's side of it.
std::unique_ptr<gpu::validity_witness> make_answering_client(unique_fd connection);

// driver=PATH among a backend's options, or what it is without.
std::string driver_option(const std::string& options);

} // namespace kagemusha::worker
