// SPDX-License-Identifier: GPL-2.0-or-later
// landlock: see landlock.hpp.
#include "worker/landlock.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

namespace kagemusha::worker {

namespace {

// <linux/landlock.h> of Debian 12 knows version 2 of the interface; the running kernel may know more. Numbers
// from Documentation/userspace-api/landlock.rst.
constexpr std::uint64_t fs_execute = 1 << 0, fs_write_file = 1 << 1, fs_read_file = 1 << 2,
                        fs_read_dir = 1 << 3, fs_remove_dir = 1 << 4, fs_remove_file = 1 << 5,
                        fs_make_dir = 1 << 7, fs_make_reg = 1 << 8, fs_make_sym = 1 << 12, fs_refer = 1 << 13,
                        fs_truncate = 1 << 14, fs_ioctl_dev = 1 << 15;
constexpr std::uint64_t net_bind_tcp = 1 << 0, net_connect_tcp = 1 << 1;
constexpr std::uint64_t scope_abstract_unix_socket = 1 << 0, scope_signal = 1 << 1;
constexpr int create_version = 1 << 0;
constexpr int rule_path_beneath = 1;

struct ruleset_attributes {
    std::uint64_t handled_fs;
    std::uint64_t handled_net; // from version 4
    std::uint64_t scoped;      // from version 6
};

struct path_beneath_attributes {
    std::uint64_t allowed;
    std::int32_t parent_fd;
} __attribute__((packed));

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

std::uint64_t known_fs(int version) {
    std::uint64_t known = (1 << 13) - 1;
    if (version >= 2)
        known |= fs_refer;
    if (version >= 3)
        known |= fs_truncate;
    if (version >= 5)
        known |= fs_ioctl_dev;
    return known;
}

std::uint64_t rights(file_access access) {
    constexpr std::uint64_t read = fs_read_file | fs_read_dir;
    switch (access) {
    case file_access::read:
        return read;
    case file_access::execute:
        return read | fs_execute;
    case file_access::write:
        return read | fs_write_file | fs_truncate | fs_remove_dir | fs_remove_file | fs_make_dir |
               fs_make_reg | fs_make_sym | fs_refer;
    case file_access::device:
        return fs_read_file | fs_read_dir | fs_write_file | fs_ioctl_dev;
    case file_access::rewrite:
        return read | fs_write_file | fs_truncate;
    case file_access::remove_entry:
        return fs_remove_dir;
    }
    return 0;
}

constexpr std::uint64_t rights_of_files =
    fs_execute | fs_write_file | fs_read_file | fs_truncate | fs_ioctl_dev;

} // namespace

int landlock_rules::version() {
    const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, create_version);
    return version < 0 ? 0 : static_cast<int>(version);
}

std::string landlock_rules::create() {
    version_ = version();
    if (version_ == 0)
        return "this kernel has no Landlock, or it is not enabled (kernel parameter lsm=landlock,...)";
    ruleset_attributes attributes{};
    attributes.handled_fs = known_fs(version_);
    std::size_t bytes = sizeof attributes.handled_fs;
    if (version_ >= 4) {
        attributes.handled_net = net_bind_tcp | net_connect_tcp;
        bytes = 2 * sizeof(std::uint64_t);
    }
    if (version_ >= 6) {
        attributes.scoped = scope_abstract_unix_socket | scope_signal;
        bytes = sizeof attributes;
    }
    rules_.reset(static_cast<int>(syscall(SYS_landlock_create_ruleset, &attributes, bytes, 0)));
    return rules_ ? "" : system_error("Landlock rules can't be made");
}

void landlock_rules::allow(const std::string& path, file_access access) {
    const unique_fd parent(open(path.c_str(), O_PATH | O_CLOEXEC));
    struct stat status{};
    if (!parent || fstat(parent.get(), &status) != 0)
        return;
    path_beneath_attributes attributes{};
    attributes.allowed = rights(access) & known_fs(version_);
    if (!S_ISDIR(status.st_mode))
        attributes.allowed &= rights_of_files;
    attributes.parent_fd = parent.get();
    // A rule that can't be added leaves the path forbidden, which is the safe side.
    syscall(SYS_landlock_add_rule, rules_.get(), rule_path_beneath, &attributes, 0);
}

std::string landlock_rules::enforce() {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_landlock_restrict_self, rules_.get(), 0) != 0)
        return system_error("Landlock rules can't be enforced");
    rules_.reset();
    return "";
}

} // namespace kagemusha::worker
