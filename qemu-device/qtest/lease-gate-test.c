// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of the gate: what waits behind it leaves while the lease lasts only
 *
 * As in a described VM, packets are held by a filter-buffer and then pass the
 * gate. The part of the guest's network card is played by a socket behind a
 * hub, and that of a tap by a socket that soon takes no more:
 *
 *   test -- inside -- hub -- filter-buffer -- gate -- queue -- outside -- test
 *
 * filter-buffer releases what it has when the test's clock goes on. The page is
 * ours, so the lease ends when we say so, as it ends for a QEMU that did not
 * run for a while.
 */

#include "qemu/osdep.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include "qemu/atomic.h"
#include "qobject/qdict.h"
#include "libqtest.h"

#define PACKET_BYTES 6000
#define PACKETS 60
#define HOLD_US 1000

#define NEVER 1             /* a time that has passed */
#define ALWAYS UINT64_MAX

typedef struct LeasePage {
    char magic[8];
    uint64_t until_ns;
    uint8_t zero[48];
} LeasePage;

typedef struct Gate {
    QTestState *qemu;
    LeasePage *page;
    char *file;
    int inside;             /* the guest's side */
    int outside;            /* sees what leaves */
    unsigned int sent;
} Gate;

/*
 * A pair of sockets of which QEMU inherits the second. It takes a datagram
 * ahead of the reader; of a stream as little as Linux allows (4,608 bytes),
 * which is a part of a packet.
 */
static int socket_for_qemu(int type, int *qemu_fd)
{
    int fds[2], bytes = type == SOCK_STREAM ? 1 : PACKET_BYTES;

    g_assert_cmpint(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), ==, 0);
    g_assert_cmpint(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &bytes,
                               sizeof(bytes)), ==, 0);
    g_assert_cmpint(fcntl(fds[1], F_SETFD, 0), ==, 0);
    *qemu_fd = fds[1];
    return fds[0];
}

static void page_begin(Gate *g)
{
    int fd = g_file_open_tmp("lease-gate-XXXXXX", &g->file, NULL);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, sizeof(LeasePage)), ==, 0);
    g->page = mmap(NULL, sizeof(LeasePage), PROT_READ | PROT_WRITE, MAP_SHARED,
                   fd, 0);
    g_assert(g->page != MAP_FAILED);
    close(fd);
    memcpy(g->page->magic, "KGMGATE1", sizeof(g->page->magic));
}

static void lease_until(Gate *g, uint64_t until_ns)
{
    qatomic_set(&g->page->until_ns, until_ns);
}

/* @netdev, which has %d for a socket of the @type */
static Gate gate_begin(const char *netdev, int type, uint64_t until_ns)
{
    Gate g = { };
    g_autofree char *outside = NULL;
    int inside_fd, outside_fd;

    page_begin(&g);
    lease_until(&g, until_ns);
    g.inside = socket_for_qemu(SOCK_DGRAM, &inside_fd);
    g.outside = socket_for_qemu(type, &outside_fd);
    outside = g_strdup_printf(netdev, outside_fd);
    /* The port without a netdev: a hub that could give no port more waits. */
    g.qemu = qtest_initf("-machine none "
                         "-netdev dgram,id=n0,local.type=fd,local.str=%d "
                         "-netdev hubport,id=h0,hubid=0,netdev=n0 "
                         "-netdev %s,id=n1 "
                         "-netdev hubport,id=h1,hubid=0,netdev=n1 "
                         "-netdev hubport,id=h2,hubid=0 "
                         "-object filter-buffer,id=hold,netdev=n1,queue=rx,"
                         "interval=%d "
                         "-device lease-gate,id=gate,netdev=n1,file=%s",
                         inside_fd, outside, HOLD_US, g.file);
    close(inside_fd);
    close(outside_fd);
    return g;
}

static void gate_end(Gate *g)
{
    qtest_quit(g->qemu);
    close(g->inside);
    close(g->outside);
    munmap(g->page, sizeof(LeasePage));
    unlink(g->file);
    g_free(g->file);
}

static uint64_t gate_count(Gate *g, const char *name)
{
    QDict *answer = qtest_qmp(g->qemu,
                              "{ 'execute': 'qom-get', 'arguments': {"
                              "'path': '/machine/peripheral/gate',"
                              "'property': %s } }", name);
    uint64_t count;

    g_assert_true(qdict_haskey(answer, "return"));
    count = qdict_get_int(answer, "return");
    qobject_unref(answer);
    return count;
}

/*
 * The guest sends @packets, and what holds them lets them go. Returns when all
 * of them have come to the gate.
 */
static void guest_sends(Gate *g, unsigned int packets)
{
    uint8_t packet[PACKET_BYTES] = { };

    while (packets--) {
        packet[0] = g->sent++;
        g_assert_cmpint(send(g->inside, packet, sizeof(packet), 0), ==,
                        sizeof(packet));
    }
    do {
        qtest_clock_step(g->qemu, HOLD_US * 1000);
    } while (gate_count(g, "passed") + gate_count(g, "dropped") +
             gate_count(g, "waited") < g->sent);
}

/* How many datagrams have left, each the next one */
static unsigned int take_datagrams(Gate *g, unsigned int from)
{
    uint8_t packet[PACKET_BYTES + 1];
    unsigned int n = 0;
    ssize_t bytes;

    while ((bytes = recv(g->outside, packet, sizeof(packet),
                         MSG_DONTWAIT)) >= 0) {
        g_assert_cmpint(bytes, ==, PACKET_BYTES);
        g_assert_cmpint(packet[0], ==, from + n);
        n++;
    }
    return n;
}

