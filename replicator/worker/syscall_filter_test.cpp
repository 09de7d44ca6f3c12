// SPDX-License-Identifier: GPL-2.0-or-later
// What the filters of the broker and of the linker take away, tried in processes that have entered them. The
// worker's own filter is tried by hostile_test.cpp, through a whole worker.
#include "worker/syscall_filter.hpp"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

namespace kagemusha::worker {
namespace {

constexpr unsigned lost_after_s = 60; // only ends a test that is lost anyway

struct attempt {
    const char* name;
    std::function<long()> call;
    int expected; // errno, or 0: it must work
};

// In a process of its own, with these filters: the number of attempts that ended otherwise than expected.
int tried_in(std::initializer_list<filter_for> filters, const std::vector<attempt>& attempts,
             bool nvidia = false) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(lost_after_s);
        for (const auto role : filters)
            if (const auto error = enter_syscall_filter(role, nvidia); !error.empty()) {
                fprintf(stderr, "%s\n", error.c_str());
                _exit(100);
            }
        int wrong = 0;
        for (const auto& one : attempts) {
            errno = 0;
            const long result = one.call();
            const int got = result < 0 ? errno : 0;
            if (got == one.expected)
                continue;
            ++wrong;
            fprintf(stderr, "%s: errno %d instead of %d\n", one.name, got, one.expected);
        }
        _exit(wrong);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Somebody else's process of the same user: another VM's worker, say.
class bystander {
public:
    bystander() : pid_(fork()) {
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    }
    bystander(const bystander&) = delete;
    bystander& operator=(const bystander&) = delete;
    ~bystander() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }

private:
    pid_t pid_;
};

// Signal 0 does nothing, and asks for the same right as the others.
std::vector<attempt> on_others(pid_t other, int expected) {
    return {
        {"kill", [=] { return syscall(SYS_kill, other, 0); }, expected},
        {"tgkill", [=] { return syscall(SYS_tgkill, other, other, 0); }, expected},
        {"prlimit64",
         [=] {
             rlimit limit{};
             return syscall(SYS_prlimit64, other, RLIMIT_NOFILE, nullptr, &limit);
         },
         expected},
        {"sched_setaffinity",
         [=] {
             cpu_set_t all;
             CPU_ZERO(&all);
             CPU_SET(0, &all);
             return syscall(SYS_sched_setaffinity, other, sizeof all, &all);
         },
         expected},
        {"pidfd_open", [=] { return syscall(SYS_pidfd_open, other, 0); }, expected},
    };
}

// A socket as NVIDIA's CUDA driver makes it when it starts, and what somebody hostile would want of it.
std::vector<attempt> on_sockets(int listening, int others) {
    const auto fd = std::make_shared<int>(-1); // in the process that tries
    const auto make = [](int domain, int type) { return static_cast<long>(socket(domain, type, 0)); };
    const int on_none = listening == 0 ? 0 : EPERM;
    return {
        {"socket", [=] { return *fd = static_cast<int>(make(AF_UNIX, SOCK_SEQPACKET)); }, listening},
        {"bind",
         [=] {
             sockaddr_un address{}; // no name: the kernel makes an abstract one
             address.sun_family = AF_UNIX;
             return syscall(SYS_bind, *fd, &address, sizeof address.sun_family);
         },
         on_none},
        {"listen", [=] { return syscall(SYS_listen, *fd, 128); }, on_none},
        {"TCP", [=] { return make(AF_INET, SOCK_STREAM); }, EPERM},
        {"netlink", [=] { return make(AF_NETLINK, SOCK_RAW); }, EPERM},
        {"Unix stream", [=] { return make(AF_UNIX, SOCK_STREAM); }, others},
        {"socketpair", [=] { return syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET, 0, nullptr); }, EPERM},
        {"connect", [=] { return syscall(SYS_connect, *fd, nullptr, 0); }, EPERM},
        {"accept4", [=] { return syscall(SYS_accept4, *fd, nullptr, nullptr, 0); }, EPERM},
        {"sendto", [=] { return syscall(SYS_sendto, *fd, nullptr, 0, 0, nullptr, 0); }, EPERM},
        {"recvfrom", [=] { return syscall(SYS_recvfrom, *fd, nullptr, 0, 0, nullptr, nullptr); }, EPERM},
    };
}

TEST(worker_filter, has_a_socket_that_listens_for_nvidia_only_and_takes_nothing_from_it) {
    EXPECT_EQ(tried_in({filter_for::worker}, on_sockets(EPERM, EPERM)), 0);
    EXPECT_EQ(tried_in({filter_for::worker}, on_sockets(0, ENOSYS), true), 0);
}

TEST(linker_filter, acts_on_no_other_process) {
    const bystander other;
    // Without a filter each of them works, so the bystander could be hit.
    EXPECT_EQ(tried_in({}, on_others(other.pid(), 0)), 0);
    EXPECT_EQ(tried_in({filter_for::broker, filter_for::linker}, on_others(other.pid(), EPERM)), 0);
}

TEST(linker_filter, sends_no_signal_through_a_descriptor_that_it_was_left) {
    const bystander other;
    const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, other.pid(), 0));
    ASSERT_GE(descriptor, 0);
    const auto signal = [=] { return syscall(SYS_pidfd_send_signal, descriptor, 0, nullptr, 0); };
    EXPECT_EQ(tried_in({}, {{"pidfd_send_signal", signal, 0}}), 0);
    EXPECT_EQ(tried_in({filter_for::broker, filter_for::linker}, {{"pidfd_send_signal", signal, EPERM}}), 0);
    close(descriptor);
}

TEST(linker_filter, starts_no_process_and_no_thread_where_the_broker_does) {
    const auto start = [] {
        const long pid = syscall(SYS_fork);
        if (pid == 0)
            _exit(0);
        return pid;
    };
    EXPECT_EQ(tried_in({filter_for::broker}, {{"fork", start, 0}}), 0);
    EXPECT_EQ(tried_in({filter_for::broker, filter_for::linker},
                       {{"fork", start, EPERM},
                        {"clone", [] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }, EPERM},
                        {"clone3", [] { return syscall(SYS_clone3, nullptr, 0); }, ENOSYS}}),
              0);
}

TEST(linker_filter, may_act_on_itself) {
    EXPECT_EQ(tried_in({filter_for::broker, filter_for::linker},
                       {{"tgkill", [] { return syscall(SYS_tgkill, getpid(), gettid(), 0); }, 0},
                        {"prlimit64",
                         [] {
                             rlimit limit{};
                             return syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
                         },
                         0}}),
              0);
}

} // namespace
} // namespace kagemusha::worker
