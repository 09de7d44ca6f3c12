// SPDX-License-Identifier: GPL-2.0-or-later
//
// See supervisor.hpp.
#include "control/supervise/supervisor.hpp"

#include "control/base/json_text.hpp"
#include "control/base/log_file.hpp"
#include "control/confine/enter.hpp"
#include "control/keys/key_dates.hpp"
#include "control/keys/qemu_keys.hpp"
#include "control/pilot/qemu_pilot.hpp"
#include "control/relay/relayed_links.hpp"
#include "control/share/vm_share.hpp"
#include "control/supervise/control_socket.hpp"
#include "control/supervise/decider.hpp"
#include "control/supervise/described_vm.hpp"
#include "control/supervise/gate.hpp"
#include "control/supervise/inbox.hpp"
#include "control/supervise/log_keeper.hpp"
#include "control/supervise/takeover_drill.hpp"
#include "control/vm/image_mark.hpp"
#include "control/vm/prepare.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <malloc.h>
#include <poll.h>
#include <random>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kagemusha::control {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

// When something happened: for people, and for what several processes of one machine tell of one story.
struct moment {
    std::chrono::system_clock::time_point time = std::chrono::system_clock::now();
    std::uint64_t ns = boot_ns();
};

double ms_between(std::uint64_t from_ns, std::uint64_t to_ns) {
    return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) * 1e-6;
}

class supervisor {
public:
    supervisor(const supervisor_options& options, vm_description vm)
        : options_(options), vm_(std::move(vm)) {}
    ~supervisor() { remove_sockets(); }
    supervisor(const supervisor&) = delete;
    supervisor& operator=(const supervisor&) = delete;
    int run();

private:
    bool prepare();
    bool confine(vm_places places, std::string& error);
    bool make_room(const vm_places& places, std::string& error);
    void replicate(std::uint64_t replication);
    bool encrypted() const;
    void look_at_links(bool ended);
    void remove_sockets() const;
    void loop();
    void log(const std::string& event, const std::string& text, const moment& when = {});
    json answer(const json& request);
    json begin_drill();
    json status();
    json certificates() const;
    void watch_keys();
    pilot_events pilot_reports();
    decider_orders orders();
    void finish(bool in_order, const std::string& why);
    bool use_address(const std::string& address, std::string& error);
    std::string look_at_images();
    void begin_mark();
    void finish_mark(std::string problem);
    void state_changed(const std::string& state);
    void asked_by_signal(int number);
    void hand_over_failed(const std::string& why);
    void stop_instead();

    const supervisor_options& options_;
    const vm_description vm_;
    inbox inbox_;
    std::optional<vm_registration> registration_;
    std::optional<prepared_vm> prepared_;
    std::unique_ptr<gate> gate_;
    std::optional<control_socket> socket_;
    std::optional<log_keeper> logs_;
    std::optional<qemu_pilot> pilot_;
    std::unique_ptr<decider> decider_;
    std::optional<relayed_links> links_; // of a confined QEMU
    std::unique_ptr<share_lease> share_; // of a GPU that others use, too
    std::string state_address_, gpu_address_, directory_;
    std::string qemu_log() const { return directory_ + "/qemu.log"; }
    std::set<std::string> qemus_sockets_; // a QEMU that is killed leaves them behind
    std::string warning_;                 // what does not get on
    std::string gpu_lost_;            // a standby's GPU has no copy, or the last takeover had none, and why
    std::vector<std::string> images_; // of the writable disks
    bool switching_over_ = false;     // and the standby has not said that it runs the VM
    bool moving_out_ = false;         // a switchover that becomes a stop if it fails
    takeover_drill drill_;
    std::chrono::steady_clock::time_point keys_watched_at_{};
    ha::disk_mark image_mark_; // what they said at the beginning
    struct mark_order {
        ha::disk_mark mark;
        bool flush;
    };
    std::deque<mark_order> marks_; // the first one is under way
    bool over_ = false, quitting_ = false;
    int status_ = 0;
    std::uint64_t running_ns_ = 0, committed_ns_ = 0, completed_ns_ = 0; // of the last takeover
};

