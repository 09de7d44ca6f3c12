// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The gate of a protected VM's output
 *
 * A primary that was frozen, or cut off from the arbiter, may wake up after
 * its standby has taken over. It must not say another word. So whoever
 * supervises the VM writes into a page that we share until when packets may
 * leave, and keeps extending it while it is sure; here each packet of the
 * guest is looked at when it leaves, behind whatever held it back until it was
 * committed (filter-buffer). What comes too late is dropped: networks lose
 * packets, and guests know it. What comes too early, from a VM that was taken
 * over while its supervisor still asks for the lease, waits until the page says
 * something: so a planned switchover loses nothing.
 *
 * A packet that has passed may still wait, in QEMU's queue of a netdev that
 * takes no more. So it is looked at once more right before the netdev gets it,
 * and what waits when the lease is over is dropped, too.
 *
 *     -netdev tap,id=net0 -object filter-buffer,id=hold0,netdev=net0,
 *     queue=rx,interval=0 -device virtio-net-pci,netdev=net0
 *     -device lease-gate,netdev=net0,file=/run/vm.gate
 *
 * The page, as control/supervise/gate.hpp has it: 8 bytes "KGMGATE1", then
 * until when packets may leave, as 64 bits of ns of CLOCK_BOOTTIME (0: not yet,
 * or never again).
 *
 * It is a device and not an -object of its own only because the types of those
 * are listed in QAPI. Everything runs in the main loop.
 */

#include "qemu/osdep.h"
#include <sys/mman.h>
#include "qemu/atomic.h"
#include "qemu/error-report.h"
#include "qemu/iov.h"
#include "qemu/module.h"
#include "qemu/timer.h"
#include "qapi/error.h"
#include "hw/qdev-core.h"
#include "hw/qdev-properties.h"
#include "net/filter.h"
#include "net/net.h"
#include "net/queue.h"
#include "qom/object.h"
#include "qom/object_interfaces.h"
#include "system/runstate.h"

#define TYPE_LEASE_GATE "lease-gate"
OBJECT_DECLARE_SIMPLE_TYPE(LeaseGate, LEASE_GATE)

#define TYPE_LEASE_FILTER "lease-filter"
OBJECT_DECLARE_SIMPLE_TYPE(LeaseFilter, LEASE_FILTER)

#define LEASE_MAGIC "KGMGATE1"

/* How often the page is looked at while packets wait for it. */
#define LEASE_LOOK_MS 1

typedef struct LeasePage {
    char magic[8];
    uint64_t until_ns;
    uint8_t reserved[48];
} LeasePage;

QEMU_BUILD_BUG_ON(sizeof(LeasePage) != 64);

struct LeaseGate {
    DeviceState parent_obj;

    char *netdev;
    char *file;
    LeasePage *page;            /* shared: only read, each time anew */
    Object *filter;
    uint64_t passed;
    uint64_t dropped;           /* instead of passing */
    uint64_t late;              /* dropped although they had passed */
    uint64_t waited;            /* for the first lease */
    bool closed;                /* the last packet was dropped */
};

struct LeaseFilter {
    NetFilterState parent_obj;

    LeaseGate *gate;            /* owns us */
    NetQueue *early;            /* bounded; what is too much is dropped */
    QEMUTimer look;             /* at the page, while some are in there */
};

static bool lease_gate_is_set(LeaseGate *s)
{
    return qatomic_read(&s->page->until_ns) != 0;
}

static bool lease_gate_is_open(LeaseGate *s)
{
    uint64_t until = qatomic_read(&s->page->until_ns);
    struct timespec now;

    if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
        return false;
    }
    return (uint64_t)now.tv_sec * NANOSECONDS_PER_SECOND + now.tv_nsec < until;
}

/* The same, told in the log when it has changed. */
static bool lease_gate_look(LeaseGate *s)
{
    bool open = lease_gate_is_open(s);

    if (open == s->closed) {
        s->closed = !open;
        if (open) {
            warn_report("lease-gate of %s: packets may leave again, %" PRIu64
                        " were dropped until now", s->netdev,
                        s->dropped + s->late);
        } else {
            warn_report("lease-gate of %s: the lease is over, packets are "
                        "dropped", s->netdev);
        }
    }
    return open;
}

