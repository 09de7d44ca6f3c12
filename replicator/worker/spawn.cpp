// SPDX-License-Identifier: GPL-2.0-or-later
// spawn: see spawn.hpp.
//
// Linux ends a worker by PR_SET_PDEATHSIG when the *thread* that started it ends, and the threads that call
// in here come and go. So one thread that lives as long as this program starts them all: until the process
// ends, and not only until its static objects are destroyed.
#include "worker/spawn.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "worker/launcher.hpp"
#include "worker/setup.hpp"

extern char** environ;

namespace kagemusha::worker {

namespace {

class spawn_thread {
public:
    static spawn_thread& instance() {
        static spawn_thread* const thread = new spawn_thread;
        return *thread;
    }

    // Runs `task` on the thread and waits for it.
    void run(std::function<void()> task) {
        std::packaged_task<void()> packaged(std::move(task));
        auto done = packaged.get_future();
        {
            const std::lock_guard lock(mutex_);
            tasks_.push_back(std::move(packaged));
        }
        changed_.notify_one();
        done.get();
    }

private:
    spawn_thread() {
        // Signals of the program are not for this thread.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread([this] { loop(); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    [[noreturn]] void loop() {
        pthread_setname_np(pthread_self(), "kage-spawn");
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return !tasks_.empty(); });
            auto task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::packaged_task<void()>> tasks_; // bounded by the callers, who wait
};

// What a GPU runtime may be configured with; everything else of QEMU's environment is none of a worker's
// business.
bool is_passed_on(std::string_view variable) {
    static constexpr std::string_view prefixes[] = {
        "OCL_ICD_", "OPENCL_", "POCL_", "CUDA_", "NVIDIA_",  "ROC_",   "ROCR_", "HSA_",   "HIP_",
        "ZE_",      "IGC_",    "NEO",   "MESA_", "RUSTICL_", "LIBGL_", "ASAN_", "UBSAN_", "TSAN_"};
    if (variable.starts_with("CUDA_MPS_"))
        return false; // a client of MPS can be ended by another one's fault
    static constexpr std::string_view names[] = {"LD_LIBRARY_PATH=", "PATH=", "GLIBC_TUNABLES="};
    return std::ranges::any_of(prefixes, [&](auto prefix) { return variable.starts_with(prefix); }) ||
           std::ranges::any_of(names, [&](auto name) { return variable.starts_with(name); });
}

// glibc's malloc asks for huge pages. PoCL's buffers are such memory, and a worker that is killed gives 128
// MiB of small pages back for some 15 ms, at a takeover those of a processor that the standby needs.
char huge_pages[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

// posix_spawn() with a descriptor layout; returns 0 or an error number.
int spawn_now(const std::string& path, const std::string& title, int setup, int error_output, pid_t& pid) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    // The sources are above every target (see spawn_worker), so no step overwrites the source of a later one.
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, error_output, 2);
    posix_spawn_file_actions_adddup2(&files, setup, setup_fd);
    posix_spawn_file_actions_addclosefrom_np(&files, setup_fd + 1);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);

    std::vector<char*> environment = worker_environment();
    char* arguments[] = {const_cast<char*>(path.c_str()), const_cast<char*>(title.c_str()), nullptr};
    const int result = posix_spawn(&pid, path.c_str(), &files, &attributes, arguments, environment.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return result;
}

} // namespace

std::vector<char*> worker_environment() {
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable)
        if (is_passed_on(*variable))
            environment.push_back(*variable);
    if (std::getenv("GLIBC_TUNABLES") == nullptr)
        environment.push_back(huge_pages);
    environment.push_back(nullptr);
    return environment;
}

spawned_process spawn_worker(const std::string& path, const std::string& title, int setup, int error_output,
                             std::string& error) {
    if (launcher_client* launcher = launcher_client::inherited())
        return launcher->start(title, setup, error_output, error);
    spawned_process process;
    const unique_fd high_setup(fcntl(setup, F_DUPFD_CLOEXEC, setup_fd + 1));
    const unique_fd high_error(fcntl(error_output, F_DUPFD_CLOEXEC, setup_fd + 1));
    if (!high_setup || !high_error) {
        error = std::string("no descriptor for a worker: ") + std::strerror(errno);
        return process;
    }
    int result = 0;
    spawn_thread::instance().run([&] {
        pid_t pid = -1;
        result = spawn_now(path, title, high_setup.get(), high_error.get(), pid);
        if (result != 0)
            return;
        process.pid = pid;
        process.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
        if (!process.pidfd) {
            result = errno;
            ::kill(pid, SIGKILL); // our own child, not yet reaped: the number is still its
            waitpid(pid, nullptr, 0);
        }
    });
    if (result != 0)
        error = "the worker " + path + " can't be started: " + std::strerror(result);
    return process;
}

} // namespace kagemusha::worker
