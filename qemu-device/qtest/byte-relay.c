// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A connection that a test can hold up: see byte-relay.h
 *
 * One thread, which owns the sockets. The test changes what is wanted, and
 * wakes it through a pipe.
 */

#include "qemu/osdep.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "byte-relay.h"
#include "qemu/atomic.h"

struct ByteRelay {
    char *address;
    struct sockaddr_un to;
    int listener;
    int wake[2];
    GThread *thread;
    bool held, cut, ending; /* atomic; from the test */
    bool obeys;             /* atomic; to the test */
    bool spoils;            /* atomic; from the test, after what follows */
    GBytes *spoil_pattern, *spoil_instead;
    gsize spoil_at;         /* of pattern and instead together */

    int ends[2];        /* who connected, and to whom; -1: nobody */
};

/* Of "unix:PATH" */
static struct sockaddr_un socket_address(const char *text)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path;

    g_assert_true(g_str_has_prefix(text, "unix:"));
    path = text + strlen("unix:");
    g_assert_cmpuint(strlen(path), <, sizeof(address.sun_path));
    strcpy(address.sun_path, path);
    return address;
}

static void relay_disconnect(ByteRelay *relay)
{
    for (int i = 0; i < 2; i++) {
        if (relay->ends[i] >= 0) {
            close(relay->ends[i]);
        }
        relay->ends[i] = -1;
    }
}

static void relay_connect(ByteRelay *relay)
{
    relay->ends[0] = accept(relay->listener, NULL, NULL);
    g_assert_cmpint(relay->ends[0], >=, 0);
    relay->ends[1] = socket(AF_UNIX, SOCK_STREAM, 0);
    g_assert_cmpint(relay->ends[1], >=, 0);
    if (connect(relay->ends[1], (struct sockaddr *)&relay->to,
                sizeof(relay->to)) != 0) {
        relay_disconnect(relay);
    }
}

static void relay_spoil(ByteRelay *relay, uint8_t *buffer, ssize_t bytes)
{
    const uint8_t *pattern, *instead;
    gsize pattern_bytes, instead_bytes;

    if (!qatomic_load_acquire(&relay->spoils)) {
        return;
    }
    pattern = g_bytes_get_data(relay->spoil_pattern, &pattern_bytes);
    instead = g_bytes_get_data(relay->spoil_instead, &instead_bytes);
    for (ssize_t i = 0; i < bytes; i++) {
        if (relay->spoil_at >= pattern_bytes) {
            buffer[i] = instead[relay->spoil_at++ - pattern_bytes];
            if (relay->spoil_at == pattern_bytes + instead_bytes) {
                relay->spoil_at = 0;
            }
        } else if (buffer[i] == pattern[relay->spoil_at]) {
            relay->spoil_at++;
        } else {
            relay->spoil_at = buffer[i] == pattern[0];
        }
    }
}

static void relay_pass_on(ByteRelay *relay, int from, int to)
{
    uint8_t buffer[65536];
    ssize_t bytes = recv(from, buffer, sizeof(buffer), 0);

    if (from == relay->ends[0]) {
        relay_spoil(relay, buffer, bytes);
    }
    for (ssize_t sent = 0, n; sent < bytes; sent += n) {
        n = send(to, buffer + sent, bytes - sent, MSG_NOSIGNAL);
        if (n <= 0) {
            bytes = 0;
            break;
        }
    }
    if (bytes <= 0) {
        relay_disconnect(relay);
    }
}

static void *relay_thread(void *opaque)
{
    ByteRelay *relay = opaque;

    while (!qatomic_read(&relay->ending)) {
        bool connected = relay->ends[0] >= 0;
        struct pollfd fds[] = {
            { .fd = relay->wake[0], .events = POLLIN },
            { .fd = connected ? -1 : relay->listener, .events = POLLIN },
            { .fd = qatomic_read(&relay->held) ? -1 : relay->ends[0],
              .events = POLLIN },
            { .fd = relay->ends[1], .events = POLLIN },
        };
        char byte;

        g_assert_cmpint(poll(fds, ARRAY_SIZE(fds), -1), >, 0);
        if (fds[0].revents) {
            g_assert_cmpint(read(relay->wake[0], &byte, 1), ==, 1);
            if (qatomic_xchg(&relay->cut, false)) {
                relay_disconnect(relay);
            }
            qatomic_set(&relay->obeys, true);
        } else if (fds[1].revents) {
            relay_connect(relay);
        } else if (fds[2].revents) {
            relay_pass_on(relay, relay->ends[0], relay->ends[1]);
        } else if (fds[3].revents) {
            relay_pass_on(relay, relay->ends[1], relay->ends[0]);
        }
    }
    relay_disconnect(relay);
    return NULL;
}

/* Returns when the thread does as it is told now. */
static void relay_report(ByteRelay *relay)
{
    g_assert_cmpint(write(relay->wake[1], "", 1), ==, 1);
    while (!qatomic_xchg(&relay->obeys, false)) {
        g_usleep(100);
    }
}

ByteRelay *byte_relay_new(const char *to)
{
    ByteRelay *relay = g_new0(ByteRelay, 1);
    struct sockaddr_un address;

    relay->to = socket_address(to);
    relay->address = g_strdup_printf("%s.relay", to);
    address = socket_address(relay->address);
    relay->ends[0] = relay->ends[1] = -1;
    relay->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    g_assert_cmpint(relay->listener, >=, 0);
    g_assert_cmpint(bind(relay->listener, (struct sockaddr *)&address,
                         sizeof(address)), ==, 0);
    g_assert_cmpint(listen(relay->listener, 1), ==, 0);
    g_assert_cmpint(pipe(relay->wake), ==, 0);
    relay->thread = g_thread_new("byte-relay", relay_thread, relay);
    return relay;
}

void byte_relay_free(ByteRelay *relay)
{
    qatomic_set(&relay->ending, true);
    relay_report(relay);
    g_thread_join(relay->thread);
    close(relay->listener);
    close(relay->wake[0]);
    close(relay->wake[1]);
    unlink(relay->address + strlen("unix:"));
    g_clear_pointer(&relay->spoil_pattern, g_bytes_unref);
    g_clear_pointer(&relay->spoil_instead, g_bytes_unref);
    g_free(relay->address);
    g_free(relay);
}

const char *byte_relay_address(ByteRelay *relay)
{
    return relay->address;
}

void byte_relay_hold(ByteRelay *relay)
{
    qatomic_set(&relay->held, true);
    relay_report(relay);
}

void byte_relay_release(ByteRelay *relay)
{
    qatomic_set(&relay->held, false);
    relay_report(relay);
}

void byte_relay_spoil(ByteRelay *relay, const void *pattern,
                      size_t pattern_bytes, const void *instead, size_t bytes)
{
    g_assert_false(relay->spoils);
    relay->spoil_pattern = g_bytes_new(pattern, pattern_bytes);
    relay->spoil_instead = g_bytes_new(instead, bytes);
    qatomic_store_release(&relay->spoils, true);
}

void byte_relay_cut(ByteRelay *relay)
{
    qatomic_set(&relay->cut, true);
    byte_relay_release(relay);
}
