// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The end of QEMU is told before its memory is given back
 *
 * Whoever supervises a VM hears of its QEMU's end from the kernel (pidfd,
 * waitpid), which is the proof that none of its threads will ever do anything
 * again. The kernel tells it when a process has given back its memory, and
 * 512 MiB of guest memory take a quarter of a second: most of a takeover.
 *
 * So another process shares our memory (clone with CLONE_VM, as a thread does,
 * but without being one of ours), and gives it back in our place: when QEMU
 * ends it has nothing to free, and its end is told at once. The keeper has none
 * of our files, no signals that could reach it, and runs no code but the
 * function below. It waits for QEMU's end as the supervisor does: a signal at
 * the main thread's death (PR_SET_PDEATHSIG) would be too early, because the
 * last thread to leave the memory is who frees it.
 *
 * The standby may be on the same host, and needs its processors most at first.
 * A priority alone does not give them to it: on two processors the keeper had
 * one of them nearly for itself, at nice 10 and in a scheduling group that was
 * nice as well, for the quarter of a second after which the kernel would have
 * moved somebody there. So the keeper waits for a second before it begins, and
 * then has a low priority (docs/results/takeover.md).
 *
 *     -device memory-keeper
 *
 * It is a device for the reason that lease-gate is one. The keeper shares the
 * thread-local storage of the thread that made it, so it calls no function of
 * the C library: not even errno may be written.
 */

#include "qemu/osdep.h"
#include <sched.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "qemu/module.h"
#include "qemu/units.h"
#include "qapi/error.h"
#include "hw/qdev-core.h"
#include "qom/object.h"

#define TYPE_MEMORY_KEEPER "memory-keeper"
OBJECT_DECLARE_SIMPLE_TYPE(MemoryKeeper, MEMORY_KEEPER)

/* All that the keeper's few frames need, and what a sanitizer adds. */
#define KEEPER_STACK_BYTES (64 * KiB)

/* A tenth of the processor, when somebody else wants all of it */
#define KEEPER_NICE 10

#define KEEPER_DELAY_S 1

struct MemoryKeeper {
    DeviceState parent_obj;

    void *stack;
    size_t stack_bytes; /* with a guard */
    pid_t qemu;
    pid_t keeper;
    int told_fd; /* where it says that it has closed the rest */
};

#if defined(__x86_64__)
#define KEEPER_POSSIBLE 1
static inline long keeper_syscall(long number, long a, long b, long c, long d,
                                  long e)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
#define KEEPER_POSSIBLE 1
static inline long keeper_syscall(long number, long a, long b, long c, long d,
                                  long e)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                     : "memory");
    return x0;
}
#else
#define KEEPER_POSSIBLE 0
static inline long keeper_syscall(long number, long a, long b, long c, long d,
                                  long e)
{
    return -1; /* refused before it comes to this */
}
#endif

/* Its files are copies of ours, and QEMU's sockets must end with QEMU. */
static int keeper_run(void *opaque)
{
    MemoryKeeper *s = opaque;
    static const char name[] = "memory-keeper";
    struct pollfd end = { .events = POLLIN };
    struct timespec delay = { .tv_sec = KEEPER_DELAY_S };

    keeper_syscall(SYS_prctl, PR_SET_NAME, (long)name, 0, 0, 0);
    if (keeper_syscall(SYS_close_range, 0, s->told_fd - 1, 0, 0, 0) != 0 ||
        keeper_syscall(SYS_close_range, s->told_fd + 1, UINT_MAX, 0, 0, 0)) {
        keeper_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
    }
    end.fd = keeper_syscall(SYS_pidfd_open, s->qemu, 0, 0, 0, 0);
    if (end.fd < 0) {
        keeper_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
    }
    keeper_syscall(SYS_setpriority, PRIO_PROCESS, 0, KEEPER_NICE, 0, 0);
    keeper_syscall(SYS_write, s->told_fd, (long)name, 1, 0, 0);
    keeper_syscall(SYS_close, s->told_fd, 0, 0, 0, 0);
    /* Still our parent: so it is its number and not somebody else's. */
    while (keeper_syscall(SYS_getppid, 0, 0, 0, 0, 0) == s->qemu &&
           keeper_syscall(SYS_ppoll, (long)&end, 1, 0, 0, 0) != 1) {
    }
    keeper_syscall(SYS_ppoll, 0, 0, (long)&delay, 0, 0);
    keeper_syscall(SYS_exit_group, 0, 0, 0, 0, 0);
    return 0;
}

static void memory_keeper_end(MemoryKeeper *s)
{
    if (s->keeper > 0) {
        kill(s->keeper, SIGKILL);
        waitpid(s->keeper, NULL, __WALL);
        s->keeper = 0;
    }
    if (s->stack) {
        qemu_free_stack(s->stack, s->stack_bytes);
        s->stack = NULL;
    }
}

static bool memory_keeper_start(MemoryKeeper *s, Error **errp)
{
    sigset_t all, before;
    int ends[2];
    int failure;
    char said;
    ssize_t got;

    if (!g_unix_open_pipe(ends, FD_CLOEXEC, NULL)) {
        error_setg_errno(errp, errno, "memory-keeper: no pipe");
        return false;
    }
    s->qemu = getpid();
    s->told_fd = ends[1];
    /* A handler of ours must never run in the keeper. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->keeper = clone(keeper_run, (char *)s->stack + s->stack_bytes,
                      CLONE_VM, s);
    failure = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (s->keeper < 0) {
        error_setg_errno(errp, failure, "memory-keeper: can't be started");
        close(ends[0]);
        return false;
    }
    got = RETRY_ON_EINTR(read(ends[0], &said, 1));
    close(ends[0]);
    if (got != 1) {
        error_setg(errp, "memory-keeper: this kernel lacks close_range() or"
                   " pidfd_open(), which Linux 5.9 has");
        return false;
    }
    return true;
}

static void memory_keeper_realize(DeviceState *dev, Error **errp)
{
    MemoryKeeper *s = MEMORY_KEEPER(dev);

    if (!KEEPER_POSSIBLE) {
        error_setg(errp, "memory-keeper knows the processors x86-64 and arm64"
                   " only; leave it out, and takeovers take longer");
        return;
    }
    s->stack_bytes = KEEPER_STACK_BYTES;
    s->stack = qemu_alloc_stack(&s->stack_bytes);
    if (!memory_keeper_start(s, errp)) {
        memory_keeper_end(s);
    }
}

static void memory_keeper_unrealize(DeviceState *dev)
{
    memory_keeper_end(MEMORY_KEEPER(dev));
}

static void memory_keeper_class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);

    dc->desc = "Lets the end of QEMU be known before its memory is freed";
    dc->realize = memory_keeper_realize;
    dc->unrealize = memory_keeper_unrealize;
    dc->hotpluggable = false;
    set_bit(DEVICE_CATEGORY_MISC, dc->categories);
}

static const TypeInfo memory_keeper_types[] = {
    {
        .name = TYPE_MEMORY_KEEPER,
        .parent = TYPE_DEVICE,
        .instance_size = sizeof(MemoryKeeper),
        .class_init = memory_keeper_class_init,
    },
};

DEFINE_TYPES(memory_keeper_types)
