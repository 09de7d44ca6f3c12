// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of continuous checkpoints: what leaves the VM, and when
 *
 * The part of the guest's network card is played by a socket behind a hub, so
 * that the test decides when the VM "sends" a packet:
 *
 *     test -- inside -- hub -- filter-buffer -- outside -- test
 *
 * A packet must not come out before the secondary has the checkpoint that
 * follows it. A relay stops the dialogue of the QEMUs; what has come out until
 * then is there to be read.
 */

#include "qemu/osdep.h"
#include <sys/socket.h>
#include <sys/un.h>
#include "checkpoint-pair.h"
#include "checkpoint-tests.h"

#define PACKET_BYTES 60

typedef struct Network {
    char *options;      /* of the primary */
    int inside;         /* the guest's side */
    int outside;        /* sees what leaves */
} Network;

static int datagram_socket(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(g_snprintf(address.sun_path, sizeof(address.sun_path),
                               "%s/%s", pair_directory, name),
                    <, sizeof(address.sun_path));
    unlink(address.sun_path);
    g_assert_cmpint(bind(fd, (struct sockaddr *)&address, sizeof(address)),
                    ==, 0);
    return fd;
}

static void network_begin(Network *n)
{
    const char *d = pair_directory;

    n->inside = datagram_socket("inside");
    n->outside = datagram_socket("outside");
    n->options = g_strdup_printf(
        "-netdev dgram,id=n0,local.type=unix,local.path=%s/vm-inside,"
        "remote.type=unix,remote.path=%s/inside "
        "-netdev hubport,id=h0,hubid=0,netdev=n0 "
        "-netdev dgram,id=n1,local.type=unix,local.path=%s/vm-outside,"
        "remote.type=unix,remote.path=%s/outside "
        "-netdev hubport,id=h1,hubid=0,netdev=n1 "
        "-object filter-buffer,id=f0,netdev=n1,queue=rx,interval=0",
        d, d, d, d);
}

static void network_end(Network *n)
{
    static const char *const files[] = {
        "inside", "outside", "vm-inside", "vm-outside",
    };

    close(n->inside);
    close(n->outside);
    g_free(n->options);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        g_autofree char *path = g_strdup_printf("%s/%s", pair_directory,
                                                files[i]);
        unlink(path);
    }
}

/* The VM sends a packet with the name @letter. */
static void vm_sends(Network *n, Pair *pair, char letter)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    uint8_t packet[PACKET_BYTES] = { };

    packet[PACKET_BYTES - 1] = letter;
    g_snprintf(address.sun_path, sizeof(address.sun_path), "%s/vm-inside",
               pair_directory);
    g_assert_cmpint(sendto(n->inside, packet, sizeof(packet), 0,
                           (struct sockaddr *)&address, sizeof(address)),
                    ==, sizeof(packet));
    /*
     * QEMU has read it when its main loop has come round. The VM may stand
     * still then, for a checkpoint that the packet has brought about.
     */
    is_running(pair->primary);
    is_running(pair->primary);
}

/* What has left until now, in order */
static void assert_left(Network *n, const char *letters)
{
    g_autoptr(GString) left = g_string_new("");
    uint8_t packet[2048];
    ssize_t bytes;

    while ((bytes = recv(n->outside, packet, sizeof(packet),
                         MSG_DONTWAIT)) > 0) {
        g_assert_cmpint(bytes, ==, PACKET_BYTES);
        g_string_append_c(left, packet[PACKET_BYTES - 1]);
    }
    g_assert_cmpstr(left->str, ==, letters);
}

static Pair network_pair(Network *n)
{
    network_begin(n);
    return pair_start(&(PairOptions) {
        .idle = true, .relay = true, .wait = true, .primary = n->options,
    });
}

static void network_pair_go(Pair *pair)
{
    pair_go(pair, &(PairOptions) { .wait = true });
    pair_wait_colo(pair);
}

/*
 * Before the first checkpoint packets pass. Then each waits for the checkpoint
 * that covers it; one that is sent when the VM goes on, for the next.
 */
