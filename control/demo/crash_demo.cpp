// SPDX-License-Identifier: GPL-2.0-or-later
//
// See crash_demo.hpp. One thread, one poll() over: our signals, what both supervisors log, their ends, the
// guest's consoles. Those are read from QEMU's sockets and not from its log files: while a reader lags, QEMU
// tries a byte again, and the file then has it twice.
#include "control/demo/crash_demo.hpp"

#include "control/arbiter/arbiter.hpp"
#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/log_file.hpp"
#include "control/base/unix_socket.hpp"
#include "control/base/whole_file.hpp"
#include "control/base/write_all.hpp"
#include "control/demo/crash_fsm.hpp"
#include "control/demo/guest_lines.hpp"
#include "control/demo/task.hpp"
#include "control/demo/timeline_svg.hpp"
#include "control/qemu/kvm_probe.hpp"
#include "control/qemu/qmp_client.hpp"
#include "control/status/replication_status.hpp"
#include "control/supervise/control_socket.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" { // glibc 2.36's header leaves this out
#include <sys/pidfd.h>
}

namespace kagemusha::control {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;
using json = nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr unsigned words_hidden = 12;
constexpr auto connect_period = 20ms, status_period = 200ms;
constexpr auto end_time = 20s; // for a supervisor that was asked to end
constexpr std::size_t longest_log_line = 65536, end_of_log_lines = 5;

constexpr char training_program[] = "kagemusha-demo-train"; // guest/train.cpp

bool write_file(const std::string& path, const std::string& text) {
    const auto error = write_whole_file(path, text);
    if (!error.empty())
        fmt::print(stderr, "kage: {}\n", error);
    return error.empty();
}

// As a string of TOML.
std::string quoted(const std::string& text) {
    return as_json_text(text); // JSON's escapes are a part of TOML's
}

// One of the two supervisors, and what it and its guest say.
struct supervised {
    std::optional<child_process> process;
    unique_fd log, console;
    std::string log_line, name;
    guest_lines lines;
    bool had_console = false, ended = false; // and told
};

class crash_demo {
public:
    crash_demo(const guest_run_options& options, const crash_demo_options& more)
        : options_(options), more_(more), fsm_(crash_config{}, more.program) {}
    ~crash_demo();
    int run();

private:
    using host = demo_host;
    supervised& at(host which) { return hosts_[which == host::primary ? 0 : 1]; }
    bool prepare();
    bool write_files(const std::string& accel, const assets& parts);
    bool hide_words();
    std::string description(const std::string& accel, const std::string& gpu) const;
    bool start(host which);
    void loop();
    void read_log(host which);
    void connect_console(host which);
    void read_console(host which);
    void ask_status(host which);
    void ended(host which);
    void carry_out();
    void carry_out(const demo_action::start_standby&);
    void carry_out(const demo_action::report_guest& action);
    void carry_out(const demo_action::read_gpu& action);
    void carry_out(const demo_action::kill_primary&);
    void carry_out(const demo_action::show& action);
    void carry_out(const demo_action::say& action);
    void carry_out(const demo_action::end& action);
    void finish(const std::string& why);
    void print(const std::string& text);
    void stop_everybody();
    int report();
    void complain();

