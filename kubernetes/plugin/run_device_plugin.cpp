// SPDX-License-Identifier: GPL-2.0-or-later
//
// See run_device_plugin.hpp.
#include "kubernetes/plugin/run_device_plugin.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "kubernetes/core/allocation.hpp"
#include "kubernetes/node/files.hpp"
#include "kubernetes/plugin/socket_server.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <poll.h>
#include <utility>

namespace kagemusha::kubernetes {

using clock = std::chrono::steady_clock;

namespace {

constexpr char kubelet_socket[] = "kubelet.sock";
// Kinds of MIG instances that a node has: a GPU has about ten.
constexpr std::size_t max_resources = 32;
constexpr int step_every_ms = 500;
constexpr std::chrono::seconds register_within{10};

void say(const std::string& what) {
    std::fprintf(stderr, "kagemusha-k8s: %s\n", control::as_log_line(what).c_str());
}

// "kagemusha-gpu.sock", "kagemusha-mig-1g.10gb.sock"
std::string socket_name(const std::string& resource) {
    return "kagemusha-" + resource.substr(resource.find('/') + 1) + ".sock";
}

// Tells the kubelet of us. "" or why not.
std::string enlist(const std::string& kubelet, const device_plugin& plugin) {
    const auto channel = grpc::CreateChannel("unix:" + kubelet, grpc::InsecureChannelCredentials());
    const auto stub = v1beta1::Registration::NewStub(channel);
    v1beta1::RegisterRequest request;
    request.set_version("v1beta1");
    request.set_endpoint(socket_name(plugin.resource()));
    request.set_resource_name(plugin.resource());
    request.mutable_options()->set_get_preferred_allocation_available(plugin.prefers());
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

// One resource: served at a socket of its own, registered by itself.
class endpoint {
public:
    endpoint(const device_plugin_options& options, const watched_node& node, const std::string& resource)
        : node_(node)
        , how_(options.how)
        , resource_(resource)
        , own_(options.folder + "/" + socket_name(resource))
        , kubelet_(options.folder + "/" + kubelet_socket)
        , plugin_(std::make_unique<device_plugin>(node_, how_, resource_)) {}
    ~endpoint() { close(); }
    endpoint(const endpoint&) = delete;
    endpoint& operator=(const endpoint&) = delete;

    void step() {
        const auto kubelet = socket_at(kubelet_);
        switch (registration_.step(kubelet, socket_at(own_), ms_now())) {
        case registration_fsm::action::none:
            return;
        case registration_fsm::action::serve:
            return serve();
        case registration_fsm::action::enlist: {
            const auto error = enlist(kubelet_, *plugin_);
            registration_.enlisted(error.empty() ? kubelet : std::nullopt, ms_now());
            return say(error.empty() ? fmt::format("the kubelet knows {}", resource_) : error);
        }
        }
    }

private:
    void serve() {
        close();
        plugin_ = std::make_unique<device_plugin>(node_, how_, resource_);
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

    const watched_node& node_;
    const injection how_;
    const std::string resource_, own_, kubelet_;
    registration_fsm registration_;
    std::unique_ptr<device_plugin> plugin_;
    std::unique_ptr<socket_server> server_;
};

class loop {
public:
    explicit loop(const device_plugin_options& options) : options_(options), node_(options.node, say) {
        add(resource_name); // also where all GPUs are cut: then it has none
    }

    void step() {
        // A resource stays when its last GPU is gone: the kubelet hears that it has none.
        const auto now = node_.now();
        for (const auto& known : now.gpus())
            add(resource_of(known.gpu));
        for (auto& [resource, one] : endpoints_)
            one->step();
    }

private:
    void add(const std::string& resource) {
        if (endpoints_.contains(resource))
            return;
        if (endpoints_.size() < max_resources)
            endpoints_.emplace(resource, std::make_unique<endpoint>(options_, node_, resource));
        else if (!std::exchange(full_, true))
            say(fmt::format("{} can't be allocated: a node has {} kinds of GPUs at most since this program's "
                            "start",
                            resource, max_resources));
    }

    const device_plugin_options& options_;
    watched_node node_;
    std::map<std::string, std::unique_ptr<endpoint>> endpoints_; // by resource
    bool full_ = false;                                          // it was said
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
