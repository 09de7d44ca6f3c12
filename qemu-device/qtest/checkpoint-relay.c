// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The wire between two QEMUs of a checkpoint test: see checkpoint-relay.h
 *
 * Two threads, one for each direction. All state is under one lock, and every
 * change of it wakes everybody.
 */

#include "qemu/osdep.h"
#include <sys/socket.h>
#include <sys/un.h>
#include "qemu/bswap.h"
#include "qemu/units.h"
#include "checkpoint-relay.h"

/* More than a checkpoint of a VM that does nothing */
#define KEPT_BYTES (2 * MiB)
/* A message of migration/colo.c */
#define VMSTATE_CHANGES 66

struct Relay {
    char *connect_path;
    int listener;
    int primary;                /* sockets; -1 before and after */
    int secondary;
    GThread *from_primary;
    GThread *from_secondary;

    GMutex lock;
    GCond changed;
    COLOMessage hold;           /* COLO_MESSAGE__MAX: none */
    bool held;                  /* a message is kept back */
    bool pass;
    uint64_t budget;            /* of the primary's bytes */
    GByteArray *kept;           /* of them, beyond the budget */
    bool ending;
};

static int unix_socket(const char *path, struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    g_assert_cmpint(fd, >=, 0);
    *address = (struct sockaddr_un) { .sun_family = AF_UNIX };
    g_assert_cmpuint(strlen(path), <, sizeof(address->sun_path));
    strcpy(address->sun_path, path);
    return fd;
}

static bool write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);

        if (n <= 0) {
            return false;
        }
        data += n;
        bytes -= n;
    }
    return true;
}

/* Tells both QEMUs that the connection has ended. */
static void relay_shutdown(Relay *relay)
{
    g_mutex_lock(&relay->lock);
    if (relay->primary >= 0) {
        shutdown(relay->primary, SHUT_RDWR);
    }
    if (relay->secondary >= 0) {
        shutdown(relay->secondary, SHUT_RDWR);
    }
    g_mutex_unlock(&relay->lock);
}

static void *secondary_thread(void *opaque)
{
    Relay *relay = opaque;
    uint32_t message;
    int from = relay->secondary;

    while (recv(from, &message, sizeof(message), MSG_WAITALL) ==
           sizeof(message)) {
        bool end;

        g_mutex_lock(&relay->lock);
        if (be32_to_cpu(message) == relay->hold) {
            relay->held = true;
            g_cond_broadcast(&relay->changed);
            while (!relay->pass && !relay->ending) {
                g_cond_wait(&relay->changed, &relay->lock);
            }
            relay->held = relay->pass = false;
            g_cond_broadcast(&relay->changed);
        }
        end = relay->ending;
        g_mutex_unlock(&relay->lock);
        if (end || !write_all(relay->primary, (uint8_t *)&message,
                              sizeof(message))) {
            break;
        }
    }
    relay_shutdown(relay);
    return NULL;
}

static void *primary_thread(void *opaque)
{
    Relay *relay = opaque;
    struct sockaddr_un address;
    g_autofree uint8_t *buffer = g_malloc(65536);
    ssize_t bytes;

    relay->primary = accept(relay->listener, NULL, NULL);
    if (relay->primary < 0) {
        return NULL; /* relay_free() */
    }
    relay->secondary = unix_socket(relay->connect_path, &address);
    g_assert_cmpint(connect(relay->secondary, (struct sockaddr *)&address,
                            sizeof(address)), ==, 0);
    relay->from_secondary = g_thread_new("from-secondary", secondary_thread,
                                         relay);

    while ((bytes = recv(relay->primary, buffer, 65536, 0)) > 0) {
        uint64_t now;

        g_mutex_lock(&relay->lock);
        now = MIN(bytes, relay->budget);
        if (relay->budget != UINT64_MAX) {
            relay->budget -= now;
        }
        g_byte_array_append(relay->kept, buffer + now, bytes - now);
        g_cond_broadcast(&relay->changed);
        g_mutex_unlock(&relay->lock);
        if (!write_all(relay->secondary, buffer, now)) {
            break;
        }
        /* Take no more than that: the primary shall feel it. */
        g_mutex_lock(&relay->lock);
        while (relay->kept->len > KEPT_BYTES && !relay->ending) {
            g_cond_wait(&relay->changed, &relay->lock);
        }
        g_mutex_unlock(&relay->lock);
    }
    relay_shutdown(relay);
    return NULL;
}

Relay *relay_new(const char *listen_path, const char *connect_path)
{
    Relay *relay = g_new0(Relay, 1);
    struct sockaddr_un address;

    relay->connect_path = g_strdup(connect_path);
    relay->primary = relay->secondary = -1;
    relay->hold = COLO_MESSAGE__MAX;
    relay->budget = UINT64_MAX;
    relay->kept = g_byte_array_new();
    g_mutex_init(&relay->lock);
    g_cond_init(&relay->changed);
    relay->listener = unix_socket(listen_path, &address);
    g_assert_cmpint(bind(relay->listener, (struct sockaddr *)&address,
                         sizeof(address)), ==, 0);
    g_assert_cmpint(listen(relay->listener, 1), ==, 0);
    relay->from_primary = g_thread_new("from-primary", primary_thread, relay);
    return relay;
}

