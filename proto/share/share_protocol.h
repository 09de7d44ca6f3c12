// SPDX-License-Identifier: GPL-2.0-or-later
// share_protocol: what crosses between kagemusha-gpu, the share arbiter of one GPU, and those that use this
// GPU. Both ends are on one machine, so structures are used as they lie in memory; they may be of different
// builds, so the version is asked first.
//
// A Unix socket of type SOCK_SEQPACKET: one structure is one packet. Who connects sends a share_hello and
// gets a share_answer. Then
//
//   a VM       keeps the connection: as long as it, or one of its sessions, is there the VM has its share
//   a session  (a worker process) got the descriptor of its share_page with the answer, and share_messages
//              wake the other end; what is the case is always in the page
//   an asker   gets as many share_rows and share_program_rows as the answer names, and the connection ends
#ifndef KAGEMUSHA_PROTO_SHARE_PROTOCOL_H
#define KAGEMUSHA_PROTO_SHARE_PROTOCOL_H

#include <stdint.h>

#ifdef __cplusplus
#include <atomic>
#endif

#define SHARE_MAGIC 0x6b675368u
#define SHARE_VERSION 2u
#define SHARE_NAME_BYTES 40u /* with its 0 */
#define SHARE_TEXT_BYTES 480u

/* Users of confined QEMUs: control/confine/confinement.hpp. */
#define SHARE_FIRST_VM_USER 0x70000000u
#define SHARE_VM_USERS (1u << 20)

enum share_role { SHARE_VM = 1, SHARE_SESSION = 2, SHARE_ASKER = 3 };

enum share_hello_flags {
    SHARE_IS_STANDBY = 1u, /* it replays what its primary does */
    SHARE_HAS_POLICY = 2u, /* `policy` counts */
    SHARE_ASKS_PROGRAMS = 4u, /* an asker that wants share_program_rows, too */
};

struct share_hello {
    uint32_t magic;
    uint32_t version;
    uint32_t role;   /* share_role */
    uint32_t flags;  /* share_hello_flags */
    uint32_t policy; /* share/core/terms.hpp: policy_kind */
    uint32_t share_permille; /* 0: none was asked for */
    uint32_t cap_permille;   /* 1 to 1000 */
    uint32_t priority;       /* 0 to 7 */
    uint64_t memory_bytes;
    uint64_t gpu_memory_bytes; /* of the whole GPU; 0: not known */
    char vm[SHARE_NAME_BYTES];
};

enum share_result { SHARE_ACCEPTED = 0, SHARE_REFUSED = 1 };

struct share_answer {
    uint32_t magic;
    uint32_t version;
    uint32_t result; /* share_result */
    uint32_t rows;   /* for an asker: how many packets follow */
    uint32_t policy;
    uint32_t programs; /* for an asker that wants them: how many packets follow those */
    uint64_t now_ns; /* CLOCK_MONOTONIC */
    uint64_t gpu_memory_bytes;
    char text[SHARE_TEXT_BYTES]; /* refused: a sentence with its 0 */
};

struct share_row {
    char vm[SHARE_NAME_BYTES];
    uint32_t sessions;
    uint32_t phase; /* share/core/policy.hpp: vm_phase */
    uint32_t share_permille;
    uint32_t cap_permille;
    uint32_t weight_permille; /* what it is to get when all have work */
    uint32_t priority;
    uint32_t standby;
    uint32_t times_stuck;
    uint64_t memory_bytes;
    uint64_t gpu_ns;    /* commands of it were in flight */
    uint64_t held_ns;   /* it had the GPU */
    uint64_t waited_ns; /* it had work and not the GPU */
    uint64_t longest_turn_ns;
    uint64_t turns;
    uint64_t tasks;
};

/* Programs of guests: those that used the GPU most, as many as a socket holds. */
#define SHARE_MAX_PROGRAM_ROWS 128u
struct share_program_row {
    char vm[SHARE_NAME_BYTES];
    uint32_t worker; /* its process on this host; 0: it has not asked for the GPU yet */
    uint32_t waits;  /* 1: it has a task that waits for the GPU */
    uint64_t gpu_ns; /* as of a VM */
    uint64_t waited_ns;
    uint64_t tasks;
};

enum share_message_kind {
    SHARE_WANTS = 1,    /* session to arbiter: a task waits */
    SHARE_RELEASED = 2, /* session to arbiter: it has given the GPU back */
    SHARE_GO = 3,       /* arbiter to session: it was granted the GPU */
};

struct share_message {
    uint32_t kind;
    uint32_t pad;
};

#ifdef __cplusplus
/* The word of a page. The low half counts tasks in flight and belongs to the session; who changes the flags
 * does it by compare and exchange. */
enum share_word : uint64_t {
    SHARE_COUNT = 0xffffffffull,
    SHARE_GRANTED = 1ull << 32,   /* tasks may begin */
    SHARE_SHARED = 1ull << 33,    /* with SHARE_GRANTED: give it back when nothing is in flight */
    SHARE_TAKE_BACK = 1ull << 34, /* no task may begin; give it back when nothing is in flight */
    SHARE_WAITING = 1ull << 35,   /* a task waits for the grant */
};

/* In a sealed memory file. The session's process may run code of a guest: the arbiter believes none of it
 * but for the accounts of that session. */
struct share_page {
    std::atomic<uint64_t> word;
    std::atomic<uint32_t> bounded; /* by the arbiter: 1 while others may use this GPU */
    std::atomic<uint32_t> needs_guest; /* by the session: 1: what is in flight may wait for the guest */
    std::atomic<uint64_t> alive;   /* by the arbiter: grows at least twice a second while somebody waits */
    /* by the session */
    std::atomic<uint64_t> busy_ns;       /* tasks were in flight, up to busy_since_ns */
    std::atomic<uint64_t> busy_since_ns; /* 0: none is */
    std::atomic<uint64_t> loose_ns;      /* tasks ran that the word does not count: see share/gate/gate.hpp */
    std::atomic<uint64_t> tasks;
    std::atomic<uint64_t> waited_ns;     /* a task waited for the grant */
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(share_page) == 64);
#endif

#endif
