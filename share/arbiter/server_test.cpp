// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-gpu as a process: hostile clients, its death, and gates of several VMs on threads, whose tasks
// take time on a model of a GPU (a mutex). Shares are read from accounts; no test asserts a duration.
#include "share/arbiter/server.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "share/arbiter/hello.hpp"
#include "share/arbiter/test_fairness.hpp"
#include "share/gate/gate.hpp"
#include "worker/share_join.hpp"

extern char** environ;

namespace kagemusha::share {
namespace {

class share_server : public testing::Test {
protected:
    void SetUp() override {
        char path[] = "/tmp/kagemusha-share-test-XXXXXX";
        directory_ = mkdtemp(path);
        socket_ = directory_ + "/gpu";
        start();
    }
    void TearDown() override {
        stop(SIGKILL);
        std::filesystem::remove_all(directory_);
    }
    void start() {
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        const std::string ready = std::to_string(ends[1]);
        const char* arguments[] = {KAGEMUSHA_GPU_ARBITER, "--socket",    socket_.c_str(),
                                   "--ready-fd",          ready.c_str(), nullptr};
        ASSERT_EQ(posix_spawn(&pid_, arguments[0], nullptr, nullptr, const_cast<char**>(arguments), environ),
                  0);
        close(ends[1]);
        char byte;
        EXPECT_EQ(read(ends[0], &byte, 1), 0);
        close(ends[0]);
    }
    void stop(int signal_number) {
        if (pid_ <= 0)
            return;
        kill(pid_, signal_number);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    // As one that does not listen yet, or no longer.
    unique_fd locked() {
        unique_fd lock(open((socket_ + ".lock").c_str(), O_RDWR | O_CLOEXEC));
        EXPECT_EQ(flock(lock.get(), LOCK_EX), 0);
        return lock;
    }
    static share_hello hello_of(share_role role, const std::string& vm, std::uint32_t permille = 0) {
        share_hello h{};
        h.magic = SHARE_MAGIC;
        h.version = SHARE_VERSION;
        h.role = role;
        h.share_permille = permille;
        h.cap_permille = whole_permille;
        put_name(h.vm, vm);
        return h;
    }
    static ssize_t receive(const unique_fd& socket, void* to, std::size_t bytes) {
        pollfd event{socket.get(), POLLIN, 0};
        poll(&event, 1, -1);
        return recv(socket.get(), to, bytes, 0);
    }
    std::vector<share_row> rows() {
        const auto joined = worker::join_share(socket_, hello_of(SHARE_ASKER, ""));
        std::vector<share_row> out(joined.answer.rows);
        for (share_row& row : out)
            EXPECT_EQ(receive(joined.socket, &row, sizeof row), static_cast<ssize_t>(sizeof row));
        return out;
    }

    std::string directory_, socket_;
    pid_t pid_ = 0;
};

// A worker: its gate, and a thread that has a task after the other.
class session {
public:
    session(const std::string& socket, const share_hello& hello) {
        auto joined = worker::join_share(socket, hello);
        refusal = joined.refusal;
        if (!joined.page)
            return;
        fd_ = std::move(joined.socket);
        page_ = static_cast<share_page*>(
            mmap(nullptr, sizeof(share_page), PROT_READ | PROT_WRITE, MAP_SHARED, joined.page.get(), 0));
        gate_ = std::make_unique<gate>(*page_, fd_.get(), [](const std::string&) {});
    }
    ~session() {
        if (page_ != nullptr)
            munmap(page_, sizeof *page_);
    }
    gate& the_gate() { return *gate_; }
    std::uint64_t tasks() const { return page_->tasks.load(); }
    std::string refusal;

private:
    unique_fd fd_;
    share_page* page_ = nullptr;
    std::unique_ptr<gate> gate_;
};

TEST_F(share_server, two_vms_share_by_their_weights) {
    session a(socket_, hello_of(SHARE_SESSION, "a", 750)), b(socket_, hello_of(SHARE_SESSION, "b", 250));
    std::atomic<bool> stop = false;
    std::atomic<int> inside = 0;
    std::atomic<bool> together = false;
    const auto work = [&](session& s) {
        while (!stop) {
            s.the_gate().begin(false);
            if (inside.fetch_add(1) != 0)
                together = true;
            std::this_thread::sleep_for(std::chrono::microseconds(500));
            inside.fetch_sub(1);
            s.the_gate().end();
        }
    };
    const auto began = std::chrono::steady_clock::now();
    std::thread one(work, std::ref(a)), other(work, std::ref(b));
    while (a.tasks() + b.tasks() < 800)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto accounts = rows();
    const auto ended = std::chrono::steady_clock::now();
    stop = true;
    one.join();
    other.join();
    const auto last = rows();
    EXPECT_FALSE(together);
    ASSERT_EQ(accounts.size(), 2u);
    ASSERT_EQ(last.size(), 2u);
    const auto shared = fairness_between({}, {accounts[0], accounts[1]}, {last[0], last[1]}, ended - began);
    EXPECT_LT(shared.difference_ns, shared.bound_ns);
}

TEST_F(share_server, programs_are_told_with_their_processes) {
    session a(socket_, hello_of(SHARE_SESSION, "a")), b(socket_, hello_of(SHARE_SESSION, "b"));
    for (int i = 0; i < 3; ++i) {
        a.the_gate().begin(false);
        a.the_gate().end();
    }
    auto asks = hello_of(SHARE_ASKER, "");
    asks.flags = SHARE_ASKS_PROGRAMS;
    const auto joined = worker::join_share(socket_, asks);
    ASSERT_EQ(joined.answer.rows, 2u);
    ASSERT_EQ(joined.answer.programs, 2u);
    share_row vm{};
    for (int i = 0; i < 2; ++i)
        ASSERT_EQ(receive(joined.socket, &vm, sizeof vm), static_cast<ssize_t>(sizeof vm));
    for (int i = 0; i < 2; ++i) {
        share_program_row program{};
        ASSERT_EQ(receive(joined.socket, &program, sizeof program), static_cast<ssize_t>(sizeof program));
        const bool has_asked = program.vm[0] == 'a';
        EXPECT_EQ(program.worker, has_asked ? static_cast<std::uint32_t>(getpid()) : 0u);
        EXPECT_EQ(program.tasks, has_asked ? 3u : 0u);
    }
}

TEST_F(share_server, its_death_opens_the_gates) {
    session a(socket_, hello_of(SHARE_SESSION, "a")), b(socket_, hello_of(SHARE_SESSION, "b"));
    a.the_gate().begin(false);
    std::thread waits([&] {
        b.the_gate().begin(false); // the first one never ends its task
        b.the_gate().end();
    });
    stop(SIGKILL);
    waits.join();
    EXPECT_TRUE(b.the_gate().open());
    start();
    session c(socket_, hello_of(SHARE_SESSION, "c"));
    c.the_gate().begin(false);
    c.the_gate().end();
    EXPECT_FALSE(c.the_gate().open());
    EXPECT_EQ(rows().size(), 1u);
}

TEST_F(share_server, one_that_is_stopped_is_not_waited_for) {
    session a(socket_, hello_of(SHARE_SESSION, "a")), b(socket_, hello_of(SHARE_SESSION, "b"));
    a.the_gate().begin(false);
    kill(pid_, SIGSTOP);
    b.the_gate().begin(false); // returns
    b.the_gate().end();
    kill(pid_, SIGCONT);
    a.the_gate().end();
    b.the_gate().begin(false);
    b.the_gate().end();
    EXPECT_FALSE(b.the_gate().open());
}

TEST_F(share_server, commands_that_wait_for_the_guest_do_not_keep_the_gpu) {
    session a(socket_, hello_of(SHARE_SESSION, "a")), b(socket_, hello_of(SHARE_SESSION, "b"));
    // Each has a task that ends only after its next one has begun, as with an unset user event.
    for (int i = 0; i < 10; ++i) {
        a.the_gate().begin(true);
        b.the_gate().begin(true);
        a.the_gate().begin(true);
        b.the_gate().begin(true);
        for (session* s : {&a, &b, &a, &b})
            s->the_gate().end();
    }
    EXPECT_EQ(a.tasks(), 20u);
}

TEST_F(share_server, a_client_of_another_version_is_told) {
    share_hello h = hello_of(SHARE_VM, "a");
    h.version = 99;
    EXPECT_NE(worker::join_share(socket_, h).refusal.find("speaks version 2 and not 99"), std::string::npos);
}

TEST_F(share_server, a_thousand_connections_are_bounded) {
    std::vector<worker::joined_share> all;
    std::size_t refused = 0;
    for (int i = 0; i < 1000; ++i) {
        all.push_back(worker::join_share(socket_, hello_of(SHARE_SESSION, "flood")));
        refused += !all.back().refusal.empty();
    }
    EXPECT_EQ(refused, 1000 - max_sessions_of_vm);
    session other(socket_, hello_of(SHARE_SESSION, "a"));
    EXPECT_EQ(other.refusal, "");
    other.the_gate().begin(false);
    other.the_gate().end();
    EXPECT_FALSE(other.the_gate().open());
}

TEST_F(share_server, who_breaks_the_protocol_is_dropped_alone) {
    session a(socket_, hello_of(SHARE_SESSION, "a"));
    const auto bad = worker::join_share(socket_, hello_of(SHARE_SESSION, "bad"));
    ASSERT_EQ(send(bad.socket.get(), "rubbish", 7, MSG_NOSIGNAL), 7);
    char byte;
    EXPECT_EQ(receive(bad.socket, &byte, 1), 0);
    a.the_gate().begin(false);
    a.the_gate().end();
    EXPECT_FALSE(a.the_gate().open());
    EXPECT_EQ(rows().size(), 1u);
}

TEST_F(share_server, there_is_one_for_a_gpu) {
    server_options again;
    again.socket = socket_;
    EXPECT_EQ(run_server(again), 2);
}

// Two VMs that start at the same time: the second one's arbiter finds the lock taken, and nobody listens yet.
TEST_F(share_server, one_that_finds_another_one_ends_when_clients_can_connect) {
    stop(SIGKILL);
    std::filesystem::remove(socket_);
    const unique_fd lock = locked();
    std::atomic<int> status = -1;
    std::jthread second([&] {
        server_options again;
        again.socket = socket_;
        status = run_server(again);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(status, -1);
    const unique_fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{AF_UNIX, {}};
    socket_.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    second.join();
    EXPECT_EQ(status, 2);
}

TEST_F(share_server, one_that_finds_another_one_at_its_end_serves) {
    stop(SIGKILL);
    unique_fd lock = locked();
    std::jthread ends([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        lock.reset();
    });
    start();
    ends.join();
    EXPECT_EQ(worker::join_share(socket_, hello_of(SHARE_ASKER, "")).refusal, "");
}

} // namespace
} // namespace kagemusha::share
