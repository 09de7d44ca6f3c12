// SPDX-License-Identifier: GPL-2.0-or-later
#include "mirror/agreement.hpp"

#include <algorithm>

namespace kagemusha::mirror {

namespace {

std::string versions(const hello& h) {
    return h.oldest_version == h.version
               ? std::to_string(h.version)
               : std::to_string(h.oldest_version) + " to " + std::to_string(h.version);
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

} // namespace

std::string disagreement(const hello& mine, const hello& theirs) {
    // The version first: what else a peer of another version says may mean something else.
    if (std::min(mine.version, theirs.version) < std::max(mine.oldest_version, theirs.oldest_version) ||
        theirs.oldest_version > theirs.version) {
        return "protocol version " + versions(theirs) + " there, " + versions(mine) +
               " here: install the same release on both hosts";
    }
    if (theirs.role == mine.role) {
        return std::string("both ends are a ") + name_of(mine.role) + ": give one of them the other role";
    }
    if (theirs.vm != mine.vm) {
        return "the peer is of VM \"" + theirs.vm.substr(0, 200) + "\", this is VM \"" +
               mine.vm.substr(0, 200) + "\": check the addresses";
    }
    if (theirs.abi_version != mine.abi_version) {
        return "device interface version " + std::to_string(theirs.abi_version) + " there, " +
               std::to_string(mine.abi_version) + " here: install the same release on both hosts";
    }
    const hello& standby = mine.role == role::standby ? mine : theirs;
    if (standby.hold_bytes == 0 || standby.hold_entries == 0) {
        return "the standby says that it can hold nothing: raise its hold_bytes and hold_entries";
    }
    if (theirs.heartbeat_budget_ms == 0) {
        return "the peer gives no heartbeat budget";
    }
    const hello& primary = mine.role == role::primary ? mine : theirs;
    return more_than_allowed(primary.limits, standby.limits);
}

bool has_capability(const hello& h, const std::string& name) {
    return std::find(h.capabilities.begin(), h.capabilities.end(), name) != h.capabilities.end();
}

} // namespace kagemusha::mirror
