// SPDX-License-Identifier: GPL-2.0-or-later
//
// See story.hpp.
#include "control/demo/story.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

namespace kagemusha::control {

namespace {

double seconds_between(std::uint64_t from_ns, std::uint64_t to_ns) {
    return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0;
}

std::int64_t offset(std::uint64_t ns, std::uint64_t from_ns) {
    return static_cast<std::int64_t>(ns) - static_cast<std::int64_t>(from_ns);
}

std::string heading(const std::string& title) {
    std::string line = "\n── " + title + " ";
    for (auto columns = title.size() + 4; columns < 76; ++columns)
        line += "─";
    return line + "\n";
}

std::string work_text(const gpu_activity& did) {
    return fmt::format("{} commands, {} of them kernel launches; {} to the GPU, {} back",
                       format_count(did.commands), format_count(did.launches), format_bytes(did.bytes_to_gpu),
                       format_bytes(did.bytes_from_gpu));
}

nlohmann::json work_json(const gpu_activity& did) {
    return {{"requests", did.requests},
            {"commands", did.commands},
            {"launches", did.launches},
            {"bytes_to_gpu", did.bytes_to_gpu},
            {"bytes_from_gpu", did.bytes_from_gpu}};
}

std::string missing_words(const std::set<std::string>& known, const std::set<std::string>& found) {
    const auto right =
        std::count_if(known.begin(), known.end(), [&](const auto& w) { return found.contains(w); });
    return fmt::format("{} of {} words, and {} that nobody had chosen", right, known.size(),
                       found.size() - static_cast<std::size_t>(right));
}

// Of STEP:BITS.
double loss_of(const std::string& line) {
    const auto colon = line.find(':');
    std::uint32_t bits = 0;
    if (colon != line.npos)
        std::from_chars(line.data() + colon + 1, line.data() + line.size(), bits, 16);
    return std::bit_cast<float>(bits);
}

std::string why_no_training(const demo_story& s) {
    if (s.reference.size() < 2 || !(loss_of(*s.reference.rbegin()) < loss_of(*s.reference.begin()) / 4))
        return "in the run without a failure nothing was learned";
    if (s.result == s.reference)
        return {};
    const auto other = std::count_if(s.reference.begin(), s.reference.end(),
                                     [&](const auto& loss) { return !s.result.contains(loss); });
    return fmt::format("{} of {} losses are not those of the run without a failure", other,
                       s.reference.size());
}

std::string why_no_words(const demo_story& s) {
    if (s.known.empty() || s.reference != s.known)
        return "the run without a failure found " + missing_words(s.known, s.reference);
    if (s.result != s.known)
        return "the run with the failure found " + missing_words(s.known, s.result);
    return {};
}

// What was asked, what came out, why that is right.
struct verdict {
    std::string asked, answer, right;
};

verdict verdict_of(const demo_story& s) {
    if (s.program == demo_program::training)
        return {
            fmt::format("to learn a function of two variables from 128 points, in {}", s.asked),
            s.result.empty() ? "none"
                             : fmt::format("its mean square error fell from {:.3g} to {:.3g}",
                                           loss_of(*s.result.begin()), loss_of(*s.result.rbegin())),
            fmt::format("yes: {} losses, each to the bit as in a run without a failure", s.result.size())};
    return {fmt::format("which {} {} have these MD5s?", s.known.size(), s.words.describe()),
            fmt::format("{} words{}{}", s.result.size(), s.result.empty() ? "" : ", among them ",
                        s.result.empty() ? "" : s.result.begin()->substr(s.result.begin()->find(':') + 1)),
            "yes: the chosen words, and the same as in a run without a failure"};
}

} // namespace

const char* to_text(demo_host host) {
    return host == demo_host::primary ? "primary" : "standby";
}

std::string why_not_verified(const demo_story& s) {
    const bool hashcat = s.program == demo_program::hashcat;
    if (const auto wrong = hashcat ? why_no_words(s) : why_no_training(s); !wrong.empty())
        return wrong;
    const std::string right = hashcat ? "the words are right" : "the losses are right";
    if (s.killed_ns == 0 || s.running_ns == 0)
        return right + ", but nobody took over";
    if (s.first_command_ns == 0 || s.after.launches == 0)
        return right + ", but the standby's GPU did nothing for the guest";
    return {};
}

std::vector<timeline_point> timeline_of(const demo_story& s) {
    std::vector<timeline_point> points;
    const auto add = [&](std::uint64_t ns, const char* name, const char* text) {
        if (ns != 0)
            points.push_back({ns, name, text});
    };
    // What happens at the same time stays in this order.
    add(s.begun_ns, "begun", "the program begins, on the primary");
    add(s.committed_ns, "commit", "last checkpoint, complete on the standby");
    add(s.killed_ns, "kill", "kill -9 of the primary's QEMU");
    add(s.detected_ns, "detection", "its supervisor hears of it from the kernel, and tells the standby");
    add(s.decided_ns, "decision", "the standby decides to take over");
    add(s.running_ns, "takeover", "the guest runs again, on the standby");
    add(s.first_command_ns, "first-command", "the standby's GPU has completed the guest's first command");
    add(s.ended_ns, "result", "the program ends with its result");
    std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.ns < b.ns; });
    return points;
}

