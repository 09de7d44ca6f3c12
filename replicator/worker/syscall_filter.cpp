// SPDX-License-Identifier: GPL-2.0-or-later
// syscall_filter: see syscall_filter.hpp.
#include "worker/syscall_filter.hpp"

#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace kagemusha::worker {

namespace {

using names = std::initializer_list<const char*>;

// Memory, threads, time and what a process asks about itself.
constexpr names own_affairs = {"arch_prctl",
                               "brk",
                               "clock_getres",
                               "clock_gettime",
                               "clock_nanosleep",
                               "exit",
                               "exit_group",
                               "futex",
                               "futex_waitv",
                               "get_mempolicy",
                               "get_robust_list",
                               "getcpu",
                               "getcwd",
                               "getegid",
                               "geteuid",
                               "getgid",
                               "getgroups",
                               "getitimer",
                               "getpgid",
                               "getpgrp",
                               "getpid",
                               "getppid",
                               "getpriority",
                               "getrandom",
                               "getresgid",
                               "getresuid",
                               "getrlimit",
                               "getrusage",
                               "getsid",
                               "gettid",
                               "gettimeofday",
                               "getuid",
                               "madvise",
                               "mbind",
                               "membarrier",
                               "mincore",
                               "mlock",
                               "mlock2",
                               "mprotect",
                               "mremap",
                               "msync",
                               "munlock",
                               "munmap",
                               "nanosleep",
                               "pause",
                               "pkey_alloc",
                               "pkey_free",
                               "pkey_mprotect",
                               "restart_syscall",
                               "riscv_flush_icache",
                               "riscv_hwprobe",
                               "rseq",
                               "rt_sigaction",
                               "rt_sigpending",
                               "rt_sigprocmask",
                               "rt_sigreturn",
                               "rt_sigsuspend",
                               "rt_sigtimedwait",
                               "sched_get_priority_max",
                               "sched_get_priority_min",
                               "sched_getaffinity",
                               "sched_getattr",
                               "sched_getparam",
                               "sched_getscheduler",
                               "sched_rr_get_interval",
                               "sched_yield",
                               "set_mempolicy",
                               "set_robust_list",
                               "set_tid_address",
                               "setitimer",
                               "sigaltstack",
                               "sysinfo",
                               "time",
                               "timer_create",
                               "timer_delete",
                               "timer_getoverrun",
                               "timer_gettime",
                               "timer_settime",
                               "times",
                               "umask",
                               "uname"};

// Files and descriptors. Which files, Landlock decides.
constexpr names files = {"access",
                         "chdir",
                         "close",
                         "close_range",
                         "copy_file_range",
                         "creat",
                         "dup",
                         "dup2",
                         "dup3",
                         "epoll_create",
                         "epoll_create1",
                         "epoll_ctl",
                         "epoll_pwait",
                         "epoll_pwait2",
                         "epoll_wait",
                         "eventfd",
                         "eventfd2",
                         "faccessat",
                         "faccessat2",
                         "fadvise64",
                         "fallocate",
                         "fchdir",
                         "fdatasync",
                         "fstat",
                         "fstatfs",
                         "fsync",
                         "ftruncate",
                         "getdents",
                         "getdents64",
                         "link",
                         "linkat",
                         "lseek",
                         "lstat",
                         "mkdir",
                         "mkdirat",
                         "newfstatat",
                         "pipe",
                         "pipe2",
                         "poll",
                         "ppoll",
                         "pread64",
                         "preadv",
                         "preadv2",
                         "pselect6",
                         "pwrite64",
                         "pwritev",
                         "pwritev2",
                         "read",
                         "readahead",
                         "readlink",
                         "readlinkat",
                         "readv",
                         "rename",
                         "renameat",
                         "renameat2",
                         "rmdir",
                         "select",
                         "sendfile",
                         "signalfd",
                         "signalfd4",
                         "stat",
                         "statfs",
                         "statx",
                         "symlink",
                         "symlinkat",
                         "sync_file_range",
                         "timerfd_create",
                         "timerfd_gettime",
                         "timerfd_settime",
                         "unlink",
                         "unlinkat",
                         "write",
                         "writev"};

// What someone hostile tries, each group with what it would give.
constexpr names denied = {
    // another program
    "execve", "execveat", "fork", "vfork",
    // the network, and other processes behind sockets
    "socketpair", "connect", "accept", "accept4", "sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg",
    "recvmmsg", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown",
    // other processes: their memory, descriptors, life and scheduling
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_open",
    "pidfd_getfd", "pidfd_send_signal", "kcmp", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "move_pages",
    "migrate_pages", "setpriority", "ioprio_set", "ioprio_get", "sched_setscheduler", "sched_setparam",
    "sched_setattr", "setpgid", "setsid", "setns", "unshare",
    // memory that no limit counts, and channels to other processes
    "memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv",
    "msgctl", "semget", "semop", "semctl", "semtimedop", "mq_open", "mq_unlink", "mq_timedsend",
    "mq_timedreceive", "mq_notify", "mq_getsetattr",
    // attributes of files, which Landlock does not govern, and ways around open()
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat", "lchown", "setxattr",
    "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat",
    "utime", "utimes", "utimensat", "futimesat", "truncate", "mknod", "mknodat", "name_to_handle_at",
    "open_by_handle_at", "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
    "fanotify_init", "fanotify_mark", "openat2", "quotactl", "quotactl_fd",
    // the large attack surfaces of the kernel
    "bpf", "perf_event_open", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd",
    "keyctl", "add_key", "request_key", "seccomp", "modify_ldt", "personality", "vhangup", "ustat",
    "lookup_dcookie",
    // administration
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "sethostname", "setdomainname", "iopl", "ioperm",
    "acct", "syslog", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "nfsservctl", "setuid",
    "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid",
    "capset"};

// The same, but for NVIDIA's runtime.
constexpr names listening = {"socket", "bind", "listen"};

// Like the library's macros, which leave a field uninitialized in C++'s eyes.
scmp_arg_cmp argument(unsigned number, scmp_compare comparison, std::uint64_t a, std::uint64_t b = 0) {
    return {number, comparison, a, b};
}

class filter {
public:
    explicit filter(std::uint32_t default_action) : context_(seccomp_init(default_action)) {}
    filter(const filter&) = delete;
    filter& operator=(const filter&) = delete;
    ~filter() {
        if (context_ != nullptr)
            seccomp_release(context_);
    }

