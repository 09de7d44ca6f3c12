/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The parts of virtio-vgpu-takeover-test: a protected VM, and what its guest
 * does
 */

#ifndef VIRTIO_VGPU_TAKEOVER_H
#define VIRTIO_VGPU_TAKEOVER_H

#include "virtio-vgpu-driver.h"

/* Buffers with content; a window, so that it is in the checkpoints */
#define DEVICE ",options=memory=1,window-size=16M"
#define PASSIVE "-global migration.x-colo-passive=on"

typedef struct Vm {
    Driver *d; /* its guest */
    QTestState *primary;
    QTestState *standby;
} Vm;

QTestState *start_standby(const char *more);
void vm_protect(Vm *vm);
/* When it returns, what happened until now is in a checkpoint of both. */
void vm_checkpoint(Vm *vm);
/* The primary's host dies; the guest goes on in the standby. */
QTestState *vm_fail_over(Vm *vm);
void end_dead(QTestState *dead);
/* How many were "committed", or "aborted", and their "pauses" */
uint64_t vm_checkpoints(QTestState *primary, const char *what);

/* Into the buffer of a file, and out of it */
void write_pattern(Driver *d, uint32_t file);
void read_buffer(Driver *d, uint32_t file, uint64_t memory);
void assert_pattern(Driver *d, uint64_t memory);

/* A number of the property "replication" */
uint64_t replication_number(QTestState *qts, const char *name);

void late_log_add(void);

#endif
