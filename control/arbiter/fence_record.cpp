// SPDX-License-Identifier: GPL-2.0-or-later
//
// See fence_record.hpp.
#include "control/arbiter/fence_record.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <linux/magic.h>
#include <sstream>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

constexpr char head[] = "kagemusha fencing record 1";
constexpr std::size_t longest_file = 1024;

std::optional<std::uint64_t> number(const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed != std::errc() || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

// Nothing: it is not there (errno is ENOENT), can't be read, or is too long.
std::optional<std::string> read_short(const std::string& path) {
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd)
        return std::nullopt;
    std::string text(longest_file + 1, '\0');
    const auto got = ::read(fd.get(), text.data(), text.size());
    if (got < 0)
        return std::nullopt;
    if (static_cast<std::size_t>(got) > longest_file) {
        errno = EFBIG;
        return std::nullopt;
    }
    text.resize(static_cast<std::size_t>(got));
    return text;
}

std::string directory_of(const std::string& path) {
    const auto parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

} // namespace

std::string fence_record_text(const std::string& vm, const fence_record& record) {
    return fmt::format("{}\nvm {}\nterm {}\nrole {}\npaired {}\n", head, vm, record.term,
                       record.is == fence_record::role::primary ? "primary" : "standby",
                       record.paired ? "yes" : "no");
}

std::optional<fence_record> parse_fence_record(const std::string& text, const std::string& vm,
                                               std::string& error) {
    std::istringstream lines(text);
    std::string first, keys[4], values[4];
    std::getline(lines, first);
    for (int i = 0; i < 4; ++i)
        lines >> keys[i] >> values[i];
    std::string rest;
    const auto term = number(values[1]);
    const bool primary = values[2] == "primary", paired = values[3] == "yes";
    if (!lines || lines >> rest || first != head || keys[0] != "vm" || keys[1] != "term" || !term ||
        keys[2] != "role" || keys[3] != "paired" || (!primary && values[2] != "standby") ||
        (!paired && values[3] != "no")) {
        error = "is no fencing record";
        return std::nullopt;
    }
    if (values[0] != vm) {
        error = fmt::format("is the fencing record of the VM {}", values[0]);
        return std::nullopt;
    }
    return fence_record{*term, primary ? fence_record::role::primary : fence_record::role::standby, paired};
}

std::optional<fence_file> fence_file::open(const std::string& path, const std::string& vm,
                                           std::string& error) {
    const auto lock_path = path + ".lock";
    unique_fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) {
        error = fmt::format("cannot open {}: {}", lock_path, std::strerror(errno));
        return std::nullopt;
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        error =
            fmt::format("another supervisor has the fencing record {}: each host needs one of its own", path);
        return std::nullopt;
    }
    fence_file file(path, vm, std::move(lock));
    const auto text = read_short(path);
    if (!text && errno == ENOENT)
        return file;
    if (!text) {
        error = fmt::format("cannot read {}: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    std::string why;
    const auto record = parse_fence_record(*text, vm, why);
    if (!record) {
        error = fmt::format("{} {}. If the VM runs nowhere, remove it and start the VM with --force-new",
                            path, why);
        return std::nullopt;
    }
    file.record_ = *record;
    return file;
}

std::string fence_file::write(const fence_record& record) {
    const auto fresh = path_ + ".new";
    const auto text = fence_record_text(vm_, record);
    const auto failed = [&] { return fmt::format("cannot write {}: {}", path_, std::strerror(errno)); };
    {
        const unique_fd fd(
            ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
            ::fsync(fd.get()) != 0)
            return failed();
    }
    if (::rename(fresh.c_str(), path_.c_str()) != 0)
        return failed();
    const unique_fd directory(::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory || ::fsync(directory.get()) != 0)
        return failed();
    record_ = record;
    return {};
}

bool fence_file::take_confirmation(std::uint64_t term) const {
    const auto file = path_ + ".confirm";
    const auto text = read_short(file);
    if (!text)
        return false;
    std::istringstream words(*text);
    std::string word, rest;
    return words >> word && !(words >> rest) && number(word) == term && ::unlink(file.c_str()) == 0;
}

std::string why_not_durable(const std::string& path) {
    struct statfs found{};
    if (::statfs(directory_of(path).c_str(), &found) != 0)
        return fmt::format("cannot look at the directory of {}: {}", path, std::strerror(errno));
    if (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC)
        return fmt::format("{} is in memory: a fencing record must survive a reboot. Name a 'path' on a disk",
                           path);
    return {};
}

} // namespace kagemusha::control
