// SPDX-License-Identifier: GPL-2.0-or-later
//
// See vm_share.hpp.
#include "control/share/vm_share.hpp"

#include "control/share/gpu_of_host.hpp"
#include "control/share/granted_share.hpp"
#include "control/vm/described_share.hpp"
#include "share/core/terms.hpp"
#include "worker/share_join.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace kagemusha::control {

namespace {

// The host name of a container that has a granted share; "": there is none.
std::string place_of_share() {
    std::string error;
    char name[HOST_NAME_MAX + 1] = {};
    if (read_granted_share(::getenv, error))
        ::gethostname(name, HOST_NAME_MAX);
    return name;
}

} // namespace

std::string find_shared_gpu(vm_description& vm) {
    if (!vm.gpu)
        return {};
    std::string error;
    const auto granted = read_granted_share(::getenv, error);
    if (!error.empty())
        return error;
    if (granted)
        if (error = use_granted_share(*granted, *vm.gpu); !error.empty())
            return error;
    if (!vm.gpu->share)
        return {};
    const auto gpu = gpu_of_vm(vm.gpu->backend, vm.gpu->gpu, error);
    if (!gpu)
        return error;
    const auto directory = made_share_directory(error);
    if (directory.empty())
        return error;
    if (vm.gpu->share->socket.empty())
        vm.gpu->share->socket = directory + "/" + share_socket_name(*gpu);
    vm.gpu->share->gpu_memory_bytes = gpu->memory_bytes;
    return limit_memory(*vm.gpu, gpu->memory_bytes);
}

share_hello hello_of(const described_share& share, const std::string& vm, bool standby) {
    share_hello hello{};
    hello.magic = SHARE_MAGIC;
    hello.version = SHARE_VERSION;
    hello.role = SHARE_VM;
    hello.flags = (standby ? std::uint32_t{SHARE_IS_STANDBY} : 0) |
                  (share.policy.empty() ? 0 : std::uint32_t{SHARE_HAS_POLICY});
    hello.policy =
        static_cast<std::uint32_t>(share::policy_named(share.policy).value_or(share::policy_kind::fair));
    hello.share_permille = share.parts != 0 ? share::whole_permille / share.parts : share.percent * 10;
    hello.cap_permille = share.cap_percent * 10;
    hello.priority = share.priority;
    hello.memory_bytes = share.memory_mib << 20;
    hello.gpu_memory_bytes = share.gpu_memory_bytes;
    std::memcpy(hello.vm, vm.data(), std::min(vm.size(), sizeof hello.vm - 1));
    return hello;
}

std::unique_ptr<share_lease> take_share(const vm_description& vm, const std::string& name, bool standby,
                                        share_lease::says report,
                                        std::vector<std::pair<std::string, std::string>>& environment,
                                        std::string& error) {
    error.clear();
    if (!vm.gpu || !vm.gpu->share)
        return nullptr;
    const auto hello = hello_of(*vm.gpu->share, name_in_place(name, place_of_share()), standby);
    environment.emplace_back(worker::share_variable, worker::share_text(vm.gpu->share->socket, hello));
    return share_lease::take(vm.gpu->share->socket, hello, std::move(report), error);
}

} // namespace kagemusha::control