#define DATAGRAMS "dgram,local.type=fd,local.str=%d"
#define STREAM "stream,server=off,addr.type=fd,addr.str=%d"

/* What waits goes on its way while the lease lasts. */
static void test_goes_on(void)
{
    Gate g = gate_begin(DATAGRAMS, SOCK_DGRAM, ALWAYS);
    unsigned int left = 0;

    guest_sends(&g, PACKETS);
    do {
        left += take_datagrams(&g, left);
    } while (left < PACKETS);
    g_assert_cmpint(gate_count(&g, "late"), ==, 0);
    g_assert_cmpint(gate_count(&g, "passed"), ==, PACKETS);
    gate_end(&g);
}

/*
 * What waits when the lease ends does not leave, when there is room again or
 * ever. What is sent under a new lease does.
 */
static void test_late(void)
{
    Gate g = gate_begin(DATAGRAMS, SOCK_DGRAM, ALWAYS);
    unsigned int left, more = 0;

    guest_sends(&g, PACKETS);
    g_assert_cmpint(gate_count(&g, "passed"), ==, PACKETS);

    lease_until(&g, NEVER);
    left = take_datagrams(&g, 0);
    g_assert_cmpint(left, >, 0);
    g_assert_cmpint(left, <, PACKETS);
    do {
        g_assert_cmpint(take_datagrams(&g, left), ==, 0);
    } while (left + gate_count(&g, "late") < PACKETS);

    lease_until(&g, ALWAYS);
    guest_sends(&g, PACKETS);
    do {
        more += take_datagrams(&g, PACKETS + more);
    } while (more < PACKETS);
    g_assert_cmpint(gate_count(&g, "late"), ==, PACKETS - left);
    g_assert_cmpint(gate_count(&g, "dropped"), ==, 0);
    gate_end(&g);
}

/* There is no room again, but another packet finds the gate closed. */
static void test_closed(void)
{
    Gate g = gate_begin(STREAM, SOCK_STREAM, ALWAYS);
    g_autoptr(GByteArray) left = g_byte_array_new();
    uint8_t bytes[65536];
    uint32_t length;
    unsigned int whole = 0;
    size_t at = 0;
    ssize_t got;
    char *network;

    do {
        network = qtest_hmp(g.qemu, "info network");
        got = strstr(network, "connecting") != NULL;
        g_free(network);
    } while (got);
    guest_sends(&g, PACKETS);
    g_assert_cmpint(gate_count(&g, "late"), ==, 0);

    lease_until(&g, NEVER);
    guest_sends(&g, 1);
    g_assert_cmpint(gate_count(&g, "dropped"), ==, 1);
    g_assert_cmpint(gate_count(&g, "late"), >, 0);

    /*
     * A part of a packet had been sent: nobody can take that back, but it is
     * not the beginning of another packet either.
     */
    lease_until(&g, ALWAYS);
    while ((got = recv(g.outside, bytes, sizeof(bytes), 0)) > 0) {
        g_byte_array_append(left, bytes, got);
    }
    g_assert_cmpint(got, ==, 0);
    while (left->len - at >= sizeof(length)) {
        memcpy(&length, left->data + at, sizeof(length));
        g_assert_cmpint(ntohl(length), ==, PACKET_BYTES);
        if (left->len - at < sizeof(length) + PACKET_BYTES) {
            break;
        }
        g_assert_cmpint(left->data[at + sizeof(length)], ==, whole);
        at += sizeof(length) + PACKET_BYTES;
        whole++;
    }
    g_assert_cmpint(at, <, left->len);
    g_assert_cmpint(whole + gate_count(&g, "late"), ==, PACKETS);
    gate_end(&g);
}

/* Before the first lease packets wait, and a queue of them has an end. */
static void test_early(void)
{
    Gate g = gate_begin(DATAGRAMS, SOCK_DGRAM, 0);
    unsigned int left = 0;

    guest_sends(&g, PACKETS);
    g_assert_cmpint(gate_count(&g, "waited"), ==, PACKETS);
    g_assert_cmpint(take_datagrams(&g, 0), ==, 0);
    lease_until(&g, ALWAYS);
    do {
        left += take_datagrams(&g, left);
    } while (left < PACKETS);
    g_assert_cmpint(gate_count(&g, "dropped"), ==, 0);
    gate_end(&g);
}

/* A lease that was over when anybody looked: what waited for it is dropped. */
static void test_early_is_over(void)
{
    Gate g = gate_begin(DATAGRAMS, SOCK_DGRAM, 0);

    guest_sends(&g, PACKETS);
    lease_until(&g, NEVER);
    while (gate_count(&g, "dropped") < PACKETS) {
        g_assert_cmpint(take_datagrams(&g, 0), ==, 0);
    }
    g_assert_cmpint(take_datagrams(&g, 0), ==, 0);
    gate_end(&g);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    qtest_add_func("/lease-gate/goes-on", test_goes_on);
    qtest_add_func("/lease-gate/late", test_late);
    qtest_add_func("/lease-gate/closed", test_closed);
    qtest_add_func("/lease-gate/early", test_early);
    qtest_add_func("/lease-gate/early/over", test_early_is_over);
    return g_test_run();
}
