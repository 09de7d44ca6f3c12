// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QTest of virtio-vgpu: hostile guests.
 */
#ifndef TESTS_VIRTIO_VGPU_HOSTILE_H
#define TESTS_VIRTIO_VGPU_HOSTILE_H

void add_hostile_tests(void);

#endif
