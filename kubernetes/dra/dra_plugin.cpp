// SPDX-License-Identifier: GPL-2.0-or-later
//
// See dra_plugin.hpp.
#include "kubernetes/dra/dra_plugin.hpp"

#include "control/base/json_text.hpp"
#include "kubernetes/core/slices.hpp"
#include "kubernetes/node/files.hpp"

#include <fmt/format.h>

namespace kagemusha::kubernetes {

namespace {

constexpr int max_claims = 256; // in one request: a pod has at most 32

} // namespace

std::string dra_plugin::prepare_one(const dra_api::Claim& claim, dra_api::NodePrepareResourceResponse& out) {
    if (!is_uid(claim.uid()) || !is_dns_name(claim.namespace_()) || !is_dns_name(claim.name()))
        return "that is no name of a claim";
    const auto found = server_.get(fmt::format("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}",
                                               claim.namespace_(), claim.name()));
    if (!found.ok())
        return found.error;
    std::string refusal;
    const auto prepared = prepare(found.body, claim.uid(), node_name_, node_.now(), refusal);
    if (!prepared)
        return refusal;
    const auto specification = claim_specification(*prepared, node_.paths());
    if (auto error = write_atomically(cdi_folder_ + "/" + claim_file_name(prepared->uid),
                                      control::as_json_text(specification, 2) + "\n");
        !error.empty())
        return error;
    auto& device = *out.add_devices();
    device.add_request_names(prepared->share.request);
    device.set_pool_name(prepared->share.pool);
    device.set_device_name(prepared->share.device);
    device.add_cdi_device_ids(claim_cdi_name(prepared->uid));
    if (!prepared->share.share_id.empty())
        device.set_share_id(prepared->share.share_id);
    return {};
}

grpc::Status dra_plugin::NodePrepareResources(grpc::ServerContext*,
                                              const dra_api::NodePrepareResourcesRequest* request,
                                              dra_api::NodePrepareResourcesResponse* out) {
    if (request->claims_size() > max_claims)
        return {grpc::StatusCode::INVALID_ARGUMENT, "too many claims in one request"};
    for (const auto& claim : request->claims()) {
        dra_api::NodePrepareResourceResponse answer;
        answer.set_error(prepare_one(claim, answer));
        (*out->mutable_claims())[claim.uid()] = answer;
    }
    return grpc::Status::OK;
}

grpc::Status dra_plugin::NodeUnprepareResources(grpc::ServerContext*,
                                                const dra_api::NodeUnprepareResourcesRequest* request,
                                                dra_api::NodeUnprepareResourcesResponse* out) {
    if (request->claims_size() > max_claims)
        return {grpc::StatusCode::INVALID_ARGUMENT, "too many claims in one request"};
    for (const auto& claim : request->claims()) {
        auto& answer = (*out->mutable_claims())[claim.uid()];
        if (is_uid(claim.uid()))
            remove_file(cdi_folder_ + "/" + claim_file_name(claim.uid()));
        else
            answer.set_error("that is no uid of a claim");
    }
    return grpc::Status::OK;
}

grpc::Status registration::GetInfo(grpc::ServerContext*, const pluginregistration::InfoRequest*,
                                   pluginregistration::PluginInfo* out) {
    out->set_type("DRAPlugin");
    out->set_name(driver_name);
    out->set_endpoint(endpoint_);
    out->add_supported_versions("v1.DRAPlugin");
    return grpc::Status::OK;
}

grpc::Status registration::NotifyRegistrationStatus(grpc::ServerContext*,
                                                    const pluginregistration::RegistrationStatus* status,
                                                    pluginregistration::RegistrationStatusResponse*) {
    report_(status->plugin_registered() ? fmt::format("the kubelet knows {}", driver_name)
                                        : "the kubelet does not take us: " + status->error());
    return grpc::Status::OK;
}

} // namespace kagemusha::kubernetes
