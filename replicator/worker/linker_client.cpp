// SPDX-License-Identifier: GPL-2.0-or-later
// linker_client: see linker_client.hpp.
//
// The functions at the end take the place of the C library's for every library of the process, because the
// dynamic linker looks into the executable first (CMakeLists.txt exports them from there).
//
// Locking in this file: `mutex` guards everything below it; a link holds it, so links run one after another.
#include "worker/linker_client.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <map>
#include <mutex>
#include <vector>

#include "worker/linker_protocol.hpp"

namespace kagemusha::worker {

namespace {

// Linux' process ids end at 2^22: these are nobody's.
constexpr pid_t first_link_id = 1 << 24;
// Links that were started and not awaited; a runtime awaits each at once.
constexpr std::size_t max_finished_links = 256;

std::mutex mutex;
int connection = -1;
pid_t next_id = first_link_id;
std::map<pid_t, int> finished; // status of links that were not awaited yet

template <class F>
F* real(const char* name) {
    return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

// posix_spawn() by the broker, which returns when the linker has ended; 0 or an error number.
int spawn_by_broker(pid_t* id, const char* path, char* const argv[]) {
    std::vector<const char*> arguments = {path};
    for (std::size_t i = 1; argv[0] != nullptr && argv[i] != nullptr; ++i)
        arguments.push_back(argv[i]);
    const auto message = encode_link_request(arguments);
    if (!message)
        return E2BIG;
    if (finished.size() >= max_finished_links)
        return EAGAIN;
    ssize_t done;
    do {
        done = write(connection, message->data(), message->size());
    } while (done < 0 && errno == EINTR);
    if (done != static_cast<ssize_t>(message->size()))
        return EPERM;
    link_answer answer{};
    do {
        done = read(connection, &answer, sizeof answer);
    } while (done < 0 && errno == EINTR);
    if (done != static_cast<ssize_t>(sizeof answer))
        return EPERM;
    if (answer.status == link_refused_status)
        return EPERM;
    *id = next_id++;
    finished.emplace(*id, answer.status);
    return 0;
}

// Whether `pid` is one of ours; then its status.
bool take_finished(pid_t pid, int* status) {
    const std::lock_guard lock(mutex);
    const auto found = finished.find(pid);
    if (found == finished.end())
        return false;
    if (status != nullptr)
        *status = found->second;
    finished.erase(found);
    return true;
}

int spawn(const char* name, pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
          const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
    {
        const std::lock_guard lock(mutex);
        if (connection >= 0) {
            pid_t unwanted;
            return spawn_by_broker(pid != nullptr ? pid : &unwanted, path, argv);
        }
    }
    return real<decltype(posix_spawn)>(name)(pid, path, actions, attributes, argv, envp);
}

} // namespace

void use_link_broker(unique_fd broker) {
    const std::lock_guard lock(mutex);
    connection = broker.release();
}

} // namespace kagemusha::worker

#define KAGEMUSHA_REPLACES __attribute__((visibility("default")))

extern "C" {

KAGEMUSHA_REPLACES int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                                   const posix_spawnattr_t* attributes, char* const argv[],
                                   char* const envp[]) {
    return kagemusha::worker::spawn("posix_spawn", pid, path, actions, attributes, argv, envp);
}

KAGEMUSHA_REPLACES int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                                    const posix_spawnattr_t* attributes, char* const argv[],
                                    char* const envp[]) {
    return kagemusha::worker::spawn("posix_spawnp", pid, file, actions, attributes, argv, envp);
}

KAGEMUSHA_REPLACES pid_t waitpid(pid_t pid, int* status, int options) {
    if (kagemusha::worker::take_finished(pid, status))
        return pid;
    return kagemusha::worker::real<decltype(waitpid)>("waitpid")(pid, status, options);
}

KAGEMUSHA_REPLACES pid_t wait4(pid_t pid, int* status, int options, struct rusage* usage) {
    if (kagemusha::worker::take_finished(pid, status)) {
        if (usage != nullptr)
            *usage = {};
        return pid;
    }
    return kagemusha::worker::real<decltype(wait4)>("wait4")(pid, status, options, usage);
}

} // extern "C"
