// SPDX-License-Identifier: GPL-2.0-or-later
//
// See files.hpp.
#include "kubernetes/node/files.hpp"

#include "control/base/process.hpp"
#include "control/base/write_all.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace kagemusha::kubernetes {

namespace fs = std::filesystem;

namespace {

constexpr mode_t readable_by_all = 0644;
constexpr std::int64_t ns_of_s = 1'000'000'000;

std::string complaint(const std::string& path) {
    return fmt::format("cannot write {}: {}", path, std::strerror(errno));
}

} // namespace

std::string write_atomically(const std::string& path, const std::string& content) {
    const auto folder = fs::path(path).parent_path().string();
    std::error_code failed;
    fs::create_directories(folder, failed);
    // Runtimes read what ends with .json there: this does not.
    const auto beside = path + ".new";
    const unique_fd file(
        ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, readable_by_all));
    if (!file || !control::write_all(file.get(), content) || ::fsync(file.get()) != 0 ||
        ::rename(beside.c_str(), path.c_str()) != 0) {
        auto why = complaint(path);
        ::unlink(beside.c_str());
        return why;
    }
    const unique_fd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory || ::fsync(directory.get()) != 0)
        return complaint(path);
    return {};
}

void remove_file(const std::string& path) {
    ::unlink(path.c_str());
}

bool file_is_there(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

std::optional<file_identity> socket_at(const std::string& path) {
    struct stat found{};
    if (::lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode))
        return std::nullopt;
    return file_identity{found.st_dev, found.st_ino, found.st_ctim.tv_sec * ns_of_s + found.st_ctim.tv_nsec};
}

} // namespace kagemusha::kubernetes
