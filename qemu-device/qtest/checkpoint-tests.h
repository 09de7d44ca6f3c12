/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The parts of checkpoint-test
 */

#ifndef CHECKPOINT_TESTS_H
#define CHECKPOINT_TESTS_H

void checkpoint_changes_add(void);
void checkpoint_disk_copies_add(void);
void checkpoint_moments_add(void);
void checkpoint_output_add(void);
void checkpoint_ready_add(void);
void checkpoint_requests_add(void);

#endif
