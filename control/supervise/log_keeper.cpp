// SPDX-License-Identifier: GPL-2.0-or-later
//
// See log_keeper.hpp.
#include "control/supervise/log_keeper.hpp"

#include "control/base/process.hpp"
#include "control/base/write_all.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kagemusha::control {

namespace {

// A serial port brings less than four megabytes in this time.
constexpr auto period = std::chrono::seconds(1);

std::string problem(const char* what, const std::string& path) {
    return fmt::format("cannot {} {}: {}", what, path, std::strerror(errno));
}

// The end of the file, at most so much; more of what comes meanwhile is not waited for.
std::string copy_end(int from, std::uint64_t size, std::uint64_t most_bytes, const std::string& to) {
    // The folder may be everybody's: nobody shall name another file for us to write to.
    const unique_fd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    struct stat there{};
    if (!out || ::fstat(out.get(), &there) != 0)
        return problem("write", to);
    if (!S_ISREG(there.st_mode) || there.st_uid != ::geteuid())
        return fmt::format("{} is not ours: what {} would keep is dropped", to, to);
    if (::ftruncate(out.get(), 0) != 0)
        return problem("empty", to);
    char buffer[65536];
    auto at = size - std::min(size, most_bytes);
    for (auto left = size - at; left > 0;) {
        const auto got =
            ::pread(from, buffer, std::min<std::uint64_t>(left, sizeof buffer), static_cast<off_t>(at));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break; // somebody else has emptied it
        if (!write_all(out.get(), {buffer, static_cast<std::size_t>(got)}))
            return problem("write", to);
        at += static_cast<std::uint64_t>(got);
        left -= static_cast<std::uint64_t>(got);
    }
    return {};
}

} // namespace

std::string bound_log(const std::string& path, std::uint64_t most_bytes) {
    struct stat now{};
    if (::stat(path.c_str(), &now) != 0)
        return errno == ENOENT ? std::string() : problem("look at", path);
    if (!S_ISREG(now.st_mode) || static_cast<std::uint64_t>(now.st_size) <= most_bytes)
        return {};
    const unique_fd file(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!file || ::fstat(file.get(), &now) != 0 || !S_ISREG(now.st_mode))
        return problem("open", path);
    auto copied = copy_end(file.get(), static_cast<std::uint64_t>(now.st_size), most_bytes, path + ".1");
    if (::ftruncate(file.get(), 0) != 0)
        return problem("empty", path);
    return copied;
}

log_keeper::log_keeper(std::vector<std::string> paths, std::uint64_t most_bytes,
                       std::function<void(const std::string&)> report)
    : paths_(std::move(paths)), most_bytes_(most_bytes), report_(std::move(report)) {
    // Signals are the main thread's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

log_keeper::~log_keeper() {
    {
        const std::lock_guard lock(mutex_);
        end_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void log_keeper::run() {
    std::string told;
    std::unique_lock lock(mutex_);
    while (!end_) {
        lock.unlock();
        std::string found;
        for (const auto& path : paths_)
            if (auto why = bound_log(path, most_bytes_); !why.empty())
                found = std::move(why);
        if (found != told && !found.empty())
            report_(found);
        told = std::move(found);
        lock.lock();
        wake_.wait_for(lock, period, [this] { return end_; });
    }
}

} // namespace kagemusha::control
