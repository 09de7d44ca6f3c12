// SPDX-License-Identifier: GPL-2.0-or-later
// server: see server.hpp.
#include "share/arbiter/server.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "base/unique_fd.hpp"
#include "share/arbiter/arbiter.hpp"
#include "worker/fd_message.hpp"

namespace kagemusha::share {

namespace {

constexpr std::uint64_t listener_key = 0, timer_key = 1, signal_key = 2, first_connection = 16;
// Of the socket: more than a burst of workers of a VM that starts.
constexpr int backlog = 64;
// A client says who it is at once.
constexpr std::uint64_t hello_within_ns = 2 * second;
// Another one that has the lock and does not listen is about to, or is about to end.
constexpr std::uint64_t lock_within_ns = 4 * second;
constexpr std::uint64_t lock_look_ns = 2 * ms;

std::uint64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * second + static_cast<std::uint64_t>(t.tv_nsec);
}

// Who may use this arbiter: its own user and root; and the users that confined QEMUs have, for their programs.
bool may_connect(int socket, share_role role) {
    ucred peer{};
    socklen_t length = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return false;
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    return role == SHARE_SESSION && peer.uid - SHARE_FIRST_VM_USER < SHARE_VM_USERS;
}

// A packet, and who sent it by the kernel's word: a worker's socket was connected by its QEMU. Descriptors that come
// with it find no room and are closed.
ssize_t receive(int socket, std::span<std::byte> packet, std::uint32_t& process) {
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(ucred))];
    iovec io{packet.data(), packet.size()};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    const cmsghdr* const part = got < 0 ? nullptr : CMSG_FIRSTHDR(&header);
    if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS) {
        ucred sender{};
        std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
        process = static_cast<std::uint32_t>(sender.pid);
    }
    return got;
}

int complain(const std::string& what) {
    std::fprintf(stderr, "kagemusha-gpu: %s: %s\n", what.c_str(), std::strerror(errno));
    return 1;
}