// One line for each event, on stderr: what a person or a log collector reads.
void supervisor::log(const std::string& event, const std::string& text, const moment& when) {
    const auto now = when.time;
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
    const auto time = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                                  fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms);
    if (options_.json)
        fmt::print(
            stderr, "{}\n",
            as_json_text(
                {{"time", time}, {"vm", vm_.name}, {"event", event}, {"text", text}, {"boot_ns", when.ns}}));
    else
        fmt::print(stderr, "{} {}: {}{}{}\n", time, vm_.name, event, text.empty() ? "" : ": ",
                   as_log_line(text));
}

bool supervisor::prepare() {
    std::string error;
    const auto name = !options_.name.empty() ? options_.name
                      : options_.standby     ? vm_.name + "-standby"
                                             : vm_.name;
    auto made = vm_registration::make(name, error, true);
    if (!made) {
        complain({error});
        return false;
    }
    registration_.emplace(std::move(*made));
    directory_ = registration_->beside(".d");
    std::error_code failed;
    fs::create_directories(directory_ + "/root", failed); // where a confined QEMU's is built
    vm_places places;
    places.directory = directory_;
    places.status_socket = registration_->qmp_socket();
    places.gate = registration_->beside(".gate");
    places.console_socket = registration_->beside(".console");
    places.console_log = vm_.console_log.empty() ? directory_ + "/console.log" : vm_.console_log;
    if (options_.standby && !vm_.console_log.empty())
        places.console_log += ".standby"; // both may be on one machine
    qemus_sockets_.insert(places.console_socket);
    remove_sockets();
    state_address_ = vm_.protection.state;
    gpu_address_ = vm_.protection.gpu;
    if (!options_.address.empty() && !use_address(options_.address, error)) {
        complain({error});
        return false;
    }
    places.gpu_address = gpu_address_;
    places.to_peers = directory_ + "/peers";
    places.of_qemu = directory_ + "/listens";
    places.offers = look_at_host();
    if (vm_.gpu && vm_.gpu->share)
        places.share = fs::path(vm_.gpu->share->socket).parent_path().string();
    if (error = look_at_images(); !error.empty()) {
        complain({error});
        return false;
    }
    prepared_ = prepare_vm(vm_, places);
    if (!prepared_)
        return false;
    // What QEMU told of its processors was much, and this process stays for months.
    ::malloc_trim(0);
    gate_ = gate::make(places.gate, error);
    if (!confine(places, error)) {
        complain({error});
        return false;
    }
    log("confined", prepared_->confinement.says);
    share_ = take_share(
        vm_, name, options_.standby,
        [this](const std::string& what) { inbox_.put([this, what] { log("share", what); }); },
        prepared_->environment, error);
    if (!error.empty()) {
        complain({error});
        return false;
    }
    if (gate_)
        socket_ = control_socket::listen(
            registration_->control_socket(), [this](const json& request) { return answer(request); }, error);
    if (!gate_ || !socket_)
        complain({error});
    return gate_ && socket_;
}

// By default only where QEMU has everything that it loads: a host whose file systems or rights are unusual
// runs its VMs as before, and says so.
bool supervisor::confine(vm_places places, std::string& error) {
    if (!prepared_->confinement.what)
        return true;
    const bool has_room = make_room(places, error);
    if (vm_.confinement.described)
        return has_room;
    if (has_room) {
        auto tried = *prepared_->confinement.what;
        tried.descriptors.clear(); // which nobody may have open twice
        const auto version =
            run_captured({prepared_->config.qemu, "--version"}, prepared_->environment, to_text(tried));
        if (version.status == 0)
            return true;
        error = version.out.empty() ? "QEMU does not start with a root of its own" : version.out;
    }
    error.erase(std::find(error.begin(), error.end(), '\n'), error.end());
    links_.reset();
    places.offers.reset();
    prepared_ = prepare_vm(vm_, places);
    if (prepared_)
        prepared_->confinement = without_confinement(error);
    error.clear();
    return prepared_.has_value();
}

