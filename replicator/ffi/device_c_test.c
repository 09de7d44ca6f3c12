// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The C interface, used from C as QEMU uses it: one program that includes kagemusha/device.h and the wire
 * format and nothing else of ours.
 *
 *   device_c_test in-process|worker
 *
 * runs the null backend inside this program or in a worker process ($KAGEMUSHA_WORKER).
 */
#define _GNU_SOURCE
#include <kagemusha/device.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "proto/abi/vgpu_protocol.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define REGION_BYTES 65536u
#define WAIT_MS 60000

struct guest {
    struct vgpu_response response;
    uint64_t response_token;
    unsigned responses;
    struct vgpu_record_completion completion;
    unsigned completions;
    unsigned other_records;
    unsigned refuse_records; /* answer -EAGAIN so often */
};

static void on_done(void* user_data, uint64_t token, const struct vgpu_response* response) {
    struct guest* g = user_data;
    g->response = *response;
    g->response_token = token;
    ++g->responses;
}

static int on_record(void* user_data, const void* record, size_t bytes) {
    struct guest* g = user_data;
    const struct vgpu_record* r = record;
    CHECK(r->bytes == bytes);
    if (g->refuse_records) {
        --g->refuse_records;
        return -EAGAIN;
    }
    if (r->type == VGPU_RECORD_COMPLETION) {
        CHECK(bytes == sizeof(g->completion));
        memcpy(&g->completion, record, bytes);
        ++g->completions;
    } else {
        ++g->other_records;
    }
    return 0;
}

static void on_log(void* user_data, int level, const char* message) {
    (void)user_data;
    fprintf(stderr, "log %d: %s\n", level, message);
}

/* Dispatches until *counter reaches `value`. */
static void wait_for(kagemusha_device* device, const unsigned* counter, unsigned value) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (*counter < value) {
        struct pollfd p = {.fd = kagemusha_device_poll_fd(device), .events = POLLIN};
        poll(&p, 1, 1000);
        kagemusha_device_dispatch(device);
        clock_gettime(CLOCK_MONOTONIC, &now);
        CHECK((now.tv_sec - begin.tv_sec) * 1000 < WAIT_MS);
    }
}

static void submit(kagemusha_device* device, uint32_t file, void* command, size_t bytes, uint32_t completions,
                   const kagemusha_payload* payload, const kagemusha_segment* segment) {
    static uint64_t token = 100;
    ((struct vgpu_cmd*)command)->bytes = (uint32_t)bytes;
    kagemusha_request request = {
        .token = token++,
        .file = file,
        .completion_count = completions,
        .stream = command,
        .stream_bytes = (uint32_t)bytes,
        .payloads = payload,
        .payload_count = payload != NULL,
        .segments = segment,
        .segment_count = segment != NULL,
    };
    kagemusha_device_submit(device, &request);
}

static void check_errors(const kagemusha_device_config* good) {
    char error[256];
    kagemusha_device* device = (kagemusha_device*)1;
    kagemusha_device_config bad = *good;
    bad.api_version = 99;
    CHECK(kagemusha_device_create(&bad, &device, error, sizeof(error)) == -EINVAL);
    CHECK(device == NULL && strstr(error, "version") != NULL);
    bad = *good;
    bad.backend = "toaster";
    CHECK(kagemusha_device_create(&bad, &device, error, sizeof(error)) == -EINVAL);
    CHECK(strstr(error, "toaster") != NULL);
    bad = *good;
    bad.backend = "opencl";
    bad.in_process = 1;
    CHECK(kagemusha_device_create(&bad, &device, error, sizeof(error)) == -EINVAL);
    CHECK(strstr(error, "inside this process") != NULL);
    bad = *good;
    bad.max_files = UINT32_MAX;
    CHECK(kagemusha_device_create(&bad, &device, error, sizeof(error)) == -EINVAL);
    bad = *good;
    bad.gpu = "no GPU has this name";
    char small[8];
    CHECK(kagemusha_device_create(&bad, &device, small, sizeof(small)) == -ENODEV);
    CHECK(strlen(small) == sizeof(small) - 1);
}

