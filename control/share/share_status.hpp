// SPDX-License-Identifier: GPL-2.0-or-later
//
// Who has what of the GPUs of this host: what the share arbiters say, as text and JSON; `kage top`.
#pragma once

#include "proto/share/share_protocol.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kagemusha::control {

// A program of a guest, by the worker that it has on this host.
struct shared_program {
    share_program_row row{};
    double got = 0, waited = 0, tasks_per_s = 0; // as of a VM
};

struct shared_vm {
    share_row row{};
    std::vector<shared_program> programs = {}; // if asked for; those that used the GPU most come first
    // Of the time between two readings, 0 to 1; 0 when there is none before.
    double got = 0, waited = 0;
    double tasks_per_s = 0;
};

struct shared_gpu {
    std::string name; // of the GPU; of the socket's file if nobody knows it
    std::string policy;
    std::uint64_t memory_bytes = 0;
    std::uint64_t now_ns = 0;
    std::vector<shared_vm> vms;
};

// Asks every arbiter of this user. `names`: ask for the GPUs' names, too, which takes as long as their
// drivers do; `programs`: for those of each VM.
std::vector<shared_gpu> read_shared_gpus(bool names, bool programs = false);
// Fills in what happened since. Pure.
void set_shared_rates(std::vector<shared_gpu>& now, const std::vector<shared_gpu>& before);

// A table for each GPU, the VM that used it most first; "" without any. Pure. `programs`: with a line for each.
std::string shared_text(std::vector<shared_gpu> gpus, bool programs = false);
nlohmann::json shared_json(const std::vector<shared_gpu>& gpus);

struct top_options {
    bool json = false; // a line for each reading
    bool programs = false;
    bool once = false; // one reading over a second, and not until Ctrl-C
};
// Exit status of the tool.
int run_top(const top_options& options);

} // namespace kagemusha::control
