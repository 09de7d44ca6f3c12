// SPDX-License-Identifier: GPL-2.0-or-later
//
// See gpu_lister.hpp.
#include "kubernetes/node/gpu_lister.hpp"

#include "control/base/json_text.hpp"
#include "control/base/process.hpp"
#include "control/share/gpu_of_host.hpp"
#include "gpu/own_selector.hpp"
#include "worker/gpu_nodes.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <unistd.h>

namespace kagemusha::kubernetes {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t max_answer_bytes = 1 << 20;

// All that it prints; nothing: it took too long, said too much, or failed.
std::optional<std::string> output_of(const std::string& program, int timeout_ms, std::string& error) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        error = fmt::format("no pipe: {}", std::strerror(errno));
        return std::nullopt;
    }
    const unique_fd reading(ends[0]);
    unique_fd writing(ends[1]);
    control::spawn_request request;
    request.command = {program, "--json"};
    request.out = writing.get();
    auto child = control::child_process::start(request, error);
    writing.reset();
    if (!child)
        return std::nullopt;
    const auto until = clock::now() + std::chrono::milliseconds(timeout_ms);
    std::string said;
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
        pollfd event{reading.get(), POLLIN, 0};
        if (left <= 0 || ::poll(&event, 1, static_cast<int>(left)) == 0) {
            error = fmt::format("{} has not answered within {} ms: a driver hangs", program, timeout_ms);
            return std::nullopt; // and is killed
        }
        char bytes[4096];
        const auto got = ::read(reading.get(), bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        said.append(bytes, static_cast<std::size_t>(got));
        if (said.size() > max_answer_bytes) {
            error = fmt::format("{} says more than {} bytes", program, max_answer_bytes);
            return std::nullopt;
        }
    }
    const auto status = child->wait_for(std::chrono::seconds(1));
    if (status != 0) {
        const auto answer = nlohmann::json::parse(said, nullptr, false);
        error = answer.is_object() ? control::text_in(answer, "error") : std::string();
        if (error.empty())
            error = program + ": " + (status ? control::how_it_ended(*status) : "it does not end");
        return std::nullopt;
    }
    return said;
}

int numa_node_of(const std::string& selector) {
    const auto place = gpu::pci_of_selector(selector);
    int node = -1;
    if (!place.empty())
        std::ifstream("/sys/bus/pci/devices/" + place + "/numa_node") >> node;
    return node;
}

} // namespace

std::vector<std::string> device_nodes_of(const std::string& selector, const std::string& root) {
    std::vector<std::string> out;
    std::error_code failed;
    for (const auto& path : worker::nodes_of_gpu(selector, root).devices) {
        if (fs::is_character_file(root + path, failed))
            out.push_back(path);
        // NVIDIA's capabilities are a folder of nodes.
        for (fs::directory_iterator entry(root + path, failed), end; !failed && entry != end;
             entry.increment(failed))
            if (entry->is_character_file(failed))
                out.push_back(path + "/" + entry->path().filename().string());
    }
    return out;
}

std::optional<std::vector<found_gpu>> list_gpus(const std::string& program, int timeout_ms,
                                                std::string& error) {
    const auto said = output_of(program, timeout_ms, error);
    if (!said)
        return std::nullopt;
    std::vector<found_gpu> out;
    for (const auto& gpu : control::parse_gpus(*said))
        if (!gpu.selector.empty() && out.size() < max_gpus)
            out.push_back({control::share_socket_name(gpu), gpu.name, gpu.selector, gpu.memory_bytes,
                           device_nodes_of(gpu.selector), numa_node_of(gpu.selector)});
    if (out.empty()) {
        error =
            "no GPU that VMs can share: none is listed, or none has a name that means it in every process";
        return std::nullopt;
    }
    return out;
}

} // namespace kagemusha::kubernetes