static void get_status(kagemusha_device* device, kagemusha_replication_status* status) {
    memset(status, 0, sizeof(*status));
    status->struct_bytes = sizeof(*status);
    kagemusha_device_get_replication_status(device, status);
}

static void on_room(void* user_data) {
    (void)user_data;
}

/* A primary and its standby in one program. */
static void check_pair(const kagemusha_device_config* good, struct guest* guest) {
    char error[256];
    kagemusha_device *primary = NULL, *standby = NULL;
    kagemusha_device_config config = *good;
    kagemusha_replication_status p, s;

    config.replicable = 1; /* of which VM? */
    CHECK(kagemusha_device_create(&config, &primary, error, sizeof(error)) == -EINVAL);
    CHECK(strstr(error, "vm_id") != NULL);
    config.vm_id = "c-test";
    config.standby_listen = "unix:link";
    CHECK(kagemusha_device_create(&config, &primary, error, sizeof(error)) == -EINVAL);
    CHECK(strstr(error, "not both") != NULL);
    config.standby_listen = "nowhere";
    config.replicable = 0;
    CHECK(kagemusha_device_create(&config, &primary, error, sizeof(error)) == -EINVAL && error[0] != 0);
    config.standby_listen = "127.0.0.1:0"; /* each user of this machine could connect */
    CHECK(kagemusha_device_create(&config, &primary, error, sizeof(error)) == -EINVAL);
    CHECK(strstr(error, "TLS") != NULL);

    config.heartbeat_budget_ms = 10000;
    config.digest_interval_ms = 0;
    char directory[] = "/tmp/kagemusha-c-test-XXXXXX", listen[64];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(listen, sizeof(listen), "unix:%s/link", directory);
    config.standby_listen = listen;
    CHECK(kagemusha_device_create(&config, &standby, error, sizeof(error)) == 0);
    const char* address = kagemusha_device_standby_address(standby);
    CHECK(strcmp(address, listen) == 0);
    CHECK(kagemusha_device_replicate_to(standby, address, error, sizeof(error)) == -ENOTSUP);
    kagemusha_device_open_file(standby, 1, 20); /* it has no guest */
    CHECK(guest->response_token == 20 && guest->response.status == VGPU_STATUS_LIMIT);

    config.standby_listen = NULL;
    config.replicable = 1;
    config.callbacks.room = on_room;
    CHECK(kagemusha_device_create(&config, &primary, error, sizeof(error)) == 0);
    CHECK(kagemusha_device_add_region(primary, 0, 0, 0, 8, NULL, error, sizeof(error)) == -EINVAL);
    get_status(primary, &p);
    CHECK(p.role == KAGEMUSHA_ROLE_PRIMARY && p.state == KAGEMUSHA_REPLICATION_OFF && p.degraded[0] == 0);
    CHECK(kagemusha_device_request_digest(primary, 1) == -ENOTCONN);
    CHECK(kagemusha_device_congested(primary) == 0);
    CHECK(kagemusha_device_replicate_to(primary, address, error, sizeof(error)) == 0);
    for (unsigned waited_ms = 0;; ++waited_ms) {
        struct pollfd fds[2] = {{.fd = kagemusha_device_poll_fd(primary), .events = POLLIN},
                                {.fd = kagemusha_device_poll_fd(standby), .events = POLLIN}};
        get_status(primary, &p);
        get_status(standby, &s);
        if (p.state == KAGEMUSHA_REPLICATION_PROTECTING && s.state == KAGEMUSHA_REPLICATION_READY) {
            break;
        }
        CHECK(waited_ms < WAIT_MS);
        poll(fds, 2, 1);
        kagemusha_device_dispatch(primary);
        kagemusha_device_dispatch(standby);
    }
    CHECK(p.degraded[0] == 0 && strlen(p.peer_gpu) != 0 && p.connections == 1);
    CHECK(s.role == KAGEMUSHA_ROLE_STANDBY && s.faults == 0);
    struct {
        uint64_t struct_bytes;
        uint32_t role, guard;
    } older = {.struct_bytes = 12, .guard = 0x5555};
    kagemusha_device_get_replication_status(primary, (kagemusha_replication_status*)&older);
    CHECK(older.role == KAGEMUSHA_ROLE_PRIMARY && older.guard == 0x5555);
    kagemusha_device_destroy(standby);
    CHECK(rmdir(directory) == 0); /* the socket is gone */
    kagemusha_device_destroy(primary);
}