// The memory of one page, sealed: its session can't cut it under us.
class mapped_page {
public:
    ~mapped_page() {
        if (page_ != nullptr)
            munmap(page_, sizeof(share_page));
    }
    bool create() {
        fd_.reset(memfd_create("kagemusha-share", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        if (!fd_ || ftruncate(fd_.get(), sizeof(share_page)) != 0 ||
            fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
            return false;
        void* at = mmap(nullptr, sizeof(share_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
        if (at == MAP_FAILED)
            return false;
        page_ = new (at) share_page{};
        return true;
    }
    int fd() const { return fd_.get(); }
    void close_fd() { fd_.reset(); }
    share_page* get() const { return page_; }

private:
    unique_fd fd_;
    share_page* page_ = nullptr;
};

struct connection {
    unique_fd fd;
    std::unique_ptr<mapped_page> page;
    bool joined = false;
    std::uint64_t since_ns = 0;
};

bool listens_at(const sockaddr_un& address) {
    const unique_fd asker(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return connect(asker.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
           errno == EAGAIN; // its backlog is full
}

// False: another one has it, who listens or does neither that nor end. Whoever reads our exit status may connect.
bool lock_before_another(int lock, const sockaddr_un& address) {
    const std::uint64_t until = now_ns() + lock_within_ns;
    while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        if (listens_at(address) || now_ns() >= until)
            return false;
        const timespec look{0, static_cast<long>(lock_look_ns)};
        nanosleep(&look, nullptr);
    }
    return true;
}

class server {
public:
    explicit server(const server_options& options)
        : options_(options), arbiter_([this](connection_id id) { go(id); }) {}
    int run();

private:
    int listen_at();
    bool watch(int fd, std::uint64_t key);
    void accept_all();
    void serve(std::uint64_t id);
    bool welcome(std::uint64_t id, connection& c);
    bool report_rows(connection& c, bool programs);
    void answer(connection& c, share_answer said, std::span<const int> fds = {});
    void go(connection_id id);
    void drop(std::uint64_t id);
    void drop_silent();
    void set_timer();

    const server_options options_;
    arbiter arbiter_;
    unique_fd lock_, listener_, timer_, signals_, epoll_;
    std::map<std::uint64_t, connection> connections_; // at most max_connections
    std::uint64_t next_ = first_connection;
    std::uint64_t empty_since_ns_ = now_ns();
};

int server::listen_at() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (options_.socket.size() >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return complain(options_.socket);
    }
    std::memcpy(address.sun_path, options_.socket.c_str(), options_.socket.size());
    lock_.reset(open((options_.socket + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock_)
        return complain(options_.socket + ".lock can't be opened");
    if (!lock_before_another(lock_.get(), address)) {
        std::fprintf(stderr, "kagemusha-gpu: another one serves %s\n", options_.socket.c_str());
        return 2;
    }
    unlink(options_.socket.c_str()); // of one that died: we have the lock
    listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener_ || bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        return complain(options_.socket + " can't be made");
    // Who may connect is decided by the folder, which is its owner's alone, and by who the peer is: a confined
    // QEMU is another user.
    if (chmod(options_.socket.c_str(), 0666) != 0 || listen(listener_.get(), backlog) != 0)
        return complain(options_.socket + " can't be listened at");
    return 0;
}

bool server::watch(int fd, std::uint64_t key) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = key;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

int server::run() {
    signal(SIGPIPE, SIG_IGN);
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigprocmask(SIG_BLOCK, &stops, nullptr);
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    signals_.reset(signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK));
    if (const int failed = listen_at())
        return failed;
    if (!epoll_ || !timer_ || !signals_ || !watch(listener_.get(), listener_key) ||
        !watch(timer_.get(), timer_key) || !watch(signals_.get(), signal_key))
        return complain("nothing can be watched");
    if (options_.ready_fd >= 0)
        close(options_.ready_fd);
    for (;;) {
        set_timer();
        epoll_event events[64];
        const int count = epoll_wait(epoll_.get(), events, 64, -1);
        for (int i = 0; i < count; ++i) {
            const std::uint64_t key = events[i].data.u64;
            if (key == signal_key)
                return 0;
            if (key == listener_key)
                accept_all();
            else if (key != timer_key)
                serve(key);
        }
        std::uint64_t ticks;
        if (read(timer_.get(), &ticks, sizeof ticks) > 0) {
            drop_silent();
            arbiter_.advance(now_ns());
        }
        const bool empty = connections_.empty();
        if (!empty)
            empty_since_ns_ = 0;
        else if (empty_since_ns_ == 0)
            empty_since_ns_ = now_ns();
        else if (options_.linger_s != 0 && now_ns() - empty_since_ns_ >= options_.linger_s * second)
            break;
    }
    unlink(options_.socket.c_str());
    return 0;
}

void server::set_timer() {
    const std::uint64_t now = now_ns();
    std::uint64_t at = arbiter_.next_ns(now);
    if (std::ranges::any_of(connections_, [](const auto& c) { return !c.second.joined; }))
        at = std::min(at, now + hello_within_ns);
    if (connections_.empty() && options_.linger_s != 0)
        at = std::min(at, now + options_.linger_s * second);
    itimerspec when{};
    if (at != UINT64_MAX) {
        at = std::max(at, now + 1); // 0 would be never
        when.it_value = {static_cast<time_t>(at / second), static_cast<long>(at % second)};
    }
    timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void server::accept_all() {
    for (int i = 0; i < backlog; ++i) {
        unique_fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd)
            return;
        if (connections_.size() >= max_connections)
            continue; // closed: its worker goes on without being scheduled, and says so
        const int on = 1;
        setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
        const std::uint64_t id = next_++;
        if (!watch(fd.get(), id))
            continue;
        connections_[id] = {std::move(fd), nullptr, false, now_ns()};
    }
}

void server::serve(std::uint64_t id) {
    const auto at = connections_.find(id);
    if (at == connections_.end())
        return;
    connection& c = at->second;
    if (!c.joined) {
        if (!welcome(id, c))
            drop(id);
        return;
    }
    std::byte packet[sizeof(share_message) + 1];
    // So many at once and no more: one that floods does not keep the others from being heard.
    for (int i = 0; i < 8; ++i) {
        std::uint32_t process = 0;
        const ssize_t got = receive(c.fd.get(), packet, process);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (got <= 0 || !c.page || !check_message({packet, static_cast<std::size_t>(got)}))
            return drop(id);
        arbiter_.is_of(id, process);
    }
    arbiter_.message(id, now_ns());
}

// The first packet. False: that was all.
bool server::welcome(std::uint64_t id, connection& c) {
    std::byte packet[sizeof(share_hello) + 1];
    const ssize_t got = recv(c.fd.get(), packet, sizeof packet, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (got <= 0)
        return false;
    share_answer said{};
    const auto refuse = [&](const std::string& why) {
        said.result = SHARE_REFUSED;
        std::memcpy(said.text, why.data(), std::min(why.size(), sizeof said.text - 1));
        answer(c, said);
        return false;
    };
    const checked_hello heard = check_hello({packet, static_cast<std::size_t>(got)});
    if (!heard.refusal.empty())
        return refuse(heard.refusal);
    if (!may_connect(c.fd.get(), heard.what.role))
        return refuse("this GPU is shared by VMs of another user");
    if (heard.what.role == SHARE_ASKER)
        return report_rows(c, heard.what.asks_programs);
    if (heard.what.role == SHARE_SESSION) {
        c.page = std::make_unique<mapped_page>();
        if (!c.page->create())
            return refuse("the share arbiter of this GPU has no memory for another program");
    }
    const auto refusal = arbiter_.join(id, heard.what, c.page ? c.page->get() : nullptr, now_ns());
    if (!refusal.empty())
        return refuse(refusal);
    c.joined = true;
    const int page_fd = c.page ? c.page->fd() : -1;
    answer(c, said, {&page_fd, c.page ? 1u : 0u});
    if (c.page)
        c.page->close_fd();
    return true;
}

bool server::report_rows(connection& c, bool programs) {
    const auto rows = arbiter_.rows(now_ns());
    const auto program_rows = programs ? arbiter_.programs(now_ns()) : std::vector<share_program_row>();
    share_answer said{};
    said.rows = static_cast<std::uint32_t>(rows.size());
    said.programs = static_cast<std::uint32_t>(program_rows.size());
    answer(c, said);
    for (const share_row& row : rows)
        send(c.fd.get(), &row, sizeof row, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (const share_program_row& row : program_rows)
        send(c.fd.get(), &row, sizeof row, MSG_NOSIGNAL | MSG_DONTWAIT);
    return false;
}

void server::answer(connection& c, share_answer said, std::span<const int> fds) {
    said.magic = SHARE_MAGIC;
    said.version = SHARE_VERSION;
    said.policy = static_cast<std::uint32_t>(arbiter_.policy());
    said.now_ns = now_ns();
    said.gpu_memory_bytes = arbiter_.gpu_memory_bytes();
    worker::send_with_fds(c.fd.get(), std::as_bytes(std::span(&said, 1)), fds, MSG_DONTWAIT);
}

// A socket that is full has been told: its reader looks at the page when it gets there.
void server::go(connection_id id) {
    if (const auto at = connections_.find(id); at != connections_.end()) {
        const share_message message{SHARE_GO, 0};
        send(at->second.fd.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void server::drop(std::uint64_t id) {
    const auto at = connections_.find(id);
    if (at == connections_.end())
        return;
    // The arbiter looks at the page a last time; the socket is closed after that.
    const connection gone = std::move(at->second);
    connections_.erase(at);
    arbiter_.gone(id, now_ns());
}

void server::drop_silent() {
    const std::uint64_t now = now_ns();
    std::erase_if(connections_, [&](const auto& c) {
        return !c.second.joined && now - c.second.since_ns >= hello_within_ns;
    });
}

} // namespace

int run_server(const server_options& options) {
    return server(options).run();
}

} // namespace kagemusha::share
