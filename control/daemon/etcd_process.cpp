// SPDX-License-Identifier: GPL-2.0-or-later
//
// See etcd_process.hpp.
#include "control/daemon/etcd_process.hpp"

#include "control/daemon/detached_process.hpp"
#include "control/keys/keys.hpp"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <filesystem>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace fs = std::filesystem;

namespace {

constexpr char host_name[] = "etcd";
constexpr std::uint32_t certificate_days = 3650; // as long as the CA: they never leave this machine
constexpr std::uint32_t limit_ms = 9000;         // etcd_client waits for a third of it
constexpr auto between_starts = std::chrono::seconds(1);

// One that nobody has now. Who takes it meanwhile makes etcd end, and the next start has another one.
int free_port() {
    const unique_fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0)
        return 0;
    return ntohs(name.sin_port);
}

} // namespace

std::string etcd_process::make_certificates() {
    std::error_code error;
    const auto own = keys_ + "/" + host_name;
    if (fs::exists(own + "/key.pem", error))
        return {};
    fs::remove_all(keys_, error); // of a daemon that died while it made them
    keys_request request;
    request.directory = keys_;
    request.hosts = {{host_name, "localhost", "127.0.0.1"}};
    request.days = certificate_days;
    return make_keys(request).error;
}

std::string etcd_process::keep_running() {
    if (elsewhere_)
        return {};
    std::string said;
    if (child_) {
        const auto ended = child_->wait_for(std::chrono::milliseconds(0));
        if (!ended)
            return {};
        child_.reset();
        said = fmt::format("etcd has ended with {}: {}/etcd.log may say why; it is started again",
                           how_it_ended(*ended), fs::path(data_).parent_path().string());
    }
    const auto now = std::chrono::steady_clock::now();
    if (tried_at_.time_since_epoch().count() != 0 && now < tried_at_ + between_starts)
        return said;
    tried_at_ = now;
    const auto error = start();
    return error.empty() ? said : error;
}

std::string etcd_process::start() {
    if (const auto error = make_certificates(); !error.empty())
        return error;
    const auto log = fs::path(data_).parent_path().string() + "/etcd.log";
    const auto own = keys_ + "/" + host_name;
    const auto url = fmt::format("https://127.0.0.1:{}", free_port());
    const auto peer = fmt::format("https://127.0.0.1:{}", free_port());
    spawn_request request;
    request.command = {"etcd",
                       "--name=kagemusha",
                       "--data-dir=" + data_,
                       "--listen-client-urls=" + url,
                       "--advertise-client-urls=" + url,
                       "--listen-peer-urls=" + peer,
                       "--initial-advertise-peer-urls=" + peer,
                       "--initial-cluster=kagemusha=" + peer,
                       "--client-cert-auth=true",
                       "--peer-client-cert-auth=true",
                       "--auto-compaction-retention=1h",
                       "--logger=zap"};
    for (const char* part : {"", "peer-"}) {
        request.command.push_back(fmt::format("--{}trusted-ca-file={}/ca.pem", part, own));
        request.command.push_back(fmt::format("--{}cert-file={}/cert.pem", part, own));
        request.command.push_back(fmt::format("--{}key-file={}/key.pem", part, own));
    }
    request.guarded = true;
    std::string error;
    auto child = start_logged(std::move(request), log, error);
    if (!child)
        return error;
    child_.emplace(std::move(*child));
    const std::lock_guard lock(mutex_);
    url_ = url;
    return {};
}

std::optional<described_arbiter> etcd_process::described() const {
    if (elsewhere_)
        return elsewhere_;
    const std::lock_guard lock(mutex_);
    if (url_.empty())
        return std::nullopt;
    described_arbiter out;
    out.what = described_arbiter::kind::etcd;
    out.endpoints = {url_};
    out.tls = keys_ + "/" + host_name;
    out.lease_ms = limit_ms;
    return out;
}

} // namespace kagemusha::control::daemon