int main(int argc, char** argv) {
    CHECK(argc == 2);
    const int in_process = strcmp(argv[1], "in-process") == 0;
    struct guest guest;
    memset(&guest, 0, sizeof(guest));
    kagemusha_device_config config;
    kagemusha_device_config_init(&config);
    config.name = "c-test";
    config.backend = "null";
    config.in_process = (uint32_t)in_process;
    config.sandbox = 1;
#ifdef __SANITIZE_ADDRESS__
    config.max_worker_bytes = (uint64_t)1 << 50; /* AddressSanitizer maps its shadow memory */
#endif
    config.callbacks.request_done = on_done;
    config.callbacks.record = on_record;
    config.callbacks.log = on_log;
    config.user_data = &guest;
    check_errors(&config);
    check_pair(&config, &guest);
    memset(&guest, 0, sizeof(guest));

    char error[256] = "unchanged";
    kagemusha_device* device = NULL;
    const int created = kagemusha_device_create(&config, &device, error, sizeof(error));
    if (created != 0) {
        fprintf(stderr, "%s\n", error);
    }
    CHECK(created == 0 && error[0] == 0);
    CHECK(strlen(kagemusha_device_gpu_name(device)) != 0);

    const int memory = memfd_create("guest RAM", MFD_CLOEXEC);
    CHECK(memory >= 0 && ftruncate(memory, REGION_BYTES) == 0);
    unsigned char* ram = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(ram != MAP_FAILED);
    memset(ram, 0xaa, REGION_BYTES);
    CHECK(kagemusha_device_add_region(device, 0, memory, 0, REGION_BYTES, ram, error, sizeof(error)) == 0);
    CHECK(kagemusha_device_add_region(device, 0, memory, 0, REGION_BYTES, ram, error, sizeof(error)) ==
          -EINVAL);
    CHECK(kagemusha_device_add_region(device, 1, memory, 0, 0, ram, error, sizeof(error)) == -EINVAL);
    CHECK(kagemusha_device_add_region(device, 4096, memory, 0, 8, ram, error, sizeof(error)) == -E2BIG);
    if (!in_process) {
        CHECK(kagemusha_device_add_region(device, 1, memory, 8, REGION_BYTES, ram, error, sizeof(error)) ==
              -EINVAL);
        CHECK(kagemusha_device_add_region(device, 1, -1, 0, REGION_BYTES, ram, error, sizeof(error)) ==
              -EINVAL);
    }
    close(memory);

    kagemusha_device_limits limits;
    kagemusha_device_get_limits(device, &limits);
    CHECK(limits.max_files != 0 && limits.max_stream_bytes == VGPU_MAX_STREAM_BYTES);

    kagemusha_device_open_file(device, 3, 1);
    CHECK(guest.responses == 1 && guest.response_token == 1 && guest.response.status == VGPU_STATUS_OK);
    CHECK(kagemusha_device_add_region(device, 2, -1, 0, 8, ram, error, sizeof(error)) == -EBUSY);

    struct vgpu_cmd_create_context context = {.cmd = {.opcode = VGPU_CMD_CREATE_CONTEXT}, .id = 1};
    struct vgpu_cmd_create_queue queue = {.cmd = {.opcode = VGPU_CMD_CREATE_QUEUE}, .id = 2, .context = 1};
    struct vgpu_cmd_create_buffer buffer = {.cmd = {.opcode = VGPU_CMD_CREATE_BUFFER},
                                            .id = 3,
                                            .context = 1,
                                            .flags = 1,
                                            .bytes = 4096,
                                            .content = {0, VGPU_PAYLOAD_NONE, 0}};
    submit(device, 3, &context, sizeof(context), 0, NULL, NULL);
    submit(device, 3, &queue, sizeof(queue), 0, NULL, NULL);
    submit(device, 3, &buffer, sizeof(buffer), 0, NULL, NULL);
    wait_for(device, &guest.responses, 4);
    CHECK(guest.response.status == VGPU_STATUS_OK && guest.response.result == 0);

    /* A read into scattered memory, with an event, whose record the guest has no room for at first. */
    const kagemusha_segment segment = {.offset = 8192, .bytes = 256, .region = 0};
    const kagemusha_payload payload = {.bytes = 256, .first_segment = 0, .segment_count = 1, .writable = 1};
    struct vgpu_cmd_transfer_buffer read = {.cmd = {.opcode = VGPU_CMD_READ_BUFFER},
                                            .enqueue = {.queue = 2, .event = 50},
                                            .buffer = 3,
                                            .data = {.bytes = 256, .index = 0}};
    guest.refuse_records = 1;
    submit(device, 3, &read, sizeof(read), 1, &payload, &segment);
    wait_for(device, &guest.responses, 5);
    CHECK(guest.response.status == VGPU_STATUS_OK);
    for (unsigned waited_ms = 0; guest.refuse_records != 0 && waited_ms < WAIT_MS; ++waited_ms) {
        struct pollfd p = {.fd = kagemusha_device_poll_fd(device), .events = POLLIN};
        poll(&p, 1, 1);
        kagemusha_device_dispatch(device);
    }
    CHECK(guest.completions == 0);
    kagemusha_device_event_space(device);
    CHECK(guest.completions == 1 && guest.completion.event == 50 && guest.completion.status == 0);
    CHECK(guest.completion.record.file == 3);

    /* A handle of nobody. */
    struct vgpu_cmd_flush flush = {.cmd = {.opcode = VGPU_CMD_FLUSH}, .queue = 999};
    submit(device, 3, &flush, sizeof(flush), 0, NULL, NULL);
    CHECK(guest.responses == 6 && guest.response.status == VGPU_STATUS_MALFORMED);

    kagemusha_device_stats stats = {.struct_bytes = sizeof(stats)};
    kagemusha_device_get_stats(device, &stats);
    CHECK(stats.requests == 5 && stats.commands == 4 && stats.bytes_from_gpu == 256 && stats.files_open == 1);
    CHECK(stats.workers_started == 1 && stats.events_completed == 1);
    struct {
        uint64_t struct_bytes, files_open, guard;
    } older = {.struct_bytes = 16, .guard = 0x5555};
    kagemusha_device_get_stats(device, (kagemusha_device_stats*)&older);
    CHECK(older.files_open == 1 && older.guard == 0x5555);

    kagemusha_device_close_file(device, 3, 7);
    wait_for(device, &guest.responses, 7);
    CHECK(guest.response_token == 7 && guest.response.status == VGPU_STATUS_OK);
    kagemusha_device_open_file(device, 3, 8);
    submit(device, 3, &context, sizeof(context), 0, NULL, NULL);
    const unsigned before = guest.responses;
    kagemusha_device_reset(device);
    CHECK(guest.responses == before + 1 && guest.response.status == VGPU_STATUS_CANCELED);
    kagemusha_device_open_file(device, 3, 9);
    CHECK(guest.response_token == 9 && guest.response.status == VGPU_STATUS_OK);
    kagemusha_device_destroy(device);
    munmap(ram, REGION_BYTES);
    puts("ok");
    return 0;
}
