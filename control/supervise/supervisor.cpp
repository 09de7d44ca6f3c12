// SPDX-License-Identifier: GPL-2.0-or-later
//
// How a supervisor starts, its loop, and its end.
#include "control/base/log_file.hpp"
#include "control/confine/enter.hpp"
#include "control/keys/qemu_keys.hpp"
#include "control/supervise/described_vm.hpp"
#include "control/supervise/supervisor_impl.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <malloc.h>
#include <poll.h>
#include <random>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

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
    auto made = vm_registration::make(name, error, true,
                                      vm_.gpu ? gpu_named_by(vm_.gpu->backend, vm_.gpu->gpu) : std::string());
    if (!made) {
        complain({error});
        return false;
    }
    registration_.emplace(std::move(*made));
    directory_ = registration_->beside(".d");
    std::error_code failed;
    fs::create_directories(directory_ + "/root", failed); // where a confined QEMU's is built
    auto& places = places_;
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
    if (vm_.arbiter.what != described_arbiter::kind::none)
        keep_files();
    prepared_ = prepare_vm(vm_, places);
    if (!prepared_)
        return false;
    in_use_ = prepared_->fingerprint.parts;
    // What QEMU told of its processors was much, and this process stays for months.
    ::malloc_trim(0);
    gate_ = gate::make(places.gate, error);
    if (!confine(error)) {
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

// Of a VM that may be protected, so that it can be while hosts are upgraded.
void supervisor::keep_files() {
    std::string error;
    kept_ = kept_files::open(vm_.name, fs::path(registration_->beside("")).filename(), error);
    if (!kept_)
        return complain({error + ": a standby on this host can't follow this VM through an upgrade"});
    places_.kept = &kept_;
    // Releases that kept nothing left the payload behind, under the name that the units give.
    const auto folder = fs::path(directory_).parent_path().string() + "/" + vm_.name;
    for (const auto& left : {directory_, folder + ".d", folder + "-standby.d"})
        kept_.adopt(left + "/payload");
}

// By default only where QEMU has everything that it loads: a host whose file systems or rights are unusual
// runs its VMs as before, and says so.
bool supervisor::confine(std::string& error) {
    if (!prepared_->confinement.what)
        return true;
    const bool has_room = make_room(places_, error);
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
    places_.offers.reset();
    prepared_ = prepare_vm(vm_, places_);
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

void supervisor::replicate(std::uint64_t replication, const std::string& replica, bool page_changes) {
    link_addresses to{state_address_, gpu_address_};
    if (links_) {
        if (const auto problem = links_->aim(to); !problem.empty())
            return loop_->replication_lost(replication, problem);
        to = links_in(directory_ + "/peers");
    }
    pilot_->replicate(replication, to, encrypted(), replica, page_changes);
}

void supervisor::remove_sockets() const {
    for (const auto& path : qemus_sockets_)
        ::unlink(path.c_str());
}

// The loop is through. QEMU may still be there: it is asked to end, or was killed.
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
                                     links_ ? links_->deadline() : qemu_controller::clock::time_point::max());
            at != qemu_controller::clock::time_point::max()) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(at - qemu_controller::clock::now()).count();
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

supervisor_loop_options supervisor::supervisor_loop_settings() const {
    std::random_device random;
    supervisor_loop_options d;
    const auto& p = vm_.protection;
    d.standby_address = options_.address.empty() ? p.standby : options_.address;
    d.tls = p.tls;
    const fs::path here = registration_->beside("");
    d.name = here.filename();
    d.runtime_directory = here.parent_path();
    d.takeover_priority = p.priority;
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
    if (kept_)
        d.standby.kept_files = kept_.all();
    d.primary.opening_ms = std::max(15000u, vm_.arbiter.lease_ms + 5000);
    d.primary.shared_record = d.standby.shared_record = vm_.arbiter.what != described_arbiter::kind::fence;
    d.identity = {vm_.name,
                  fmt::format("{}-{:016x}", options_.standby ? "standby" : "primary", d.primary.instance),
                  options_.standby};
    return d;
}

std::string supervisor::confinement_text() const {
    return prepared_->confinement.what ? to_text(*prepared_->confinement.what) : std::string();
}

pilot_config supervisor::pilot_settings() {
    pilot_config q;
    const auto& p = vm_.protection;
    q.command = prepared_->command;
    q.standby_command = prepared_->standby_command;
    q.environment = prepared_->environment;
    q.log = qemu_log();
    q.state = links_ ? links_in(directory_ + "/listens").state : state_address_;
    q.incoming_is_encrypted = encrypted();
    q.confinement = confinement_text();
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
    // Of other formats QEMU has a part in its memory, which is lost when it is killed.
    if (std::all_of(vm_.disks.begin(), vm_.disks.end(),
                    [](const auto& disk) { return !disk.writable || disk.format == "raw"; }))
        q.replica_images = images_;
    q.may_be_protected = vm_.arbiter.what != described_arbiter::kind::none;
    const auto& bounds = vm_.supervision;
    q.bounds = {p.qemu_budget_ms, bounds.main_loop_ms, bounds.transfer_ms, bounds.checkpoint_ms};
    q.hand_over_ms = bounds.switchover_ms;
    return q;
}

int supervisor::run() {
    if (!prepare())
        return 125;
    logs_.emplace(
        std::vector{qemu_log(), prepared_->config.console->log}, std::uint64_t{vm_.supervision.log_mib} << 20,
        [this](const std::string& problem) { inbox_.put([this, problem] { log("logs", problem); }); });
    pilot_.emplace(pilot_settings(), pilot_reports());
    loop_ = std::make_unique<supervisor_loop>(supervisor_loop_settings(), orders(), *gate_);
    const auto problem = options_.standby ? loop_->start_standby() : loop_->start_primary();
    if (!problem.empty()) {
        complain({problem});
        return 125;
    }
    loop();
    loop_.reset();
    pilot_.reset(); // kills what is still there
    logs_.reset();
    inbox_.run(); // the last words
    return status_;
}

int run_supervisor(const supervisor_options& options) {
    ::umask(S_IRWXG | S_IRWXO); // also QEMU's: nobody else connects to its sockets
    auto vm = described_vm(options);
    if (!vm)
        return 125;
    return supervisor(options, std::move(*vm)).run();
}

} // namespace kagemusha::control
