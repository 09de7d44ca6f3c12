// SPDX-License-Identifier: GPL-2.0-or-later
//
// See device_plugin.hpp.
#include "kubernetes/plugin/device_plugin.hpp"

#include "kubernetes/core/allocation.hpp"
#include "kubernetes/core/cdi.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace kagemusha::kubernetes {

namespace {

// The kubelet has one; an old one may still be open when it comes again.
constexpr int max_streams = 4;
constexpr int max_containers = 256; // in one request; a pod has far fewer
constexpr std::chrono::milliseconds stream_looks_every{500};

v1beta1::ListAndWatchResponse listed(const inventory& gpus, const std::string& resource) {
    v1beta1::ListAndWatchResponse out;
    for (const auto& known : gpus.gpus()) {
        if (resource_of(known.gpu) != resource)
            continue;
        for (const auto& id : units_of(known.gpu)) {
            auto& device = *out.add_devices();
            device.set_id(id);
            device.set_health(known.healthy() ? "Healthy" : "Unhealthy");
            if (known.gpu.numa >= 0)
                device.mutable_topology()->add_nodes()->set_id(known.gpu.numa);
        }
    }
    return out;
}

void give(const grant& given, injection how, const node_paths& paths,
          v1beta1::ContainerAllocateResponse& out) {
    for (const auto& [key, value] : environment_of(given))
        (*out.mutable_envs())[key] = value;
    if (how == injection::cdi) {
        out.add_cdi_devices()->set_name(cdi_name(given.gpu));
        return;
    }
    for (const auto* const list : {&given.gpu.nodes, &paths.nodes})
        for (const auto& node : *list) {
            auto& device = *out.add_devices();
            device.set_container_path(node);
            device.set_host_path(node);
            device.set_permissions("rw");
        }
    auto& mount = *out.add_mounts();
    mount.set_container_path(share_directory_inside);
    mount.set_host_path(paths.share_directory);
    mount.set_read_only(true);
}

} // namespace

grpc::Status device_plugin::GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                                   v1beta1::DevicePluginOptions* out) {
    out->set_get_preferred_allocation_available(prefers());
    return grpc::Status::OK;
}

grpc::Status device_plugin::ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                                         grpc::ServerWriter<v1beta1::ListAndWatchResponse>* out) {
    if (++streams_ > max_streams) {
        --streams_;
        return {grpc::StatusCode::RESOURCE_EXHAUSTED, "there are enough streams of ListAndWatch already"};
    }
    std::uint64_t sent = 0;
    auto gpus = node_.now();
    while (!context->IsCancelled() && !ending_) {
        if (gpus.version() != sent) {
            if (!out->Write(listed(gpus, resource_)))
                break;
            sent = gpus.version();
        }
        gpus = node_.wait_for_change(sent, stream_looks_every);
    }
    --streams_;
    return grpc::Status::OK;
}

grpc::Status device_plugin::GetPreferredAllocation(grpc::ServerContext*,
                                                   const v1beta1::PreferredAllocationRequest* request,
                                                   v1beta1::PreferredAllocationResponse* out) {
    constexpr auto most = static_cast<int>(max_gpus * units_of_gpu);
    if (request->container_requests_size() > max_containers)
        return {grpc::StatusCode::INVALID_ARGUMENT, "too many containers in one request"};
    for (const auto& one : request->container_requests()) {
        if (one.available_deviceids_size() > most || one.must_include_deviceids_size() > most ||
            one.allocation_size() < 0 || one.allocation_size() > most)
            return {grpc::StatusCode::INVALID_ARGUMENT, "more devices than any node has"};
        const std::vector<std::string> available(one.available_deviceids().begin(),
                                                 one.available_deviceids().end());
        const std::vector<std::string> wanted(one.must_include_deviceids().begin(),
                                              one.must_include_deviceids().end());
        auto& answer = *out->add_container_responses();
        for (const auto& id : prefer(available, wanted, static_cast<std::uint32_t>(one.allocation_size())))
            answer.add_deviceids(id);
    }
    return grpc::Status::OK;
}

grpc::Status device_plugin::Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                                     v1beta1::AllocateResponse* out) {
    if (request->container_requests_size() > max_containers)
        return {grpc::StatusCode::INVALID_ARGUMENT, "too many containers in one request"};
    const auto gpus = node_.now();
    for (const auto& one : request->container_requests()) {
        std::string refusal;
        const auto given = allocate(gpus, {one.devices_ids().begin(), one.devices_ids().end()}, refusal);
        if (!given)
            return {grpc::StatusCode::FAILED_PRECONDITION, refusal};
        give(*given, how_, node_.paths(), *out->add_container_responses());
    }
    return grpc::Status::OK;
}

grpc::Status device_plugin::PreStartContainer(grpc::ServerContext*, const v1beta1::PreStartContainerRequest*,
                                              v1beta1::PreStartContainerResponse*) {
    return grpc::Status::OK; // our options say that it is not wanted
}

} // namespace kagemusha::kubernetes
