// SPDX-License-Identifier: GPL-2.0-or-later
//
// See program.hpp.
#include "control/demo/program.hpp"

#include "control/demo/task.hpp"

#include <fmt/format.h>

namespace kagemusha::control {

namespace {

// A standby of another kind can't have the binaries that hashcat keeps of its kernels.
constexpr char forget_binaries[] = "fresh=yes\n";
// The guest's job: hashcat as often as it is told to. Each run has a file of its own for what it finds, which
// hashcat also prints. Each set of words has its own list.
constexpr char hashcat_job[] = R"(stty -F /dev/ttyS0 -echo 2>/dev/null
cd /tmp
while echo "KAGEMUSHA-DEMO ready" && read -r what run words mask endings; do
    [ -n "$what" ] || continue
    [ "$what" = run ] || break
    [ -z "$fresh" ] || rm -rf /root/.cache/hashcat /root/.local/share/hashcat
    echo "KAGEMUSHA-DEMO begun $run"
    hashcat -m 0 -a 3 -D 1,2 --self-test-disable --hwmon-disable --potfile-path="/tmp/found-$run" \
        --status --status-timer=1 -1 "$endings" "/payload/$words" "$mask" </dev/null
    echo "KAGEMUSHA-DEMO ended $run $?"
    while read -r found; do
        echo "KAGEMUSHA-DEMO result $run $found"
    done <"/tmp/found-$run"
    echo "KAGEMUSHA-DEMO results-end $run"
done </dev/ttyS0
)";

// The same for a training. Its kernels are new in each run, and it writes its losses to a file.
constexpr char training_job[] = R"(stty -F /dev/ttyS0 -echo 2>/dev/null
cd /tmp
while echo "KAGEMUSHA-DEMO ready" && read -r what run steps; do
    [ -n "$what" ] || continue
    [ "$what" = run ] || break
    echo "KAGEMUSHA-DEMO begun $run"
    /payload/train "$steps" "/tmp/losses-$run" </dev/null
    echo "KAGEMUSHA-DEMO ended $run $?"
    while read -r loss; do
        echo "KAGEMUSHA-DEMO result $run $loss"
    done <"/tmp/losses-$run"
    echo "KAGEMUSHA-DEMO results-end $run"
done </dev/ttyS0
)";

} // namespace

std::string job_of(demo_program program, bool alike) {
    if (program == demo_program::training)
        return training_job;
    return (alike ? "" : forget_binaries) + std::string(hashcat_job);
}

std::vector<demo_work> work_of(demo_program program) {
    std::vector<demo_work> out;
    if (program == demo_program::hashcat) {
        for (const auto& words : word_sets())
            out.push_back({words.size(),
                           fmt::format("{} {} {}", words.name(), words.mask(), words.ending_letters()),
                           words.describe()});
        return out;
    }
    for (const unsigned steps : {300u, 900u, 2700u, 8000u, 24000u, 70000u, 200000u, 600000u, 1800000u})
        out.push_back({static_cast<double>(steps), std::to_string(steps), fmt::format("{} steps", steps)});
    return out;
}

const char* name_of(demo_program program) {
    return program == demo_program::hashcat ? "hashcat" : "the training";
}

const char* beginning_of(demo_program program) {
    return program == demo_program::hashcat ? "hashcat starts, and builds its kernels for the GPU"
                                            : "the training starts, and its kernels are compiled for the GPU";
}

const char* description_of(demo_program program) {
    return program == demo_program::hashcat ? "hashcat (Debian's, unmodified), OpenCL, in the guest"
                                            : "the training of a network, CUDA, in the guest";
}

const char* first_run_costs(demo_program program) {
    return program == demo_program::hashcat ? "that run also compiled hashcat's kernels"
                                            : "that run also compiled the kernels";
}

} // namespace kagemusha::control
