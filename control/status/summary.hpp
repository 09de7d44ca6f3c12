// SPDX-License-Identifier: GPL-2.0-or-later
//
// What a GPU did for a guest, from the device's statistics, as text for a person. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace kagemusha::control {

// The part of the device's statistics (struct kagemusha_device_stats) that a summary shows.
struct gpu_activity {
    std::uint64_t requests = 0, commands = 0, launches = 0, calls = 0;
    std::uint64_t bytes_to_gpu = 0, bytes_from_gpu = 0;
    std::uint64_t doorbells = 0;
    std::uint64_t workers_lost = 0, workers_killed_hung = 0;

    bool operator==(const gpu_activity&) const = default;
};

// What happened between two readings. Counters that are not there (no GPU, another version) are 0; one that
// went backwards as well.
gpu_activity activity_between(const nlohmann::json& before, const nlohmann::json& after);

std::string format_bytes(std::uint64_t bytes); // 0 B, 1.5 KiB, 12.0 MiB
std::string format_count(std::uint64_t count); // 1,234,567
std::string format_duration(double seconds);   // 3.2 s, 2 min 5 s

struct demo_facts {
    std::string program;      // what ran, one line
    std::string task, answer; // what it was asked and what it found
    bool verified = false;
    std::string why_not; // when not verified
    std::string gpu, backend;
    std::string kernel, cpu;
    double boot_seconds = 0, job_seconds = 0;
    gpu_activity activity;
};

std::string demo_summary(const demo_facts& facts);

} // namespace kagemusha::control
