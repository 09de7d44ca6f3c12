// SPDX-License-Identifier: GPL-2.0-or-later
//
// See run_hook.hpp.
#include "kubernetes/kubevirt/run_hook.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "kubernetes/api/kubevirt_hooks_info.grpc.pb.h"
#include "kubernetes/api/kubevirt_hooks_v1alpha3.grpc.pb.h"
#include "kubernetes/plugin/socket_server.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdio>
#include <poll.h>

namespace kagemusha::kubernetes {

namespace {

namespace info = ::kubevirt::hooks::info;
namespace hooks = ::kubevirt::hooks::v1alpha3;

constexpr char socket_name[] = "kagemusha.sock";
constexpr int look_every_ms = 200;

void say(const std::string& what) {
    std::fprintf(stderr, "kagemusha-k8s: %s\n", control::as_log_line(what).c_str());
}

class info_service final : public info::Info::Service {
    grpc::Status Info(grpc::ServerContext*, const info::InfoParams*, info::InfoResult* out) override {
        out->set_name("kagemusha");
        out->add_versions("v1alpha3");
        for (const char* point : {"OnDefineDomain", "Shutdown"})
            out->add_hookpoints()->set_name(point);
        return grpc::Status::OK;
    }
};

class callbacks_service final : public hooks::Callbacks::Service {
public:
    explicit callbacks_service(const hook_options& options) : options_(options) {}

    bool ended() const { return ended_; }

    grpc::Status OnDefineDomain(grpc::ServerContext*, const hooks::OnDefineDomainParams* request,
                                hooks::OnDefineDomainResult* out) override {
        const auto done = hook_domain(request->domainxml(), request->vmi(), options_);
        if (!done.refused.empty()) {
            const auto why =
                fmt::format("Kagemusha's device can't be in this domain: {}", fmt::join(done.refused, "; "));
            say(why);
            return {grpc::StatusCode::INVALID_ARGUMENT, why};
        }
        out->set_domainxml(done.xml);
        say("a domain has our device");
        return grpc::Status::OK;
    }
    grpc::Status Shutdown(grpc::ServerContext*, const hooks::ShutdownParams*,
                          hooks::ShutdownResult*) override {
        ended_ = true;
        return grpc::Status::OK;
    }

private:
    const hook_options& options_;
    std::atomic<bool> ended_ = false;
};

} // namespace

int run_kubevirt_hook(const kubevirt_options& options) {
    const int interrupted = control::interrupt_fd();
    info_service information;
    callbacks_service callbacks(options.hook);
    std::string error;
    const auto server =
        socket_server::listen(options.folder + "/" + socket_name, {&information, &callbacks}, error);
    if (!server) {
        say(error);
        return 1;
    }
    while (!callbacks.ended()) {
        pollfd event{interrupted, POLLIN, 0};
        if (::poll(&event, 1, look_every_ms) > 0)
            break;
    }
    return 0;
}

} // namespace kagemusha::kubernetes
