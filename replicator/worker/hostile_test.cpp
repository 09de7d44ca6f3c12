// SPDX-License-Identifier: GPL-2.0-or-later
// Hostile kernels against a real worker: PoCL compiles them to native code, so they can try what any program
// can. What the sandbox must deny is denied; what ends a worker: fatal_kernel_test.cpp. Kernels make raw system
// calls and write what Linux answered into their buffer, so the tests see the very error numbers.
//
// Needs a CPU device that compiles inline assembly (PoCL) on x86-64.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "worker/limits.hpp"
#include "worker/test_hostile_kernel.hpp"

namespace kagemusha::worker {
namespace {

// On whatever GPU this host computes by default, so that the sandbox is tried with the runtime of a real one
// too.
TEST(worker, builds_and_runs_a_kernel_in_the_sandbox) {
    guest_session guest("");
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    ASSERT_EQ(guest.build(
                  "kernel void k(global long* out, long a) { out[0] = a * 2; printf(\"hello %ld\\n\", a); }"),
              0)
        << guest.build_log() << guest.whole_log();
    const auto got = guest.run(21);
    ASSERT_TRUE(got.completed) << guest.whole_log();
    EXPECT_EQ(got.status, 0) << guest.whole_log();
    EXPECT_EQ(got.out[0], 42);
    EXPECT_EQ(guest.sink().text, "hello 21\n");
}

TEST_F(hostile_kernel, reads_and_changes_no_file_of_the_host) {
    const std::string victim = "/tmp/kagemusha-hostile-test-" + std::to_string(getpid());
    {
        const unique_fd fd(open(victim.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        ASSERT_TRUE(fd);
        ASSERT_EQ(write(fd.get(), "intact", 6), 6);
    }
    const std::string here = text(victim), there = text(victim + "-2"), parent = std::to_string(getpid());
    const std::string cwd = number(AT_FDCWD);
    const std::vector<int> no = {EACCES, EPERM, ENOSYS};
    expect_denied({
        {"open /etc/passwd", SYS_open, {text("/etc/passwd"), number(O_RDONLY)}, {EACCES}},
        {"openat /etc/shadow", SYS_openat, {cwd, text("/etc/shadow"), number(O_RDONLY)}, {EACCES, ENOENT}},
        {"openat2", SYS_openat2, {cwd, text("/etc/passwd"), "(long)zeros", "24L"}, no},
        {"list /", SYS_open, {text("/"), number(O_RDONLY | O_DIRECTORY)}, {EACCES}},
        {"list /home", SYS_open, {text("/home"), number(O_RDONLY | O_DIRECTORY)}, {EACCES}},
        {"read the victim", SYS_open, {here, number(O_RDONLY)}, {EACCES}},
        {"write the victim", SYS_open, {here, number(O_WRONLY)}, {EACCES}},
        {"cut the victim by open", SYS_open, {here, number(O_RDONLY | O_TRUNC)}, {EACCES, EPERM}},
        {"cut the victim", SYS_truncate, {here, "0L"}, {EPERM}},
        {"create a file", SYS_open, {there, number(O_CREAT | O_WRONLY), "0600L"}, {EACCES}},
        {"creat", SYS_creat, {there, "0600L"}, {EACCES}},
        {"remove the victim", SYS_unlink, {here}, {EACCES}},
        {"rename the victim", SYS_rename, {here, there}, {EACCES, EXDEV}},
        {"link the victim", SYS_link, {here, there}, {EACCES, EXDEV}},
        {"symbolic link", SYS_symlink, {text("/etc"), there}, {EACCES}},
        {"directory", SYS_mkdir, {there, "0700L"}, {EACCES}},
        {"device node", SYS_mknod, {there, number(S_IFCHR | 0600), "259L"}, {EPERM}},
        {"mode of the victim", SYS_chmod, {here, "0777L"}, {EPERM}},
        {"owner of the victim", SYS_chown, {here, "1L", "1L"}, {EPERM}},
        {"attribute of the victim", SYS_setxattr, {here, text("user.x"), here, "1L", "0L"}, {EPERM}},
        {"time of the victim", SYS_utimensat, {cwd, here, "0L", "0L"}, {EPERM}},
        {"memory of the device",
         SYS_open,
         {text("/proc/" + parent + "/mem"), number(O_RDWR)},
         {EACCES, ENOENT}},
        {"maps of the device",
         SYS_open,
         {text("/proc/" + parent + "/maps"), number(O_RDONLY)},
         {EACCES, ENOENT}},
        {"descriptors of the device", SYS_open, {text("/proc/" + parent + "/fd/0"), "0L"}, {EACCES, ENOENT}},
        {"kernel log", SYS_open, {text("/dev/kmsg"), number(O_RDWR)}, {EACCES, ENOENT}},
        {"physical memory", SYS_open, {text("/dev/mem"), number(O_RDWR)}, {EACCES, ENOENT}},
        {"kvm", SYS_open, {text("/dev/kvm"), number(O_RDWR)}, {EACCES, ENOENT}},
        {"handles", SYS_open_by_handle_at, {cwd, "(long)zeros", "0L"}, {EPERM}},
        {"score of the out-of-memory killer", SYS_open, {text("/proc/self/oom_score_adj"), "1L"}, {EACCES}},
    });
    char content[16]{};
    const unique_fd fd(open(victim.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(read(fd.get(), content, sizeof content), 6);
    EXPECT_STREQ(content, "intact");
    EXPECT_FALSE(std::filesystem::exists(victim + "-2"));
    std::filesystem::remove(victim);
}

TEST_F(hostile_kernel, its_private_directory_is_small_and_nobody_elses) {
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    const std::string too_much = number(static_cast<long>(2 * private_directory_bytes));
    ASSERT_EQ(guest.build(kernel_of("out[0] = call(" + number(SYS_open) + ", " + text("mine") + ", " +
                                    number(O_CREAT | O_RDWR) + ", 0600, 0, 0, 0);" + "out[1] = call(" +
                                    number(SYS_fallocate) + ", out[0], 0, 0, " + too_much + ", 0, 0);")),
              0)
        << guest.build_log();
    const auto got = guest.run();
    EXPECT_GE(got.out[0], 0);
    // Without user namespaces there is no file system of its own, but still a limit for each file.
    EXPECT_TRUE(got.out[1] == -ENOSPC || got.out[1] == -EFBIG) << got.out[1];

    guest_session other;
    ASSERT_TRUE(other.opened());
    ASSERT_EQ(other.build(
                  kernel_of("out[0] = call(" + number(SYS_open) + ", " + text("mine") + ", 0, 0, 0, 0, 0);")),
              0);
    EXPECT_EQ(other.run().out[0], -ENOENT);
}

TEST_F(hostile_kernel, has_no_network) {
    expect_denied({
        {"TCP", SYS_socket, {number(AF_INET), number(SOCK_STREAM)}, {EPERM}},
        {"TCP over IPv6", SYS_socket, {number(AF_INET6), number(SOCK_STREAM)}, {EPERM}},
        {"UDP", SYS_socket, {number(AF_INET), number(SOCK_DGRAM)}, {EPERM}},
        {"Unix socket", SYS_socket, {number(AF_UNIX), number(SOCK_STREAM)}, {EPERM}},
        {"netlink", SYS_socket, {number(AF_NETLINK), number(SOCK_RAW)}, {EPERM}},
        {"vsock", SYS_socket, {number(AF_VSOCK), number(SOCK_STREAM)}, {EPERM}},
        {"socketpair", SYS_socketpair, {number(AF_UNIX), number(SOCK_STREAM), "0L", "(long)zeros"}, {EPERM}},
        // The setup connection is still there: it must not carry descriptors any more.
        {"connect", SYS_connect, {"3L", "(long)zeros", "16L"}, {EPERM}},
        {"sendmsg", SYS_sendmsg, {"3L", "(long)zeros", "0L"}, {EPERM}},
        {"recvmsg", SYS_recvmsg, {"3L", "(long)zeros", "0L"}, {EPERM}},
    });
}

TEST_F(hostile_kernel, starts_no_process) {
    expect_denied({
        {"fork", SYS_fork, {}, {EPERM}},
        {"vfork", SYS_vfork, {}, {EPERM}},
        {"clone as fork", SYS_clone, {number(SIGCHLD)}, {EPERM, ENOSYS}},
        {"clone with a namespace", SYS_clone, {number(CLONE_NEWUSER | SIGCHLD)}, {EPERM, ENOSYS}},
        {"thread in a namespace",
         SYS_clone,
         {number(CLONE_NEWUSER | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND)},
         {EPERM, ENOSYS, EINVAL}},
        {"clone3", SYS_clone3, {"(long)zeros", "64L"}, {ENOSYS}},
        {"execve", SYS_execve, {text("/bin/sh"), "(long)zeros", "(long)zeros"}, {EPERM}},
        {"execveat",
         SYS_execveat,
         {number(AT_FDCWD), text("/bin/sh"), "(long)zeros", "(long)zeros"},
         {EPERM}},
        {"execve of the linker", SYS_execve, {text("/usr/bin/ld"), "(long)zeros", "(long)zeros"}, {EPERM}},
        {"unshare", SYS_unshare, {number(CLONE_NEWUSER)}, {EPERM}},
        {"setns", SYS_setns, {"0L", "0L"}, {EPERM}},
        {"personality", SYS_personality, {"0L"}, {EPERM}},
    });
}

TEST_F(hostile_kernel, gets_nothing_but_a_plain_link_from_the_broker) {
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    // The C library's function, which the worker's executable replaces: PoCL links no declaration of it,
    // assembly does.
    const std::string source = std::string(R"(
        long spawn(long path, long arguments) {
            int id;
            long result, id_at = (long)&id;
            __asm__ volatile("movq %%rsp, %%r12\n subq $256, %%rsp\n andq $-16, %%rsp\n"
                             "xorl %%edx, %%edx\n xorl %%ecx, %%ecx\n xorl %%r9d, %%r9d\n movq %3, %%r8\n"
                             "call posix_spawn@PLT\n movq %%r12, %%rsp"
                             : "=a"(result), "+D"(id_at), "+S"(path) : "b"(arguments)
                             : "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "memory", "cc");
            return (int)result;
        })") + kernel_of(R"(
        char shell[] = "/bin/sh", c[] = "-c", evil[] = "touch /tmp/kagemusha-hostile-spawn";
        char ld[] = "/usr/bin/ld", plugin[] = "-plugin", library[] = "./mine.so", o[] = "-o", so[] = "/mnt/x.so";
        char shared[] = "-shared", script[] = "@/etc/passwd", outside[] = "/tmp/kagemusha-hostile.so";
        long run_shell[] = {(long)shell, (long)c, (long)evil, 0};
        long use_plugin[] = {(long)ld, (long)plugin, (long)library, (long)o, (long)so, 0};
        long use_script[] = {(long)ld, (long)shared, (long)o, (long)so, (long)script, 0};
        long write_outside[] = {(long)ld, (long)shared, (long)o, (long)outside, 0};
        out[0] = spawn((long)shell, (long)run_shell);
        out[1] = spawn((long)ld, (long)use_plugin);
        out[2] = spawn((long)ld, (long)use_script);
        out[3] = spawn((long)ld, (long)write_outside);
    )");
    ASSERT_EQ(guest.build(source), 0) << guest.build_log();
    const auto got = guest.run();
    ASSERT_TRUE(got.completed) << guest.whole_log();
    for (int i = 0; i < 4; ++i)
        EXPECT_EQ(got.out[i], EPERM) << i;
    EXPECT_FALSE(std::filesystem::exists("/tmp/kagemusha-hostile-spawn"));
    EXPECT_NE(guest.whole_log().find("a link was refused"), std::string::npos) << guest.whole_log();
    // The broker still serves what is honest.
    EXPECT_EQ(guest.build("kernel void k(global long* out, long a) { out[0] = a; }"), 0);
    EXPECT_EQ(guest.run(5).out[0], 5);
}

TEST_F(hostile_kernel, touches_no_other_process) {
    const std::string device = number(getpid()); // the port lives in this process
    const std::string zeros = "(long)zeros";
    expect_denied({
        {"kill the device", SYS_kill, {device, number(SIGKILL)}, {EPERM}},
        {"ask for the device", SYS_kill, {device, "0L"}, {EPERM}},
        {"kill everybody", SYS_kill, {"-1L", number(SIGKILL)}, {EPERM}},
        {"kill the group", SYS_kill, {"0L", number(SIGTERM)}, {EPERM}},
        {"kill init", SYS_kill, {"1L", "0L"}, {EPERM}},
        {"tgkill", SYS_tgkill, {device, device, number(SIGKILL)}, {EPERM}},
        {"tkill", SYS_tkill, {device, number(SIGKILL)}, {EPERM}},
        {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, {device, number(SIGKILL), zeros}, {EPERM}},
        {"pidfd_open", SYS_pidfd_open, {device, "0L"}, {EPERM}},
        {"pidfd_getfd", SYS_pidfd_getfd, {"3L", "0L", "0L"}, {EPERM}},
        {"ptrace", SYS_ptrace, {number(PTRACE_ATTACH), device, "0L", "0L"}, {EPERM}},
        {"process_vm_readv", SYS_process_vm_readv, {device, zeros, "1L", zeros, "1L", "0L"}, {EPERM}},
        {"process_vm_writev", SYS_process_vm_writev, {device, zeros, "1L", zeros, "1L", "0L"}, {EPERM}},
        {"prlimit", SYS_prlimit64, {device, number(RLIMIT_CPU), zeros, "0L"}, {EPERM}},
        {"affinity", SYS_sched_setaffinity, {device, "8L", zeros}, {EPERM}},
        {"priority", SYS_setpriority, {number(PRIO_PROCESS), device, "19L"}, {EPERM}},
        {"scheduler", SYS_sched_setscheduler, {device, "0L", zeros}, {EPERM}},
        {"pages", SYS_move_pages, {device, "0L", zeros, zeros, zeros, "0L"}, {EPERM}},
        {"owner of a descriptor", SYS_fcntl, {"1L", number(F_SETOWN), device}, {EPERM, ENOSYS}},
        {"owner by ioctl", SYS_ioctl, {"1L", "0x8901L", zeros}, {EPERM}},
        {"owner by ioctl, high bits", SYS_ioctl, {"1L", "0x100008901L", zeros}, {EPERM}},
        {"session", SYS_setsid, {}, {EPERM}},
    });
}

TEST_F(hostile_kernel, reaches_no_large_surface_of_the_host) {
    const std::string zeros = "(long)zeros";
    expect_denied({
        {"bpf", SYS_bpf, {"0L", zeros, "64L"}, {EPERM}},
        {"perf_event_open", SYS_perf_event_open, {zeros, "0L", "-1L", "-1L", "0L"}, {EPERM}},
        {"io_uring", SYS_io_uring_setup, {"8L", zeros}, {EPERM}},
        {"userfaultfd", SYS_userfaultfd, {"0L"}, {EPERM}},
        {"keys", SYS_keyctl, {"0L", "0L"}, {EPERM}},
        {"mount", SYS_mount, {zeros, text("/mnt"), text("tmpfs"), "0L", "0L"}, {EPERM}},
        {"unmount", SYS_umount2, {text("/mnt"), "2L"}, {EPERM}},
        {"pivot_root", SYS_pivot_root, {text("/mnt"), text("/mnt")}, {EPERM}},
        {"chroot", SYS_chroot, {text("/mnt")}, {EPERM}},
        {"module", SYS_init_module, {zeros, "8L", zeros}, {EPERM}},
        {"reboot", SYS_reboot, {"0L", "0L", "0L", "0L"}, {EPERM}},
        {"user", SYS_setuid, {"0L"}, {EPERM}},
        {"capabilities", SYS_capset, {zeros, zeros}, {EPERM}},
        {"ports", SYS_iopl, {"3L"}, {EPERM}},
        {"local descriptor table", SYS_modify_ldt, {"1L", zeros, "16L"}, {EPERM}},
        {"new filter", SYS_seccomp, {"1L", "0L", zeros}, {EPERM}},
        {"memfd", SYS_memfd_create, {text("x"), "0L"}, {EPERM}},
        {"System V memory", SYS_shmget, {"0L", "4096L", "0L"}, {EPERM}},
        {"message queue", SYS_mq_open, {text("x"), "0L"}, {EPERM}},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // their workers have no such limit
        {"memory beyond the limit",
         SYS_mmap,
         {"0L", number(8L << 30), "3L", number(MAP_PRIVATE | MAP_ANONYMOUS), "-1L", "0L"},
         {ENOMEM}},
#endif
        {"dumpable again", SYS_prctl, {"4L", "1L"}, {EPERM, ENOSYS}},
        {"live without the device", SYS_prctl, {"1L", "0L"}, {EPERM, ENOSYS}},
        {"a call that does not exist yet", 2000, {}, {ENOSYS}},
    });
}

TEST_F(hostile_kernel, makes_no_memory_that_no_limit_counts) {
    if (access("/dev/nvidiactl", F_OK) == 0)
        GTEST_SKIP() << "NVIDIA's runtime needs it";
    for (const int kind : {MAP_SHARED, MAP_SHARED_VALIDATE}) {
        expect_denied({{"shared anonymous memory",
                        SYS_mmap,
                        {"0L", "4096L", "3L", number(kind | MAP_ANONYMOUS), "-1L", "0L"},
                        {EPERM}}});
    }
}

TEST_F(hostile_kernel, walks_around_no_limit_of_its_memory) {
    const std::string private_memory = number(MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN);
    expect_denied({{"memory that grows like a stack",
                    SYS_mmap,
                    {"0L", "65536L", "3L", private_memory, "-1L", "0L"},
                    {EPERM}}});
    if (access("/dev/nvidiactl", F_OK) != 0) {
        const std::vector<int> no = {EACCES, ENOENT};
        expect_denied({{"/dev/zero to be mapped shared", SYS_open, {text("/dev/zero"), number(O_RDWR)}, no}});
    }
}

TEST_F(hostile_kernel, watches_no_folder_of_the_host) {
    expect_denied({
        {"inotify", SYS_inotify_init1, {"0L"}, {EPERM}},
        {"inotify of old", SYS_inotify_init, {}, {EPERM}},
        {"a watch", SYS_inotify_add_watch, {"1L", text("/tmp"), "4095L"}, {EPERM}},
    });
    // A lock is a word to whoever else opens the file, so there is none: two owners get the same one.
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    const std::string open_it = "call(" + number(SYS_open) + ", " + text("lock") + ", " +
                                number(O_CREAT | O_RDWR) + ", 0600, 0, 0, 0)";
    const std::string lock = ", " + number(LOCK_EX | LOCK_NB) + ", 0, 0, 0, 0);";
    ASSERT_EQ(guest.build(kernel_of("long a = " + open_it + ", b = " + open_it + ";\n" + "out[0] = call(" +
                                    number(SYS_flock) + ", a" + lock + "out[1] = call(" + number(SYS_flock) +
                                    ", b" + lock)),
              0)
        << guest.build_log();
    const auto got = guest.run();
    EXPECT_EQ(got.out[0], 0);
    EXPECT_EQ(got.out[1], 0);
}

TEST_F(hostile_kernel, sees_no_names_of_the_hosts_files) {
    const std::string folder = "/tmp/kagemusha-hostile-names-" + std::to_string(getpid());
    std::filesystem::create_directory(folder);
    std::vector<attempt> attempts;
    for (const std::string& path :
         {folder, std::string("/tmp"), std::string("/home"), std::string("/root"), std::string("/var/lib"),
          std::string("/etc/passwd"), std::string("/etc/hostname"), std::string("/run"),
          std::string("/proc/1"), "/proc/" + std::to_string(getpid()), std::string("/proc/net"),
          std::string("/proc/sys/net"), std::string("/sys/class/net"), std::string("/dev/kvm"),
          std::string("/dev/kmsg"), std::string("/proc/self/root/etc/passwd"),
          std::string("/proc/self/cwd/../etc/passwd")}) {
        attempts.push_back({"stat of a name", SYS_stat, {text(path), "(long)zeros"}, {ENOENT, EACCES}});
        attempts.push_back({"access to a name", SYS_access, {text(path), "0L"}, {ENOENT, EACCES}});
    }
    attempts.push_back({"link of init", SYS_readlink, {text("/proc/1/exe"), "(long)zeros", "64L"}, {ENOENT}});
    {
        guest_session guest;
        ASSERT_TRUE(guest.opened()) << guest.whole_log();
        if (guest.whole_log().find("own root") != std::string::npos ||
            guest.whole_log().find("mount namespace") != std::string::npos ||
            guest.whole_log().find("private mounts") != std::string::npos)
            GTEST_SKIP() << "this host gives a worker no root of its own: " << guest.whole_log();
    }
    expect_denied(attempts);
    std::filesystem::remove(folder);
}

TEST_F(hostile_kernel, does_nothing_to_the_pages_that_it_shares_with_the_device) {
    constexpr int madv_soft_offline = 101; // the C library does not name it
    std::vector<attempt> attempts;
    for (const int advice :
         {MADV_REMOVE, MADV_MERGEABLE, MADV_HWPOISON, madv_soft_offline, MADV_COLD, MADV_PAGEOUT}) {
        attempts.push_back(
            {"advice", SYS_madvise, {"(long)zeros & ~4095L", "4096L", number(advice)}, {EPERM}});
    }
    attempts.push_back({"advice, high bits",
                        SYS_madvise,
                        {"(long)zeros & ~4095L", "4096L", number((1L << 32) | MADV_PAGEOUT)},
                        {EPERM}});
    expect_denied(attempts);
}

TEST_F(hostile_kernel, holds_no_descriptor_of_guest_memory) {
    guest_session guest;
    ASSERT_TRUE(guest.opened()) << guest.whole_log();
    // With such a descriptor it could cut the file, and QEMU would fault. Pipes, sockets and events can't be
    // cut.
    ASSERT_EQ(guest.build(kernel_of("long open = 0, cut = 0;\n"
                                    "for (long fd = 0; fd < 4096; ++fd) {\n"
                                    "  open += call(" +
                                    number(SYS_fcntl) +
                                    ", fd, 1, 0, 0, 0, 0) >= 0;\n"
                                    "  cut += call(" +
                                    number(SYS_ftruncate) +
                                    ", fd, 0, 0, 0, 0, 0) == 0;\n"
                                    "}\n"
                                    "out[0] = open; out[1] = cut;")),
              0)
        << guest.build_log();
    const auto got = guest.run();
    ASSERT_TRUE(got.completed);
    EXPECT_GT(got.out[0], 3);
    EXPECT_EQ(got.out[1], 0);
}

TEST_F(hostile_kernel, reads_no_file_through_the_compiler) {
    {
        guest_session guest;
        ASSERT_TRUE(guest.opened());
        EXPECT_NE(guest.build("#include \"/etc/passwd\"\nkernel void k(global long* out, long a) {}"), 0);
        EXPECT_EQ(guest.build_log().find("root:"), std::string::npos);
    }
    {
        // Assembly is looked at when the kernel runs for the first time.
        guest_session guest;
        ASSERT_TRUE(guest.opened());
        guest.build(R"(kernel void k(global long* out, long a) {
            long at;
            __asm__ volatile(".pushsection .data\n host_file: .incbin \"/etc/passwd\"\n .popsection\n"
                             "leaq host_file(%%rip), %0" : "=r"(at));
            out[0] = *(long*)at;
        })");
        const auto got = guest.run();
        char file[8]{};
        const unique_fd fd(open("/etc/passwd", O_RDONLY | O_CLOEXEC));
        ASSERT_EQ(read(fd.get(), file, sizeof file), static_cast<ssize_t>(sizeof file));
        EXPECT_NE(std::memcmp(got.out.data(), file, sizeof file), 0);
    }
    guest_session guest;
    ASSERT_TRUE(guest.opened());
    EXPECT_NE(guest.build("kernel void k(global long* out, long a) {}", "-include /etc/passwd"), 0);
    EXPECT_EQ(guest.build_log().find("root:"), std::string::npos);
}

// Files that the sandbox leaves readable, because runtimes want them.
TEST_F(hostile_kernel, learns_nothing_of_the_host_through_the_compiler) {
    const std::string kernel = "\nkernel void k(global long* out, long a) {}";
    for (const char* directive :
         {"#include \"/proc/self/maps\"", "#include </proc/self/maps>", "%:include </proc/self/maps>",
          "#define P </proc/self/maps>\n#include P", "#inc\\\nlude </proc/self/maps>",
          "#/*\n*/include </proc/self/maps>", "#include \"../proc/self/maps\"",
          "#include \"../../../../../proc/self/maps\"", "#include /*\n*/ \"/proc/self/maps\""}) {
        guest_session guest;
        ASSERT_TRUE(guest.opened());
        EXPECT_NE(guest.build(directive + kernel), 0) << directive;
        // A line of it as compilers quote it.
        EXPECT_EQ(guest.build_log().find("r-xp"), std::string::npos) << directive << "\n"
                                                                     << guest.build_log();
        EXPECT_EQ(guest.build_log().find("r--p"), std::string::npos) << directive << "\n"
                                                                     << guest.build_log();
    }
    for (const char* options : {"-include /proc/self/maps", "-I / -include proc/self/maps",
                                "-imacros /proc/self/maps", "-D A=1 '-include' /proc/self/maps"}) {
        guest_session guest;
        ASSERT_TRUE(guest.opened());
        EXPECT_NE(guest.build(kernel, options), 0) << options;
        EXPECT_EQ(guest.build_log().find("r-xp"), std::string::npos) << options << "\n" << guest.build_log();
    }
    guest_session guest;
    ASSERT_TRUE(guest.opened());
    EXPECT_NE(guest.build("#include \"self/maps\"" + kernel, "-I /proc"), 0);
    EXPECT_EQ(guest.build_log().find("r-xp"), std::string::npos) << guest.build_log();
}

TEST_F(hostile_kernel, printing_without_end_is_bounded_and_does_not_lose_completions) {
    guest_session guest;
    ASSERT_TRUE(guest.opened());
    ASSERT_EQ(guest.build("kernel void k(global long* out, long a) {\n"
                          "  for (int i = 0; i < 50000; ++i) "
                          "printf(\"0123456789012345678901234567890123456789 %d\\n\", i);\n"
                          "  out[0] = 1;\n"
                          "}"),
              0)
        << guest.build_log();
    const auto got = guest.run();
    EXPECT_TRUE(got.completed) << guest.whole_log();
    EXPECT_EQ(got.out[0], 1);
    EXPECT_GT(guest.sink().text.size(), 0u);
}

} // namespace
} // namespace kagemusha::worker