    // Names that this architecture or library does not know fall to the default action.
    void add(std::uint32_t action, const char* name, std::initializer_list<scmp_arg_cmp> conditions = {}) {
        const int number = seccomp_syscall_resolve_name(name);
        if (context_ == nullptr || number < 0)
            return;
        const int result = seccomp_rule_add_array(
            context_, action, number, static_cast<unsigned>(conditions.size()), conditions.begin());
        if (result != 0 && error_ == 0)
            error_ = -result;
    }
    void add(std::uint32_t action, names calls) {
        for (const char* name : calls)
            add(action, name);
    }

    std::string load() {
        if (context_ == nullptr)
            return "no memory for the system-call filter";
        int result = error_;
        if (result == 0)
            result = -seccomp_attr_set(context_, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
        if (result == 0)
            result = -seccomp_load(context_); // sets no_new_privs
        return result == 0 ? ""
                           : std::string("the system-call filter can't be entered: ") + std::strerror(result);
    }

private:
    scmp_filter_ctx context_;
    int error_ = 0;
};

constexpr auto deny = SCMP_ACT_ERRNO(EPERM);
constexpr auto unknown = SCMP_ACT_ERRNO(ENOSYS);
constexpr auto allow = SCMP_ACT_ALLOW;

// libseccomp can't say "all values but these" inside a list of allowed calls. So two filters are entered, one
// after the other: the first takes forbidden values away, the second allows calls by name. The kernel obeys
// the stricter one. Where the kernel looks at 32 bits of an argument, so does the filter.

std::string enter_value_filter(filter_for role, bool nvidia) {
    filter f(allow);
    // GPU drivers are nothing but ioctl(); FIOSETOWN, FIOASYNC and TIOCSTI would act on other processes.
    constexpr std::uint64_t fiosetown = 0x8901;
    for (const std::uint64_t request : {fiosetown, std::uint64_t{FIOASYNC}, std::uint64_t{TIOCSTI}})
        f.add(deny, "ioctl", {argument(1, SCMP_CMP_MASKED_EQ, UINT32_MAX, request)});

    // O_TRUNC cuts a file that was opened for reading, and Landlock before version 3 does not see it.
    constexpr std::uint64_t cut_mask = O_TRUNC | O_ACCMODE;
    f.add(deny, "open", {argument(1, SCMP_CMP_MASKED_EQ, cut_mask, O_TRUNC | O_RDONLY)});
    f.add(deny, "openat", {argument(2, SCMP_CMP_MASKED_EQ, cut_mask, O_TRUNC | O_RDONLY)});

    // Memory of a stack is not counted as data, so RLIMIT_DATA would not see it, and it is for nobody's
    // stack.
    f.add(deny, "mmap", {argument(3, SCMP_CMP_MASKED_EQ, MAP_GROWSDOWN, MAP_GROWSDOWN)});
    constexpr int madv_soft_offline = 101; // the C library does not name it
    // What would act on the pages themselves, which are QEMU's, too: holes, swapping, merging, poisoning.
    for (const int advice : {MADV_REMOVE, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_HWPOISON, madv_soft_offline,
                             MADV_COLD, MADV_PAGEOUT})
        f.add(deny, "madvise",
              {argument(2, SCMP_CMP_MASKED_EQ, UINT32_MAX, static_cast<std::uint64_t>(advice))});

    if (role != filter_for::broker) {
        // Only this process, or the calling thread where that is written 0.
        const auto self = static_cast<std::uint64_t>(getpid());
        f.add(deny, "kill", {argument(0, SCMP_CMP_NE, self)});
        f.add(deny, "tgkill", {argument(0, SCMP_CMP_NE, self)});
        f.add(deny, "prlimit64", {argument(0, SCMP_CMP_NE, 0)});
        f.add(deny, "sched_setaffinity", {argument(0, SCMP_CMP_NE, 0)});
    }
    if (role != filter_for::broker && !nvidia) {
        constexpr std::uint64_t kind = MAP_TYPE | MAP_ANONYMOUS;
        for (const int shared : {MAP_SHARED, MAP_SHARED_VALIDATE})
            f.add(
                deny, "mmap",
                {argument(3, SCMP_CMP_MASKED_EQ, kind, static_cast<std::uint64_t>(shared | MAP_ANONYMOUS))});
    }
    return f.load();
}

// What is no sequenced-packet socket of this host's processes does not exist.
void add_listening_socket(filter& f) {
    constexpr std::uint64_t kind = 0xf; // the rest are flags
    f.add(allow, "socket",
          {argument(0, SCMP_CMP_EQ, AF_UNIX), argument(1, SCMP_CMP_MASKED_EQ, kind, SOCK_SEQPACKET)});
    f.add(deny, "socket", {argument(0, SCMP_CMP_NE, AF_UNIX)});
    f.add(allow, {"bind", "listen"});
}

void add_threads(filter& f) {
    // pthread_create() falls back to clone() when clone3(), whose flags a filter can't see, does not exist.
    constexpr std::uint64_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                         CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    constexpr std::uint64_t thread = CLONE_THREAD | CLONE_VM | CLONE_SIGHAND;
    f.add(allow, "clone", {argument(0, SCMP_CMP_MASKED_EQ, thread | namespaces, thread)});
}

void add_chosen_commands(filter& f) {
    // The forms of fcntl() that only concern the descriptor itself; F_SETOWN and F_SETSIG would send signals.
    for (const int command :
         {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW,
          F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_GETPIPE_SZ, F_SETPIPE_SZ, F_GET_SEALS})
        f.add(allow, "fcntl", {argument(1, SCMP_CMP_EQ, static_cast<std::uint64_t>(command))});
    for (const int option :
         {PR_GET_NAME, PR_SET_NAME, PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS, PR_SET_TIMERSLACK,
          PR_GET_TIMERSLACK, PR_GET_PDEATHSIG, PR_CAPBSET_READ, PR_GET_SECCOMP, PR_SET_VMA})
        f.add(allow, "prctl", {argument(0, SCMP_CMP_EQ, static_cast<std::uint64_t>(option))});
}

std::string enter_linker_filter() {
    // Its parent's filters allow processes, and other values; these take them away again. execve() stays for
    // the one that follows; Landlock lets it start nothing but the linker itself.
    if (std::string error = enter_value_filter(filter_for::linker, false); !error.empty())
        return error;
    filter f(allow);
    f.add(unknown, "clone3");
    f.add(deny, "clone");
    f.add(deny, "fork");
    f.add(deny, "vfork");
    f.add(deny, "kill");
    f.add(deny, "pidfd_open");
    f.add(deny, "pidfd_send_signal");
    return f.load();
}

} // namespace

std::string enter_syscall_filter(filter_for role, bool nvidia) {
    if (role == filter_for::linker)
        return enter_linker_filter();
    if (std::string error = enter_value_filter(role, nvidia); !error.empty())
        return error;

    filter f(unknown);
    f.add(allow, own_affairs);
    f.add(allow, files);
    // Landlock does not govern locks, and two workers would talk by them through any file that both can read.
    // The private directory has one user, who always gets the lock, so runtimes are told so.
    f.add(SCMP_ACT_ERRNO(0), "flock");
    f.add(allow, {"ioctl", "kill", "mmap", "open", "openat", "prlimit64", "sched_setaffinity", "tgkill"});
    add_chosen_commands(f);
    if (role == filter_for::worker) {
        add_threads(f);
        f.add(deny, denied);
        if (nvidia)
            add_listening_socket(f);
        else
            f.add(deny, listening);
    } else {
        // What fork() and execve() need. All this is for the broker's own code: it runs none of the guest's.
        f.add(allow, {"clone", "execve", "fork", "pidfd_open", "pidfd_send_signal", "seccomp", "vfork",
                      "wait4", "waitid"});
        for (const int option : {PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_SECCOMP})
            f.add(allow, "prctl", {argument(0, SCMP_CMP_EQ, static_cast<std::uint64_t>(option))});
    }
    return f.load();
}

} // namespace kagemusha::worker
