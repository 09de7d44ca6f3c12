// SPDX-License-Identifier: GPL-2.0-or-later
//
// See run_dra.hpp.
#include "kubernetes/dra/run_dra.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "kubernetes/dra/condition_writer.hpp"
#include "kubernetes/dra/dra_plugin.hpp"
#include "kubernetes/dra/slice_publisher.hpp"
#include "kubernetes/node/files.hpp"
#include "kubernetes/plugin/socket_server.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <poll.h>

namespace kagemusha::kubernetes {

using clock = std::chrono::steady_clock;

namespace {

constexpr int step_every_ms = 500;
// What others did to our slices is noticed so late; changes of ours are published at once.
constexpr std::chrono::seconds publish_every{30}, publish_again_after{2};
// The scheduler looks every 5 s.
constexpr std::chrono::seconds conditions_every{3};

void say(const std::string& what) {
    std::fprintf(stderr, "kagemusha-k8s: %s\n", control::as_log_line(what).c_str());
}

class driver {
public:
    explicit driver(const dra_options& options)
        : options_(options)
        , server_(options.server)
        , node_(options.node, say)
        , publisher_(server_, {options.node_name, {}, options.how, options.standby_conditions})
        , conditions_(server_)
        , own_(fmt::format("{}/plugins/{}/dra.sock", options.kubelet, driver_name))
        , registry_(fmt::format("{}/plugins_registry/{}-reg.sock", options.kubelet, driver_name))
        , plugin_(node_, server_, options.node_name, options.cdi_folder)
        , registration_(own_, say) {}

    void step() {
        serve(own_, plugin_, plugin_server_);
        if (plugin_server_) // the kubelet connects as soon as it has asked
            serve(registry_, registration_, registration_server_);
        publish();
        if (options_.standby_conditions)
            write_conditions();
    }

private:
    // Also after somebody has removed the socket.
    void serve(const std::string& path, grpc::Service& service, std::unique_ptr<socket_server>& server) {
        if (server && socket_at(path) == server->identity())
            return;
        server.reset();
        std::string error;
        server = socket_server::listen(path, {&service}, error);
        if (!server)
            say(error);
    }

    void publish() {
        const auto gpus = node_.now();
        if (clock::now() < publish_at_ && gpus.version() == published_)
            return;
        if (clock::now() < not_before_ || gpus.gpus().empty())
            return;
        const auto error = publisher_.step(gpus);
        if (error != said_)
            say(error.empty() ? "the cluster knows this node's GPUs" : error);
        said_ = error;
        published_ = error.empty() ? gpus.version() : 0;
        publish_at_ = clock::now() + publish_every;
        not_before_ = error.empty() ? clock::time_point{} : clock::now() + publish_again_after;
    }

    void write_conditions() {
        if (clock::now() < conditions_at_)
            return;
        const auto gpus = node_.now();
        const auto error = conditions_.step(
            {options_.node_name, gpus, [&](std::string_view uid) {
                 return is_uid(uid) && file_is_there(options_.cdi_folder + "/" + claim_file_name(uid));
             }});
        if (error != conditions_said_)
            say(error.empty() ? "the conditions of this node's claims are written" : error);
        conditions_said_ = error;
        conditions_at_ = clock::now() + conditions_every;
    }

    const dra_options& options_;
    api_server server_;
    watched_node node_;
    slice_publisher publisher_;
    condition_writer conditions_;
    const std::string own_, registry_;
    dra_plugin plugin_;
    registration registration_;
    std::unique_ptr<socket_server> plugin_server_, registration_server_;
    std::uint64_t published_ = 0;
    std::string said_ = "nothing yet", conditions_said_ = said_;
    clock::time_point publish_at_, not_before_, conditions_at_;
};

} // namespace

int run_dra(const dra_options& options) {
    if (const auto refusal = why_not_a_server(options.server); !refusal.empty()) {
        say(refusal);
        return 1;
    }
    const int interrupted = control::interrupt_fd();
    driver running(options);
    for (;;) {
        running.step();
        pollfd event{interrupted, POLLIN, 0};
        if (::poll(&event, 1, step_every_ms) > 0)
            return 0;
    }
}

} // namespace kagemusha::kubernetes
