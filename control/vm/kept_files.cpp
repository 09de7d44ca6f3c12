// SPDX-License-Identifier: GPL-2.0-or-later
//
// See kept_files.hpp.
#include "control/vm/kept_files.hpp"

#include "control/base/installation.hpp"
#include "control/ha/guest_files.hpp"
#include "control/vm/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <linux/fs.h>
#include <string_view>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::control {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "sha256:";

std::string name_of(const std::string& digest) {
    return digest.substr(prefix.size());
}

std::string folder_of_all() {
    for (const char* variable : {"KAGEMUSHA_STATE_DIR", "KAGEMUSHA_RUNTIME_DIR"})
        if (const char* value = std::getenv(variable); value && *value)
            return fs::absolute(value).lexically_normal() / "kept";
    return state_path() + "/kept";
}

std::string cannot(const char* what, const std::string& path) {
    return fmt::format("cannot {} {}: {}", what, path, std::strerror(errno));
}

// Nothing: somebody else has it, or it went away meanwhile.
unique_fd locked_folder(const std::string& path) {
    unique_fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat found{};
    if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(fd.get(), &found) != 0 ||
        found.st_nlink == 0)
        return {};
    return fd;
}

// It is another user's as soon as anybody else can write into it.
bool is_own_folder(const std::string& path) {
    struct stat found{};
    return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::getuid() &&
           (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Folders of supervisors that run no more, the oldest ones first, beyond what is allowed.
void drop_idle_folders(const std::string& all) {
    std::vector<std::pair<fs::file_time_type, std::string>> idle;
    std::error_code error;
    for (const auto& vm : fs::directory_iterator(all, error)) {
        fs::remove(vm.path(), error); // if it is empty
        for (const auto& folder : fs::directory_iterator(vm.path(), error))
            if (locked_folder(folder.path()))
                idle.emplace_back(folder.last_write_time(error), folder.path());
    }
    if (idle.size() <= kept_files::most_idle_folders)
        return;
    std::sort(idle.begin(), idle.end());
    idle.resize(idle.size() - kept_files::most_idle_folders);
    for (const auto& [time, path] : idle)
        if (const auto lock = locked_folder(path))
            fs::remove_all(path, error);
}

// The same content at `to`, which is not there. 0 or an errno.
int duplicate(const std::string& from, const std::string& to) {
    const unique_fd source(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat found{};
    if (!source || ::fstat(source.get(), &found) != 0)
        return errno;
    const auto mode = found.st_mode & (S_IRUSR | S_IRGRP | S_IROTH);
    {
        const unique_fd target(
            ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
        if (!target)
            return errno;
        if (::ioctl(target.get(), FICLONE, source.get()) == 0)
            return ::fchmod(target.get(), mode) == 0 ? 0 : errno;
    }
    if (::unlink(to.c_str()) != 0)
        return errno;
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) == 0)
        return 0;
    std::error_code error;
    // copy_file would fill the file system, and call that an error of input or output.
    const auto room = fs::space(fs::path(to).parent_path(), error).available;
    if (!error && room < static_cast<std::uintmax_t>(found.st_size))
        return ENOSPC;
    fs::copy_file(from, to, error);
    if (!error)
        return ::chmod(to.c_str(), mode) == 0 ? 0 : errno;
    return error.value();
}

bool has_content(const std::string& path, const std::string& digest) {
    struct stat found{};
    std::string error;
    return ::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && file_digest(path, error) == digest;
}

std::set<std::string> digests_in(const std::string& folder) {
    std::set<std::string> found;
    std::error_code error;
    for (const auto& file : fs::directory_iterator(folder, error))
        if (auto digest = std::string(prefix) + file.path().filename().string(); ha::is_digest(digest))
            found.insert(std::move(digest));
    return found;
}

} // namespace

std::string state_path() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value ? value : "");
    };
    if (const auto own = variable("KAGEMUSHA_STATE_DIR"); !own.empty())
        return fs::absolute(own).lexically_normal().string();
    if (::getuid() == 0 && own_installation())
        return installed_state;
    if (const auto xdg = variable("XDG_STATE_HOME"); !xdg.empty())
        return xdg + "/kagemusha";
    return variable("HOME") + "/.local/state/kagemusha";
}