    const guest_run_options& options_;
    const crash_demo_options& more_;
    crash_fsm fsm_;
    std::array<supervised, 2> hosts_;
    std::string directory_; // everything of this run
    std::string runtime_;   // in it: where `kage status` finds both
    std::string self_, flavour_, train_;
    std::string last_words_; // of a supervisor that could not start
    int primary_qemu_ = 0;
    std::map<std::string, std::set<std::string>> hidden_; // by the name of their set
    std::map<demo_action::reading, json> readings_;
    std::uint64_t started_ns_ = 0;
    bool over_ = false, interrupted_ = false, keep_ = false;
    std::string why_;
};

crash_demo::~crash_demo() {
    for (auto& one : hosts_)
        one.process.reset(); // kills, and the kernel then kills its QEMU
    std::error_code error;
    if (!directory_.empty() && !keep_)
        fs::remove_all(directory_, error);
}

void crash_demo::print(const std::string& text) {
    const double seconds = static_cast<double>(boot_ns() - started_ns_) * 1e-9;
    if (!write_all(STDOUT_FILENO, fmt::format("{:6.1f} s  {}\n", seconds, text)))
        over_ = interrupted_ = true; // nobody reads any more
}

// ---- what both are started with

// Times are generous: whatever else this machine does, it is no failure. A death is not waited for, it is
// told.
std::string crash_demo::description(const std::string& accel, const std::string& gpu) const {
    auto text = fmt::format(R"(name = "demo"
memory = "{}M"
cpus = {}
accel = "{}"
)",
                            options_.memory_mib, options_.cpus, accel);
    if (!options_.qemu_options.empty())
        text += fmt::format("qemu-options = {}\n", as_json_text(options_.qemu_options));
    text += fmt::format("[boot]\nguest = {}\njob = \"job.sh\"\nfiles = [", quoted(flavour_));
    if (more_.program == demo_program::training)
        text += quoted(train_ + ":train");
    for (const auto& [name, words] : hidden_)
        text += quoted(name) + ", ";
    text += fmt::format("]\n[gpu]\nbackend = {}\ngpu = {}\n", quoted(options_.backend), quoted(gpu));
    if (!options_.driver.empty())
        text += fmt::format("driver = {}\n", quoted(options_.driver));
    if (!options_.device_options.empty())
        text += "[gpu.properties]\n";
    for (const auto& option : options_.device_options) {
        const auto equals = std::min(option.find('='), option.size());
        text += fmt::format("{} = {}\n", quoted(option.substr(0, equals)),
                            quoted(option.substr(std::min(equals + 1, option.size()))));
    }
    return text + R"([protection]
standby = "unix:standby"
epoch-ms = 100
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[supervision]
main-loop-ms = 120000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
)";
}

bool crash_demo::hide_words() {
    for (const auto& set : word_sets()) {
        const auto words = hidden_words(words_hidden, set);
        if (!words)
            return false;
        std::string hashes;
        for (const auto& word : *words)
            hashes += word.substr(0, word.find(':')) + "\n";
        if (!write_file(fmt::format("{}/{}", directory_, set.name()), hashes))
            return false;
        hidden_[set.name()] = *words;
    }
    return true;
}

bool crash_demo::write_files(const std::string& accel, const assets& parts) {
    if (more_.program == demo_program::training) {
        train_ = find_built(training_program);
        if (train_.empty()) {
            fmt::print(stderr, "kage: {}\n", not_there(training_program));
            return false;
        }
    } else if (!hide_words()) {
        return false;
    }
    const bool alike = more_.standby_gpu.empty() || more_.standby_gpu == options_.gpu;
    return write_file(directory_ + "/job.sh", job_of(more_.program, alike)) &&
           write_file(directory_ + "/assets.json", as_json_text(parts.to_json())) &&
           write_file(directory_ + "/primary.toml", description(accel, options_.gpu)) &&
           write_file(directory_ + "/standby.toml",
                      description(accel, more_.standby_gpu.empty() ? options_.gpu : more_.standby_gpu));
}

bool crash_demo::prepare() {
    flavour_ = options_.flavour.empty() ? default_flavour : options_.flavour;
    const auto parts = find_assets(flavour_, true);
    if (!parts)
        return false;
    std::error_code error;
    self_ = fs::read_symlink("/proc/self/exe", error).string();
    auto name = (fs::temp_directory_path(error) / "kagemusha-demo-XXXXXX").string();
    if (error || !::mkdtemp(name.data())) {
        fmt::print(stderr, "kage: no temporary directory: {}\n", std::strerror(errno));
        return false;
    }
    directory_ = name;
    runtime_ = directory_ + "/run";
    if (::mkdir(runtime_.c_str(), S_IRWXU) != 0) {
        fmt::print(stderr, "kage: cannot make {}: {}\n", runtime_, std::strerror(errno));
        return false;
    }
    vm_config probe;
    probe.qemu = parts->qemu;
    probe.firmware_dirs = firmware_dirs(parts->qemu);
    probe.kernel = parts->kernel;
    probe.initramfs = parts->initramfs;
    const auto cpu = choose_accelerator(options_.accel, probe, directory_);
    auto& story = fsm_.story();
    story.kernel = kernel_release(parts->kernel);
    story.cpu = cpu.sentence;
    story.backend = options_.backend;
    if (!write_files(cpu.accel == accelerator::kvm ? "kvm" : "tcg", *parts))
        return false;
    fmt::print("A VM with a GPU, and a standby of it. Both hosts are this machine. In the guest {}, twice;\n"
               "the second time the primary's QEMU is killed in the middle.\n"
               "guest: Linux {}, {} CPUs, {} MiB, {}\n"
               "In another terminal: KAGEMUSHA_RUNTIME_DIR={} {} status --watch\n\n",
               more_.program == demo_program::training
                   ? "a network is trained"
                   : fmt::format("hashcat looks for {} words of which it gets the MD5s", words_hidden),
               story.kernel, options_.cpus, options_.memory_mib, story.cpu, runtime_, tool_word());
    std::fflush(stdout);
    return true;
}

