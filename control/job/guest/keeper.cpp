// SPDX-License-Identifier: GPL-2.0-or-later
//
// Keeps a job in a guest: runs it, and keeps its output until a reader on a host has it for good. The node's
// agent (lan/guest/agent.cpp) starts this for the host; a job goes on when the connection to the host is lost.
//
//   kagemusha-node-job begin KEY merged|apart WORDS…  an archive (tar) is on standard input: "environment" (each
//                                                     variable ended by NUL) and "work", where the words are run. Its
//                                                     errors go to its output, or apart. Begun once.
//   kagemusha-node-job follow KEY OUT ERR ENDS…       a reader with this greeting (job/job_frames.hpp); status 3: no such job
//
// Linked statically: it runs in any image.
#include "control/job/job_frames.hpp"
#include "control/job/output_spool.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace kagemusha::control;
using job::output_spool;

constexpr char root[] = "/run/kagemusha-job";
constexpr std::size_t most_unsent = 1 << 20;
constexpr int look_ms = 100, no_such_job = 3;

std::string folder_of(const std::string& key) {
    return std::string(root) + "/" + key;
}

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "kagemusha-node-job: %s: %s\n", what.c_str(), std::strerror(errno));
    std::exit(1);
}

int socket_at(const std::string& path, sockaddr_un& name) {
    name = {};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

// ---- the keeper

// Who reads. A newer one takes the place of an older one, whose host may be gone.
struct reader {
    int fd = -1;
    lan::exec_reader frames;
    bool greeted = false;
    job::positions at; // what was sent
    std::string unsent;

    void hang_up() {
        if (fd >= 0)
            ::close(fd);
        *this = {};
    }
};

class keeper {
public:
    explicit keeper(int listener) : listener_(listener) {}
    [[noreturn]] void run(pid_t child, int out, int err);

private:
    void take(int& from, output_spool& into);
    void look_for_the_end();
    void fill();
    void hear();
    bool hear(const lan::exec_reader::frame& frame);
    void greet(const job::greeting& hello);
    void say();

    const int listener_;
    output_spool out_, err_;
    int from_out_ = -1, from_err_ = -1;
    pid_t child_ = 0;
    std::string status_;                // decimal, when it has ended
    bool told_ = false, begun_ = false; // begun: there was a reader
    reader reader_;
};

void keeper::take(int& from, output_spool& into) {
    char buffer[32768];
    const auto got = ::read(from, buffer, std::min(sizeof buffer, into.room()));
    if (got > 0) {
        into.append({buffer, static_cast<std::size_t>(got)});
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        ::close(from);
        from = -1;
    } else if (!status_.empty() && errno == EAGAIN) {
        ::close(from); // it has ended, and what it left running is not waited for
        from = -1;
    }
}

void keeper::look_for_the_end() {
    int status = 0;
    if (child_ > 0 && ::waitpid(child_, &status, WNOHANG) == child_) {
        child_ = 0;
        status_ = std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
}

// What the reader has not got yet, frame by frame.
void keeper::fill() {
    if (!reader_.greeted)
        return;
    const auto put = [&](char letter, const output_spool& spool, std::uint64_t& at) {
        while (reader_.unsent.size() < most_unsent && at < spool.end()) {
            const auto part = spool.from(at).substr(0, lan::most_exec_payload);
            reader_.unsent += lan::exec_frame(letter, part);
            at += part.size();
        }
    };
    put('O', out_, reader_.at.out);
    put('X', err_, reader_.at.err);
    if (!told_ && !status_.empty() && from_out_ < 0 && from_err_ < 0 && reader_.at.out == out_.end() &&
        reader_.at.err == err_.end()) {
        reader_.unsent += lan::exec_frame('S', status_);
        told_ = true;
    }
}

void keeper::hear() {
    char buffer[4096];
    const auto got = ::read(reader_.fd, buffer, sizeof buffer);
    if (got <= 0) {
        if (got == 0 || errno != EINTR)
            reader_.hang_up();
        return;
    }
    reader_.frames.feed({buffer, static_cast<std::size_t>(got)});
    while (const auto frame = reader_.frames.next())
        if (!hear(*frame))
            return reader_.hang_up();
    if (reader_.frames.broken() || reader_.unsent.size() > 2 * most_unsent)
        reader_.hang_up();
}

bool keeper::hear(const lan::exec_reader::frame& frame) {
    if (!reader_.greeted) {
        const auto hello = frame.letter == 'H' ? job::greeting_in(frame.payload) : std::nullopt;
        if (hello)
            greet(*hello);
        return hello.has_value();
    }
    const auto has = frame.letter == 'K' ? job::positions_in(frame.payload) : std::nullopt;
    if (!has || has->out > reader_.at.out || has->err > reader_.at.err)
        return false; // it can't have what it was not sent
    out_.confirm(has->out);
    err_.confirm(has->err);
    reader_.unsent += lan::exec_frame('K', {});
    return true;
}

void keeper::greet(const job::greeting& hello) {
    if (!begun_) {
        begun_ = true;
        out_.begin_at(hello.have.out);
        err_.begin_at(hello.have.err);
    }
    reader_.greeted = true;
    told_ = false;
    reader_.at = {out_.begin_for(hello.have.out, hello.out_end),
                  err_.begin_for(hello.have.err, hello.err_end)};
    reader_.unsent += lan::exec_frame('B', text_of(reader_.at));
}

void keeper::say() {
    const auto done =
        ::send(reader_.fd, reader_.unsent.data(), reader_.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done > 0)
        reader_.unsent.erase(0, static_cast<std::size_t>(done));
    else if (done < 0 && errno != EAGAIN && errno != EINTR)
        reader_.hang_up();
}

void keeper::run(pid_t child, int out, int err) {
    child_ = child;
    from_out_ = out;
    from_err_ = err;
    for (;;) {
        look_for_the_end();
        fill();
        const auto wants = [](const output_spool& spool, int fd) { return spool.room() > 0 ? fd : -1; };
        pollfd fds[] = {{listener_, POLLIN, 0},
                        {wants(out_, from_out_), POLLIN, 0},
                        {wants(err_, from_err_), POLLIN, 0},
                        {reader_.fd, static_cast<short>(POLLIN | (reader_.unsent.empty() ? 0 : POLLOUT)), 0}};
        // The job's end is looked for again and again: a background process of it may hold its pipes.
        if (::poll(fds, 4, child_ > 0 || from_out_ >= 0 || from_err_ >= 0 ? look_ms : -1) < 0)
            continue;
        const bool ended = !status_.empty();
        if (from_out_ >= 0 && out_.room() > 0 && (fds[1].revents != 0 || ended))
            take(from_out_, out_);
        if (from_err_ >= 0 && err_.room() > 0 && (fds[2].revents != 0 || ended))
            take(from_err_, err_);
        if (reader_.fd >= 0 && (fds[3].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            hear();
        if (reader_.fd >= 0 && (fds[3].revents & POLLOUT) != 0)
            say();
        if (fds[0].revents != 0) {
            const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (fd >= 0) {
                reader_.hang_up();
                reader_.fd = fd;
            }
        }
    }
}

// ---- begin

int run_and_wait(const std::vector<std::string>& words) {
    const auto child = ::fork();
    if (child == 0) {
        std::vector<char*> argv;
        for (const auto& word : words)
            argv.push_back(const_cast<char*>(word.c_str()));
        argv.push_back(nullptr);
        ::execvp(argv[0], argv.data());
        ::_exit(127);
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

[[noreturn]] void become(const std::string& folder, char** words, int out, int err) {
    ::setsid();
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGHUP, SIG_DFL);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    std::ifstream file(folder + "/environment", std::ios::binary);
    for (std::string variable; std::getline(file, variable, '\0');) {
        const auto equals = variable.find('=');
        if (equals != 0 && equals != variable.npos)
            ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    }
    if (::chdir((folder + "/work").c_str()) != 0)
        fail(folder + "/work");
    ::execvp(words[0], words);
    const int why = errno;
    std::fprintf(stderr, "%s: %s\n", words[0], std::strerror(why));
    ::_exit(why == ENOENT ? 127 : 126);
}

// A folder of this name is there: it was begun. So the name comes last.
int begin_apart(const std::string& key, bool merged, char** words) {
    ::mkdir(root, 0700);
    const auto folder = folder_of(key), made = folder + ".new." + std::to_string(::getpid());
    if (::access(folder.c_str(), F_OK) == 0)
        return 0;
    if (::mkdir(made.c_str(), 0700) != 0 || ::mkdir((made + "/work").c_str(), 0700) != 0)
        fail(made);
    if (const int status = run_and_wait({"tar", "-mxf", "-", "-C", made}); status != 0) {
        std::fprintf(stderr, "kagemusha-node-job: the job's files did not come: tar ended with %d\n", status);
        run_and_wait({"rm", "-rf", made});
        return 1;
    }
    sockaddr_un name;
    const int listener = socket_at(folder + "/socket", name);
    if (::rename(made.c_str(), folder.c_str()) != 0) {
        run_and_wait({"rm", "-rf", made}); // another one was faster
        return 0;
    }
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
        ::listen(listener, 8) != 0)
        fail(folder + "/socket");
    const auto keeping = ::fork();
    if (keeping != 0)
        return keeping > 0 ? 0 : 1;
    ::setsid();
    int p[2], q[2] = {-1, -1};
    if (::pipe2(p, O_CLOEXEC) != 0 || (!merged && ::pipe2(q, O_CLOEXEC) != 0))
        fail("pipe");
    const auto child = ::fork();
    if (child == 0)
        become(folder, words, p[1], merged ? p[1] : q[1]);
    for (const int fd : {0, 1, 2, p[1], q[1]})
        if (fd >= 0)
            ::close(fd);
    for (const int fd : {p[0], q[0]})
        if (fd >= 0)
            ::fcntl(fd, F_SETFL, O_NONBLOCK);
    keeper(listener).run(child, p[0], q[0]);
}

// The agent ends the process group of who hangs up; half of this would be worth nothing.
int begin(const std::string& key, bool merged, char** words) {
    const auto apart = ::fork();
    if (apart == 0) {
        ::setsid();
        std::exit(begin_apart(key, merged, words));
    }
    int status = 1;
    while (::waitpid(apart, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// ---- follow: between our streams and the keeper

int follow(const std::string& key, const std::string& greeting) {
    sockaddr_un name;
    const int fd = socket_at(folder_of(key) + "/socket", name);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0)
        return no_such_job;
    const auto copy = [](int from, int to) {
        char buffer[32768];
        const auto got = ::read(from, buffer, sizeof buffer);
        if (got <= 0)
            return got < 0 && errno == EINTR;
        for (ssize_t sent = 0; sent < got;) {
            const auto done = ::write(to, buffer + sent, static_cast<std::size_t>(got - sent));
            if (done <= 0 && errno != EINTR)
                return false;
            sent += std::max<ssize_t>(done, 0);
        }
        return true;
    };
    const auto hello = lan::exec_frame('H', greeting);
    if (::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size()))
        return 1;
    for (;;) {
        pollfd fds[] = {{0, POLLIN, 0}, {fd, POLLIN, 0}};
        if (::poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents != 0 && !copy(fd, 1))
            return 0;
        if (fds[0].revents != 0 && !copy(0, fd))
            return 0;
    }
}

} // namespace

int main(int argc, char** argv) {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGHUP, SIG_IGN);
    const std::string command = argc > 1 ? argv[1] : "", key = argc > 2 ? argv[2] : "";
    const std::string how = argc > 3 ? argv[3] : "";
    if (job::is_key(key) && command == "begin" && argc > 4 && (how == "merged" || how == "apart"))
        return begin(key, how == "merged", argv + 4);
    if (job::is_key(key) && command == "follow" && argc == 7)
        return follow(key, how + " " + argv[4] + " " + argv[5] + " " + argv[6]);
    std::fprintf(
        stderr,
        "usage: kagemusha-node-job begin KEY merged|apart WORDS… | follow KEY OUT ERR OUT_END ERR_END\n");
    return 2;
}
