// SPDX-License-Identifier: GPL-2.0-or-later
//
// See described_vm.hpp; and `kage qemu-command`, which prints what would be started for it.
#include "control/supervise/described_vm.hpp"

#include "control/base/json_text.hpp"
#include "control/qemu/qemu_command.hpp"
#include "control/share/vm_share.hpp"
#include "control/vm/prepare.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace kagemusha::control {

namespace fs = std::filesystem;
using json = nlohmann::json;

void complain(const std::vector<std::string>& errors) {
    for (const auto& error : errors)
        fmt::print(stderr, "kage: {}\n", error);
}

namespace {

// The description's images of writable disks are those of each host, unless both are on one machine.
bool use_images(const supervisor_options& options, vm_description& vm) {
    std::size_t used = 0;
    for (auto& disk : vm.disks)
        if (disk.writable && used < options.images.size())
            disk.path = fs::absolute(options.images[used++]).string();
    if (used < options.images.size())
        complain({fmt::format("--disk {}: {} has {} writable disks", options.images[used],
                              options.description, used)});
    return used == options.images.size();
}

} // namespace

std::optional<vm_description> described_vm(const supervisor_options& options) {
    std::vector<std::string> errors;
    auto vm = read_vm_description(options.description, errors);
    complain(errors);
    if (vm && options.standby && vm->protection.standby.empty() && options.address.empty()) {
        complain({fmt::format("{} has no [protection]: nobody needs a standby", options.description)});
        return std::nullopt;
    }
    if (vm && !use_images(options, *vm))
        return std::nullopt;
    if (vm)
        if (const auto error = find_shared_gpu(*vm); !error.empty()) {
            complain({error});
            return std::nullopt;
        }
    return vm;
}

int print_qemu_command(const supervisor_options& options) {
    const auto vm = described_vm(options);
    if (!vm)
        return 125;
    auto name = (fs::temp_directory_path() / "kagemusha-XXXXXX").string();
    if (!::mkdtemp(name.data())) {
        complain({"no temporary directory"});
        return 125;
    }
    std::string error;
    const auto runtime = runtime_directory(error);
    const auto base = runtime + "/" + (options.standby ? vm->name + "-standby" : vm->name);
    const auto prepared =
        prepare_vm(*vm, {name, base + ".qmp", base + ".gate", base + ".console",
                         vm->console_log.empty() ? base + ".d/console.log" : vm->console_log,
                         gpu_address_beside(options.address)});
    std::error_code failed;
    fs::remove_all(name, failed);
    if (!prepared)
        return 125;
    // Whoever starts it by hand starts no launcher.
    const auto command = without_sandbox(options.standby ? prepared->standby_command : prepared->command);
    if (options.json) {
        json environment = json::object();
        for (const auto& [key, value] : prepared->environment)
            environment[key] = value;
        json host = json::object();
        for (const auto& part : prepared->fingerprint.parts)
            host[part.name] = part.value;
        fmt::print("{}\n", as_json_text({{"command", command},
                                         {"environment", environment},
                                         {"fingerprint", prepared->fingerprint.text},
                                         {"host", host}},
                                        2));
        return 0;
    }
    for (const auto& [key, value] : prepared->environment)
        fmt::print("{}='{}' ", key, value);
    for (std::size_t i = 0; i < command.size(); ++i) {
        std::string word;
        for (const char c : command[i])
            word += c == '\'' ? std::string("'\\''") : std::string(1, c);
        fmt::print("{}'{}'", i == 0 ? "" : command[i].starts_with("-") ? " \\\n    " : " ", word);
    }
    fmt::print("\n");
    return 0;
}

} // namespace kagemusha::control
