// SPDX-License-Identifier: GPL-2.0-or-later
// own_root: see own_root.hpp.
#include "worker/own_root.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/unique_fd.hpp"

namespace kagemusha::worker {

namespace {

// Room for names only; everything is mounted.
constexpr char root_options[] = "mode=0755,nr_inodes=1024,size=1m";

std::string system_error(const std::string& what) {
    return what + ": " + std::strerror(errno);
}

// The folders above a path, below `root`. Those that are mounted have it already.
bool make_folders(const std::string& root, const std::string& path) {
    for (std::size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1))
        if (mkdir((root + path.substr(0, at)).c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS)
            return false;
    return true;
}

// Nothing of it is written or followed to a device. What the kernel does not know stays as it was: Landlock
// denies writing as well.
void set_read_only(const std::string& at) {
    struct {
        std::uint64_t set, clear, propagation, user_namespace;
    } attributes{MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0, 0, 0};
    constexpr unsigned recursive = 0x8000; // AT_RECURSIVE
    syscall(SYS_mount_setattr, AT_FDCWD, at.c_str(), recursive, &attributes, sizeof attributes);
}

// "" also for what the host does not have.
std::string show(const std::string& root, const std::string& path) {
    struct stat status{};
    if (path.size() < 2 || path.front() != '/' || path.find("/..") != path.npos ||
        lstat(path.c_str(), &status) != 0)
        return "";
    const std::string at = root + path;
    if (!make_folders(root, path))
        return system_error("a folder for " + path);
    // /lib and the like are links into /usr. Below a folder of the host's the link is there.
    if (S_ISLNK(status.st_mode) && path.find('/', 1) == path.npos) {
        char target[PATH_MAX];
        const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
        if (length <= 0)
            return system_error("the link " + path);
        target[length] = '\0';
        return symlink(target, at.c_str()) == 0 || errno == EEXIST ? "" : system_error("the link " + path);
    }
    if (stat(path.c_str(), &status) != 0)
        return "";
    if (S_ISDIR(status.st_mode)) {
        if (mkdir(at.c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS)
            return system_error("a place for " + path);
    } else if (const unique_fd file(open(at.c_str(), O_CREAT | O_RDONLY | O_CLOEXEC, 0444));
               !file && errno != EROFS && errno != EACCES) {
        return system_error("a place for " + path);
    }
    if (mount(path.c_str(), at.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
        return system_error("the mount of " + path);
    if (!path.starts_with("/dev/") && path != "/proc")
        set_read_only(at);
    return "";
}

std::string build(const std::string& root, const std::vector<std::string>& paths,
                  std::uint64_t private_bytes) {
    for (const std::string& path : paths) {
        // The link would name another process for each reader, and is what other programs' names are behind.
        if (path == "/proc/self" || path.starts_with("/proc/self/"))
            continue;
        if (std::string error = show(root, path); !error.empty())
            return error;
    }
    const std::string self = "/proc/" + std::to_string(getpid()), shown = root + "/proc/self";
    const bool whole = std::ranges::find(paths, "/proc") != paths.end();
    if (!whole && (!make_folders(root, "/proc/self") || mkdir(shown.c_str(), 0555) != 0 ||
                   mount(self.c_str(), shown.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
                   symlink("self", (root + self).c_str()) != 0))
        return system_error("a place for /proc/self");
    const std::string options = "mode=0700,nr_inodes=16384,size=" + std::to_string(private_bytes);
    const std::string directory = root + own_root_directory;
    if (mkdir(directory.c_str(), 0700) != 0 ||
        mount("kagemusha", directory.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
        return system_error("the private directory");
    return "";
}

} // namespace

std::string enter_own_root(const std::vector<std::string>& paths, std::uint64_t private_bytes) {
    // Folders that are always there, and never needed below.
    const char* place = nullptr;
    for (const char* candidate : {"/mnt", "/media", "/srv"}) {
        if (mount("kagemusha", candidate, "tmpfs", MS_NOSUID | MS_NODEV, root_options) == 0) {
            place = candidate;
            break;
        }
    }
    if (place == nullptr)
        return system_error("a file system in memory");
    std::string error = build(place, paths, private_bytes);
    // The old root is put over the new one and taken away from there (pivot_root(2), "pivot_root(".", ".")").
    if (error.empty() && (chdir(place) != 0 || syscall(SYS_pivot_root, ".", ".") != 0))
        error = system_error("pivot_root");
    if (!error.empty()) {
        umount2(place, MNT_DETACH);
        return error;
    }
    if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) {
        // The host's tree is under ours, where no name leads to it.
        return "";
    }
    mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr);
    return "";
}

} // namespace kagemusha::worker
