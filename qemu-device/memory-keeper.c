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
 *
 * QEMU's -sandbox lets no process be started, so the keeper is started before
 * it (patch 42), and the device that is realized later finds it. Whoever takes
 * QEMU over can write the keeper's code and stack, which are QEMU's memory. So
 * the keeper has a filter of its own, which is narrower than QEMU's: it can
 * wait and end.
 */

#include "qemu/osdep.h"
#include <sched.h>
#include <poll.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "qemu/config-file.h"
#include "qemu/module.h"
#include "qemu/option.h"
#include "qemu/units.h"
#include "qapi/error.h"
#include "hw/qdev-core.h"
#include "qom/object.h"
#include "system/pre-sandbox.h"

#define TYPE_MEMORY_KEEPER "memory-keeper"
OBJECT_DECLARE_SIMPLE_TYPE(MemoryKeeper, MEMORY_KEEPER)

/* All that the keeper's few frames need, and what a sanitizer adds. */
#define KEEPER_STACK_BYTES (64 * KiB)

/* A tenth of the processor, when somebody else wants all of it */
#define KEEPER_NICE 10

#define KEEPER_DELAY_S 1

typedef struct Keeper {
    void *stack;
    size_t stack_bytes; /* with a guard */
    pid_t qemu;
    pid_t pid;
    int reported_fd; /* where it says that it has closed the rest */
} Keeper;

struct MemoryKeeper {
    DeviceState parent_obj;

    Keeper *keeper;
};

/* Started before the sandbox, for the first device that is realized. */
static Keeper *early_keeper;

#if defined(__x86_64__)
#define KEEPER_POSSIBLE 1
#define KEEPER_ARCH AUDIT_ARCH_X86_64
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
#define KEEPER_ARCH AUDIT_ARCH_AARCH64
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
#define KEEPER_ARCH 0
static inline long keeper_syscall(long number, long a, long b, long c, long d,
                                  long e)
{
    return -1; /* refused before it comes to this */
}
#endif

#define KEEPER_MAY(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Numbers of x32 have a bit more, so they are none of these. */
static const struct sock_filter keeper_filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, KEEPER_ARCH, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    KEEPER_MAY(SYS_ppoll),
    KEEPER_MAY(SYS_getppid),
    KEEPER_MAY(SYS_restart_syscall),
    KEEPER_MAY(SYS_write), /* its one pipe, and then no file at all */
    KEEPER_MAY(SYS_close),
    KEEPER_MAY(SYS_exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

/* Its files are copies of ours, and QEMU's sockets must end with QEMU. */
static int keeper_run(void *opaque)
{
    Keeper *s = opaque;
    static const char name[] = "memory-keeper";
    static const struct sock_fprog filter = {
        .len = ARRAY_SIZE(keeper_filter),
        .filter = (struct sock_filter *)keeper_filter,
    };
    struct pollfd end = { .events = POLLIN };
    struct timespec delay = { .tv_sec = KEEPER_DELAY_S };

    keeper_syscall(SYS_prctl, PR_SET_NAME, (long)name, 0, 0, 0);
    if (keeper_syscall(SYS_close_range, 0, s->reported_fd - 1, 0, 0, 0) ||
        keeper_syscall(SYS_close_range, s->reported_fd + 1, UINT_MAX,
                       0, 0, 0)) {
        keeper_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
    }
    end.fd = keeper_syscall(SYS_pidfd_open, s->qemu, 0, 0, 0, 0);
    if (end.fd < 0) {
        keeper_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
    }
    keeper_syscall(SYS_setpriority, PRIO_PROCESS, 0, KEEPER_NICE, 0, 0);
    if (keeper_syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        keeper_syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER,
                       (long)&filter, 0, 0) != 0) {
        keeper_syscall(SYS_exit_group, 1, 0, 0, 0, 0);
    }
    keeper_syscall(SYS_write, s->reported_fd, (long)name, 1, 0, 0);
    keeper_syscall(SYS_close, s->reported_fd, 0, 0, 0, 0);
    /* Still our parent: so it is its number and not somebody else's. */
    while (keeper_syscall(SYS_getppid, 0, 0, 0, 0, 0) == s->qemu &&
           keeper_syscall(SYS_ppoll, (long)&end, 1, 0, 0, 0) != 1) {
        /* a timeout or a signal: look again */
    }
    keeper_syscall(SYS_ppoll, 0, 0, (long)&delay, 0, 0);
    keeper_syscall(SYS_exit_group, 0, 0, 0, 0, 0);
    return 0;
}

static void keeper_end(Keeper *s)
{
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, __WALL);
    }
    qemu_free_stack(s->stack, s->stack_bytes);
    g_free(s);
}

static bool keeper_clone(Keeper *s, Error **errp)
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
    s->reported_fd = ends[1];
    /* A handler of ours must never run in the keeper. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->pid = clone(keeper_run, (char *)s->stack + s->stack_bytes, CLONE_VM, s);
    failure = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (s->pid < 0) {
        error_setg_errno(errp, failure, "memory-keeper: can't be started");
        close(ends[0]);
        return false;
    }
    got = RETRY_ON_EINTR(read(ends[0], &said, 1));
    close(ends[0]);
    if (got != 1) {
        error_setg(errp, "memory-keeper: this kernel lacks close_range(),"
                   " pidfd_open() or seccomp, which Linux 5.9 has");
        return false;
    }
    return true;
}

static Keeper *keeper_start(Error **errp)
{
    Keeper *s = g_new0(Keeper, 1);

    s->stack_bytes = KEEPER_STACK_BYTES;
    s->stack = qemu_alloc_stack(&s->stack_bytes);
    if (!keeper_clone(s, errp)) {
        keeper_end(s);
        return NULL;
    }
    return s;
}

static void memory_keeper_realize(DeviceState *dev, Error **errp)
{
    MemoryKeeper *s = MEMORY_KEEPER(dev);

    if (!KEEPER_POSSIBLE) {
        error_setg(errp, "memory-keeper knows the processors x86-64 and arm64"
                   " only; leave it out, and takeovers take longer");
        return;
    }
    s->keeper = early_keeper;
    early_keeper = NULL;
    if (!s->keeper) {
        s->keeper = keeper_start(errp);
    }
}

static void memory_keeper_unrealize(DeviceState *dev)
{
    MemoryKeeper *s = MEMORY_KEEPER(dev);

    keeper_end(s->keeper);
    s->keeper = NULL;
}

static int is_memory_keeper(void *opaque, QemuOpts *opts, Error **errp)
{
    return g_strcmp0(qemu_opt_get(opts, "driver"), TYPE_MEMORY_KEEPER) == 0;
}

/*
 * Reason: -sandbox on,spawn=deny,resourcecontrol=deny lets no process be
 * started, and none change its priority. What fails here is tried again, and
 * told, when the device is realized.
 */
static void memory_keeper_before_sandbox(Notifier *notify, void *data)
{
    if (KEEPER_POSSIBLE &&
        qemu_opts_foreach(qemu_find_opts("device"), is_memory_keeper, NULL,
                          NULL)) {
        early_keeper = keeper_start(NULL);
    }
}

static void memory_keeper_register_early(void)
{
    static Notifier notifier = { .notify = memory_keeper_before_sandbox };

    qemu_add_pre_sandbox_notifier(&notifier);
}

opts_init(memory_keeper_register_early);

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
