// SPDX-License-Identifier: GPL-2.0-or-later
//
// What happened in a demo with a crash, as plain data, and what is made of it: is the answer right, the
// timeline, the summary for a person, the report for a program. Pure. All times are ns of CLOCK_BOOTTIME,
// which every process of this machine shares; 0: it did not happen.
#pragma once

#include "control/demo/program.hpp"
#include "control/demo/task.hpp"
#include "control/status/summary.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace kagemusha::control {

enum class demo_host { primary, standby };

const char* to_text(demo_host host);

struct progress_sample {
    demo_host host = demo_host::primary;
    std::uint64_t ns = 0;
    double fraction = 0;
    double loss = 0; // of a training
};

struct demo_story {
    demo_program program = demo_program::hashcat;
    word_set words;    // that hashcat was asked for
    std::string asked; // the work, for people
    // hashcat's HASH:WORD: chosen; found without a failure; with one. A training's STEP:BITS of losses: without a
    // failure; with one.
    std::set<std::string> known, reference, result;
    std::string gpu, standby_gpu, backend, kernel, cpu;
    std::uint64_t started_ns = 0, booted_ns = 0;
    std::uint64_t reference_begun_ns = 0, reference_ended_ns = 0;
    std::uint64_t standby_started_ns = 0, protected_ns = 0;
    std::uint64_t begun_ns = 0, ended_ns = 0;
    // The takeover. `killed` is noted before the signal is sent, `detected` by the primary's supervisor, the
    // others by the standby's supervisor and device.
    std::uint64_t committed_ns = 0, killed_ns = 0, detected_ns = 0, decided_ns = 0, running_ns = 0,
                  first_command_ns = 0;
    std::vector<progress_sample> progress;       // of the run with the failure
    gpu_activity reference_work, before, after;  // `before`: of the crashed run on the primary
    std::uint64_t checkpoints = 0, pause_us = 0; // of the last one
    std::uint64_t behind = 0; // requests that the standby's GPU had not executed yet, just before the kill
};

// "", or a sentence that says what is wrong.
std::string why_not_verified(const demo_story& story);

struct timeline_point {
    std::uint64_t ns = 0;
    std::string name; // for programs
    std::string text; // for people
};

// In the order of their times. What did not happen is not there.
std::vector<timeline_point> timeline_of(const demo_story& story);

// Of a takeover: "-31.2 ms", "+12.40 s".
std::string format_offset(std::int64_t ns);

std::string timeline_text(const demo_story& story);
std::string story_summary(const demo_story& story);
nlohmann::json story_report(const demo_story& story);

} // namespace kagemusha::control
