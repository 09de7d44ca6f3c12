// SPDX-License-Identifier: GPL-2.0-or-later
// The launcher from QEMU's side: what it starts, whose children that are, and what it does with requests of a
// QEMU that a guest has taken over.
#include "worker/launcher.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "worker/setup.hpp"

namespace kagemusha::worker {
namespace {

struct launcher : ::testing::Test {
    unique_fd ours;
    pid_t pid = -1;

    void SetUp() override {
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        ours.reset(ends[0]);
        const unique_fd theirs(ends[1]);
        pid = fork();
        if (pid == 0) {
            fcntl(theirs.get(), F_SETFD, 0);
            execl(KAGEMUSHA_TEST_WORKER, KAGEMUSHA_TEST_WORKER, launcher_word,
                  std::to_string(theirs.get()).c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
    }
    void TearDown() override {
        ours.reset();
        if (pid > 0)
            waitpid(pid, nullptr, 0);
    }

    // Sends a packet with so many copies of a descriptor, and returns the answer's error; -1: no answer.
    int ask(const void* bytes, std::size_t size, std::size_t descriptors) {
        alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))]{};
        iovec io{const_cast<void*>(bytes), size};
        msghdr header{};
        header.msg_iov = &io;
        header.msg_iovlen = 1;
        if (descriptors != 0) {
            header.msg_control = control;
            header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
            cmsghdr* rights = CMSG_FIRSTHDR(&header);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
            for (std::size_t i = 0; i < descriptors; ++i) {
                const int fd = STDERR_FILENO;
                std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
            }
        }
        if (sendmsg(ours.get(), &header, MSG_NOSIGNAL) != static_cast<ssize_t>(size))
            return -1;
        launch_answer answer{};
        return recv(ours.get(), &answer, sizeof answer, 0) == sizeof answer ? answer.error : -1;
    }
};

std::string read_all(int fd) {
    std::string all;
    char buffer[512];
    for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) > 0;)
        all.append(buffer, static_cast<std::size_t>(got));
    return all;
}

TEST_F(launcher, starts_workers_that_are_children_of_who_asks) {
    launcher_client client(std::move(ours));
    int setup[2], lines[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, setup), 0);
    ASSERT_EQ(pipe2(lines, O_CLOEXEC), 0);
    std::string error;
    const auto worker = client.start("test", setup[1], lines[1], error);
    ASSERT_TRUE(worker.pidfd) << error;
    close(setup[1]);
    close(lines[1]);
    close(setup[0]); // it hears that nobody wants it
    EXPECT_NE(read_all(lines[0]).find("closed the connection"), std::string::npos);
    siginfo_t end{};
    ASSERT_EQ(waitid(P_PIDFD, static_cast<id_t>(worker.pidfd.get()), &end, WEXITED), 0)
        << std::strerror(errno);
    EXPECT_EQ(end.si_pid, worker.pid);
    EXPECT_EQ(end.si_status, 1);
    close(lines[0]);
}

// What -sandbox spawn=deny comes to: QEMU itself can start nothing, and its launcher can.
TEST_F(launcher, starts_workers_for_a_process_that_may_start_none) {
    const pid_t qemu = fork();
    if (qemu == 0) {
        const auto refuse = [](unsigned call) {
            return std::vector<sock_filter>{BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)};
        };
        std::vector<sock_filter> code{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
        for (const unsigned call : {unsigned{SYS_execve}, unsigned{SYS_clone}, unsigned{SYS_clone3}}) {
            const auto part = refuse(call);
            code.insert(code.end(), part.begin(), part.end());
        }
        code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
        const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 || fork() >= 0)
            _exit(10);
        launcher_client client(std::move(ours));
        std::string error;
        const auto worker = client.start("test", STDIN_FILENO, STDERR_FILENO, error);
        _exit(worker.pidfd ? 0 : 11);
    }
    int status = -1;
    ASSERT_EQ(waitpid(qemu, &status, 0), qemu);
    EXPECT_EQ(status, 0);
}

TEST_F(launcher, refuses_what_is_no_request_and_lives) {
    launch_request request{};
    request.version = launcher_version;
    EXPECT_EQ(ask(&request, sizeof request, 0), EINVAL);
    EXPECT_EQ(ask(&request, sizeof request, 1), EINVAL);
    EXPECT_EQ(ask(&request, sizeof request, 3), EINVAL);
    EXPECT_EQ(ask(&request, sizeof request, 16), EINVAL); // more than it takes: cut, and closed
    EXPECT_EQ(ask(&request, sizeof request - 1, 2), EINVAL);
    std::vector<char> large(4096, 'x');
    EXPECT_EQ(ask(large.data(), large.size(), 2), EINVAL);
    request.version = 77;
    EXPECT_EQ(ask(&request, sizeof request, 2), EINVAL);
    request.version = launcher_version;
    std::memset(request.title, 'y', sizeof request.title); // no end: it gets one
    EXPECT_EQ(ask(&request, sizeof request, 2), 0);
}

TEST_F(launcher, ends_with_its_connection) {
    ours.reset();
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    pid = -1;
}

TEST_F(launcher, that_is_gone_is_a_sentence) {
    launcher_client client(std::move(ours));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
    for (int i = 0; i < 2; ++i) {
        std::string error;
        EXPECT_FALSE(client.start("test", STDIN_FILENO, STDERR_FILENO, error).pidfd);
        EXPECT_NE(error.find("no worker can be started: the launcher of this VM"), std::string::npos)
            << error;
    }
}

} // namespace
} // namespace kagemusha::worker
