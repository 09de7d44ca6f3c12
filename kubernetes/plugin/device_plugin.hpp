// SPDX-License-Identifier: GPL-2.0-or-later
//
// The kubelet's device plugin API over those GPUs of the node's inventory whose units are of one resource. gRPC calls it
// on threads of its own.
#pragma once

#include "kubernetes/api/deviceplugin.grpc.pb.h"
#include "kubernetes/node/watched_node.hpp"

#include <atomic>
#include <string>
#include <utility>

namespace kagemusha::kubernetes {

enum class injection {
    cdi,     // Allocate names CDI devices: the runtime reads our specification
    kubelet, // Allocate has device nodes and mounts itself, for runtimes without CDI
};

class device_plugin final : public v1beta1::DevicePlugin::Service {
public:
    device_plugin(const watched_node& node, injection how, std::string resource)
        : node_(node), how_(how), resource_(std::move(resource)) {}

    const std::string& resource() const { return resource_; }
    // Whether it tells the kubelet which units to take: one instance is as good as another.
    bool prefers() const { return resource_ == resource_name; }

    // Streams end soon: the server is to be shut down.
    void end_streams() { ending_ = true; }

    grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                        v1beta1::DevicePluginOptions* out) override;
    grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                              grpc::ServerWriter<v1beta1::ListAndWatchResponse>* out) override;
    grpc::Status GetPreferredAllocation(grpc::ServerContext*,
                                        const v1beta1::PreferredAllocationRequest* request,
                                        v1beta1::PreferredAllocationResponse* out) override;
    grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                          v1beta1::AllocateResponse* out) override;
    grpc::Status PreStartContainer(grpc::ServerContext*, const v1beta1::PreStartContainerRequest*,
                                   v1beta1::PreStartContainerResponse*) override;

private:
    const watched_node& node_;
    const injection how_;
    const std::string resource_;
    std::atomic<bool> ending_ = false;
    std::atomic<int> streams_ = 0;
};

} // namespace kagemusha::kubernetes
