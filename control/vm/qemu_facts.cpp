// SPDX-License-Identifier: GPL-2.0-or-later
//
// See qemu_facts.hpp.
#include "control/vm/qemu_facts.hpp"

#include "control/base/process.hpp"
#include "control/qemu/qemu_command.hpp"
#include "control/qemu/qmp_session.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <poll.h>
#include <set>
#include <unistd.h>

namespace kagemusha::control {

namespace {

using json = nlohmann::json;

constexpr std::chrono::seconds answer_time{30}; // on a very busy host
constexpr std::size_t longest_answer = 1u << 20;

// QEMU names many features twice ("sse4-1", "sse4.1", "sse4_1"); "x-…" are no features of the processor but
// of how QEMU makes it, and differ between its patch releases.
bool is_feature(const std::string& name) {
    return name.find_first_of("_.") == std::string::npos && !name.starts_with("x-") && name != "migratable" &&
           name != "check" && name != "enforce" && name != "kvm" && name != "hotplugged";
}

std::string features_of(const json& properties) {
    std::set<std::string> on;
    for (const auto& [name, value] : properties.items())
        if (value.is_boolean() && value.get<bool>() && is_feature(name))
            on.insert(name);
    return fmt::format("{}", fmt::join(on, " "));
}

std::string number_of(const json& properties, const char* name) {
    const auto found = properties.find(name);
    return found != properties.end() && found->is_number_integer() ? found->dump() : "?";
}

// What QEMU writes until it ends by itself, or nothing.
std::optional<std::string> output_of(const std::vector<std::string>& command, const std::string& input,
                                     std::string& error) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) {
        error = "no pipe";
        return std::nullopt;
    }
    unique_fd in(to[0]), writing(to[1]), reading(from[0]), out(from[1]);
    auto child = child_process::start({command, {}, in.get(), out.get(), -1, {}, true}, error);
    if (!child)
        return std::nullopt;
    in.reset();
    out.reset();
    // It fits into the pipe. The end stays open: QEMU ends when its monitor's other side is gone.
    if (::write(writing.get(), input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
        error = "QEMU could not be asked";
        return std::nullopt;
    }
    std::string printed;
    const auto until = std::chrono::steady_clock::now() + answer_time;
    while (printed.size() < longest_answer) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
        pollfd fds[] = {{reading.get(), POLLIN, 0}, {interrupt_fd(), POLLIN, 0}};
        const int ready = left > 0 ? ::poll(fds, 2, static_cast<int>(left)) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || fds[1].revents)
            break; // the child's destructor ends it
        char buffer[4096];
        const auto got = ::read(reading.get(), buffer, sizeof buffer);
        if (got <= 0)
            return printed;
        printed.append(buffer, static_cast<std::size_t>(got));
    }
    error = fmt::format("{} did not answer within {} s", command.front(), answer_time.count());
    return std::nullopt;
}

} // namespace

std::optional<qemu_facts> read_qemu_facts(std::string_view printed, const std::string& cpu_model,
                                          std::string& error) {
    qemu_facts facts;
    qmp_session session;
    for (const auto& message : session.feed(printed)) {
        if (message.what == qmp_message::kind::failure)
            error = "QEMU: " + message.body.value("desc", std::string("it refused"));
        if (message.what != qmp_message::kind::success || !message.body.is_object())
            continue;
        if (const auto version = message.body.find("qemu"); version != message.body.end())
            facts.version = fmt::format("{}.{}.{}", number_of(*version, "major"),
                                        number_of(*version, "minor"), number_of(*version, "micro"));
        const auto model = message.body.find("model");
        if (model == message.body.end() || !model->is_object())
            continue;
        const auto properties = model->value("props", json::object());
        facts.cpu = fmt::format("{} vendor={} family={} model={}", cpu_model,
                                properties.value("vendor", std::string("?")), number_of(properties, "family"),
                                number_of(properties, "model"));
        facts.cpu_features = features_of(properties);
    }
    if (!facts.version.empty() && !facts.cpu.empty())
        return facts;
    if (error.empty())
        error = "QEMU said nothing of its version and its processor";
    return std::nullopt;
}

std::optional<qemu_facts> ask_qemu(const vm_config& config, std::string& error) {
    const auto cpu = cpu_model(config);
    std::vector<std::string> command{config.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-S"};
    for (const auto& dir : config.firmware_dirs)
        command.insert(command.end(), {"-L", dir});
    command.insert(command.end(),
                   {"-machine", config.machine, "-accel", config.accel == accelerator::kvm ? "kvm" : "tcg",
                    "-cpu", cpu, "-qmp", "stdio"});
    qmp_session session;
    std::uint64_t id = 0;
    auto questions = session.command("qmp_capabilities", json::object(), id);
    questions += session.command("query-version", json::object(), id);
    questions +=
        session.command("query-cpu-model-expansion", {{"type", "full"}, {"model", {{"name", cpu}}}}, id);
    questions += session.command("quit", json::object(), id);
    const auto printed = output_of(command, questions, error);
    return printed ? read_qemu_facts(*printed, cpu, error) : std::nullopt;
}

} // namespace kagemusha::control
