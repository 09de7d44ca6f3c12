// SPDX-License-Identifier: GPL-2.0-or-later
//
// See relayed_links.hpp.
#include "control/relay/relayed_links.hpp"

#include "control/relay/sockets.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr auto restart_period = std::chrono::seconds(1);

// Whatever the caller's umask is.
bool make_folder(const std::string& path, mode_t mode) {
    return (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) && ::chmod(path.c_str(), mode) == 0;
}

} // namespace

link_addresses links_in(const std::string& folder) {
    return {"unix:" + folder + "/state", "unix:" + folder + "/gpu"};
}

std::optional<relayed_links> relayed_links::make(config c, std::string& error) {
    std::error_code ignored;
    std::filesystem::remove_all(c.of_qemu, ignored); // what an earlier QEMU has left there
    // QEMU's user looks up names in the first; both are in a directory of ours that nobody else enters.
    for (const auto& [path, mode] : {std::pair{c.to_peers, mode_t{0755}}, {c.of_qemu, mode_t{0700}}})
        if (!make_folder(path, mode)) {
            error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
            return std::nullopt;
        }
    return relayed_links(std::move(c));
}

std::string relayed_links::carry(const link_addresses& from, user listeners, const link_addresses& to,
                                 user targets) {
    std::string error;
    routes_.clear();
    routes_.push_back({listen_at(from.state, listeners, error), to.state, targets});
    if (config_.gpu && error.empty())
        routes_.push_back({listen_at(from.gpu, listeners, error), to.gpu, targets});
    return error.empty() ? start() : error;
}

std::string relayed_links::listen(const link_addresses& at) {
    return carry(at, std::nullopt, links_in(config_.of_qemu), config_.user.value_or(::geteuid()));
}

std::string relayed_links::aim(const link_addresses& at) {
    if (at == target_ && process_)
        return {};
    auto error = carry(links_in(config_.to_peers), config_.user, at, std::nullopt);
    target_ = error.empty() ? at : link_addresses();
    return error;
}

std::string relayed_links::start() {
    process_.reset(); // ends it, and what it carries
    started_at_ = std::chrono::steady_clock::now();
    wanted_ = false;
    const unique_fd log(::open(config_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    const unique_fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!log || !nothing)
        return fmt::format("cannot write {}: {}", config_.log, std::strerror(errno));
    std::vector<relay_route> routes;
    spawn_request request;
    for (const auto& one : routes_) {
        routes.push_back({one.listener.get(), one.to, one.owner});
        request.inherit.push_back(one.listener.get());
    }
    request.command = {"/proc/self/exe", relay_word, to_text(routes)};
    request.in = request.out = nothing.get();
    request.err = log.get();
    request.guarded = true;
    std::string error;
    process_ = child_process::start(request, error);
    return error;
}

std::string relayed_links::ended() {
    const auto status = process_->wait_for(std::chrono::milliseconds(0));
    if (!status)
        return {};
    process_.reset();
    wanted_ = true;
    return fmt::format("the process that carries QEMU's links ended with status {}, and is started anew",
                       *status);
}

std::chrono::steady_clock::time_point relayed_links::deadline() const {
    return wanted_ ? started_at_ + restart_period : std::chrono::steady_clock::time_point::max();
}

void relayed_links::handle() {
    if (!wanted_ || std::chrono::steady_clock::now() < deadline())
        return;
    (void)start();
    wanted_ = !process_; // no processes or memory left: tried again
}

} // namespace kagemusha::control