// What a confined QEMU does not make itself.
bool supervisor::make_room(const vm_places& places, std::string& error) {
    const unique_fd log(
        ::open(places.console_log.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!log) {
        error = fmt::format("cannot make {}: {}", places.console_log, std::strerror(errno));
        return false;
    }
    links_ = relayed_links::make(
        {places.to_peers, places.of_qemu, prepared_->confinement.what->user, vm_.gpu.has_value(), qemu_log()},
        error);
    if (links_ && options_.standby)
        error = links_->listen({state_address_, gpu_address_});
    return error.empty();
}

// The VM's state. A Unix socket is this machine's own, and has no name that a certificate could have.
bool supervisor::encrypted() const {
    return !vm_.protection.tls.empty() && needs_tls(state_address_);
}

void supervisor::replicate(std::uint64_t replication) {
    link_addresses to{state_address_, gpu_address_};
    if (links_) {
        if (const auto problem = links_->aim(to); !problem.empty())
            return decider_->replication_lost(replication, problem);
        to = links_in(directory_ + "/peers");
    }
    pilot_->replicate(replication, to, encrypted());
}

void supervisor::remove_sockets() const {
    for (const auto& path : qemus_sockets_)
        ::unlink(path.c_str());
}

pilot_events supervisor::pilot_reports() {
    pilot_events events;
    events.ready = [this, own = std::vector{state_address_, gpu_address_}](std::uint64_t qemu) {
        constexpr std::string_view prefix = "unix:";
        for (const std::string& address : own)
            if (address.starts_with(prefix))
                qemus_sockets_.insert(address.substr(prefix.size()));
        decider_->qemu_ready(qemu);
    };
    events.protecting = [this](std::uint64_t replication) { decider_->qemu_protecting(replication); };
    events.replication_lost = [this](std::uint64_t replication, const std::string& why) {
        decider_->replication_lost(replication, why);
    };
    events.running = [this] {
        const moment now;
        decider_->qemu_running();
        running_ns_ = now.ns;
        committed_ns_ = completed_ns_ = 0;
        log("running",
            fmt::format("the VM runs here, {:.1f} ms after the decision",
                        ms_between(decider_->status().decided_ns, now.ns)),
            now);
    };
    events.gpu_computes = [this](std::uint64_t committed_ns, std::uint64_t completed_ns) {
        committed_ns_ = committed_ns;
        completed_ns_ = completed_ns;
        const auto decided_ns = decider_->status().decided_ns;
        moment then;
        then.time -= std::chrono::duration_cast<std::chrono::system_clock::duration>(
            std::chrono::nanoseconds(then.ns - completed_ns));
        then.ns = completed_ns;
        log("first-command",
            fmt::format("the GPU completed the guest's first command, {:.1f} ms after the decision; the last "
                        "checkpoint was {:.1f} ms before it",
                        ms_between(decided_ns, completed_ns), ms_between(committed_ns, decided_ns)),
            then);
    };
    events.takeover_failed = [this](const std::string& why) { decider_->takeover_failed(why); };
    events.stuck = [this](const std::string& why) { decider_->qemu_stuck(why); };
    events.warning = [this](const std::string& what) {
        warning_ = what;
        log("warning", what.empty() ? "what was warned of is over" : what);
    };
    events.differences = [this](const std::string& what) { log("differences", what); };
    events.guest_ended = [this](const std::string& how) {
        log("stop", how);
        decider_->stop();
    };
    events.stopped = [this] { log("stopped", "the VM stands still until the standby has it"); };
    events.handed_over = [this](std::uint64_t replication) { decider_->qemu_handed_over(replication); };
    events.hand_over_failed = [this](const std::string& why) { hand_over_failed(why); };
    events.gpu_lost = [this](const std::string& why) {
        gpu_lost_ = why;
        log("gpu-lost", why);
        decider_->gpu_lost(why);
    };
    events.gpu_failed = [this](const std::string& why) { decider_->gpu_failed(why); };
    events.died = [this](const std::string& how, bool in_order, std::uint64_t qemu) {
        drill_.qemu_ended(boot_ns());
        log("qemu-ended", how);
        decider_->qemu_died(how, in_order, qemu); // first: others wait for it
        if (!in_order)
            for (const auto& line : last_lines(qemu_log(), 5))
                log("qemu", line);
        if (quitting_)
            over_ = true;
    };
    events.log = [this](const std::string& line) { log("qemu", line); };
    return events;
}

decider_orders supervisor::orders() {
    decider_orders orders;
    const auto order = [this](void (qemu_pilot::*what)()) {
        return [this, what] { inbox_.put([this, what] { ((*pilot_).*what)(); }); };
    };
    orders.start_primary = order(&qemu_pilot::start_primary);
    orders.start_standby = order(&qemu_pilot::start_standby);
    orders.go_on_alone = order(&qemu_pilot::go_on_alone);
    orders.tell_gpu_failure = order(&qemu_pilot::tell_gpu_failure);
    orders.take_over = order(&qemu_pilot::take_over);
    orders.replicate = [this](std::uint64_t replication) {
        inbox_.put([this, replication] { replicate(replication); });
    };
    orders.restart_standby = [this](std::string why, std::uint64_t qemu) {
        inbox_.put([this, why = std::move(why), qemu] {
            gpu_lost_.clear();
            pilot_->restart_standby(why, qemu);
        });
    };
    orders.kill = [this](std::string why) {
        inbox_.put([this, why = std::move(why)] {
            drill_.killed(boot_ns());
            pilot_->kill(why);
        });
    };
    orders.mark = [this](const ha::disk_mark& m, bool flush) {
        inbox_.put([this, m, flush] {
            marks_.push_back({m, flush});
            if (marks_.size() == 1)
                begin_mark();
        });
    };
    orders.ended = [this](bool in_order, std::string why) {
        inbox_.put([this, in_order, why = std::move(why)] { finish(in_order, why); });
    };
    orders.event = [this](std::string name, std::string text) {
        inbox_.put([this, name = std::move(name), text = std::move(text), when = moment()] {
            log(name, text, when);
            state_changed(name);
        });
    };
    return orders;
}

// Before anybody else is asked: a VM must not go back to disks that are not the newest. Of one that had a
// standby, that standby knows more.
std::string supervisor::look_at_images() {
    for (const auto& disk : vm_.disks)
        if (disk.writable)
            images_.push_back(disk.path);
    std::string error;
    image_mark_ = read_marks(images_, error);
    if (options_.standby && error.empty() && image_mark_.state == ha::disk_state::unmarked) {
        image_mark_ = ha::waits(image_mark_); // from now on nobody starts the VM from it by mistake
        error = write_marks(images_, image_mark_);
    }
    const bool is_person_sure = options_.standby ? options_.overwrite : options_.anew;
    if (is_person_sure)
        return {};
    if (!error.empty() || options_.standby || images_.empty())
        return error;
    const bool may_ask = !options_.address.empty() || !vm_.protection.standby.empty();
    return may_ask && image_mark_.state == ha::disk_state::protected_
               ? std::string()
               : why_not_start(image_mark_, images_[0]);
}

// An image may only be called the newest when all that it has is on the disk. A QEMU that runs has a part of
// that in its memory (qcow2's tables), so it flushes.
void supervisor::begin_mark() {
    if (!marks_.front().flush)
        return finish_mark({});
    if (!pilot_->alive())
        return finish_mark(flush_images(images_));
    pilot_->flush_disks([this](const std::string& problem) { finish_mark(problem); });
}

void supervisor::finish_mark(std::string problem) {
    if (problem.empty())
        problem = write_marks(images_, marks_.front().mark);
    if (!problem.empty())
        log("disks", problem + ". Without its mark nobody knows which host has the newest disks");
    marks_.pop_front();
    decider_->marked(problem);
    if (!marks_.empty())
        begin_mark();
}

void supervisor::state_changed(const std::string& state) {
    if (state == to_text(ha::primary_state::alone) || state == to_text(ha::primary_state::taking_back))
        switching_over_ = false;
    // The standby did not run it.
    if (state == to_text(ha::primary_state::taking_back) && std::exchange(moving_out_, false))
        stop_instead();
}

// The decider is through. QEMU may still be there: it is asked to end, or was killed.
void supervisor::finish(bool in_order, const std::string& why) {
    status_ = in_order ? 0 : 1;
    quitting_ = true;
    if (drill_.under_way())
        socket_->answer_waiting(drill_.over(in_order, why, boot_ns()));
    if (!pilot_->alive())
        over_ = true;
    else if (in_order)
        pilot_->quit();
    else
        pilot_->kill(why);
}

// Of a standby, or where we listen as one: what belongs to it is beside it.
bool supervisor::use_address(const std::string& address, std::string& error) {
    const auto state = state_address_beside(address), gpu = gpu_address_beside(address);
    if (state.empty() || gpu.empty())
        error = fmt::format("'{}' is no address: HOST:PORT or unix:PATH", address);
    else if (needs_tls(address) && vm_.protection.tls.empty())
        error =
            fmt::format("{} is no Unix socket, so the VM's description needs 'tls' in [protection], on this "
                        "machine, too, where any user may connect: make keys with `kage keys`",
                        address);
    else
        error = why_not_a_standby(vm_, address);
    if (!error.empty())
        return false;
    state_address_ = state;
    gpu_address_ = gpu;
    return true;
}

json supervisor::certificates() const {
    json out = json::array();
    if (vm_.protection.tls.empty())
        return out;
    const auto now_s = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    for (const auto& date : key_dates(vm_.protection.tls, vm_.name))
        out.push_back(
            {{"name", date.name}, {"expires_at_s", date.expires_at_s}, {"days_left", date.days_left(now_s)}});
    return out;
}

// At the start, and twice a day.
void supervisor::watch_keys() {
    const auto now = std::chrono::steady_clock::now();
    if (vm_.protection.tls.empty() ||
        (keys_watched_at_.time_since_epoch().count() != 0 && now < keys_watched_at_ + std::chrono::hours(12)))
        return;
    keys_watched_at_ = now;
    const auto now_s = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    if (const auto warning = key_warning(key_dates(vm_.protection.tls, vm_.name), now_s); !warning.empty())
        log("keys", warning);
}

json supervisor::status() {
    const auto s = decider_->status();
    return {{"name", registration_ ? registration_->control_socket() : ""},
            {"vm", vm_.name},
            {"role", s.role},
            {"state", s.state},
            {"protected", s.role == "primary" && s.state == "protecting"},
            {"degraded", s.degraded},
            {"waiting_for", s.waiting_for.empty() ? pilot_->copy_waits_for() : s.waiting_for},
            {"standby_problem", s.standby_problem},
            {"warning", warning_},
            {"gpu_lost", gpu_lost_},
            {"peer", s.peer},
            {"peer_differences", s.peer_differences},
            {"protocol_version", s.protocol_version},
            {"term", s.term},
            {"takeovers", s.takeovers},
            {"last_takeover", s.last_takeover},
            {"last_takeover_ns",
             {{"committed", committed_ns_},
              {"decided", s.decided_ns},
              {"running", running_ns_},
              {"output", s.gate_opened_ns},
              {"first_command", completed_ns_}}},
            {"gate_open_ms", s.gate_open_ms},
            {"unprotected_ms", s.unprotected_ms},
            {"checkpoint_age_ms", pilot_->checkpoint_age_ms()},
            {"certificates", certificates()},
            {"checkpoints", pilot_->last().checkpoints},
            {"early_checkpoints", pilot_->last().early},
            {"pause_us", pilot_->last().pause_us},
            {"total_pause_us", pilot_->last().total_pause_us},
            {"epoch_us", pilot_->last().epoch_us},
            {"disk_missing_bytes", pilot_->disk_missing_bytes()},
            {"paused_percent", pilot_->paused_percent()},
            {"qemu", pilot_->alive()},
            {"qemu_pid", pilot_->pid()},
            {"confinement", prepared_->confinement.says},
            {"console_log", prepared_->config.console->log},
            {"pid", ::getpid()}};
}

json supervisor::answer(const json& request) {
    const auto text = [&](const char* key) {
        const auto found = request.find(key);
        return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    const auto command = text("command");
    if (command == "status")
        return status();
    if (command == "stop") {
        log("stop", "asked to");
        decider_->stop();
        return {{"done", true}};
    }
    if (command == "switchover") {
        const auto now = decider_->status();
        if (now.role != "primary" || now.state != "protecting")
            return {{"error", fmt::format("there is no standby to switch over to{}{}",
                                          now.degraded.empty() ? "" : ": ", now.degraded)}};
        log("switchover", "asked to");
        switching_over_ = true;
        pilot_->hand_over();
        return {{"done", true}};
    }
    if (command == "cancel-switchover") {
        if (!switching_over_)
            return {{"error", "no switchover is under way"}};
        pilot_->cancel_hand_over("it was cancelled"); // the VM has not been handed over yet,
        decider_->cancel_switchover();                // or it has
        return {{"done", true}};
    }
    if (command == "drill")
        return begin_drill();
    if (command == "protect") {
        const auto now = decider_->status();
        if (now.role != "primary")
            return {{"error", "this is a standby: ask the VM that runs"}};
        if (vm_.arbiter.what == described_arbiter::kind::none)
            return {{"error", "the VM's description has no [arbiter]: it can't be protected"}};
        if (const auto address = text("standby"); !address.empty()) {
            std::string error;
            if (!use_address(address, error))
                return {{"error", error}};
            decider_->protect(address);
        } else if (vm_.protection.standby.empty() || options_.standby) {
            return {{"error", "name the new standby's address: kage protect VM ADDRESS"}};
        } else {
            decider_->protect({});
        }
        return {{"done", true}};
    }
    return {{"error", fmt::format("'{}' is no command of a supervisor", command)}};
}

// Whoever asked gets the answer when the VM runs on the standby.
json supervisor::begin_drill() {
    const auto now = decider_->status();
    if (now.role != "primary" || now.state != to_text(ha::primary_state::protecting) || switching_over_)
        return {{"error", fmt::format("no drill: the VM is not protected, so it would be lost{}{}",
                                      now.degraded.empty() ? "" : ": ", now.degraded)}};
    if (!now.standby_problem.empty())
        return {{"error", "no drill: a takeover would have to wait: " + now.standby_problem}};
    if (drill_.under_way())
        return {{"error", "a drill is under way"}};
    log("drill", "asked to: QEMU is killed, and the standby goes on");
    drill_.begin(pilot_->checkpoint_age_ms(), boot_ns());
    decider_->drill();
    return nullptr;
}

// The host shuts down, or somebody stops the service: who has a standby moves there. A person at the terminal
// (Ctrl-C) means the VM.
void supervisor::asked_by_signal(int number) {
    const auto now = decider_->status();
    const bool handing_over = now.state == to_text(ha::primary_state::handing_over);
    if (number == SIGTERM && now.role == "primary" &&
        (handing_over || now.state == to_text(ha::primary_state::protecting))) {
        moving_out_ = switching_over_ = true;
        log("switchover", fmt::format("signal {}: the VM moves to its standby", number));
        if (!handing_over)
            pilot_->hand_over();
        return;
    }
    log("stop", fmt::format("signal {}", number));
    decider_->stop();
}

void supervisor::hand_over_failed(const std::string& why) {
    log("switchover", "not possible: " + why);
    switching_over_ = false;
    if (std::exchange(moving_out_, false))
        stop_instead();
}

void supervisor::stop_instead() {
    log("stop", "the VM could not move to its standby, and this host wants it to end");
    decider_->stop();
}

// An order may have started another one meanwhile, which has not ended.
void supervisor::look_at_links(bool ended) {
    if (ended && links_->pidfd() >= 0)
        if (const auto how = links_->ended(); !how.empty())
            log("links", how);
    links_->handle();
}

void supervisor::loop() {
    bool asked_to_stop = false;
    while (!over_) {
        watch_keys();
        const auto wanted = pilot_->fds();
        std::vector<pollfd> fds{{interrupt_fd(), POLLIN, 0},
                                {inbox_.fd(), POLLIN, 0},
                                {wanted.qmp, POLLIN, 0},
                                {wanted.pidfd, POLLIN, 0},
                                {links_ ? links_->pidfd() : -1, POLLIN, 0}};
        const auto own = fds.size();
        socket_->add_to(fds);
        int wait_ms = -1;
        if (const auto at = std::min(pilot_->deadline(),
                                     links_ ? links_->deadline() : qemu_pilot::clock::time_point::max());
            at != qemu_pilot::clock::time_point::max()) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(at - qemu_pilot::clock::now()).count();
            wait_ms = static_cast<int>(std::clamp<long long>(left, 0, 60000));
        }
        if (drill_.under_way())
            wait_ms = std::min(wait_ms < 0 ? 100 : wait_ms, 100);
        if (::poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) {
            log("error", fmt::format("poll: {}", std::strerror(errno)));
            return;
        }
        if (fds[0].revents && interrupted_by()) {
            if (asked_to_stop)
                return; // the second time: at once
            asked_to_stop = true;
            asked_by_signal(interrupted_by());
        }
        if (fds[1].revents)
            inbox_.run();
        // An order may have started another QEMU meanwhile: then these descriptors are not its.
        const auto same = pilot_->fds();
        if (same.qmp == wanted.qmp && same.pidfd == wanted.pidfd)
            pilot_->handle(fds[3].revents != 0);
        if (links_)
            look_at_links(fds[4].revents != 0);
        fds.erase(fds.begin(), fds.begin() + static_cast<std::ptrdiff_t>(own));
        socket_->handle(fds);
        if (const auto refused = drill_.refusal(boot_ns()))
            socket_->answer_waiting(*refused);
    }
}

int supervisor::run() {
    if (!prepare())
        return 125;
    std::random_device random;
    decider_options d;
    const auto& p = vm_.protection;
    d.standby_address = options_.address.empty() ? p.standby : options_.address;
    d.tls = p.tls;
    d.arbiter = vm_.arbiter;
    d.primary.vm = d.standby.vm = vm_.name;
    d.primary.description = d.standby.description = prepared_->fingerprint.text;
    d.primary.parts = d.standby.parts = prepared_->fingerprint.parts;
    d.primary.instance = d.standby.instance = (std::uint64_t{random()} << 32) | random();
    d.primary.heartbeat_ms = p.heartbeat_ms;
    d.primary.heartbeat_budget_ms = d.standby.heartbeat_budget_ms = p.heartbeat_budget_ms;
    d.primary.renew_ms = std::max(vm_.arbiter.lease_ms / 4, 5u);
    d.standby.retry_ms = std::min(p.heartbeat_budget_ms / 4 + 1, 500u);
    d.primary.policy = p.stop_without_standby ? ha::loss_policy::stop : ha::loss_policy::degraded;
    d.primary.standby_address = d.standby_address;
    d.primary.has_standby = !options_.standby && !d.standby_address.empty();
    d.primary.anew = options_.anew;
    d.primary.switchover_ms = vm_.supervision.switchover_ms;
    d.primary.gpu_takeover_ms = vm_.supervision.gpu_takeover_ms;
    d.primary.disks = d.standby.disks = !images_.empty();
    d.primary.mark = d.standby.mark = image_mark_;
    d.primary.image = images_.empty() ? std::string() : images_[0];
    d.standby.overwrite = options_.overwrite;
    d.primary.opening_ms = std::max(15000u, vm_.arbiter.lease_ms + 5000);
    d.primary.shared_record = d.standby.shared_record = vm_.arbiter.what != described_arbiter::kind::fence;
    d.identity = {vm_.name,
                  fmt::format("{}-{:016x}", options_.standby ? "standby" : "primary", d.primary.instance),
                  options_.standby};
    pilot_config q;
    q.command = prepared_->command;
    q.standby_command = prepared_->standby_command;
    q.environment = prepared_->environment;
    q.log = qemu_log();
    q.state = links_ ? links_in(directory_ + "/listens").state : state_address_;
    q.incoming_is_encrypted = encrypted();
    if (prepared_->confinement.what)
        q.confinement = to_text(*prepared_->confinement.what);
    q.max_epoch_ms = p.max_epoch_ms;
    q.state_has_keys = !p.tls.empty();
    q.keys = prepared_->keys;
    if (!q.keys.empty())
        q.copy_keys = [this](bool& changed) {
            const auto& confined = prepared_->confinement.what;
            return copy_qemu_keys(vm_.protection.tls, vm_.name, prepared_->keys, changed,
                                  confined ? confined->user : std::nullopt);
        };
    q.gpu = vm_.gpu.has_value();
    q.may_be_protected = vm_.arbiter.what != described_arbiter::kind::none;
    const auto& bounds = vm_.supervision;
    q.bounds = {p.qemu_budget_ms, bounds.main_loop_ms, bounds.transfer_ms, bounds.checkpoint_ms};
    q.hand_over_ms = bounds.switchover_ms;
    logs_.emplace(
        std::vector{qemu_log(), prepared_->config.console->log}, std::uint64_t{vm_.supervision.log_mib} << 20,
        [this](const std::string& problem) { inbox_.put([this, problem] { log("logs", problem); }); });
    pilot_.emplace(std::move(q), pilot_reports());
    decider_ = std::make_unique<decider>(std::move(d), orders(), *gate_);
    const auto problem = options_.standby ? decider_->start_standby() : decider_->start_primary();
    if (!problem.empty()) {
        complain({problem});
        return 125;
    }
    loop();
    decider_.reset();
    pilot_.reset(); // kills what is still there
    logs_.reset();
    inbox_.run(); // the last words
    return status_;
}

} // namespace

int run_supervisor(const supervisor_options& options) {
    ::umask(S_IRWXG | S_IRWXO); // also QEMU's: nobody else connects to its sockets
    auto vm = described_vm(options);
    if (!vm)
        return 125;
    return supervisor(options, std::move(*vm)).run();
}

} // namespace kagemusha::control
