// SPDX-License-Identifier: GPL-2.0-or-later
//
// See enter.hpp. The order matters: what has a name outside only is opened first, then come the namespaces,
// the tree, its place as root, and last the user, who may do nothing of that.
#include "control/confine/enter.hpp"

#include "control/base/process.hpp"
#include "control/base/unix_socket.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <grp.h>
#include <linux/capability.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <set>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kagemusha::control {

namespace {

namespace fs = std::filesystem;

// <linux/mount.h> and glibc's <sys/mount.h> can't be had together; numbers from mount_setattr(2),
// open_tree(2).
constexpr unsigned recursive = 0x8000, clone_tree = 1, empty_path_from = 0x4;
struct mount_attributes {
    std::uint64_t set = 0, clear = 0, propagation = 0, user_namespace = 0;
};
constexpr std::uint64_t attribute_read_only = 0x1, attribute_no_setuid = 0x2, attribute_no_devices = 0x4,
                        attribute_mapped_ids = 0x100000;

// Names only; everything is mounted.
constexpr char root_options[] = "mode=0755,nr_inodes=4096,size=1m";
constexpr char temporary_options[] = "mode=1777,nr_inodes=4096,size=64m";

std::string failed(const std::string& what) {
    return what + ": " + std::strerror(errno);
}

bool write_kernel_file(const std::string& path, const std::string& text) {
    const unique_fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// One user namespace in which nobody but the caller exists, under his own numbers.
bool keep_identity(uid_t user, gid_t group) {
    return write_kernel_file("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) &&
           write_kernel_file("/proc/self/setgroups", "deny") &&
           write_kernel_file("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
}

bool has_capabilities(std::initializer_list<int> wanted) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    if (::syscall(SYS_capget, &header, data) != 0)
        return false;
    for (const int one : wanted)
        if ((data[one / 32].effective & (1u << (one % 32))) == 0)
            return false;
    return true;
}

bool ids_exist(const char* map) {
    std::ifstream file(map);
    std::uint64_t inside = 0, outside = 0, count = 0;
    while (file >> inside >> outside >> count)
        if (inside <= first_vm_user && first_vm_user + std::uint64_t{vm_users} <= inside + count)
            return true;
    return false;
}

bool works_in_a_child(int (*what)()) {
    const pid_t pid = ::fork();
    if (pid == 0)
        ::_exit(what());
    int status = 0;
    while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int try_mounts() {
    return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                   ::mount("kagemusha", "/mnt", "tmpfs", 0, root_options) == 0
               ? 0
               : 1;
}

int try_as_root() {
    return ::unshare(CLONE_NEWNS) == 0 ? try_mounts() : 1;
}

int try_in_user_namespace() {
    const auto user = ::geteuid();
    const auto group = ::getegid();
    return ::unshare(CLONE_NEWUSER) == 0 && keep_identity(user, group) &&
                   ::unshare(CLONE_NEWNS | CLONE_NEWNET) == 0
               ? try_mounts()
               : 1;
}

// ---- what is opened outside

std::string listen_at(const std::string& path, int number) {
    ::unlink(path.c_str());
    const auto name = unix_address(path);
    const unique_fd fd(name ? ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1);
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0 ||
        ::listen(fd.get(), 1) != 0 || ::dup2(fd.get(), number) < 0)
        return failed("cannot listen at " + path);
    return {};
}

// With the head of a packet that QEMU asks for when it opens one itself.
std::string open_tap(const std::string& name, int number) {
    const unique_fd fd(::open("/dev/net/tun", O_RDWR | O_CLOEXEC));
    ifreq request{};
    unsigned features = 0;
    if (name.size() >= sizeof request.ifr_name)
        return fmt::format("'{}' is too long for the name of a network interface", name);
    name.copy(request.ifr_name, sizeof request.ifr_name - 1);
    if (!fd || ::ioctl(fd.get(), TUNGETFEATURES, &features) != 0)
        return failed("cannot open /dev/net/tun");
    request.ifr_flags = static_cast<short>(IFF_TAP | IFF_NO_PI | (features & IFF_VNET_HDR));
    if (::ioctl(fd.get(), TUNSETIFF, &request) != 0 || ::dup2(fd.get(), number) < 0)
        return failed("cannot open the interface " + name);
    return {};
}

std::string open_outside(const confinement& what) {
    for (const auto& one : what.descriptors)
        if (auto why = one.what == handed_descriptor::kind::tap ? open_tap(one.name, one.fd)
                                                                : listen_at(one.name, one.fd);
            !why.empty())
            return why;
    return {};
}

// ---- the tree

class tree {
public:
    explicit tree(const confinement& what) : what_(what), root_(what.place) {}
    std::string build();
    const std::set<gid_t>& groups() const { return groups_; } // of nodes that could not be copied

private:
    std::string give(const std::string& path) const;
    std::string show(const shown_path& one);
    std::string show_system();
    std::string show_device(const std::string& path);
    std::string bind(const std::string& path, const struct stat& status, bool writable, bool device);
    std::string map_owner(int mount, const std::string& path, const struct stat& status) const;
    std::string make_place(const std::string& path, bool directory) const;
    bool may(const struct stat& status, bool writable) const;

    const confinement& what_;
    std::string root_;
    std::set<gid_t> groups_;
};

// The supervisor's own: a file, or a folder with the files in it.
std::string tree::give(const std::string& path) const {
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd)
        return failed("cannot open " + path);
    if (what_.user && ::fchown(fd.get(), *what_.user, *what_.user) != 0)
        return failed(fmt::format("cannot give {} to user {}", path, *what_.user));
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0 || !S_ISDIR(status.st_mode) || !what_.user)
        return {};
    std::error_code error;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
        if (::fchownat(fd.get(), at->path().filename().c_str(), *what_.user, *what_.user,
                       AT_SYMLINK_NOFOLLOW) != 0)
            return failed(fmt::format("cannot give {} to user {}", at->path().string(), *what_.user));
    return {};
}

bool tree::may(const struct stat& status, bool writable) const {
    if (!what_.user)
        return true; // as before: the kernel decides when QEMU opens it
    unsigned mode = status.st_mode;
    if (status.st_uid == *what_.user)
        mode >>= 6;
    else if (status.st_gid == *what_.user)
        mode >>= 3;
    const unsigned wanted = 4 + (writable ? 2 : 0) + (S_ISDIR(status.st_mode) ? 1 : 0);
    return (mode & wanted) == wanted;
}

std::string tree::make_place(const std::string& path, bool directory) const {
    for (std::size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1)) {
        const auto folder = root_ + path.substr(0, at);
        if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST && errno != EROFS)
            return failed("no place for " + path);
    }
    const auto place = root_ + path;
    struct stat there{};
    if (::lstat(place.c_str(), &there) == 0)
        return {};
    if (directory ? ::mkdir(place.c_str(), 0755) == 0
                  : static_cast<bool>(unique_fd(::open(place.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0444))))
        return {};
    return failed("no place for " + path);
}

