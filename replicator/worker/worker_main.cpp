// SPDX-License-Identifier: GPL-2.0-or-later
// kagemusha-worker: executes the requests of one open file of a guest on the host's GPU. Started by the
// device, never by a person.
#include <cstdio>

#include <fcntl.h>

#include "worker/gpu_executor.hpp"
#include "worker/setup.hpp"
#include "worker/worker_process.hpp"

int main() {
    if (fcntl(kagemusha::worker::setup_fd, F_GETFD) < 0) {
        std::fprintf(stderr, "kagemusha-worker is started by the virtio-vgpu device of a virtual machine; "
                             "see `kage --help` for what a person starts.\n");
        return 2;
    }
    return kagemusha::worker::run_worker(kagemusha::worker::gpu_executor_factory);
}
