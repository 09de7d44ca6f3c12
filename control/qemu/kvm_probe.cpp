// SPDX-License-Identifier: GPL-2.0-or-later
//
// See kvm_probe.hpp.
#include "control/qemu/kvm_probe.hpp"

#include "control/base/host_clock.hpp"
#include "control/qemu/machine.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds probe_time{20}; // a kernel under working KVM needs one or two

fs::path answer_file(const vm_config& config) {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value ? value : "");
    };
    fs::path cache = variable("KAGEMUSHA_CACHE");
    if (cache.empty())
        cache = fs::path(variable("XDG_CACHE_HOME").empty() ? variable("HOME") + "/.cache"
                                                            : variable("XDG_CACHE_HOME")) /
                "kagemusha";
    const auto what = std::hash<std::string>{}(config.qemu + '\n' + config.kernel + '\n' + config.initramfs);
    return cache / "kvm-probe" / fmt::format("{}-{:016x}", boot_id(), what);
}

// std::nullopt: interrupted, so nothing is known.
std::optional<bool> boots_under_kvm(const vm_config& config, const std::string& directory) {
    machine_run run;
    run.config.qemu = config.qemu;
    run.config.firmware_dirs = config.firmware_dirs;
    run.config.kernel = config.kernel;
    run.config.initramfs = config.initramfs;
    run.config.accel = accelerator::kvm;
    run.config.memory_mib = 256;
    run.config.cpus = 1;
    run.directory = directory;
    run.time_limit = probe_time;
    run.probe = true;
    const auto how = run_machine(run).how;
    if (how == machine_result::end::interrupted)
        return std::nullopt;
    return how == machine_result::end::probe_answered;
}

} // namespace

accelerator_choice choose_accelerator(const std::string& wanted, const vm_config& config,
                                      const std::string& directory) {
    if (wanted == "kvm")
        return {accelerator::kvm, "KVM"};
    if (wanted == "tcg")
        return {accelerator::tcg, "TCG (as asked)"};
    if (!fs::exists("/dev/kvm"))
        return {accelerator::tcg, "TCG (no /dev/kvm on this machine)"};
    if (::access("/dev/kvm", R_OK | W_OK) != 0)
        return {accelerator::tcg, "TCG (this user may not open /dev/kvm: group kvm)"};
    const auto kept = answer_file(config);
    std::string answer;
    std::ifstream(kept) >> answer;
    if (answer.empty()) {
        const auto boots = boots_under_kvm(config, directory);
        answer = boots.value_or(false) ? "yes" : "no";
        std::error_code error;
        fs::create_directories(kept.parent_path(), error);
        if (boots)
            std::ofstream(kept) << answer << '\n';
    }
    if (answer == "yes")
        return {accelerator::kvm, "KVM"};
    return {accelerator::tcg, "TCG (/dev/kvm is there, but a guest does not boot under it)"};
}

} // namespace kagemusha::control