// In this mount its owner is QEMU's user; on the disk nothing changes.
std::string tree::map_owner(int mount, const std::string& path, const struct stat& status) const {
    const auto refused = [&](const char* step) {
        return fmt::format(
            "QEMU's user {0} may not use {1}, and its file system does not show it as that user's "
            "({2}: {3}). Give it to that user (chown {0} {1}), name another one ([confinement], "
            "'user'), or do without (root = false)",
            *what_.user, path, step, std::strerror(errno));
    };
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return refused("pipe");
    unique_fd wait(ends[0]), tell(ends[1]);
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0)
        return refused("pipe");
    unique_fd is_ready(ready[0]), say_ready(ready[1]);
    const pid_t child = ::fork();
    if (child == 0) {
        tell.reset();
        char byte = ::unshare(CLONE_NEWUSER) == 0 ? 1 : 0;
        (void)!::write(say_ready.get(), &byte, 1);
        (void)!::read(wait.get(), &byte, 1); // until the other end is closed
        ::_exit(0);
    }
    char byte = 0;
    say_ready.reset();
    const bool made = child > 0 && ::read(is_ready.get(), &byte, 1) == 1 && byte == 1;
    const auto of = fmt::format("/proc/{}", child);
    const bool written =
        made && write_kernel_file(of + "/uid_map", fmt::format("{} {} 1", status.st_uid, *what_.user)) &&
        write_kernel_file(of + "/gid_map", fmt::format("{} {} 1", status.st_gid, *what_.user));
    const unique_fd users(written ? ::open((of + "/ns/user").c_str(), O_RDONLY | O_CLOEXEC) : -1);
    const int why = errno;
    tell.reset();
    if (child > 0)
        ::waitpid(child, nullptr, 0);
    errno = why;
    if (!users)
        return refused("user namespace");
    const mount_attributes attributes{attribute_mapped_ids, 0, 0, static_cast<std::uint64_t>(users.get())};
    if (::syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0)
        return refused("mount_setattr");
    return {};
}

