// SPDX-License-Identifier: GPL-2.0-or-later
// answering_process: see answering_process.hpp.
//
//   first process of the namespace ── waits for ──▶ the answering process
//     mounts /proc, own root                          thread like the program's: enters the sandbox,
//                                                     opens the driver, answers
#include "worker/answering_process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>

#include "base/unique_fd.hpp"
#include "proto/cuda/cuda.h"
#include "proto/cuda/export_tables.h"
#include "worker/address_window.hpp"
#include "worker/limits.hpp"
#include "worker/placed_thread.hpp"

namespace kagemusha::worker {

namespace {

constexpr int answering_fd = 3;

constexpr CUuuid interface_name = KVG_CUDA_TABLE_INTERFACE, check_name = KVG_CUDA_TABLE_CHECK;

using get_table = CUresult (*)(const void** table, const CUuuid* name);
using check = CUresult (*)(std::uint32_t version, std::uint64_t seconds, void* proof);

class driver {
public:
    // "" or why it does not open. Nothing else is mapped before.
    std::string open(const std::string& path) {
        if (std::string error = close_addresses_above(driver_end); !error.empty())
            return error;
        library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library_ == nullptr)
            return "the CUDA driver library " + path + " cannot be opened";
        const auto get = reinterpret_cast<get_table>(dlsym(library_, "cuGetExportTable"));
        const void *interface = nullptr, *checks = nullptr;
        if (get == nullptr || get(&interface, &interface_name) != CUDA_SUCCESS || interface == nullptr ||
            get(&checks, &check_name) != CUDA_SUCCESS || checks == nullptr)
            return "the CUDA driver library " + path + " has no tables for CUDA's runtime";
        tables_.interface_table = reinterpret_cast<std::uintptr_t>(interface);
        tables_.check_table = reinterpret_cast<std::uintptr_t>(checks);
        check_ = static_cast<const check*>(checks)[1];
        tables_.check_function = reinterpret_cast<std::uintptr_t>(check_);
        return "";
    }

    bool start() {
        const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(library_, "cuInit"));
        return started_ = started_ || (init != nullptr && init(0) == CUDA_SUCCESS);
    }

    const vgpu_cuda_tables& tables() const { return tables_; }
    vgpu_cuda_proof ask(const vgpu_cuda_question& question) const {
        vgpu_cuda_proof proof{};
        proof.result = check_(question.version, question.seconds, proof.bytes);
        return proof;
    }

private:
    void* library_ = nullptr;
    bool started_ = false;
    vgpu_cuda_tables tables_{};
    check check_ = nullptr;
};

answering_answer answer_to(const answering_request& request, driver& genuine) {
    answering_answer answer{};
    answer.tables = genuine.tables();
    if (request.wants != answering_wants::proof)
        return answer;
    if (std::memcmp(&request.question.known, &genuine.tables(), sizeof(vgpu_cuda_tables)) != 0)
        answer.status = answering_status::other_addresses;
    else if (!genuine.start())
        answer.status = answering_status::no_driver;
    else
        answer.proof = genuine.ask(request.question);
    return answer;
}

[[noreturn]] void serve(const std::string& path) {
    driver genuine;
    const std::string error = genuine.open(path);
    if (!error.empty())
        std::fprintf(stderr, "programs of CUDA's runtime can't be answered: %s\n", error.c_str());
    for (;;) {
        answering_request request;
        const ssize_t got = read(answering_fd, &request, sizeof request);
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof request)
            _exit(0); // the broker is gone
        answering_answer answer{};
        if (error.empty())
            answer = answer_to(request, genuine);
        else
            answer.status = answering_status::no_driver;
        if (write(answering_fd, &answer, sizeof answer) != sizeof answer)
            _exit(0);
    }
}

// The driver sees this GPU alone, as the guest's program does.
void show_gpu(const std::uint8_t (&uuid)[16]) {
    const char* const seen = std::getenv("CUDA_VISIBLE_DEVICES");
    if (seen != nullptr && std::strncmp(seen, "MIG-", 4) == 0)
        return;
    std::string name = "GPU-";
    char two[3];
    for (unsigned i = 0; i < sizeof uuid; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            name += '-';
        std::snprintf(two, sizeof two, "%02x", uuid[i]);
        name += two;
    }
    setenv("CUDA_VISIBLE_DEVICES", name.c_str(), 1);
}

void enter_sandbox(sandbox& box, std::uint64_t max_bytes) {
    if (const std::string error = box.enter(max_bytes); !error.empty()) {
        std::fprintf(stderr, "programs of CUDA's runtime can't be answered: %s\n", error.c_str());
        _exit(1);
    }
}

[[noreturn]] void run(const answering_request& first, const std::string& path, sandbox& box,
                      std::uint64_t max_bytes) {
    prctl(PR_SET_NAME, "kagemusha-proof");
    if (first.wants != answering_wants::proof) {
        enter_sandbox(box, max_bytes);
        serve(path);
    }
    show_gpu(first.uuid);
    std::latch entered(1);
    const std::string error = run_thread_at(first.question.thread, [&] {
        entered.wait();
        enter_sandbox(box, max_bytes); // holds for the thread that enters it
        serve(path);
    });
    if (!error.empty()) {
        std::fprintf(stderr, "programs of CUDA's runtime can't be answered: %s\n", error.c_str());
        _exit(1);
    }
    enter_sandbox(box, max_bytes);
    entered.count_down();
    for (;;)
        pause();
}

// The first process of the namespace. Everything in it ends with it.
[[noreturn]] void begin(int connection, const answering_request& first, const std::string& path, sandbox& box,
                        std::uint64_t max_bytes) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (dup2(connection, answering_fd) < 0)
        _exit(1);
    close_range(answering_fd + 1, ~0u, 0);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
        std::fprintf(stderr, "programs of CUDA's runtime can't be answered: a /proc of their own: %s\n",
                     std::strerror(errno));
        _exit(1);
    }
    box.make_private_directory(private_directory_bytes);
    if (!box.directory().path.empty() && !box.move_into(box.directory()).empty())
        _exit(1);
    const bool is_init = first.wants != answering_wants::proof || first.question.process == 1;
    if (is_init)
        run(first, path, box, max_bytes);
    auto id = static_cast<pid_t>(first.question.process);
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    arguments.set_tid = reinterpret_cast<std::uintptr_t>(&id);
    arguments.set_tid_size = 1;
    const long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child < 0) {
        std::fprintf(
            stderr,
            "programs of CUDA's runtime can't be answered: process id %d: %s (kernel.pid_max of this "
            "host must be as large as the guest's)\n",
            id, std::strerror(errno));
        _exit(1);
    }
    if (child == 0)
        run(first, path, box, max_bytes);
    close(answering_fd);
    int status = 0;
    while (waitpid(static_cast<pid_t>(child), &status, 0) < 0 && errno == EINTR) {
    }
    _exit(1);
}

} // namespace

int start_answering_process(int connection, const answering_request& first, const std::string& driver,
                            sandbox& box, std::uint64_t max_bytes) {
    clone_args arguments{};
    arguments.flags = CLONE_NEWPID | CLONE_NEWNS;
    arguments.exit_signal = SIGCHLD;
    const long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0)
        begin(connection, first, driver, box, max_bytes);
    return static_cast<int>(child);
}

} // namespace kagemusha::worker
