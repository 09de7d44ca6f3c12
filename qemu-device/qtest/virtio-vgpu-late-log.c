// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu: checkpoints whose log is late
 *
 * The link of the GPUs goes through a relay that the test can hold up, while
 * the VM's own stream goes on. The VM must run, and nothing be committed.
 */
#include "qemu/osdep.h"

#include "byte-relay.h"
#include "qobject/qdict.h"
#include "virtio-vgpu-takeover.h"

/* No test waits for so long: a checkpoint that should not wait would hang. */
#define LATE_SECONDS 240
#define LATE DEVICE ",replicable=on,checkpoint-wait-ms=3600000"

static Vm late_vm_start(ByteRelay **relay)
{
    Vm vm = { .d = driver_new(REPLICATION LATE) };
    g_autofree char *address = NULL;

    alarm(LATE_SECONDS);
    vm.primary = vm.d->qts;
    vm.standby = start_standby(PASSIVE);
    address = replication(vm.standby, "standby-address");
    *relay = byte_relay_new(address);
    replicate_to_address(vm.primary, byte_relay_address(*relay));
    wait_replication(vm.primary, "state", "protecting");
    return vm;
}

uint64_t vm_checkpoints(QTestState *primary, const char *what)
{
    QDict *status = qtest_qmp_assert_success_ref(
        primary, "{ 'execute': 'query-colo-status' }");
    QDict *counts = qdict_get_qdict(status, "checkpoints");
    uint64_t count = counts ? qdict_get_int(counts, what) : 0;

    qobject_unref(status);
    return count;
}

static void wait_checkpoints(QTestState *primary, const char *what,
                             uint64_t wanted)
{
    while (vm_checkpoints(primary, what) < wanted) {
        g_usleep(5 * 1000);
    }
}

/*
 * From here on the standby gets nothing of the log. Returns in a checkpoint
 * whose epoch it does not know, so it waits, and nobody can tell from QEMU's
 * events whether it began before; and what was committed before. What was
 * on its way to the standby may still arrive: hence more than one look.
 */
static uint64_t vm_hold_log(Vm *vm, ByteRelay *relay)
{
    byte_relay_hold(relay);
    for (unsigned looks = 0; looks < 20; looks++) {
        if (replication_number(vm->primary, "checkpoint-epoch") <=
            replication_number(vm->standby, "epoch")) {
            looks = 0;
        }
        g_usleep(5 * 1000);
    }
    return vm_checkpoints(vm->primary, "committed");
}

/* After a failover: the GPU's buffer has the pattern, and everything ends. */
static void late_vm_end(Vm *vm, ByteRelay *relay, QTestState *dead,
                        uint64_t memory)
{
    read_buffer(vm->d, 1, memory);
    assert_pattern(vm->d, memory);
    driver_close(vm->d, 1);
    end_dead(dead);
    byte_relay_free(relay);
    driver_free(vm->d);
    alarm(0);
}

/* The VM runs while a checkpoint waits for the log, and is not committed. */
static void test_late_log(void)
{
    ByteRelay *relay;
    Vm vm = late_vm_start(&relay);
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t committed;
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    committed = vm_hold_log(&vm, relay);
    write_pattern(d, 1);
    read_buffer(d, 1, memory);
    assert_pattern(d, memory);
    g_assert_cmpuint(vm_checkpoints(vm.primary, "committed"), ==, committed);

    byte_relay_release(relay);
    wait_checkpoints(vm.primary, "committed", committed + 2);
    vm_checkpoint(&vm);
    g_assert_cmpuint(vm_checkpoints(vm.primary, "aborted"), ==, 0);
    dead = vm_fail_over(&vm);
    qtest_memset(d->qts, memory, 0xee, 4096);
    late_vm_end(&vm, relay, dead, memory);
}

/* A standby has the RAM of a checkpoint, but not its log: it does not count. */
static void test_late_log_takeover(void)
{
    ByteRelay *relay;
    Vm vm = late_vm_start(&relay);
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    QTestState *dead;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    write_pattern(d, 1);
    qtest_memset(d->qts, memory, 0x11, 4096);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    byte_relay_hold(relay);
    qtest_memset(d->qts, memory, 0x22, 4096);
    vm_hold_log(&vm, relay);
    dead = vm_fail_over(&vm);
    g_assert_cmphex(qtest_readl(d->qts, memory), ==, 0x11111111);
    late_vm_end(&vm, relay, dead, memory);
}

/* The GPU's link breaks while a checkpoint waits for it: it is taken back. */
static void test_late_log_lost(void)
{
    ByteRelay *relay;
    Vm vm = late_vm_start(&relay);
    Driver *d = vm.d;
    uint64_t memory = guest_alloc(&d->alloc, 4096);
    uint64_t committed;
    QTestState *dead;
    Pending set;

    driver_open(d, 1);
    driver_make_objects(d, 1);
    driver_set_user_event(d, 1, &set); /* a state transfer waits for that */
    driver_wait(d, &set);
    vm_protect(&vm);
    vm_checkpoint(&vm);
    committed = vm_hold_log(&vm, relay);
    write_pattern(d, 1);
    byte_relay_cut(relay);
    wait_checkpoints(vm.primary, "aborted", 1);
    /* And there is a new copy, and checkpoints again. */
    wait_checkpoints(vm.primary, "committed", committed + 2);
    vm_checkpoint(&vm);
    dead = vm_fail_over(&vm);
    late_vm_end(&vm, relay, dead, memory);
}

/* QEMU ends while a checkpoint waits for its log. */
static void test_late_log_quit(void)
{
    ByteRelay *relay;
    Vm vm = late_vm_start(&relay);

    driver_open(vm.d, 1);
    vm_protect(&vm);
    vm_hold_log(&vm, relay);
    driver_free(vm.d);
    end_dead(vm.standby);
    byte_relay_free(relay);
    alarm(0);
}

void late_log_add(void)
{
    qtest_add_func("virtio-vgpu-takeover/late-log", test_late_log);
    qtest_add_func("virtio-vgpu-takeover/late-log/takeover",
                   test_late_log_takeover);
    qtest_add_func("virtio-vgpu-takeover/late-log/lost", test_late_log_lost);
    qtest_add_func("virtio-vgpu-takeover/late-log/quit",
                   test_late_log_quit);
}
