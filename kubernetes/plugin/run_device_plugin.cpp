// SPDX-License-Identifier: GPL-2.0-or-later
//
// See run_device_plugin.hpp.
#include "kubernetes/plugin/run_device_plugin.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "kubernetes/node/files.hpp"
#include "kubernetes/plugin/socket_server.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <poll.h>

namespace kagemusha::kubernetes {

using clock = std::chrono::steady_clock;

namespace {

constexpr char own_socket[] = "kagemusha-gpu.sock", kubelet_socket[] = "kubelet.sock";
constexpr int step_every_ms = 500;
constexpr std::chrono::seconds register_within{10};

void say(const std::string& what) {
    std::fprintf(stderr, "kagemusha-k8s: %s\n", control::as_log_line(what).c_str());
}

// Tells the kubelet of us. "" or why not.
std::string enlist(const std::string& kubelet) {
    const auto channel = grpc::CreateChannel("unix:" + kubelet, grpc::InsecureChannelCredentials());
    const auto stub = v1beta1::Registration::NewStub(channel);
    v1beta1::RegisterRequest request;
    request.set_version("v1beta1");
    request.set_endpoint(own_socket);
    request.set_resource_name(resource_name);
    request.mutable_options()->set_get_preferred_allocation_available(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + register_within);
    v1beta1::Empty nothing;
    const auto done = stub->Register(&context, request, &nothing);
    return done.ok() ? "" : fmt::format("the kubelet does not take us: {}", done.error_message());
}

std::uint64_t ms_now() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(clock::now().time_since_epoch()).count());
}

class loop {
public:
    explicit loop(const device_plugin_options& options)
        : options_(options)
        , own_(options.folder + "/" + own_socket)
        , kubelet_(options.folder + "/" + kubelet_socket)
        , node_(options.node, say)
        , plugin_(std::make_unique<device_plugin>(node_, options.how)) {}
    ~loop() { close(); }

    void step() {
        const auto kubelet = socket_at(kubelet_);
        switch (registration_.step(kubelet, socket_at(own_), ms_now())) {
        case registration_fsm::action::none:
            return;
        case registration_fsm::action::serve:
            return serve();
        case registration_fsm::action::enlist: {
            const auto error = enlist(kubelet_);
            registration_.enlisted(error.empty() ? kubelet : std::nullopt, ms_now());
            return say(error.empty() ? fmt::format("the kubelet knows {}", resource_name) : error);
        }
        }
    }

private:
    void serve() {
        close();
        plugin_ = std::make_unique<device_plugin>(node_, options_.how);
        std::string error;
        server_ = socket_server::listen(own_, {plugin_.get()}, error);
        registration_.served(server_ ? server_->identity() : std::nullopt, ms_now());
        if (!server_)
            say(error);
    }
    void close() {
        plugin_->end_streams();
        server_.reset();
    }

    const device_plugin_options& options_;
    const std::string own_, kubelet_;
    watched_node node_;
    registration_fsm registration_;
    std::unique_ptr<device_plugin> plugin_;
    std::unique_ptr<socket_server> server_;
};

} // namespace

int run_device_plugin(const device_plugin_options& options) {
    const int interrupted = control::interrupt_fd();
    loop plugin(options);
    for (;;) {
        plugin.step();
        pollfd event{interrupted, POLLIN, 0};
        if (::poll(&event, 1, step_every_ms) > 0)
            return 0;
    }
}

} // namespace kagemusha::kubernetes
