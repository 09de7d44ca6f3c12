// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Parts of virtio-vgpu-test that are files of their own
 */
#ifndef TESTS_VIRTIO_VGPU_TESTS_H
#define TESTS_VIRTIO_VGPU_TESTS_H

void add_hostile_tests(void);
void add_copies_tests(void);

#endif
