// SPDX-License-Identifier: GPL-2.0-or-later
//
// A gRPC server at a Unix socket of the node, for the kubelet alone.
#pragma once

#include "kubernetes/core/registration_fsm.hpp"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kagemusha::kubernetes {

class socket_server {
public:
    // nullptr and a sentence: nobody can listen there. What was at `path` before is replaced.
    static std::unique_ptr<socket_server>
    listen(const std::string& path, const std::vector<grpc::Service*>& services, std::string& error);
    ~socket_server(); // open calls are cancelled; whatever is at the path by then is removed

    const std::optional<file_identity>& identity() const { return identity_; }

private:
    socket_server() = default;
    std::string path_;
    std::optional<file_identity> identity_;
    std::unique_ptr<grpc::Server> server_;
};

} // namespace kagemusha::kubernetes