/* The first lease is there: what waited for it goes before anything else. */
static void lease_filter_release(LeaseFilter *f)
{
    if (!lease_gate_is_open(f->gate) || !qemu_net_queue_flush(f->early)) {
        f->gate->dropped += qemu_net_queue_count(f->early);
        qemu_net_queue_purge(f->early, NETFILTER(f)->netdev->peer);
    }
}

static void lease_filter_look(void *opaque)
{
    LeaseFilter *f = opaque;

    if (lease_gate_is_set(f->gate)) {
        lease_filter_release(f);
    } else {
        timer_mod(&f->look,
                  qemu_clock_get_ms(QEMU_CLOCK_REALTIME) + LEASE_LOOK_MS);
    }
}

static ssize_t lease_filter_receive_iov(NetFilterState *nf,
                                        NetClientState *sender,
                                        unsigned flags,
                                        const struct iovec *iov, int iovcnt,
                                        NetPacketSent *sent_cb)
{
    LeaseFilter *f = LEASE_FILTER(nf);
    LeaseGate *s = f->gate;

    if (!lease_gate_is_set(s)) {
        uint32_t held = qemu_net_queue_count(f->early);

        qemu_net_queue_append_iov(f->early, sender, flags, iov, iovcnt, NULL);
        if (qemu_net_queue_count(f->early) == held) {
            s->dropped++;
        } else {
            s->waited++;
        }
        if (!timer_pending(&f->look)) {
            lease_filter_look(f);
        }
        return iov_size(iov, iovcnt);
    }
    if (timer_pending(&f->look)) {
        timer_del(&f->look);
        lease_filter_release(f);
    }
    if (!lease_gate_look(s)) {
        s->dropped++;
        if (qemu_net_queue_count(nf->netdev->incoming_queue) != 0) {
            /* Those before it are looked at once more, and dropped. */
            qemu_flush_queued_packets(nf->netdev);
        }
        return iov_size(iov, iovcnt);
    }
    s->passed++;
    if (!runstate_is_running()) {
        /*
         * Committed by a checkpoint of a VM that somebody has stopped, as for
         * a switchover. QEMU would keep it until the VM runs again.
         */
        qemu_net_queue_append_iov(nf->netdev->incoming_queue, sender, flags,
                                  iov, iovcnt, NULL);
        qemu_flush_queued_packets(nf->netdev);
        return iov_size(iov, iovcnt);
    }
    return 0;
}

/* A packet that has passed, perhaps long ago, is received by the netdev now. */
static bool lease_filter_still_passes(NetFilterState *nf)
{
    LeaseGate *s = LEASE_FILTER(nf)->gate;

    if (!lease_gate_look(s)) {
        s->late++;
        return false;
    }
    return true;
}

/* Not even a failover switches it off, as it does other filters. */
static void lease_filter_handle_event(NetFilterState *nf, int event,
                                      Error **errp)
{
}

static void lease_filter_setup(NetFilterState *nf, Error **errp)
{
    LeaseFilter *f = LEASE_FILTER(nf);

    f->early = qemu_new_net_queue(qemu_netfilter_pass_to_next, nf);
    timer_init_ms(&f->look, QEMU_CLOCK_REALTIME, lease_filter_look, f);
}

static void lease_filter_cleanup(NetFilterState *nf)
{
    LeaseFilter *f = LEASE_FILTER(nf);

    if (f->early) {
        timer_del(&f->look);
        qemu_del_net_queue(f->early);
        f->early = NULL;
    }
}

static void lease_filter_class_init(ObjectClass *klass, void *data)
{
    NetFilterClass *nfc = NETFILTER_CLASS(klass);

    nfc->setup = lease_filter_setup;
    nfc->cleanup = lease_filter_cleanup;
    nfc->receive_iov = lease_filter_receive_iov;
    nfc->handle_event = lease_filter_handle_event;
    nfc->still_passes = lease_filter_still_passes;
}

