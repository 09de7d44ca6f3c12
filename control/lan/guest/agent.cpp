// SPDX-License-Identifier: GPL-2.0-or-later
//
// The agent of a cluster's node, in the guest: runs a command for each connection (lan/frames.hpp, exec) that
// begins with the node's secret.
//
//   kagemusha-node-agent SECRET-FILE
//
// Linked statically: it runs in any image. A connection is a process, so a command that hangs or dies is its
// own matter; who hangs up ends his command with all that it started.
#include "control/lan/frames.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace kagemusha::control::lan;

constexpr std::size_t most_input = 1 << 20; // of a command that does not read it: then the sender waits
constexpr int hello_ms = 30000;             // until who connects has said what he wants

bool send_all(int fd, const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
        const auto done = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        sent += static_cast<std::size_t>(done);
    }
    return true;
}

// All bytes are looked at, whichever differs.
bool same(const std::string& a, std::string_view b) {
    if (a.size() != b.size())
        return false;
    int differs = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

// Of a command without a terminal; in a terminal all three are its two ends.
struct pipes {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    bool terminal = false;
};

// "80 24"; zero: it is none.
winsize size_of(std::string_view text) {
    winsize out{};
    unsigned columns = 0, rows = 0;
    if (std::sscanf(std::string(text).c_str(), "%5u %5u", &columns, &rows) == 2 && columns <= 10000 &&
        rows <= 10000) {
        out.ws_col = static_cast<unsigned short>(columns);
        out.ws_row = static_cast<unsigned short>(rows);
    }
    return out;
}

bool open_terminal(pipes& p, const winsize& size) {
    p.terminal = true;
    p.in[1] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char name[64];
    if (p.in[1] < 0 || ::grantpt(p.in[1]) != 0 || ::unlockpt(p.in[1]) != 0 ||
        ::ptsname_r(p.in[1], name, sizeof name) != 0)
        return false;
    p.out[0] = ::fcntl(p.in[1], F_DUPFD_CLOEXEC, 3);
    p.in[0] = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    p.out[1] = ::fcntl(p.in[0], F_DUPFD_CLOEXEC, 3);
    p.err[1] = ::fcntl(p.in[0], F_DUPFD_CLOEXEC, 3);
    ::ioctl(p.in[1], TIOCSWINSZ, &size);
    return p.out[0] >= 0 && p.in[0] >= 0 && p.out[1] >= 0 && p.err[1] >= 0;
}

bool open_pipes(pipes& p) {
    return ::pipe2(p.in, O_CLOEXEC) == 0 && ::pipe2(p.out, O_CLOEXEC) == 0 && ::pipe2(p.err, O_CLOEXEC) == 0;
}

[[noreturn]] void become(const std::vector<std::string>& words, const pipes& p) {
    ::setsid();
    ::signal(SIGPIPE, SIG_DFL); // which outlives exec when it is ignored
    if (p.terminal) {
        ::ioctl(p.in[0], TIOCSCTTY, 0);
        ::setenv("TERM", "xterm-256color", 1);
        ::setenv("HOME", "/root", 0);
    }
    ::dup2(p.in[0], 0);
    ::dup2(p.out[1], 1);
    ::dup2(p.err[1], 2);
    std::vector<char*> argv;
    for (const auto& word : words)
        argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    std::fprintf(stderr, "%s: %s\n", argv[0], std::strerror(errno));
    ::_exit(errno == ENOENT ? 127 : 126);
}

class connection {
public:
    connection(int fd, const std::string& secret) : fd_(fd), secret_(secret) {}
    void run();

private:
    bool greet(std::vector<std::string>& words);
    bool take_input();
    bool pass_on(int& from, char letter);
    void loop(pid_t child, pipes& p);

    const int fd_;
    const std::string& secret_;
    exec_reader reader_;
    std::string input_;
    bool input_ends_ = false;
    winsize terminal_{}; // of zero columns: none is wanted
};

// "" words: refused.
bool connection::greet(std::vector<std::string>& words) {
    bool known = false;
    for (;;) {
        while (const auto frame = reader_.next()) {
            if (!known) {
                known = frame->letter == 'H' && same(secret_, frame->payload);
                if (!known)
                    return send_all(fd_, exec_frame('R', "this node does not know you")), false;
                continue;
            }
            if (frame->letter == 'T') {
                terminal_ = size_of(frame->payload);
                continue;
            }
            if (frame->letter != 'C' || frame->payload.empty() || frame->payload.back() != '\0')
                return send_all(fd_, exec_frame('R', "there is no command")), false;
            for (std::size_t at = 0; at < frame->payload.size();) {
                words.emplace_back(frame->payload.data() + at);
                at += words.back().size() + 1;
            }
            return true;
        }
        pollfd wait{fd_, POLLIN, 0};
        char buffer[4096];
        if (reader_.broken() || ::poll(&wait, 1, hello_ms) <= 0)
            return false;
        const auto got = ::read(fd_, buffer, sizeof buffer);
        if (got <= 0)
            return false;
        reader_.feed({buffer, static_cast<std::size_t>(got)});
    }
}

// False: the other end has hung up.
bool connection::take_input() {
    char buffer[16384];
    const auto got = ::read(fd_, buffer, sizeof buffer);
    if (got <= 0)
        return got < 0 && errno == EINTR;
    reader_.feed({buffer, static_cast<std::size_t>(got)});
    return true;
}

// False: it has ended.
bool connection::pass_on(int& from, char letter) {
    char buffer[32768];
    const auto got = ::read(from, buffer, sizeof buffer);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (got <= 0) {
        ::close(from);
        from = -1;
        return true;
    }
    return send_all(fd_, exec_frame(letter, {buffer, static_cast<std::size_t>(got)}));
}

void connection::loop(pid_t child, pipes& p) {
    ::fcntl(p.in[1], F_SETFL, O_NONBLOCK);
    bool connected = true;
    while (connected && (p.out[0] >= 0 || p.err[0] >= 0)) {
        while (input_.size() < most_input) {
            const auto frame = reader_.next();
            if (!frame)
                break;
            if (frame->letter == 'I')
                input_ += frame->payload;
            input_ends_ = input_ends_ || frame->letter == 'E';
            if (const auto size = size_of(frame->payload);
                frame->letter == 'W' && p.terminal && size.ws_col > 0)
                ::ioctl(p.out[0], TIOCSWINSZ, &size);
        }
        if (input_.empty() && input_ends_ && p.in[1] >= 0) {
            ::close(p.in[1]);
            p.in[1] = -1;
        }
        const bool wants = input_.size() < most_input && !reader_.broken();
        pollfd fds[] = {{fd_, static_cast<short>(wants ? POLLIN : 0), 0},
                        {p.out[0], POLLIN, 0},
                        {p.err[0], POLLIN, 0},
                        {input_.empty() ? -1 : p.in[1], POLLOUT, 0}};
        if (::poll(fds, 4, -1) < 0)
            continue;
        if ((fds[0].revents & (POLLERR | POLLHUP)) != 0 && !wants)
            connected = false;
        if (wants && fds[0].revents != 0)
            connected = take_input();
        if (fds[1].revents != 0)
            connected = pass_on(p.out[0], 'O') && connected;
        if (fds[2].revents != 0)
            connected = pass_on(p.err[0], 'X') && connected;
        if (fds[3].revents != 0) {
            const auto done = ::write(p.in[1], input_.data(), input_.size());
            if (done > 0)
                input_.erase(0, static_cast<std::size_t>(done));
            else if (done < 0 && errno != EAGAIN && errno != EINTR)
                input_.clear(), input_ends_ = true; // nobody reads it any more
        }
    }
    if (!connected)
        ::kill(-child, SIGKILL);
}

void connection::run() {
    std::vector<std::string> words;
    pipes p;
    if (!greet(words) || !(terminal_.ws_col > 0 ? open_terminal(p, terminal_) : open_pipes(p)))
        return;
    const auto child = ::fork();
    if (child == 0)
        become(words, p);
    for (const int mine_not : {p.in[0], p.out[1], p.err[1]})
        ::close(mine_not);
    if (send_all(fd_, exec_frame('A', {})))
        loop(child, p);
    else
        ::kill(-child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    send_all(fd_, exec_frame('S', std::to_string(code & 0xff)));
    ::shutdown(fd_, SHUT_WR);
}

int serve(const std::string& secret) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(exec_port);
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
        ::listen(listener, 64) != 0) {
        std::perror("kagemusha-node-agent: cannot listen");
        return 1;
    }
    ::signal(SIGCHLD, SIG_IGN); // connections are not waited for
    ::signal(SIGPIPE, SIG_IGN);
    std::puts("KAGEMUSHA-NODE ready");
    std::fflush(stdout);
    for (;;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (::fork() == 0) {
            ::signal(SIGCHLD, SIG_DFL);
            ::close(listener);
            connection(fd, secret).run();
            ::_exit(0);
        }
        ::close(fd);
    }
}

} // namespace

int main(int argc, char** argv) {
    std::string secret;
    std::ifstream file(argc == 2 ? argv[1] : "");
    if (!std::getline(file, secret) || secret.size() < 32) {
        std::fprintf(stderr, "kagemusha-node-agent: no secret: kagemusha-node-agent SECRET-FILE\n");
        return 1;
    }
    return serve(secret);
}