std::string tree::bind(const std::string& path, const struct stat& status, bool writable, bool device) {
    if (auto why = make_place(path, S_ISDIR(status.st_mode)); !why.empty())
        return why;
    const unique_fd mount(static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, path.c_str(),
                                                     clone_tree | static_cast<unsigned>(O_CLOEXEC) |
                                                         (S_ISDIR(status.st_mode) ? recursive : 0u))));
    if (!mount)
        return failed("cannot show " + path);
    if (!device && !may(status, writable))
        if (auto why = map_owner(mount.get(), path, status); !why.empty())
            return why;
    // Of a file system in the middle of a folder, which the kernel has locked for others, only what it
    // allows.
    const mount_attributes attributes{attribute_no_setuid | (device ? 0 : attribute_no_devices) |
                                      (writable || device ? 0 : attribute_read_only)};
    if (::syscall(SYS_mount_setattr, mount.get(), "", AT_EMPTY_PATH | recursive, &attributes,
                  sizeof attributes) != 0 ||
        ::syscall(SYS_move_mount, mount.get(), "", AT_FDCWD, (root_ + path).c_str(), empty_path_from) != 0)
        return failed("cannot show " + path);
    return {};
}

// A copy that is QEMU's: of the host's node nothing changes. Where nodes can't be made it is the host's.
std::string tree::show_device(const std::string& path) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0)
        return {};
    if (S_ISDIR(status.st_mode)) {
        std::error_code error;
        for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
            if (auto why = show_device(at->path().string()); !why.empty())
                return why;
        return {};
    }
    if (!S_ISCHR(status.st_mode) && !S_ISBLK(status.st_mode))
        return {};
    const auto place = root_ + path;
    if (!what_.user_namespace) {
        if (auto why = make_place(path.substr(0, path.rfind('/')), true); !why.empty())
            return why;
        const bool everybodys = (status.st_mode & 06) == 06;
        if (::mknod(place.c_str(), (status.st_mode & S_IFMT) | 0600, status.st_rdev) == 0) {
            if (what_.user && ::chown(place.c_str(), *what_.user, *what_.user) != 0)
                return failed("cannot give the node " + path);
            if (::chmod(place.c_str(), everybodys ? 0666 : 0600) != 0)
                return failed("cannot open the node " + path);
            return {};
        }
        if (status.st_gid != 0 && (status.st_mode & 060) == 060)
            groups_.insert(status.st_gid);
    }
    return bind(path, status, true, true);
}

std::string tree::show(const shown_path& one) {
    struct stat status{};
    if (::stat(one.path.c_str(), &status) != 0)
        return one.optional ? std::string() : failed("cannot show " + one.path);
    if (S_ISSOCK(status.st_mode)) {
        // It may be made anew, so it is its folder that is shown, if that is everybody's.
        const auto folder = one.path.substr(0, std::max<std::size_t>(one.path.rfind('/'), 1));
        struct stat around{};
        if (::stat(folder.c_str(), &around) == 0 && may(around, false))
            return show({folder, false, false, true});
        return bind(one.path, status, true, false);
    }
    if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
        return show_device(one.path);
    if (!S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode))
        return one.optional ? std::string() : one.path + " is no file, folder or device: QEMU can't have it";
    // /lib and the like are links into /usr.
    struct stat link{};
    if (one.optional && one.path.find('/', 1) == one.path.npos && ::lstat(one.path.c_str(), &link) == 0 &&
        S_ISLNK(link.st_mode)) {
        std::error_code error;
        const auto target = fs::read_symlink(one.path, error);
        return !error && (::symlink(target.c_str(), (root_ + one.path).c_str()) == 0 || errno == EEXIST)
                   ? std::string()
                   : failed("cannot show the link " + one.path);
    }
    if (one.optional && S_ISDIR(status.st_mode) && !may(status, false))
        return {}; // what others may not look into is no file of the system's
    return bind(one.path, status, one.writable, false);
}

