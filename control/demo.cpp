// SPDX-License-Identifier: GPL-2.0-or-later
//
// See demo.hpp. The task is made up at every start: a random word is chosen here, and only its MD5 goes into
// the guest. hashcat tries all words of that length there. So the answer can be neither canned nor known to
// the guest.
#include "control/demo.hpp"

#include "control/process.hpp"
#include "control/summary.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t word_letters = 6; // 309 million candidates: seconds even on two cores as "GPU"

std::string random_word() {
    std::random_device random;
    std::uniform_int_distribution<int> letter('a', 'z');
    std::string word;
    for (std::size_t i = 0; i < word_letters; ++i)
        word += static_cast<char>(letter(random));
    return word;
}

// By coreutils' md5sum: the check shares no code with what it checks. "" when that did not work.
std::string md5_of(const std::string& word) {
    const auto sum = run_captured({"sh", "-c", "printf %s \"$1\" | md5sum", "sh", word});
    return sum.status == 0 && sum.out.size() >= 32 ? sum.out.substr(0, 32) : std::string{};
}

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line.substr(0, 200);
}

} // namespace

int run_demo(session_options options) {
    const auto word = random_word();
    const auto hash = md5_of(word);
    if (hash.empty()) {
        fmt::print(stderr, "kagemusha: md5sum does not run\n");
        return 125;
    }
    std::string mask;
    for (std::size_t i = 0; i < word_letters; ++i)
        mask += "?l";
    // The guest's GPU is whatever the host has, also a CPU device: -D 1,2. Status lines keep the output
    // alive.
    const auto command = fmt::format("hashcat -m 0 -a 3 -D 1,2 --potfile-disable --status --status-timer=5 "
                                     "--outfile=/out/found --outfile-format=2 {} '{}'",
                                     hash, mask);
    auto name = (fs::temp_directory_path() / "kagemusha-demo-XXXXXX").string();
    if (!::mkdtemp(name.data())) {
        fmt::print(stderr, "kagemusha: no temporary directory\n");
        return 125;
    }
    options.out_dir = name;
    fmt::print("A word of {} letters was chosen; its MD5 is {}. The guest gets the MD5 and has to find the "
               "word.\n\n",
               word_letters, hash);
    std::fflush(stdout);
    const auto result = run_session(options, fmt::format("echo '$ {0}'\n{0}\n", command), false,
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
