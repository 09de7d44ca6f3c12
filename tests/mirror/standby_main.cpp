// SPDX-License-Identifier: GPL-2.0-or-later
// mirror-standby ADDRESS VM: a standby as a process of its own, without QEMU, on KAGEMUSHA_TEST_STANDBY_GPU.
// It ends when its standard input does, and tells then what it saw; exit status 1 if that was not a primary
// without faults or differences.
#include <kagemusha/device.h>

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

void on_done(void*, uint64_t, const vgpu_response*) {}

int on_record(void*, const void*, size_t) {
    return 0;
}

void on_log(void*, int level, const char* line) {
    if (level <= KAGEMUSHA_LOG_WARNING || std::getenv("KAGEMUSHA_TEST_VERBOSE"))
        std::fprintf(stderr, "standby: %s\n", line);
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: mirror-standby ADDRESS VM\n");
        return 2;
    }
    kagemusha_device_config config;
    kagemusha_device_config_init(&config);
    const char* backend = std::getenv("KAGEMUSHA_LOOPBACK_BACKEND");
    config.name = "standby";
    config.backend = backend ? backend : "opencl";
    const char* gpu = std::getenv("KAGEMUSHA_TEST_STANDBY_GPU");
    config.gpu = gpu ? gpu : "";
    const char* options = std::getenv("KAGEMUSHA_LOOPBACK_OPTIONS");
    config.options = options ? options : "";
    config.sandbox = 1;
    config.vm_id = argv[2];
    config.standby_listen = argv[1];
    config.heartbeat_budget_ms = 10000;
    config.callbacks = {on_done, on_record, on_log, nullptr, nullptr, nullptr};
    char error[512];
    kagemusha_device* device = nullptr;
    if (kagemusha_device_create(&config, &device, error, sizeof error) != 0) {
        std::fprintf(stderr, "standby: %s\n", error);
        return 2;
    }
    std::printf("%s\n", kagemusha_device_standby_address(device));
    std::fflush(stdout);
    for (;;) {
        pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {kagemusha_device_poll_fd(device), POLLIN, 0}};
        poll(fds, 2, -1);
        char ignored[64];
        if (fds[0].revents != 0 && read(STDIN_FILENO, ignored, sizeof ignored) <= 0)
            break;
        kagemusha_device_dispatch(device);
    }
    kagemusha_replication_status s{};
    s.struct_bytes = sizeof s;
    kagemusha_device_get_replication_status(device, &s);
    std::printf(
        "executed %llu, compared %llu, different %llu, faults %llu\n",
        static_cast<unsigned long long>(s.executed), static_cast<unsigned long long>(s.digests_compared),
        static_cast<unsigned long long>(s.digests_different), static_cast<unsigned long long>(s.faults));
    kagemusha_device_destroy(device);
    return s.executed == 0 || s.digests_different != 0 || s.faults != 0;
}