kept_files kept_files::open(const std::string& vm, const std::string& supervisor, std::string& error) {
    kept_files out;
    const auto all = folder_of_all();
    const auto of_vm = all + "/" + vm, own = of_vm + "/" + supervisor;
    // Somebody who makes room may remove one in between.
    for (int attempts = 3; attempts > 0 && !out.lock_; --attempts) {
        std::error_code made;
        fs::create_directories(own, made);
        if (made || !is_own_folder(all)) {
            error =
                fmt::format("files of guests can't be kept in {}: {}", own,
                            made ? made.message() : all + " is not a folder that only this user can write");
            return {};
        }
        out.lock_ = locked_folder(own);
    }
    if (!out.lock_) {
        error = fmt::format("files of guests can't be kept in {}: another supervisor does that there", own);
        return {};
    }
    ::futimens(out.lock_.get(), nullptr);
    out.of_vm_ = of_vm;
    out.own_ = own;
    drop_idle_folders(all);
    return out;
}

std::string kept_files::keep(const std::string& path, const std::string& digest, std::string& error) {
    if (!ha::is_digest(digest)) {
        error = fmt::format("cannot keep {}: '{}' is no SHA-256", path, digest);
        return {};
    }
    const auto kept = own_ + "/" + name_of(digest);
    if (checked_.contains(digest))
        return kept;
    if (!has_content(kept, digest)) {
        const auto made = own_ + "/new";
        std::error_code ignored;
        fs::remove_all(kept, ignored);
        fs::remove_all(made, ignored);
        errno = duplicate(path, made);
        if (errno != 0) {
            error = cannot("keep", path) + " (in " + own_ + ")";
            fs::remove(made, ignored);
            return {};
        }
        if (!has_content(made, digest)) {
            error = fmt::format("cannot keep {}: it has changed while it was read", path);
            fs::remove(made, ignored);
            return {};
        }
        if (::rename(made.c_str(), kept.c_str()) != 0) {
            error = cannot("make", kept);
            return {};
        }
    }
    checked_.insert(digest);
    return kept;
}

void kept_files::adopt(const std::string& path) {
    std::string error;
    std::error_code missing;
    if (!fs::is_regular_file(path, missing))
        return;
    if (const auto digest = file_digest(path, error))
        keep(path, *digest, error);
}

std::string kept_files::find(const std::string& digest, std::string& error) {
    error = "this host has not kept " + digest;
    if (!ha::is_digest(digest))
        return {};
    if (auto kept = own_ + "/" + name_of(digest); has_content(kept, digest)) {
        checked_.insert(digest);
        error.clear();
        return kept;
    }
    checked_.erase(digest);
    std::error_code ignored;
    for (const auto& folder : fs::directory_iterator(of_vm_, ignored)) {
        const auto path = folder.path().string() + "/" + name_of(digest);
        if (!has_content(path, digest))
            continue;
        if (auto kept = keep(path, digest, error); !kept.empty()) {
            error.clear();
            return kept;
        }
    }
    return {};
}

std::set<std::string> kept_files::all() const {
    std::set<std::string> found;
    std::error_code error;
    for (const auto& folder : fs::directory_iterator(of_vm_, error))
        found.merge(digests_in(folder.path()));
    return found;
}

std::set<std::string> kept_files::own() const {
    return digests_in(own_);
}

void kept_files::drop(const std::vector<std::string>& digests) {
    std::error_code error;
    for (const auto& digest : digests) {
        fs::remove(own_ + "/" + name_of(digest), error);
        checked_.erase(digest);
    }
}

} // namespace kagemusha::control
