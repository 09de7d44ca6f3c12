// SPDX-License-Identifier: GPL-2.0-or-later
// hello: see hello.hpp.
#include "share/arbiter/hello.hpp"

#include <algorithm>
#include <cstring>

namespace kagemusha::share {

namespace {

bool is_name(std::string_view name) {
    return !name.empty() && std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
               c == '_' || c == '.';
    });
}

} // namespace

checked_hello check_hello(std::span<const std::byte> packet) {
    share_hello said{};
    checked_hello out;
    // What every version begins with.
    if (packet.size() < 8) {
        out.refusal = "this is no client of a share arbiter";
        return out;
    }
    std::memcpy(&said, packet.data(), std::min(packet.size(), sizeof said));
    if (said.magic != SHARE_MAGIC) {
        out.refusal = "this is no client of a share arbiter";
    } else if (said.version != SHARE_VERSION || packet.size() != sizeof said) {
        out.refusal = "the share arbiter of this GPU (kagemusha-gpu) speaks version " +
                      std::to_string(SHARE_VERSION) + " and not " + std::to_string(said.version) +
                      ": stop the VMs of this GPU and start them with one release";
    } else if (said.role < SHARE_VM || said.role > SHARE_ASKER) {
        out.refusal = "the client's role is unknown";
    } else if ((said.flags & ~(SHARE_IS_STANDBY | SHARE_HAS_POLICY | SHARE_ASKS_PROGRAMS)) != 0) {
        out.refusal = "the client has flags that are unknown";
    }
    if (!out.refusal.empty())
        return out;
    hello& h = out.what;
    h.role = static_cast<share_role>(said.role);
    h.asks_programs = (said.flags & SHARE_ASKS_PROGRAMS) != 0;
    if (h.role == SHARE_ASKER)
        return out;
    const auto* const end = std::find(std::begin(said.vm), std::end(said.vm), '\0');
    h.vm.assign(static_cast<const char*>(said.vm), end);
    h.has_policy = (said.flags & SHARE_HAS_POLICY) != 0;
    h.policy = static_cast<policy_kind>(said.policy);
    h.gpu_memory_bytes = said.gpu_memory_bytes;
    h.terms = {said.share_permille, said.cap_permille, said.priority, said.memory_bytes,
               (said.flags & SHARE_IS_STANDBY) != 0};
    if (end == std::end(said.vm) || !is_name(h.vm))
        out.refusal = "the VM's name must be 1 to 39 letters, digits, '-', '_' and '.'";
    else if (said.share_permille > whole_permille ||
             (said.share_permille != 0 && said.share_permille < least_permille))
        out.refusal = "a share is 1 to 100 percent of the GPU";
    else if (said.cap_permille < least_permille || said.cap_permille > whole_permille)
        out.refusal = "a cap is 1 to 100 percent of the GPU";
    else if (said.priority > max_priority)
        out.refusal = "a priority is 0 to " + std::to_string(max_priority);
    else if (h.has_policy && said.policy > static_cast<std::uint32_t>(policy_kind::priority))
        out.refusal = "the policy is unknown";
    return out;
}

std::optional<share_message_kind> check_message(std::span<const std::byte> packet) {
    share_message said{};
    if (packet.size() != sizeof said)
        return {};
    std::memcpy(&said, packet.data(), sizeof said);
    if (said.pad != 0 || (said.kind != SHARE_WANTS && said.kind != SHARE_RELEASED))
        return {};
    return static_cast<share_message_kind>(said.kind);
}

bool put_name(char (&field)[SHARE_NAME_BYTES], std::string_view name) {
    if (name.size() >= sizeof field)
        return false;
    std::memcpy(field, name.data(), name.size());
    field[name.size()] = '\0';
    return true;
}

} // namespace kagemusha::share