// /dev, /proc and a temporary folder; and empty ones on which workers build their roots.
std::string tree::show_system() {
    const auto mounted = [&](const char* type, const char* path, unsigned long flags, const char* options) {
        return make_place(path, true).empty() &&
               ::mount("kagemusha", (root_ + path).c_str(), type, flags, options) == 0;
    };
    for (const char* path : {"/mnt", "/media", "/srv"})
        if (auto why = make_place(path, true); !why.empty())
            return why;
    if (!mounted("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, temporary_options) ||
        !mounted("tmpfs", "/dev", MS_NOSUID | MS_NOEXEC, root_options))
        return failed("a file system in memory");
    for (const char* path : {"/var", "/run"})
        if (auto why = make_place(path, true); !why.empty())
            return why;
    if (::symlink("/tmp", (root_ + "/var/tmp").c_str()) != 0 ||
        ::symlink("/proc/self/fd", (root_ + "/dev/fd").c_str()) != 0)
        return failed("a link");
    // Other users' processes have no name in an own one; in a user namespace it can't be had.
    if (!what_.user_namespace && mounted("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2"))
        return {};
    struct stat status{};
    if (::stat("/proc", &status) != 0)
        return failed("/proc");
    return bind("/proc", status, true, false);
}

std::string tree::build() {
    for (const auto& one : what_.paths)
        if (one.given)
            if (auto why = give(one.path); !why.empty())
                return why;
    if (::mount("kagemusha", root_.c_str(), "tmpfs", MS_NOSUID, root_options) != 0)
        return failed("cannot mount a file system in memory at " + root_);
    if (auto why = show_system(); !why.empty())
        return why;
    for (const auto& device : what_.devices)
        if (auto why = show_device(device); !why.empty())
            return why;
    for (const auto& one : what_.paths)
        if (auto why = show(one); !why.empty())
            return why;
    return {};
}

std::string enter_namespaces(const confinement& what) {
    if (what.user_namespace) {
        const auto user = ::geteuid();
        const auto group = ::getegid();
        if (::unshare(CLONE_NEWUSER) != 0 || !keep_identity(user, group))
            return failed("no user namespace");
    }
    if (::unshare(CLONE_NEWNS | (what.network ? CLONE_NEWNET : 0)) != 0)
        return failed("no namespaces of mounts and network");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        return failed("mounts can't be made private");
    return {};
}

std::string make_root(const std::string& place) {
    // The old root is put over the new one and taken away from there (pivot_root(2), "pivot_root(".", ".")").
    if (::chdir(place.c_str()) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0)
        return failed("pivot_root");
    if (::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0)
        return failed("the host's root can't be taken away");
    const mount_attributes attributes{attribute_read_only | attribute_no_setuid};
    if (::syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attributes, sizeof attributes) != 0 ||
        ::syscall(SYS_mount_setattr, AT_FDCWD, "/dev", 0, &attributes, sizeof attributes) != 0)
        return failed("the new root can't be made read-only");
    return {};
}

std::string become(const confinement& what, const std::set<gid_t>& of_nodes) {
    // Whoever stays root keeps the right to open its files, and no other. A user namespace's are for what is
    // in it only, but nobody needs them.
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability)
        if (capability != CAP_DAC_OVERRIDE || what.user || what.user_namespace)
            if (::prctl(PR_CAPBSET_DROP, capability) != 0)
                return failed("rights can't be given up");
    if (what.user) {
        const std::vector<gid_t> groups(of_nodes.begin(), of_nodes.end());
        if (::setgroups(groups.size(), groups.data()) != 0 ||
            ::setresgid(*what.user, *what.user, *what.user) != 0 ||
            ::setresuid(*what.user, *what.user, *what.user) != 0)
            return failed(fmt::format("cannot become user {}", *what.user));
    }
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return failed("no_new_privs");
    return {};
}

} // namespace

host_offers look_at_host() {
    host_offers offers;
    offers.user = ::geteuid();
    offers.group = ::getegid();
    offers.privileged = has_capabilities({CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_SETPCAP,
                                          CAP_DAC_OVERRIDE, CAP_KILL, CAP_NET_ADMIN}) &&
                        works_in_a_child(try_as_root);
    offers.own_ids = ids_exist("/proc/self/uid_map") && ids_exist("/proc/self/gid_map");
    offers.user_namespaces = !offers.privileged && works_in_a_child(try_in_user_namespace);
    if (!offers.privileged && !offers.user_namespaces)
        offers.why_not = "this host gives it neither root's rights nor user namespaces with mounts (in a "
                         "chroot nobody gets mounts of their own)";
    std::error_code error;
    for (fs::directory_iterator at("/dev", error), end; !error && at != end; at.increment(error)) {
        const auto name = at->path().filename().string();
        if (name.starts_with("nvidia") || name == "kfd" || name == "dri")
            offers.gpu_nodes.push_back(at->path().string());
    }
    return offers;
}

std::string enter_confinement(const confinement& what) {
    if (auto why = open_outside(what); !why.empty())
        return why;
    if (auto why = enter_namespaces(what); !why.empty())
        return why;
    tree own(what);
    const auto umask_before = ::umask(S_IWGRP | S_IWOTH); // QEMU's user is one of the others
    if (auto why = own.build(); !why.empty())
        return why;
    ::umask(umask_before);
    if (auto why = make_root(what.place); !why.empty())
        return why;
    return become(what, own.groups());
}

} // namespace kagemusha::control
