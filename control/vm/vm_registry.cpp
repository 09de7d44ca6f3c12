// SPDX-License-Identifier: GPL-2.0-or-later
//
// See vm_registry.hpp.
#include "control/vm/vm_registry.hpp"

#include "control/base/installation.hpp"
#include "control/base/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t longest_name = 40; // leaves room in the path of a Unix socket
constexpr std::size_t longest_file = 4096;
constexpr char suffix[] = ".json";
constexpr int lock_attempts = 50;
constexpr auto lock_pause = std::chrono::milliseconds(10);

bool is_name(const std::string& name) {
    return !name.empty() && name.size() <= longest_name && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
           });
}

std::optional<registered_vm> read_file(int fd) {
    std::string text(longest_file, '\0');
    const auto bytes = ::pread(fd, text.data(), text.size(), 0);
    if (bytes <= 0)
        return std::nullopt;
    text.resize(static_cast<std::size_t>(bytes));
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("name") || !json.contains("pid") || !json.contains("qmp") ||
        !json["name"].is_string() || !json["pid"].is_number_integer() || !json["qmp"].is_string())
        return std::nullopt;
    return registered_vm{json["name"], json["pid"], json["qmp"], text_in(json, "control"),
                         text_in(json, "gpu")};
}

// Of root's VMs, whether a unit of the service manager started them or a person: the packages make it.
constexpr char system_directory[] = "/run/kagemusha";

bool runs_units() {
    std::error_code error;
    return ::getuid() == 0 && own_installation() && fs::is_directory(system_directory, error);
}

} // namespace

std::string gpu_named_by(const std::string& backend, const std::string& selector) {
    return backend == "none" || backend.empty() ? std::string() : backend + ":" + selector;
}

std::string runtime_directory(std::string& error) {
    std::string path;
    if (const char* own = std::getenv("KAGEMUSHA_RUNTIME_DIR"); own && *own)
        path = own;
    else if (runs_units())
        path = system_directory;
    else if (const char* xdg = std::getenv("XDG_RUNTIME_DIR"); xdg && *xdg)
        path = std::string(xdg) + "/kagemusha";
    else
        path = fmt::format("/tmp/kagemusha-{}", ::getuid());
    struct stat found;
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
        error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
        return {};
    }
    // /tmp belongs to everybody: a directory that another user put there would get our sockets.
    if (::lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != ::getuid() ||
        (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        error = fmt::format("{} is not a directory that only this user can write", path);
        return {};
    }
    return path;
}

std::optional<vm_registration> vm_registration::make(const std::string& name, std::string& error,
                                                     bool supervised, const std::string& gpu) {
    if (!is_name(name)) {
        error = fmt::format("'{}' is no name for a VM: at most {} letters, digits, '-', '_' and '.'", name,
                            longest_name);
        return std::nullopt;
    }
    const auto directory = runtime_directory(error);
    if (directory.empty())
        return std::nullopt;
    const auto path = directory + "/" + name + suffix;
    registered_vm vm{name, static_cast<int>(::getpid()), directory + "/" + name + ".qmp", {}, gpu};
    if (supervised)
        vm.control_socket = directory + "/" + name + ".control";
    if (vm.qmp_socket.size() + 8 >= sizeof(sockaddr_un::sun_path)) { // the others' names are not much longer
        error = fmt::format("{} is too long for the path of a socket", vm.qmp_socket);
        return std::nullopt;
    }
    unique_fd whole(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!whole) {
        error = fmt::format("cannot open {}: {}", directory, std::strerror(errno));
        return std::nullopt;
    }
    // A cleaner has its own lock only while it looks, and may have it now: then the next pass is days away.
    for (int attempt = 0; ::flock(whole.get(), LOCK_SH | LOCK_NB) != 0 && attempt < lock_attempts; ++attempt)
        std::this_thread::sleep_for(lock_pause);
    unique_fd file;
    // Who lists the VMs at this moment looks at the lock, and takes a file that has none yet for a left-over
    // one.
    for (int attempt = 0;; ++attempt) {
        file = unique_fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
        if (!file) {
            error = fmt::format("cannot make {}: {}", path, std::strerror(errno));
            return std::nullopt;
        }
        struct stat ours, there;
        if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(file.get(), &ours) == 0 &&
            ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino)
            break;
        if (attempt == lock_attempts) {
            error = fmt::format("a VM with the name {} runs already", name);
            return std::nullopt;
        }
        std::this_thread::sleep_for(lock_pause);
    }
    ::unlink(vm.qmp_socket.c_str()); // of one that was killed
    const auto text = as_json_text({{"name", vm.name},
                                    {"pid", vm.pid},
                                    {"qmp", vm.qmp_socket},
                                    {"control", vm.control_socket},
                                    {"gpu", vm.gpu}}) +
                      "\n";
    if (::ftruncate(file.get(), 0) != 0 ||
        ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        error = fmt::format("cannot write {}: {}", path, std::strerror(errno));
        ::unlink(path.c_str());
        return std::nullopt;
    }
    return vm_registration(std::move(vm), path, std::move(whole), std::move(file));
}

vm_registration::~vm_registration() {
    if (!lock_)
        return; // moved from
    ::unlink(path_.c_str());
    ::unlink(vm_.qmp_socket.c_str());
    if (!vm_.control_socket.empty())
        ::unlink(vm_.control_socket.c_str());
}

std::vector<registered_vm> running_vms(std::string& error) {
    std::vector<registered_vm> vms;
    const auto directory = runtime_directory(error);
    std::error_code failed;
    for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
         entry.increment(failed)) {
        const auto path = entry->path().string();
        if (!path.ends_with(suffix))
            continue;
        const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (!file)
            continue;
        if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) {
            ::unlink(path.c_str());
            continue;
        }
        if (auto vm = read_file(file.get()))
            vms.push_back(std::move(*vm));
    }
    if (failed && !directory.empty())
        error = fmt::format("cannot read {}: {}", directory, failed.message());
    std::sort(vms.begin(), vms.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return vms;
}

} // namespace kagemusha::control
