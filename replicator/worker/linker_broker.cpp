// SPDX-License-Identifier: GPL-2.0-or-later
// linker_broker: see linker_broker.hpp.
#include "worker/linker_broker.hpp"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "worker/landlock.hpp"
#include "worker/linker_protocol.hpp"
#include "worker/syscall_filter.hpp"
#include "worker/wire.hpp"

namespace kagemusha::worker {

namespace {

// Linking one kernel takes a tenth of a second.
constexpr int link_limit_ms = 60000;
constexpr rlim_t linker_memory_bytes = rlim_t{4} << 30;
constexpr rlim_t linker_file_bytes = rlim_t{256} << 20;

// Connection to the worker; first descriptor behind the standard ones.
constexpr int broker_fd = 3;

void limit(__rlimit_resource resource, rlim_t value) {
    const rlimit both{value, value};
    setrlimit(resource, &both);
}

[[noreturn]] void become_linker(const std::vector<std::string_view>& arguments) {
    std::vector<char*> argv;
    for (const std::string_view argument : arguments)
        argv.push_back(const_cast<char*>(argument.data())); // each ends with a 0 byte, see the protocol
    argv.push_back(nullptr);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    close_range(broker_fd, ~0u, 0);
    limit(RLIMIT_AS, linker_memory_bytes);
    limit(RLIMIT_FSIZE, linker_file_bytes);
    limit(RLIMIT_CPU, link_limit_ms / 1000);
    char* environment[] = {nullptr};
    if (enter_syscall_filter(filter_for::linker).empty())
        execve(argv[0], argv.data(), environment);
    _exit(127);
}

std::int32_t run_linker(const std::vector<std::string_view>& arguments) {
    const pid_t child = fork();
    if (child < 0)
        return link_refused_status;
    if (child == 0)
        become_linker(arguments);
    const unique_fd end(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
    pollfd fd{end.get(), POLLIN, 0};
    int ready;
    do {
        ready = poll(&fd, 1, link_limit_ms);
    } while (ready < 0 && errno == EINTR);
    if (ready != 1)
        kill(child, SIGKILL);
    int status = link_refused_status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

std::int32_t answer_to(std::string_view message, const std::string& directory) {
    const auto arguments = decode_link_request(message);
    const std::string fault =
        arguments ? check_link_request(*arguments, directory) : "the message is malformed";
    if (!fault.empty()) {
        std::fprintf(stderr, "a link was refused: %s\n", fault.c_str());
        return link_refused_status;
    }
    return run_linker(*arguments);
}

void serve(const std::string& directory) {
    std::vector<char> message(max_link_request_bytes + 1);
    for (;;) {
        const ssize_t got = read(broker_fd, message.data(), message.size());
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return; // the worker is gone
        const link_answer answer{answer_to({message.data(), static_cast<std::size_t>(got)}, directory)};
        if (write(broker_fd, &answer, sizeof answer) != sizeof answer)
            return;
    }
}

void remove_directory(const private_directory& directory) {
    if (directory.vanishes)
        return;
    std::error_code ignored; // what can't be removed stays; nobody is left to tell
    std::filesystem::remove_all(directory.path, ignored);
    // The library tries unlink() first and gives up at Landlock's EACCES, which Linux without it would not
    // say.
    rmdir(directory.path.c_str());
}

// Sandbox of the broker and of the linker that it starts. A layer that is not there was reported by the
// worker, whose sandbox needs the same.
std::string enter_sandbox(const private_directory& directory) {
    landlock_rules rules;
    std::string error = rules.create();
    if (!error.empty())
        return error;
    allow_system_files(rules);
    rules.allow(directory.path, file_access::write);
    if (!directory.vanishes)
        rules.allow(std::filesystem::path(directory.path).parent_path().string(), file_access::remove_entry);
    for (const char* path : {"/usr/bin/ld", "/usr/bin/ld.bfd", "/usr/bin/ld.gold", "/usr/bin/ld.lld",
                             "/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"})
        rules.allow(path, file_access::execute);
    if (error = rules.enforce(); !error.empty())
        return error;
    if (error = drop_capabilities(); !error.empty())
        return error;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return enter_syscall_filter(filter_for::broker);
}

// Makes the directory that does not vanish, and tells the worker its path.
void make_directory(private_directory& directory) {
    char name[] = "/tmp/kagemusha-worker-XXXXXX";
    if (mkdtemp(name) == nullptr) {
        std::fprintf(stderr, "the worker's private directory can't be made: %s\n", std::strerror(errno));
        _exit(1);
    }
    directory.path = name;
    // A worker that is gone by now is noticed at the next read.
    static_cast<void>(!write(broker_fd, directory.path.data(), directory.path.size()));
}

[[noreturn]] void run_broker(int connection, private_directory& directory, sandbox_mode mode) {
    prctl(PR_SET_NAME, "kagemusha-link");
    signal(SIGPIPE,
           SIG_IGN); // the worker may be killed before it gets its answer; the directory is still ours
    if (dup2(connection, broker_fd) < 0)
        _exit(1);
    close_range(broker_fd + 1, ~0u, 0);
    if (directory.path.empty())
        make_directory(directory);
    const std::string error = enter_sandbox(directory);
    if (error.empty() || mode != sandbox_mode::required)
        serve(directory.path);
    else
        std::fprintf(stderr, "no linker for the worker: %s\n", error.c_str());
    remove_directory(directory);
    _exit(0);
}

} // namespace

unique_fd start_link_broker(private_directory& directory, sandbox_mode mode, std::string& error) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        error = std::string("no connection to the linker broker: ") + std::strerror(errno);
        return {};
    }
    unique_fd ours(pair[0]);
    unique_fd theirs(pair[1]);
    // First process of a PID namespace where that is allowed: whatever a linker might leave behind ends with
    // it.
    clone_args arguments{};
    arguments.flags = CLONE_NEWPID;
    arguments.exit_signal = SIGCHLD;
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child < 0)
        child = fork();
    if (child < 0) {
        error = std::string("the linker broker can't be started: ") + std::strerror(errno);
        return {};
    }
    if (child == 0)
        run_broker(theirs.get(), directory, mode);
    theirs.reset(); // so that the broker's end is noticed
    if (directory.path.empty()) {
        char name[PATH_MAX];
        ssize_t got;
        do {
            got = read(ours.get(), name, sizeof name);
        } while (got < 0 && errno == EINTR);
        if (got <= 0) {
            error = "the worker has no private directory";
            return {};
        }
        directory.path.assign(name, static_cast<std::size_t>(got));
    }
    return ours;
}

} // namespace kagemusha::worker