static LeasePage *lease_gate_map(const char *file, Error **errp)
{
    int fd = qemu_open(file, O_RDONLY, errp);
    struct stat found;
    LeasePage *page;

    if (fd < 0) {
        return NULL;
    }
    if (fstat(fd, &found) != 0 || found.st_size != sizeof(LeasePage)) {
        error_setg(errp, "'%s' is no page of a supervisor", file);
        close(fd);
        return NULL;
    }
    page = mmap(NULL, sizeof(LeasePage), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) {
        error_setg_errno(errp, errno, "cannot map '%s'", file);
        return NULL;
    }
    if (memcmp(page->magic, LEASE_MAGIC, sizeof(page->magic)) != 0) {
        error_setg(errp, "'%s' is no page of a supervisor", file);
        munmap(page, sizeof(LeasePage));
        return NULL;
    }
    return page;
}

static void lease_gate_unrealize(DeviceState *dev)
{
    LeaseGate *s = LEASE_GATE(dev);

    if (s->filter) {
        object_unparent(s->filter);
        s->filter = NULL;
    }
    if (s->page) {
        munmap(s->page, sizeof(LeasePage));
        s->page = NULL;
    }
}

static void lease_gate_realize(DeviceState *dev, Error **errp)
{
    LeaseGate *s = LEASE_GATE(dev);
    ERRP_GUARD();

    if (!s->netdev || !s->file) {
        error_setg(errp, "lease-gate needs 'netdev' and 'file'");
        return;
    }
    s->page = lease_gate_map(s->file, errp);
    if (!s->page) {
        return;
    }
    s->filter = object_new(TYPE_LEASE_FILTER);
    LEASE_FILTER(s->filter)->gate = s;
    object_property_add_child(OBJECT(dev), "filter", s->filter);
    object_unref(s->filter);
    /* To the netdev filters are walked backwards: the head is the last one. */
    if (!object_property_set_str(s->filter, "netdev", s->netdev, errp) ||
        !object_property_set_str(s->filter, "queue", "rx", errp) ||
        !object_property_set_str(s->filter, "position", "head", errp) ||
        !user_creatable_complete(USER_CREATABLE(s->filter), errp)) {
        lease_gate_unrealize(dev);
    }
}

static bool lease_gate_get_open(Object *obj, Error **errp)
{
    LeaseGate *s = LEASE_GATE(obj);

    return s->page && lease_gate_is_open(s);
}

static void lease_gate_init(Object *obj)
{
    LeaseGate *s = LEASE_GATE(obj);

    object_property_add_bool(obj, "open", lease_gate_get_open, NULL);
    object_property_add_uint64_ptr(obj, "passed", &s->passed,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "dropped", &s->dropped,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "late", &s->late,
                                   OBJ_PROP_FLAG_READ);
    object_property_add_uint64_ptr(obj, "waited", &s->waited,
                                   OBJ_PROP_FLAG_READ);
}

static const Property lease_gate_properties[] = {
    DEFINE_PROP_STRING("netdev", LeaseGate, netdev),
    DEFINE_PROP_STRING("file", LeaseGate, file),
};

static void lease_gate_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);

    dc->desc = "Gate that closes when a supervisor's lease ends";
    dc->realize = lease_gate_realize;
    dc->unrealize = lease_gate_unrealize;
    dc->hotpluggable = false;
    device_class_set_props(dc, lease_gate_properties);
    set_bit(DEVICE_CATEGORY_NETWORK, dc->categories);
}

static const TypeInfo lease_gate_types[] = {
    {
        .name = TYPE_LEASE_GATE,
        .parent = TYPE_DEVICE,
        .instance_size = sizeof(LeaseGate),
        .instance_init = lease_gate_init,
        .class_init = lease_gate_class_init,
    },
    {
        .name = TYPE_LEASE_FILTER,
        .parent = TYPE_NETFILTER,
        .instance_size = sizeof(LeaseFilter),
        .class_init = lease_filter_class_init,
    },
};

DEFINE_TYPES(lease_gate_types)