std::string format_offset(std::int64_t ns) {
    const double ms = static_cast<double>(ns) * 1e-6;
    return std::abs(ms) < 1000 ? fmt::format("{:+.1f} ms", ms) : fmt::format("{:+.2f} s", ms * 1e-3);
}

std::string timeline_text(const demo_story& s) {
    auto text = heading("timeline");
    for (const auto& point : timeline_of(s))
        text += fmt::format("  {:>10}  {}\n",
                            point.ns == s.killed_ns ? "0" : format_offset(offset(point.ns, s.killed_ns)),
                            point.text);
    return text;
}

std::string story_summary(const demo_story& s) {
    auto text = heading("what happened");
    const auto line = [&](const char* title, const std::string& value) {
        text += fmt::format("  {:<12}{}\n", title, value);
    };
    const auto why_not = why_not_verified(s);
    const auto said = verdict_of(s);
    line("program", description_of(s.program));
    line("asked", said.asked);
    line("answer", said.answer);
    line("verified", why_not.empty() ? said.right : fmt::format("NO: {}", why_not));
    line("GPU", fmt::format("{} (backend {})", s.gpu.empty() ? "unknown" : s.gpu, s.backend));
    if (s.standby_gpu != s.gpu)
        line("standby's", s.standby_gpu.empty() ? "unknown" : s.standby_gpu);
    line("guest", fmt::format("Linux {}, CPU by {}", s.kernel, s.cpu));
    line("GPU work", work_text(s.before));
    line("", "by the primary until it died; then by the standby:");
    line("", work_text(s.after));
    if (s.running_ns != 0) {
        line("crash",
             fmt::format("the guest ran again {} after the kill, its GPU after {}",
                         format_offset(offset(s.running_ns, s.killed_ns)).substr(1),
                         s.first_command_ns ? format_offset(offset(s.first_command_ns, s.killed_ns)).substr(1)
                                            : "an unknown time"));
        line("", fmt::format("the standby's GPU was {} requests behind, and had to do these first",
                             format_count(s.behind)));
        const auto again = offset(s.killed_ns, s.committed_ns);
        if (s.committed_ns != 0 && again > 0)
            line("", fmt::format("the last {} before it were done again", format_offset(again).substr(1)));
    }
    line("protection", fmt::format("{} checkpoints until then; the last one stopped the guest for {:.1f} ms",
                                   format_count(s.checkpoints), static_cast<double>(s.pause_us) * 1e-3));
    line("time", fmt::format("{} from the program's start to its result, with the crash",
                             format_duration(seconds_between(s.begun_ns, s.ended_ns))));
    line("", fmt::format("{} without one and without a standby; {}",
                         format_duration(seconds_between(s.reference_begun_ns, s.reference_ended_ns)),
                         first_run_costs(s.program)));
    line("", fmt::format("{} for all of it, {} of that for booting",
                         format_duration(seconds_between(s.started_ns, s.ended_ns)),
                         format_duration(seconds_between(s.started_ns, s.booted_ns))));
    return text;
}

nlohmann::json story_report(const demo_story& s) {
    auto points = nlohmann::json::array();
    for (const auto& point : timeline_of(s))
        points.push_back(
            {{"name", point.name}, {"boot_ns", point.ns}, {"after_kill_ns", offset(point.ns, s.killed_ns)}});
    auto progress = nlohmann::json::array();
    for (const auto& sample : s.progress)
        progress.push_back({{"host", to_text(sample.host)},
                            {"boot_ns", sample.ns},
                            {"fraction", sample.fraction},
                            {"loss", sample.loss}});
    const auto why_not = why_not_verified(s);
    return {{"verified", why_not.empty()},
            {"problem", why_not},
            {"program", name_of(s.program)},
            {"asked", s.asked},
            {"letters", s.words.letters},
            {"endings", s.words.ending_letters()},
            {"known", s.known},
            {"reference", s.reference},
            {"result", s.result},
            {"gpu", s.gpu},
            {"standby_gpu", s.standby_gpu},
            {"backend", s.backend},
            {"kernel", s.kernel},
            {"cpu", s.cpu},
            {"checkpoints", s.checkpoints},
            {"behind", s.behind},
            {"reference_work", work_json(s.reference_work)},
            {"before", work_json(s.before)},
            {"after", work_json(s.after)},
            {"reference_seconds", seconds_between(s.reference_begun_ns, s.reference_ended_ns)},
            {"seconds", seconds_between(s.begun_ns, s.ended_ns)},
            {"timeline", points},
            {"progress", progress}};
}

} // namespace kagemusha::control
