// SPDX-License-Identifier: GPL-2.0-or-later
//
// See demo.hpp. The task is made up at every start (demo/task.hpp): hashcat tries all words of that length in
// the guest.
#include "control/demo/demo.hpp"

#include "control/base/write_all.hpp"
#include "control/demo/task.hpp"
#include "control/status/summary.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr unsigned word_letters = 6; // 309 million candidates: seconds even on two cores as "GPU"

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line.substr(0, 200);
}

} // namespace

int run_demo(guest_run_options options) {
    const auto chosen = hidden_words(1, {.letters = word_letters});
    if (!chosen)
        return 125;
    const auto hash = chosen->begin()->substr(0, chosen->begin()->find(':'));
    const auto word = chosen->begin()->substr(hash.size() + 1);
    std::string mask;
    for (unsigned i = 0; i < word_letters; ++i)
        mask += "?l";
    // The guest's GPU is whatever the host has, also a CPU device: -D 1,2. Status lines keep the output
    // alive.
    const auto command = fmt::format("hashcat -m 0 -a 3 -D 1,2 --potfile-disable --status --status-timer=5 "
                                     "--outfile=/out/found --outfile-format=2 {} '{}'",
                                     hash, mask);
    auto name = (fs::temp_directory_path() / "kagemusha-demo-XXXXXX").string();
    if (!::mkdtemp(name.data())) {
        fmt::print(stderr, "kage: no temporary directory\n");
        return 125;
    }
    options.out_dir = name;
    fmt::print("A word of {} letters was chosen; its MD5 is {}. The guest gets the MD5 and has to find the "
               "word.\n\n",
               word_letters, hash);
    std::fflush(stdout);
    const auto result = run_in_guest(options, fmt::format("echo '$ {0}'\n{0}\n", command), false,
                                     [](std::string_view text) { return write_all(STDOUT_FILENO, text); });
    const auto found = first_line(name + "/found");
    std::error_code error;
    fs::remove_all(name, error);
    if (!result.prepared || result.machine.how == machine_result::end::interrupted)
        return exit_status(result);

    demo_facts facts;
    facts.program = "hashcat (Debian's, unmodified), OpenCL, in the guest";
    facts.task = fmt::format("which word of {} letters has the MD5 {}?", word_letters, hash);
    facts.answer = found;
    facts.gpu = result.machine.gpu_name;
    facts.backend = options.backend;
    facts.kernel = result.kernel_release;
    facts.cpu = result.cpu;
    facts.boot_seconds = result.machine.boot_seconds;
    facts.job_seconds = result.machine.job_seconds;
    facts.activity = activity_between(result.machine.stats_before, result.machine.stats_after);
    if (const int status = exit_status(result); status != 0)
        facts.why_not = fmt::format("the job in the guest ended with status {}", status);
    else if (found != word)
        facts.why_not = "the hidden word is another one";
    else if (facts.activity.launches == 0)
        facts.why_not = "the word is right, but the device saw no kernel launch";
    else
        facts.verified = true;
    fmt::print("{}", demo_summary(facts));
    return facts.verified ? 0 : 1;
}

} // namespace kagemusha::control
