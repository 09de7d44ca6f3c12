// SPDX-License-Identifier: GPL-2.0-or-later
//
// See state_folder.hpp.
#include "control/daemon/state_folder.hpp"

#include "control/cluster/declaration.hpp"
#include "control/vm/kept_files.hpp"
#include "control/vm/vm_registry.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace kagemusha::control::daemon {

namespace fs = std::filesystem;

namespace {

// Below the folder of a node with the longest names: "unix:PATH.state", and QEMU's links to it.
constexpr std::size_t room_below = sizeof("/clusters//node64/b.state") + cluster::longest_name + 8;

} // namespace

state_folder state_folder::open(std::string& error) {
    state_folder out;
    auto path = state_path();
    if (path.ends_with('/'))
        path.pop_back();
    // They are words in descriptions of VMs, in options of QEMU's, and the beginning of sockets' paths.
    if (path.empty() || path.front() != '/' ||
        path.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-") !=
            path.npos) {
        error = fmt::format("'{}' can't hold the daemon's state: letters, digits and '/._+-' are allowed in "
                            "its path; KAGEMUSHA_STATE_DIR names another folder",
                            path);
        return out;
    }
    if (path.size() + room_below > sizeof(sockaddr_un::sun_path)) {
        error = fmt::format("{} is too long a path for the daemon's state, because sockets are below it: at "
                            "most {} characters; KAGEMUSHA_STATE_DIR names another folder",
                            path, sizeof(sockaddr_un::sun_path) - room_below);
        return out;
    }
    std::error_code failed;
    fs::create_directories(path, failed);
    struct stat found{};
    if (failed || ::lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
        found.st_uid != ::getuid() || ::chmod(path.c_str(), S_IRWXU) != 0) {
        error = fmt::format("{} can't hold the daemon's state: {}", path,
                            failed ? failed.message() : "it is not a folder of this user's");
        return out;
    }
    fs::create_directories(path + "/clusters", failed);
    if (failed) {
        error = fmt::format("cannot make {}/clusters: {}", path, failed.message());
        return out;
    }
    out.path_ = std::move(path);
    return out;
}

std::string state_folder::login() const {
    return path_ == installed_state ? "/etc/kagemusha/login.toml" : path_ + "/login.toml";
}

std::string state_folder::node(const std::string& name, unsigned number) const {
    return cluster(name) + "/" + cluster::node_name(number);
}

std::string daemon_socket(std::string& error) {
    const auto directory = runtime_directory(error);
    return directory.empty() ? std::string() : directory + "/daemon.socket";
}

} // namespace kagemusha::control::daemon