void relay_hold(Relay *relay, COLOMessage message)
{
    g_mutex_lock(&relay->lock);
    relay->hold = message;
    g_mutex_unlock(&relay->lock);
}

void relay_hold_none(Relay *relay)
{
    relay_hold(relay, COLO_MESSAGE__MAX);
}

void relay_wait_held(Relay *relay)
{
    g_mutex_lock(&relay->lock);
    while (!relay->held) {
        g_cond_wait(&relay->changed, &relay->lock);
    }
    g_mutex_unlock(&relay->lock);
}

void relay_pass(Relay *relay)
{
    relay_wait_held(relay);
    g_mutex_lock(&relay->lock);
    relay->pass = true;
    g_cond_broadcast(&relay->changed);
    while (relay->pass) {
        g_cond_wait(&relay->changed, &relay->lock);
    }
    g_mutex_unlock(&relay->lock);
}

void relay_stop_stream(Relay *relay, uint64_t bytes)
{
    g_mutex_lock(&relay->lock);
    relay->budget = bytes;
    g_mutex_unlock(&relay->lock);
}

void relay_wait_stopped(Relay *relay)
{
    g_mutex_lock(&relay->lock);
    while (!relay->kept->len) {
        g_cond_wait(&relay->changed, &relay->lock);
    }
    g_mutex_unlock(&relay->lock);
}

void relay_insert(Relay *relay, const uint8_t *bytes, size_t length)
{
    g_mutex_lock(&relay->lock);
    g_assert_true(write_all(relay->secondary, bytes, length));
    g_mutex_unlock(&relay->lock);
}

void relay_go_on(Relay *relay)
{
    g_mutex_lock(&relay->lock);
    write_all(relay->secondary, relay->kept->data, relay->kept->len);
    g_byte_array_set_size(relay->kept, 0);
    relay->budget = UINT64_MAX;
    g_cond_broadcast(&relay->changed);
    g_mutex_unlock(&relay->lock);
}

/*
 * It ends with vmstate-size, a number, and so many bytes; or with what has
 * changed of them, its number, and so many bytes. Returns where that begins, or
 * -1 if it is not complete.
 */
static ssize_t end_of_checkpoint(const GByteArray *kept, uint32_t *message)
{
    for (size_t at = 0; at + 12 <= kept->len; at++) {
        const uint8_t *p = kept->data + at;

        *message = ldl_be_p(p);
        if (*message == COLO_MESSAGE_VMSTATE_SIZE &&
            ldq_be_p(p + 4) == kept->len - at - 12) {
            return at;
        }
        if (*message == VMSTATE_CHANGES && at + 16 <= kept->len &&
            ldl_be_p(p + 12) == kept->len - at - 16) {
            return at;
        }
    }
    return -1;
}

/* With the lock: waits for it; returns where the last part of it begins. */
static size_t wait_for_end(Relay *relay, uint32_t *message)
{
    ssize_t at;

    while ((at = end_of_checkpoint(relay->kept, message)) < 0) {
        g_cond_wait(&relay->changed, &relay->lock);
    }
    return at;
}

/* With the lock */
static void give_and_cut(Relay *relay, size_t bytes)
{
    g_assert_cmpuint(bytes, <=, relay->kept->len);
    g_assert_true(write_all(relay->secondary, relay->kept->data, bytes));
    shutdown(relay->secondary, SHUT_RDWR);
}

void relay_finish_and_cut(Relay *relay)
{
    uint32_t message;

    g_mutex_lock(&relay->lock);
    wait_for_end(relay, &message);
    give_and_cut(relay, relay->kept->len);
    g_mutex_unlock(&relay->lock);
}

void relay_cut_in_changes(Relay *relay, size_t bytes)
{
    uint32_t message;
    size_t at;

    g_mutex_lock(&relay->lock);
    at = wait_for_end(relay, &message);
    g_assert_cmpuint(message, ==, VMSTATE_CHANGES);
    g_assert_cmpuint(at + bytes, <, relay->kept->len);
    give_and_cut(relay, at + bytes);
    g_mutex_unlock(&relay->lock);
}

void relay_free(Relay *relay)
{
    g_mutex_lock(&relay->lock);
    relay->ending = true;
    g_cond_broadcast(&relay->changed);
    g_mutex_unlock(&relay->lock);
    shutdown(relay->listener, SHUT_RDWR);
    relay_shutdown(relay);
    g_thread_join(relay->from_primary);
    if (relay->from_secondary) {
        g_thread_join(relay->from_secondary);
        close(relay->secondary);
        close(relay->primary);
    }
    close(relay->listener);
    g_byte_array_free(relay->kept, true);
    g_mutex_clear(&relay->lock);
    g_cond_clear(&relay->changed);
    g_free(relay->connect_path);
    g_free(relay);
}
