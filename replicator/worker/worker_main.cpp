// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-worker: executes the requests of one open file of a guest on the host's GPU. Started by the
// device, never by a person.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>

#include "worker/gpu_executor.hpp"
#include "worker/launcher.hpp"
#include "worker/setup.hpp"
#include "worker/worker_process.hpp"

int main(int count, char** arguments) {
    using namespace kagemusha::worker;
    if (count == 3 && std::strcmp(arguments[1], launcher_word) == 0)
        return run_launcher(std::atoi(arguments[2]), arguments[0]);
    if (fcntl(setup_fd, F_GETFD) < 0) {
        std::fprintf(stderr, "kagemusha-worker is started by the virtio-vgpu device of a virtual machine; "
                             "see `kage --help` for what a person starts.\n");
        return 2;
    }
    return run_worker(gpu_executor_factory);
}