bool crash_demo::start(host which) {
    auto& one = at(which);
    const bool primary = which == host::primary;
    one.name = primary ? "demo" : "demo-standby";
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        why_ = fmt::format("no descriptors left: {}", std::strerror(errno));
        return false;
    }
    one.log = unique_fd(ends[0]);
    const unique_fd theirs(ends[1]), nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::fcntl(one.log.get(), F_SETFL, O_NONBLOCK);
    one.process = child_process::start(
        {{self_, primary ? "run" : "standby", fmt::format("{}/{}.toml", directory_, to_text(which)), "--name",
          one.name, "--json"},
         // Whatever they have to leave behind is in our directory, and goes with it.
         {{"KAGEMUSHA_RUNTIME_DIR", runtime_},
          {"KAGE_ASSETS", directory_ + "/assets.json"},
          {"TMPDIR", directory_}},
         nothing.get(),
         theirs.get(),
         theirs.get(),
         {},
         true},
        why_);
    return one.process.has_value();
}

// ---- what they say

// A line of JSON for each event; what is no JSON is the tool's complaint. All of it is kept for whoever looks
// for a mistake.
void crash_demo::read_log(host which) {
    auto& one = at(which);
    char buffer[16384];
    for (;;) {
        const auto got = ::read(one.log.get(), buffer, sizeof buffer);
        if (got <= 0) {
            if (got == 0 || (errno != EAGAIN && errno != EINTR))
                one.log.reset();
            return;
        }
        std::ofstream(fmt::format("{}/{}.log", directory_, to_text(which)), std::ios::binary | std::ios::app)
            .write(buffer, got);
        one.log_line.append(buffer, static_cast<std::size_t>(got));
        for (auto end = one.log_line.find('\n'); end != std::string::npos; end = one.log_line.find('\n')) {
            const auto line = json::parse(one.log_line.substr(0, end), nullptr, false);
            if (line.is_object())
                fsm_.on_log(which, line.value("event", ""), line.value("text", ""),
                            line.value("boot_ns", std::uint64_t{0}));
            else
                last_words_ = one.log_line.substr(0, end);
            one.log_line.erase(0, end + 1);
        }
        if (one.log_line.size() > longest_log_line)
            one.log_line.clear();
    }
}

// As soon as its QEMU listens, which is long before its guest says anything.
void crash_demo::connect_console(host which) {
    auto& one = at(which);
    if (!one.process || one.ended || one.had_console)
        return;
    one.console = connect_unix(fmt::format("{}/{}.console", runtime_, one.name));
    if (!one.console)
        return;
    one.had_console = true;
    fsm_.on_console(which);
}

// Everything that is there: also what a QEMU had said that is dead.
void crash_demo::read_console(host which) {
    auto& one = at(which);
    char buffer[16384];
    while (one.console) {
        const auto got = ::recv(one.console.get(), buffer, sizeof buffer, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0)
            return one.console.reset();
        const std::string_view bytes(buffer, static_cast<std::size_t>(got));
        if (options_.verbose)
            write_all(STDOUT_FILENO, bytes);
        const auto now = boot_ns();
        for (const auto& event : one.lines.feed(bytes))
            fsm_.on_guest(which, event, now);
    }
}

