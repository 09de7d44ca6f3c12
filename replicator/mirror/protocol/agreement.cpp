// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/protocol/agreement.hpp"

#include <algorithm>

namespace kagemusha::mirror {

namespace {

struct range {
    std::uint32_t oldest, newest;
};

std::string text(range r) {
    return r.oldest == r.newest ? std::to_string(r.newest)
                                : std::to_string(r.oldest) + " to " + std::to_string(r.newest);
}

std::uint32_t common(range mine, range theirs) {
    const auto newest = std::min(mine.newest, theirs.newest);
    return newest < std::max(mine.oldest, theirs.oldest) || theirs.oldest > theirs.newest ? 0 : newest;
}

// Both hosts name the same one to upgrade.
std::string no_common(const char* what, range mine, range theirs) {
    return std::string(what) + " " + text(theirs) + " there, " + text(mine) + " here: upgrade " +
           (theirs.newest < mine.newest ? "the other host" : "this host");
}

range protocol(const hello& h) {
    return {h.oldest_version, h.version};
}

// Who does not say any speaks the first.
range checkpoints(const hello& h) {
    return {std::max(h.oldest_checkpoint_version, 1u), std::max(h.checkpoint_version, 1u)};
}

// The guest's driver speaks the primary's version, so that one counts, and no other.
range streams(const hello& h) {
    return {h.oldest_abi_version == 0 ? h.abi_version : h.oldest_abi_version, h.abi_version};
}

const char* name_of(role r) {
    return r == role::primary ? "primary" : "standby";
}

// A standby executes what the primary's guest may do, and must not be made to allow more than its own
// administrator does.
std::string more_than_allowed(const guest_limits& of_primary, const guest_limits& of_standby) {
    const auto compare = [](std::uint64_t there, std::uint64_t here, const char* what, const char* option) {
        return there <= here || here == 0
                   ? std::string()
                   : "the guest may have " + std::to_string(there) + " " + what + " on the primary, " +
                         std::to_string(here) + " on the standby: give both the same " + option;
    };
    std::string rule = compare(of_primary.max_files, of_standby.max_files, "open files", "max-files");
    if (rule.empty()) {
        rule = compare(of_primary.max_memory_bytes, of_standby.max_memory_bytes, "bytes of GPU memory",
                       "max-memory");
    }
    if (rule.empty()) {
        rule = compare(of_primary.max_file_memory_bytes, of_standby.max_file_memory_bytes,
                       "bytes of GPU memory in one file", "max-file-memory");
    }
    return rule;
}

// A log has the commands of the API that the guest's programs use.
std::string other_api(const hello& primary, const hello& standby) {
    if (has_capability(primary, cuda_only_capability) && !has_capability(standby, cuda_capability)) {
        return "the primary's GPU speaks CUDA, and the standby's does not: give the standby the backend "
               "cuda, of a "
               "release that can be a standby with it";
    }
    if (has_capability(standby, cuda_only_capability) && !has_capability(primary, cuda_capability))
        return "the standby's GPU speaks CUDA, and the primary's does not: give both the same backend";
    return {};
}

} // namespace

std::string disagreement(const hello& mine, const hello& theirs) {
    // The version first: what else a peer of another version says may mean something else.
    if (common_version(mine, theirs) == 0)
        return no_common("protocol version", protocol(mine), protocol(theirs));
    if (theirs.role == mine.role)
        return std::string("both ends are a ") + name_of(mine.role) + ": give one of them the other role";
    if (theirs.vm != mine.vm) {
        return "the peer is of VM \"" + theirs.vm.substr(0, 200) + "\", this is VM \"" +
               mine.vm.substr(0, 200) + "\": check the addresses";
    }
    const hello& standby = mine.role == role::standby ? mine : theirs;
    const hello& primary = mine.role == role::standby ? theirs : mine;
    if (const range r = streams(standby); primary.abi_version < r.oldest || primary.abi_version > r.newest) {
        return "the primary's guest speaks version " + std::to_string(primary.abi_version) +
               " of the device's interface, the standby's device " + text(r) + ": upgrade the " +
               (primary.abi_version > r.newest ? "standby's host" : "primary's host, and start the VM again");
    }
    if (std::string rule = other_api(primary, standby); !rule.empty())
        return rule;
    if (common_checkpoint_version(mine, theirs) == 0)
        return no_common("version of QEMU's checkpoints", checkpoints(mine), checkpoints(theirs));
    if (standby.hold_bytes == 0 || standby.hold_entries == 0)
        return "the standby says that it can hold nothing: raise its hold_bytes and hold_entries";
    if (theirs.heartbeat_budget_ms == 0)
        return "the peer gives no heartbeat budget";
    return more_than_allowed(primary.limits, standby.limits);
}

std::uint32_t common_version(const hello& mine, const hello& theirs) {
    return common(protocol(mine), protocol(theirs));
}

std::uint32_t common_checkpoint_version(const hello& mine, const hello& theirs) {
    return common(checkpoints(mine), checkpoints(theirs));
}

bool has_capability(const hello& h, const std::string& name) {
    return std::find(h.capabilities.begin(), h.capabilities.end(), name) != h.capabilities.end();
}

} // namespace kagemusha::mirror
