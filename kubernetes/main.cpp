// SPDX-License-Identifier: GPL-2.0-or-later
//
// kagemusha-k8s: what a node of Kubernetes runs so that pods can have shares of its GPUs (docs/kubernetes.md).
#include "control/base/assets.hpp"
#include "control/base/installation.hpp"
#include "kubernetes/dra/run_dra.hpp"
#include "kubernetes/kubevirt/run_hook.hpp"
#include "kubernetes/plugin/run_device_plugin.hpp"

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace kagemusha;

void add_node_options(CLI::App& app, kubernetes::node_options& node, int& look_every_s) {
    app.add_option("--share-dir", node.paths.share_directory,
                   "folder of the GPUs' share arbiters, on the node")
        ->capture_default_str();
    app.add_option("--lister", node.lister, "program that lists the GPUs (kagemusha-gpus)");
    app.add_option("--mig-lister", node.mig_lister, "program that lists their MIG instances (kagemusha)");
    app.add_option("--look-every", look_every_s, "seconds between two listings of the GPUs")
        ->check(CLI::Range(1, 3600))
        ->capture_default_str();
}

int prepare(kubernetes::node_options& node, int look_every_s) {
    node.look_every = std::chrono::seconds(look_every_s);
    if (node.lister.empty())
        node.lister = control::find_built("kagemusha-gpus");
    if (node.lister.empty()) {
        std::fprintf(stderr, "kagemusha-k8s: %s\n", control::not_there("kagemusha-gpus").c_str());
        return 1;
    }
    // Without NVIDIA's driver there is nothing to ask.
    if (node.mig_lister.empty() &&
        (std::getenv("KAGEMUSHA_NVML") || ::access("/proc/driver/nvidia", F_OK) == 0))
        node.mig_lister = control::find_built("kagemusha");
    if (::access("/dev/kvm", R_OK | W_OK) == 0)
        node.paths.nodes.emplace_back("/dev/kvm");
    const auto& shares = node.paths.share_directory;
    std::error_code failed;
    std::filesystem::create_directories(std::filesystem::path(shares).parent_path(), failed);
    if (::mkdir(shares.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
        std::fprintf(stderr, "kagemusha-k8s: cannot make %s: %s\n", shares.c_str(), std::strerror(errno));
        return 1;
    }
    return 0;
}

constexpr char account[] = "/var/run/secrets/kubernetes.io/serviceaccount/";

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value ? value : "";
}

// What a pod finds in its environment.
void find_server(kubernetes::dra_options& dra) {
    const auto host = variable("KUBERNETES_SERVICE_HOST"), port = variable("KUBERNETES_SERVICE_PORT");
    if (dra.server.url.empty() && !host.empty() && !port.empty())
        dra.server.url =
            "https://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
    if (dra.server.token_file.empty() && ::access((std::string(account) + "token").c_str(), R_OK) == 0)
        dra.server.token_file = std::string(account) + "token";
    if (dra.server.ca_file.empty() && ::access((std::string(account) + "ca.crt").c_str(), R_OK) == 0)
        dra.server.ca_file = std::string(account) + "ca.crt";
    if (dra.node_name.empty())
        dra.node_name = variable("NODE_NAME");
}

CLI::App* add_dra(CLI::App& app, kubernetes::dra_options& dra, int& look_every_s) {
    auto* const command =
        app.add_subcommand("dra", "drives Dynamic Resource Allocation (resource.k8s.io/v1)");
    add_node_options(*command, dra.node, look_every_s);
    command->add_option("--node-name", dra.node_name, "this node ($NODE_NAME)");
    command->add_option("--api-server", dra.server.url, "https://HOST:PORT (what the cluster gives to pods)");
    command->add_option("--token-file", dra.server.token_file,
                        "for the API server (of the pod's service account)");
    command->add_option("--ca-file", dra.server.ca_file, "its certificates (of the pod's service account)");
    command->add_option("--kubelet", dra.kubelet, "the kubelet's folder")->capture_default_str();
    command->add_option("--cdi-folder", dra.cdi_folder, "specifications for container runtimes")
        ->capture_default_str();
    const std::map<std::string, kubernetes::slicing> slicings{
        {"shares", kubernetes::slicing::shares}, {"partitions", kubernetes::slicing::partitions}};
    command
        ->add_option("--slices", dra.how,
                     "shares (consumable capacity) or partitions (partitionable devices)")
        ->transform(CLI::CheckedTransformer(slicings));
    command->add_flag(
        "--standby-conditions", dra.standby_conditions,
        "pods wait until the standby that their claim names has its share (binding conditions)");
    return command;
}

CLI::App* add_hook(CLI::App& app, kubernetes::kubevirt_options& hook) {
    auto* const command = app.add_subcommand(
        "kubevirt-hook", "adds our device to a domain of KubeVirt, as its hook sidecar (v1alpha3)");
    command->add_option("--folder", hook.folder, "where virt-launcher looks for sidecars")
        ->capture_default_str();
    command->add_option("--emulator", hook.hook.emulator, "our QEMU, in virt-launcher's container")
        ->capture_default_str();
    command->add_option("--firmware", hook.hook.firmware, "its folders of firmware there")
        ->capture_default_str();
    command->add_option("--backend", hook.hook.backend, "of the device")->capture_default_str();
    command->add_option("--gpu", hook.hook.gpu, "a GPU's selector (the first one of the container)");
    return command;
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Shares of this node's GPUs for pods of Kubernetes. See kubernetes.md of Kagemusha.");
    app.require_subcommand(1);
    int look_every_s = 10;
    kubernetes::device_plugin_options plugin;
    plugin.node.cdi_file = "/var/run/cdi/kagemusha.io-gpu.json";
    auto* const device_plugin =
        app.add_subcommand("device-plugin", "serves the kubelet's device plugin API (v1beta1)");
    add_node_options(*device_plugin, plugin.node, look_every_s);
    device_plugin->add_option("--folder", plugin.folder, "the kubelet's folder of device plugins")
        ->capture_default_str();
    device_plugin->add_option("--cdi-file", plugin.node.cdi_file, "the specification for container runtimes")
        ->capture_default_str();
    bool without_cdi = false;
    device_plugin->add_flag("--without-cdi", without_cdi,
                            "no CDI: the kubelet itself gives device nodes and mounts to containers");
    kubernetes::dra_options dra;
    const auto* const dra_command = add_dra(app, dra, look_every_s);
    kubernetes::kubevirt_options hook;
    const auto* const hook_command = add_hook(app, hook);
    CLI11_PARSE(app, argc, argv);
    if (*hook_command)
        return kubernetes::run_kubevirt_hook(hook);
    if (*dra_command) {
        find_server(dra);
        if (dra.node_name.empty()) {
            std::fputs("kagemusha-k8s: which node is this? --node-name or $NODE_NAME say it\n", stderr);
            return 1;
        }
        const int failed = prepare(dra.node, look_every_s);
        return failed != 0 ? failed : kubernetes::run_dra(dra);
    }
    if (without_cdi) {
        plugin.how = kubernetes::injection::kubelet;
        plugin.node.cdi_file.clear();
    }
    const int failed = prepare(plugin.node, look_every_s);
    return failed != 0 ? failed : kubernetes::run_device_plugin(plugin);
}