void crash_demo::ask_status(host which) {
    const auto& one = at(which);
    if (!one.process || one.ended)
        return;
    std::string error;
    const auto s =
        ask_supervisor(fmt::format("{}/{}.control", runtime_, one.name), {{"command", "status"}}, error);
    if (!s)
        return; // it starts, or ends
    supervisor_reading r;
    r.state = s->value("state", "");
    r.degraded = s->value("degraded", "");
    r.checkpoints = s->value("checkpoints", std::uint64_t{0});
    r.pause_us = s->value("pause_us", std::uint64_t{0});
    if (const auto times = s->find("last_takeover_ns"); times != s->end() && times->is_object()) {
        r.committed_ns = times->value("committed", std::uint64_t{0});
        r.decided_ns = times->value("decided", std::uint64_t{0});
        r.running_ns = times->value("running", std::uint64_t{0});
        r.first_command_ns = times->value("first_command", std::uint64_t{0});
    }
    if (which == host::primary)
        primary_qemu_ = s->value("qemu_pid", 0);
    fsm_.on_status(which, r, boot_ns());
}

void crash_demo::ended(host which) {
    auto& one = at(which);
    const auto status = one.process->wait_for(0ms);
    if (!status)
        return;
    read_log(which);
    read_console(which);
    one.ended = true;
    fsm_.on_exit(which, *status);
}

// ---- what is to be done

void crash_demo::carry_out() {
    demo_action::any action;
    while (!over_ && fsm_.next(action))
        std::visit([this](const auto& a) { carry_out(a); }, action);
}

void crash_demo::carry_out(const demo_action::start_standby&) {
    fsm_.story().standby_started_ns = boot_ns();
    if (!start(host::standby))
        finish(why_);
}

void crash_demo::carry_out(const demo_action::report_guest& action) {
    const auto line = action.line + "\n";
    if (::send(at(action.at).console.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size()))
        finish(fmt::format("the {}'s console takes no input", to_text(action.at)));
}

void crash_demo::carry_out(const demo_action::read_gpu& action) {
    std::string error;
    auto qemu = qmp_client::connect(fmt::format("{}/{}.qmp", runtime_, at(action.at).name), error, 10s);
    const auto stats = qemu ? qemu->get(gpu_qom_path, "stats", error) : std::nullopt;
    if (!stats)
        return finish(
            fmt::format("the {}'s QEMU does not say what its GPU does: {}", to_text(action.at), error));
    readings_[action.what] = *stats;
    if (action.what == demo_action::reading::before_kill)
        if (const auto replication = qemu->get(gpu_qom_path, "replication", error); replication)
            if (const auto status = parse_replication(*replication))
                fsm_.story().behind = status->lag_entries;
    auto& gpu = action.at == host::primary ? fsm_.story().gpu : fsm_.story().standby_gpu;
    if (const auto name = qemu->get(gpu_qom_path, "gpu-name", error); name && name->is_string())
        gpu = name->get<std::string>();
}

// Through a descriptor: the number that the supervisor told may be another process's by now, so it is asked
// once more when the descriptor holds the process.
void crash_demo::carry_out(const demo_action::kill_primary&) {
    ask_status(host::primary);
    const auto pid = primary_qemu_;
    const unique_fd qemu(pid > 0 ? ::pidfd_open(pid, 0) : -1);
    ask_status(host::primary);
    if (!qemu || primary_qemu_ != pid)
        return finish("the primary's QEMU is not there any more");
    print(fmt::format("kill -9 {}: the primary's QEMU", pid));
    const auto now = boot_ns();
    if (::pidfd_send_signal(qemu.get(), SIGKILL, nullptr, 0) != 0)
        return finish(fmt::format("the primary's QEMU cannot be killed: {}", std::strerror(errno)));
    fsm_.on_killed(now);
}

void crash_demo::carry_out(const demo_action::show& action) {
    print(fmt::format("{} │ {}", to_text(action.at), action.text));
}

void crash_demo::carry_out(const demo_action::say& action) {
    print(action.text);
}

void crash_demo::carry_out(const demo_action::end& action) {
    finish(action.why);
}

void crash_demo::finish(const std::string& why) {
    over_ = true;
    why_ = why;
}

// ---- the whole

