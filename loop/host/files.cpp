// SPDX-License-Identifier: GPL-2.0-or-later
#include "loop/host/files.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>

namespace kagemusha::loop {
namespace {

event failed(loop_u32 kind, std::uint64_t cookie, int error) {
    event out;
    out.head.kind = kind;
    out.head.source = LOOP_NONE;
    out.head.cookie = cookie;
    out.head.value = static_cast<std::uint64_t>(error);
    return out;
}

} // namespace

files::~files() {
    for (const auto& [id, fd] : open_)
        close(fd);
}

event files::open(const request& one) {
    const std::string path(reinterpret_cast<const char*>(one.data.data()), one.data.size());
    if (root_ < 0 || path.empty() || path.find('\0') != std::string::npos)
        return failed(LOOP_OPENED, one.head.cookie, ENOENT);
    if (open_.size() >= max_files)
        return failed(LOOP_OPENED, one.head.cookie, EMFILE);
    open_how how{};
    how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK; // a FIFO must not keep the loop
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    const int fd = static_cast<int>(syscall(SYS_openat2, root_, path.c_str(), &how, sizeof how));
    if (fd < 0)
        return failed(LOOP_OPENED, one.head.cookie, errno);
    struct stat about{};
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return failed(LOOP_OPENED, one.head.cookie, EINVAL);
    }
    while (next_id_ == LOOP_NONE || next_id_ == 0 || open_.contains(next_id_))
        ++next_id_;
    open_[next_id_] = fd;
    event out;
    out.head.kind = LOOP_OPENED;
    out.head.source = next_id_++;
    out.head.cookie = one.head.cookie;
    out.head.value = static_cast<std::uint64_t>(about.st_size);
    return out;
}

event files::read(const request& one) {
    const auto found = open_.find(one.head.target);
    if (found == open_.end())
        return failed(LOOP_READ, one.head.cookie, EBADF);
    if (one.head.value > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - LOOP_DATA_BYTES)
        return failed(LOOP_READ, one.head.cookie, EINVAL);
    event out;
    out.head.kind = LOOP_READ;
    out.head.source = one.head.target;
    out.head.cookie = one.head.cookie;
    out.head.value = one.head.value;
    out.data.resize(std::min<std::size_t>(one.head.count, LOOP_DATA_BYTES));
    std::size_t have = 0;
    // Less than asked for means the file's end to the device loop.
    while (have < out.data.size()) {
        const auto got = pread(found->second, out.data.data() + have, out.data.size() - have,
                               static_cast<off_t>(one.head.value + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(LOOP_READ, one.head.cookie, errno);
        if (got == 0)
            break;
        have += static_cast<std::size_t>(got);
    }
    out.data.resize(have);
    return out;
}

void files::forget(std::uint32_t id) {
    if (const auto found = open_.find(id); found != open_.end()) {
        close(found->second);
        open_.erase(found);
    }
}

} // namespace kagemusha::loop
