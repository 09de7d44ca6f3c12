// SPDX-License-Identifier: GPL-2.0-or-later
//
// What the kubelet calls: the registration API of plugins (v1) and that of drivers of Dynamic Resource Allocation (v1).
// gRPC calls it on threads of its own.
#pragma once

#include "kubernetes/api/dra.grpc.pb.h"
#include "kubernetes/api/pluginregistration.grpc.pb.h"
#include "kubernetes/core/claims.hpp"
#include "kubernetes/dra/api_server.hpp"
#include "kubernetes/node/watched_node.hpp"

#include <string>
#include <utility>

namespace kagemusha::kubernetes {

namespace dra_api = ::k8s::io::kubelet::pkg::apis::dra::v1;

class dra_plugin final : public dra_api::DRAPlugin::Service {
public:
    dra_plugin(const watched_node& node, api_server& server, std::string node_name, std::string cdi_folder)
        : node_(node)
        , server_(server)
        , node_name_(std::move(node_name))
        , cdi_folder_(std::move(cdi_folder)) {}

    // A claim may be prepared again: the kubelet has forgotten, or wants to be sure.
    grpc::Status NodePrepareResources(grpc::ServerContext*,
                                      const dra_api::NodePrepareResourcesRequest* request,
                                      dra_api::NodePrepareResourcesResponse* out) override;
    // Also of what was never prepared.
    grpc::Status NodeUnprepareResources(grpc::ServerContext*,
                                        const dra_api::NodeUnprepareResourcesRequest* request,
                                        dra_api::NodeUnprepareResourcesResponse* out) override;

private:
    std::string prepare_one(const dra_api::Claim& claim, dra_api::NodePrepareResourceResponse& out);

    const watched_node& node_;
    api_server& server_;
    const std::string node_name_, cdi_folder_;
};

class registration final : public pluginregistration::Registration::Service {
public:
    using says = std::function<void(const std::string&)>;
    registration(std::string endpoint, says report)
        : endpoint_(std::move(endpoint)), report_(std::move(report)) {}

    grpc::Status GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                         pluginregistration::PluginInfo* out) override;
    grpc::Status NotifyRegistrationStatus(grpc::ServerContext*,
                                          const pluginregistration::RegistrationStatus* status,
                                          pluginregistration::RegistrationStatusResponse*) override;

private:
    const std::string endpoint_;
    const says report_;
};

} // namespace kagemusha::kubernetes