static void test_output(void)
{
    Network n;
    Pair pair = network_pair(&n);

    vm_sends(&n, &pair, 'a');
    assert_left(&n, "a");

    network_pair_go(&pair);
    vm_sends(&n, &pair, 'b');
    vm_sends(&n, &pair, 'c');
    assert_left(&n, "");

    relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_RECEIVED);
    pair_checkpoint(&pair);
    pair_wait_pauses(&pair, 1);
    relay_wait_held(pair.relay);
    vm_sends(&n, &pair, 'd');
    assert_left(&n, "");

    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=1 ");
    assert_left(&n, "bc");

    pair_checkpoint(&pair);
    pair_wait_pauses(&pair, 1);
    relay_wait_held(pair.relay);
    assert_left(&n, "");
    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=2 ");
    assert_left(&n, "d");

    pair_end(&pair);
    network_end(&n);
}

/* A checkpoint that was taken back releases nothing. */
static void test_output_abort(void)
{
    Network n;
    Pair pair = network_pair(&n);

    network_pair_go(&pair);
    testdev_set_number(pair.primary, "fail-checkpoints", 1);
    vm_sends(&n, &pair, 'a');
    pair_checkpoint(&pair);
    pair_wait_pauses(&pair, 1);
    vm_sends(&n, &pair, 'b');
    assert_left(&n, "");
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=1 ");
    assert_left(&n, "ab");
    pair_end(&pair);
    network_end(&n);
}

/* The secondary is lost. Who decides that, decides that the VM may speak. */
static void test_output_secondary_lost(void)
{
    Network n;
    Pair pair = network_pair(&n);

    network_pair_go(&pair);
    vm_sends(&n, &pair, 'a');
    relay_free(pair.relay);
    pair.relay = NULL;
    pair_checkpoint(&pair);
    qtest_qmp_eventwait(pair.primary, "COLO_EXIT");
    vm_sends(&n, &pair, 'b');
    assert_left(&n, "");

    lost_heartbeat(pair.primary);
    /* The failover stops the VM and starts it again. */
    qtest_qmp_eventwait(pair.primary, "STOP");
    qtest_qmp_eventwait(pair.primary, "RESUME");
    g_assert_true(is_running(pair.primary));
    assert_left(&n, "ab");
    vm_sends(&n, &pair, 'c');
    assert_left(&n, "c");
    pair_end(&pair);
    network_end(&n);
}

/*
 * With a shortest interval a checkpoint comes because a packet waits: no timer
 * fires and nobody asks here.
 */
static void test_output_early(void)
{
    Network n;
    Pair pair;
    g_autofree char *options = NULL;

    network_begin(&n);
    options = g_strdup_printf("%s -global migration.x-colo-min-delay=1 "
                              "-global migration.x-colo-max-paused=99",
                              n.options);
    pair = pair_start(&(PairOptions) {
        .idle = true, .relay = true, .wait = true, .primary = options,
    });
    network_pair_go(&pair);
    /* Something may have been held before the first: it comes by itself. */
    testdev_wait(pair.primary, "commit=1 ");

    vm_sends(&n, &pair, 'a');
    testdev_wait(pair.primary, "commit=2 ");
    assert_left(&n, "a");

    /* Sent while a checkpoint is taken: that brings another one. */
    relay_hold(pair.relay, COLO_MESSAGE_VMSTATE_RECEIVED);
    vm_sends(&n, &pair, 'b');
    relay_wait_held(pair.relay);
    vm_sends(&n, &pair, 'c');
    assert_left(&n, "");
    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=3 ");
    assert_left(&n, "b");
    relay_pass(pair.relay);
    testdev_wait(pair.primary, "commit=4 ");
    relay_hold_none(pair.relay);
    assert_left(&n, "c");
    g_assert_cmpint(pair_count(&pair, "committed"), ==, 4);
    g_assert_cmpint(pair_count(&pair, "early"), ==, 4);

    /* One that was taken back is not tried again for the packet's sake. */
    testdev_set_number(pair.primary, "fail-checkpoints", 1);
    vm_sends(&n, &pair, 'd');
    while (pair_count(&pair, "aborted") == 0) {
        g_usleep(1000);
    }
    vm_sends(&n, &pair, 'e');
    assert_left(&n, "");
    pair_checkpoint(&pair);
    testdev_wait(pair.primary, "commit=5 ");
    assert_left(&n, "de");
    g_assert_cmpint(pair_count(&pair, "early"), ==, 4);

    pair_end(&pair);
    network_end(&n);
}

void checkpoint_output_add(void)
{
    qtest_add_func("/checkpoint/output/early", test_output_early);
    qtest_add_func("/checkpoint/output", test_output);
    qtest_add_func("/checkpoint/output/abort", test_output_abort);
    qtest_add_func("/checkpoint/output/secondary-lost",
                   test_output_secondary_lost);
}
