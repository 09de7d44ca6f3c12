// SPDX-License-Identifier: GPL-2.0-or-later
//
// See machine.hpp. One thread, one poll() over: QEMU's console, its QMP socket, its pidfd, our terminal, our
// signals.
#include "control/qemu/machine.hpp"

#include "control/base/process.hpp"
#include "control/qemu/console.hpp"
#include "control/qemu/qemu_command.hpp"
#include "control/qemu/qmp_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto power_off_time = 15s; // from the job's end until the guest is off
constexpr auto quit_time = 15s;      // from QMP's quit until QEMU has ended
constexpr char leave_key = 0x1d;     // Ctrl-] ends an interactive machine at once

double seconds_between(clock::time_point from, clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// The terminal without line editing and signals while the guest has it.
class raw_terminal {
public:
    explicit raw_terminal(bool wanted) {
        if (!wanted || !::isatty(STDIN_FILENO) || ::tcgetattr(STDIN_FILENO, &before_) != 0)
            return;
        termios raw = before_;
        ::cfmakeraw(&raw);
        active_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    ~raw_terminal() {
        if (active_)
            ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
    }
    raw_terminal(const raw_terminal&) = delete;
    raw_terminal& operator=(const raw_terminal&) = delete;

private:
    termios before_{};
    bool active_ = false;
};

class machine {
public:
    explicit machine(const machine_run& run) : run_(run) {}
    machine_result operator()();

private:
    bool start();
    void loop();
    void read_console();
    void console_closed();
    void take(const console_event& event);
    void read_qmp();
    void take(const qmp_message& message);
    void read_terminal();
    void write_terminal_input();
    void ask(const char* name, nlohmann::json arguments, std::function<void(const qmp_message&)> answer);
    void ask_stats(nlohmann::json machine_result::* where);
    void finish(machine_result::end how, std::string problem = {});
    void quit();
    void begin_power_off();
    clock::time_point deadline() const;

    const machine_run& run_;
    machine_result result_;
    std::optional<child_process> qemu_;
    unique_fd console_in_, console_out_, qmp_, console_log_;
    console_parser parser_;
    qmp_session session_;
    std::map<std::uint64_t, std::function<void(const qmp_message&)>> answers_;
    std::string to_guest_; // typed, not yet taken by QEMU; bounded by not reading more
    clock::time_point started_, job_started_;
    std::optional<clock::time_point> power_off_by_, quit_by_;
    bool in_job_ = false, leaving_ = false, over_ = false, stdin_open_ = true;
};

bool machine::start() {
    int to[2], from[2], monitor[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0 ||
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, monitor) != 0) {
        result_.problem = fmt::format("no descriptors left: {}", std::strerror(errno));
        return false;
    }
    unique_fd guest_in(to[0]), guest_out(from[1]), guest_qmp(monitor[1]);
    console_in_ = unique_fd(to[1]);
    console_out_ = unique_fd(from[0]);
    qmp_ = unique_fd(monitor[0]);
    ::fcntl(console_in_.get(), F_SETFL, O_NONBLOCK);
    unique_fd errors(::open((run_.directory + (run_.probe ? "/kvm-probe.log" : "/qemu.log")).c_str(),
                            O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    console_log_ = unique_fd(
        ::open((run_.directory + "/console.log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!errors || !console_log_) {
        result_.problem = fmt::format("cannot write into {}: {}", run_.directory, std::strerror(errno));
        return false;
    }
    auto config = run_.config;
    config.qmp_fd = guest_qmp.get();
    started_ = clock::now();
    qemu_ = child_process::start({qemu_command(config),
                                  run_.environment,
                                  guest_in.get(),
                                  guest_out.get(),
                                  errors.get(),
                                  {guest_qmp.get()},
                                  true,
                                  true},
                                 result_.problem);
    if (!run_.interactive)
        console_in_.reset();
    return qemu_.has_value();
}

machine_result machine::operator()() {
    if (!start())
        return result_;
    raw_terminal terminal(run_.interactive);
    loop();
    qemu_.reset(); // kills what is still there
    return result_;
}

clock::time_point machine::deadline() const {
    auto at = run_.interactive && !power_off_by_ ? clock::time_point::max() : started_ + run_.time_limit;
    if (power_off_by_)
        at = *power_off_by_;
    if (quit_by_)
        at = *quit_by_;
    return at;
}

void machine::loop() {
    while (!over_) {
        const bool typing = run_.interactive && stdin_open_ && to_guest_.empty() && !leaving_;
        pollfd fds[] = {{console_out_.get(), POLLIN, 0},
                        {qmp_.get(), POLLIN, 0},
                        {qemu_->pidfd(), POLLIN, 0},
                        {interrupt_fd(), POLLIN, 0},
                        {typing ? STDIN_FILENO : -1, POLLIN, 0},
                        {to_guest_.empty() ? -1 : console_in_.get(), POLLOUT, 0}};
        int wait_ms = -1;
        if (const auto at = deadline(); at != clock::time_point::max()) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(at - clock::now()).count();
            wait_ms = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
        }
        const int ready = ::poll(fds, std::size(fds), wait_ms);
        if (ready < 0 && errno != EINTR)
            return finish(machine_result::end::failed, fmt::format("poll: {}", std::strerror(errno)));
        if (ready == 0 && clock::now() >= deadline()) {
            if (quit_by_) {
                finish(machine_result::end::failed,
                       fmt::format("QEMU did not end within {} s of QMP's quit", quit_time.count()));
            } else if (power_off_by_) {
                quit();
            } else {
                finish(machine_result::end::timed_out,
                       fmt::format("the time limit of {} s was hit", run_.time_limit.count()));
            }
            continue;
        }
        if (ready <= 0)
            continue;
        if (fds[3].revents && interrupted_by())
            return finish(machine_result::end::interrupted);
        if (fds[0].revents)
            read_console();
        if (!over_ && fds[1].revents)
            read_qmp();
        if (!over_ && fds[4].revents)
            read_terminal();
        if (!over_ && fds[5].revents)
            write_terminal_input();
        // Last, and only when the console is empty: what the guest said before the end counts.
        if (!over_ && fds[2].revents && !fds[0].revents)
            console_closed();
    }
}

void machine::read_console() {
    char buffer[16384];
    const auto got = ::read(console_out_.get(), buffer, sizeof buffer);
    if (got <= 0) {
        console_out_.reset(); // poll ignores -1; the pidfd tells the rest
        return;
    }
    const std::string_view bytes(buffer, static_cast<std::size_t>(got));
    if (::write(console_log_.get(), bytes.data(), bytes.size()) < 0)
        return finish(machine_result::end::failed,
                      fmt::format("cannot write console.log: {}", std::strerror(errno)));
    for (const auto& event : parser_.feed(bytes))
        if (!over_)
            take(event);
}

void machine::take(const console_event& event) {
    switch (event.what) {
    case console_event::kind::text:
        if (run_.show && (in_job_ || run_.verbose) && !run_.show(event.text))
            finish(machine_result::end::interrupted);
        break;
    case console_event::kind::probe_answered:
        if (run_.probe)
            finish(machine_result::end::probe_answered);
        break;
    case console_event::kind::job_started:
        if (in_job_ || leaving_)
            break; // the job's own words
        in_job_ = true;
        job_started_ = clock::now();
        result_.boot_seconds = seconds_between(started_, job_started_);
        ask_stats(&machine_result::stats_before);
        break;
    case console_event::kind::job_ended:
        if (leaving_)
            break;
        if (in_job_)
            result_.job_seconds = seconds_between(job_started_, clock::now());
        in_job_ = false;
        result_.how = machine_result::end::job_ended;
        result_.job_status = event.status;
        ask_stats(&machine_result::stats_after);
        begin_power_off();
        break;
    }
}

// The guest switches itself off; QEMU stays until its SHUTDOWN event brings our quit.
void machine::begin_power_off() {
    leaving_ = true;
    power_off_by_ = clock::now() + power_off_time;
}

void machine::console_closed() {
    const auto status = qemu_->wait_for(0ms);
    if (!status)
        return;
    if (leaving_ && *status == 0) {
        over_ = true;
        return;
    }
    finish(machine_result::end::failed, fmt::format("QEMU ended with {}", how_it_ended(*status)));
}

void machine::read_qmp() {
    char buffer[16384];
    const auto got = ::read(qmp_.get(), buffer, sizeof buffer);
    if (got <= 0) {
        qmp_.reset();
        return;
    }
    for (const auto& message : session_.feed({buffer, static_cast<std::size_t>(got)}))
        if (!over_)
            take(message);
}

void machine::take(const qmp_message& message) {
    switch (message.what) {
    case qmp_message::kind::greeting:
        ask("qmp_capabilities", {}, {});
        if (run_.config.gpu)
            ask("qom-get", {{"path", gpu_qom_path}, {"property", "gpu-name"}},
                [this](const qmp_message& answer) {
                    if (answer.body.is_string())
                        result_.gpu_name = answer.body.get<std::string>();
                });
        break;
    case qmp_message::kind::event:
        if (message.name == "SHUTDOWN" || message.name == "GUEST_PANICKED") {
            if (!leaving_) {
                result_.problem = "the guest ended without saying how its job went";
                leaving_ = true;
            }
            quit(); // and see whether QEMU ends as it should
        }
        break;
    case qmp_message::kind::success:
    case qmp_message::kind::failure:
        if (const auto found = answers_.find(message.id); found != answers_.end()) {
            const auto answer = std::move(found->second);
            answers_.erase(found);
            if (answer)
                answer(message);
        }
        break;
    case qmp_message::kind::broken:
        finish(machine_result::end::failed, "QEMU's monitor does not speak QMP");
        break;
    }
}

void machine::ask(const char* name, nlohmann::json arguments,
                  std::function<void(const qmp_message&)> answer) {
    std::uint64_t id = 0;
    const auto bytes = session_.command(name, arguments, id);
    answers_[id] = std::move(answer);
    // Short lines on an empty socket; when QEMU is gone the pidfd tells.
    if (qmp_)
        (void)!::send(qmp_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void machine::ask_stats(nlohmann::json machine_result::* where) {
    if (run_.config.gpu)
        ask("qom-get", {{"path", gpu_qom_path}, {"property", "stats"}},
            [this, where](const qmp_message& answer) {
                if (answer.what == qmp_message::kind::success)
                    result_.*where = answer.body;
            });
}

void machine::read_terminal() {
    char buffer[1024];
    const auto got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) {
        stdin_open_ = false;
        return;
    }
    if (std::memchr(buffer, leave_key, static_cast<std::size_t>(got)))
        return finish(machine_result::end::interrupted);
    to_guest_.append(buffer, static_cast<std::size_t>(got));
}

void machine::write_terminal_input() {
    const auto done = ::write(console_in_.get(), to_guest_.data(), to_guest_.size());
    if (done > 0)
        to_guest_.erase(0, static_cast<std::size_t>(done));
    else if (errno != EAGAIN && errno != EINTR)
        to_guest_.clear();
}

void machine::finish(machine_result::end how, std::string problem) {
    result_.how = how;
    result_.problem = std::move(problem);
    over_ = true;
}

void machine::quit() {
    ask("quit", {}, {});
    quit_by_ = clock::now() + quit_time;
}

} // namespace

machine_result run_machine(const machine_run& run) {
    return machine(run)();
}

} // namespace kagemusha::control