void crash_demo::loop() {
    const auto deadline = clock::now() + std::chrono::seconds(options_.timeout_s);
    auto status_at = clock::now();
    while (!over_) {
        std::vector<pollfd> fds{{interrupt_fd(), POLLIN, 0}};
        for (const auto& one : hosts_) {
            fds.push_back({one.log.get(), POLLIN, 0});
            fds.push_back({one.console.get(), POLLIN, 0});
            fds.push_back({one.process && !one.ended ? one.process->pidfd() : -1, POLLIN, 0});
        }
        if (::poll(fds.data(), fds.size(),
                   static_cast<int>(std::chrono::milliseconds(connect_period).count())) < 0 &&
            errno != EINTR)
            return finish(fmt::format("poll: {}", std::strerror(errno)));
        if (fds[0].revents && interrupted_by()) {
            interrupted_ = true;
            return;
        }
        if (clock::now() >= deadline)
            return finish(fmt::format("the time limit of {} s was hit", options_.timeout_s));
        const bool look = clock::now() >= status_at;
        if (look)
            status_at = clock::now() + status_period;
        for (const auto which : {host::primary, host::standby}) {
            const auto first = which == host::primary ? 1u : 4u;
            if (fds[first].revents)
                read_log(which);
            connect_console(which);
            read_console(which);
            if (look)
                ask_status(which);
            if (fds[first + 2].revents)
                ended(which);
        }
        carry_out();
    }
}

// In order where that is possible: a killed QEMU leaves nothing either, but its supervisor says less.
void crash_demo::stop_everybody() {
    std::string error;
    for (auto& one : hosts_)
        if (one.process && !one.ended && // one that does not listen yet has nothing to say
            !ask_supervisor(fmt::format("{}/{}.control", runtime_, one.name), {{"command", "stop"}}, error))
            one.process->kill();
    const auto until = clock::now() + end_time;
    for (const auto which : {host::primary, host::standby}) {
        auto& one = at(which);
        if (!one.process)
            continue;
        one.process->wait_for(
            std::max(0ms, std::chrono::ceil<std::chrono::milliseconds>(until - clock::now())));
        one.process->kill();
        one.process->wait_for(-1ms);
        read_log(which);
    }
}

int crash_demo::report() {
    auto& story = fsm_.story();
    using enum demo_action::reading;
    story.known = hidden_[story.words.name()];
    story.reference_work = activity_between(readings_[before_reference], readings_[after_reference]);
    story.before = activity_between(readings_[before_crash_run], readings_[before_kill]);
    story.after = activity_between(readings_[after_takeover], readings_[at_end]);
    fmt::print("{}{}", timeline_text(story), story_summary(story));
    if (!more_.svg.empty() && write_file(more_.svg, timeline_svg(story)))
        fmt::print("  {:<12}{}\n", "picture", fs::absolute(more_.svg).string());
    if (!options_.report.empty())
        write_file(options_.report, as_json_text(story_report(story), 2) + "\n");
    return why_not_verified(story).empty() ? 0 : 1;
}

// Why, and what those said whom a person cannot see.
void crash_demo::complain() {
    fmt::print(stderr, "kage: {}\n", why_);
    if (!last_words_.empty())
        fmt::print(stderr, "  {}\n", last_words_);
    for (const auto which : {host::primary, host::standby}) {
        const auto path = fmt::format("{}/{}.d/qemu.log", runtime_, at(which).name);
        for (const auto& line : last_lines(path, end_of_log_lines))
            fmt::print(stderr, "  {}'s QEMU │ {}\n", to_text(which), line);
    }
}

int crash_demo::run() {
    started_ns_ = fsm_.story().started_ns = boot_ns();
    if (!prepare())
        return interrupted_by() ? 128 + interrupted_by() : 125;
    print("the VM boots");
    if (start(host::primary))
        loop();
    stop_everybody();
    if (interrupted_)
        return interrupted_by() ? 128 + interrupted_by() : 128 + SIGPIPE;
    int status = 125;
    if (why_.empty())
        status = report();
    else
        complain();
    keep_ = options_.keep || status != 0;
    std::fflush(stdout);
    if (keep_)
        fmt::print(stderr,
                   "logs: {} (primary.log, standby.log, run/demo.d and run/demo-standby.d with console.log "
                   "and qemu.log)\n",
                   directory_);
    return status;
}

} // namespace

int run_crash_demo(const guest_run_options& options, const crash_demo_options& more) {
    return crash_demo(options, more).run();
}

} // namespace kagemusha::control
