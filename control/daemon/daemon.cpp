// SPDX-License-Identifier: GPL-2.0-or-later
//
// See daemon.hpp.
#include "control/daemon/daemon.hpp"

#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/daemon/api.hpp"
#include "control/daemon/etcd_process.hpp"
#include "control/daemon/fleet/peers.hpp"
#include "control/daemon/fleet/settings.hpp"
#include "control/daemon/http_server.hpp"
#include "control/daemon/people/event_log.hpp"
#include "control/daemon/people/people.hpp"
#include "control/daemon/people/portal_service.hpp"
#include "control/daemon/reconciler.hpp"
#include "control/daemon/state_folder.hpp"
#include "control/lan/lan.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace {

constexpr auto etcd_starts_within = std::chrono::seconds(60); // on a busy machine with a slow disk

int fail(const std::string& why) {
    fmt::print(stderr, "kage: {}\n", why);
    return 125;
}

void log_line(const std::string& cluster, const std::string& text) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    fmt::print(stderr, "{:%Y-%m-%dT%H:%M:%SZ} {}: {}\n", fmt::gmtime(now),
               cluster.empty() ? "daemon" : cluster, as_log_line(text));
}

host_entry entry_of_this_host(const std::optional<fleet_settings>& fleet) {
    char shown[65] = "";
    ::gethostname(shown, sizeof shown - 1);
    host_entry out;
    out.offer = {fleet ? fleet->name : only_host, offers_of_this_host()};
    out.shown = fleet ? fleet->name : shown;
    out.release = KAGEMUSHA_VERSION;
    out.start = new_secret().substr(0, 16);
    if (fleet) {
        out.address = fleet->address;
        out.port = fleet->port;
        out.first_port = fleet->first_port;
    }
    return out;
}

std::unique_ptr<peers> listen_for_peers(const fleet_settings& fleet, const state_folder& folder,
                                        const reconciler& work, api& answers, std::string& error) {
    peers::handlers on;
    on.answer = [&answers](const api_request& request) { return answers.answer(request); };
    on.is_host = [&work](const std::string& name) { return work.fleet()->entries.contains(name); };
    on.agent = [&folder](const std::string& name, unsigned number) {
        return lan::exec_socket(folder.network(name), number);
    };
    on.place = [&work](const std::string& name, unsigned number) {
        return api::place_of(work, name, number);
    };
    return peers::listen(fleet, folder.ways(), std::move(on), error);
}

void wait_for_signal() {
    while (!interrupted_by()) {
        pollfd wait{interrupt_fd(), POLLIN, 0};
        ::poll(&wait, 1, -1);
    }
}

} // namespace

int run_daemon() {
    ::umask(S_IRWXG | S_IRWXO);
    std::string error;
    const auto folder = state_folder::open(error);
    const auto socket = error.empty() ? daemon_socket(error) : std::string();
    if (!error.empty())
        return fail(error);
    const unique_fd lock(::open(folder.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
        return fail(fmt::format("another daemon has {}", folder.path()));
    const auto tool = tool_program();

    event_log events;
    const auto log = [&](const std::string& cluster, const std::string& text) {
        log_line(cluster, text);
        events.add(cluster, text);
    };
    std::vector<std::string> wrong;
    const auto fleet = read_settings(folder.settings(), wrong);
    if (!wrong.empty())
        return fail(fmt::format("{}", fmt::join(wrong, "\nkage: ")));
    etcd_process etcd(folder.keys(), folder.etcd(), fleet ? std::optional(fleet->etcd()) : std::nullopt);
    reconciler work(etcd, folder, tool, log, entry_of_this_host(fleet), fleet);
    for (auto left = etcd_starts_within;
         left.count() > 0 && !work.wait_for_etcd(std::chrono::seconds(1)) && !interrupted_by(); --left) {
    }
    if (interrupted_by())
        return 0;
    api answers(etcd, work, folder, events);
    answers.set_login_ways(
        make_login_ways(folder.login(), tool, [&](const auto& text) { log_line({}, text); }));
    const auto others = fleet ? listen_for_peers(*fleet, folder, work, answers, error) : nullptr;
    if (!error.empty())
        return fail(error);
    answers.set_peers(others.get());
    portal_service portal(answers, work, events, folder);
    answers.set_portal([&](const auto& wanted, auto& why) { return portal.open(wanted, why); });
    if (const auto why = portal.open_again(); !why.empty())
        log({}, why);
    const auto local = api::local_caller();
    const auto server = http_server::listen(
        socket,
        [&](api_request request) {
            request.who = local;
            return answers.answer(request);
        },
        error);
    if (!server)
        return fail(error);
    log_line({}, fmt::format("ready: {}, state in {}", socket, folder.path()));
    wait_for_signal();
    log_line({}, "ends; VMs go on");
    return 0;
}

} // namespace kagemusha::control::daemon
