// SPDX-License-Identifier: GPL-2.0-or-later
//
// See socket_server.hpp.
#include "kubernetes/plugin/socket_server.hpp"

#include "kubernetes/node/files.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <sys/stat.h>

namespace kagemusha::kubernetes {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds calls_end_within{2};
// A request names at most each unit of a node twice; gRPC's default of 4 MiB is more than that.
constexpr int max_request_bytes = 2 << 20;
constexpr int max_threads = 32;

} // namespace

std::unique_ptr<socket_server> socket_server::listen(const std::string& path,
                                                     const std::vector<grpc::Service*>& services,
                                                     std::string& error) {
    std::error_code failed;
    fs::create_directories(fs::path(path).parent_path(), failed);
    if (socket_at(path))
        remove_file(path);
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota;
    quota.SetMaxThreads(max_threads);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(max_request_bytes);
    builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
    for (auto* service : services)
        builder.RegisterService(service);
    std::unique_ptr<socket_server> out(new socket_server);
    out->path_ = path;
    const auto before = ::umask(S_IRWXG | S_IRWXO);
    out->server_ = builder.BuildAndStart();
    ::umask(before);
    out->identity_ = socket_at(path);
    if (!out->server_ || !out->identity_) {
        error = fmt::format("nobody can listen at {}: is the folder there, and ours to write?", path);
        return nullptr;
    }
    return out;
}

socket_server::~socket_server() {
    if (!server_)
        return;
    server_->Shutdown(std::chrono::system_clock::now() + calls_end_within);
    server_->Wait();
}

} // namespace kagemusha::kubernetes
