#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What bench/checkpoint/parts makes of a trace."""
import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("parts", str(Path(__file__).resolve().parent / "parts"))
parts = importlib.util.module_from_spec(importlib.util.spec_from_loader("parts", LOADER))
LOADER.exec_module(parts)

# One checkpoint; microseconds after the begin of its pause, and what QEMU writes.
PAUSE = (
    (0, "runstate_set current_run_state 9 (running) new_state 15 (colo)"),
    (60, "vm_state_notify running 0 reason 15 (colo)"),
    (300, "colo_vm_state_change Change 'run' => 'stop'"),
    (420, "savevm_section_start timer, section_id 0"),
    (430, "savevm_section_end timer, section_id 0 -> 0"),
    (430, "savevm_section_start cpu, section_id 4"),
    (450, "savevm_section_end cpu, section_id 4 -> 0"),
    (450, "savevm_section_start cpu, section_id 8"),
    (480, "savevm_section_end cpu, section_id 8 -> 0"),
    (500, "colo_send_message Send 'vmstate-send' message"),
    (510, "savevm_section_start ram, section_id 1"),
    (600, "migration_bitmap_sync_end dirty_pages 12"),
    (700, "savevm_section_end ram, section_id 1 -> 0"),
    (750, "runstate_set current_run_state 15 (colo) new_state 9 (running)"),
    (760, "vm_state_notify running 1 reason 9 (running)"),
    (900, "colo_vm_state_change Change 'stop' => 'run'"),
    (1000, "colo_send_message Send 'vmstate-size' message"),
    (1100, "colo_checkpoint_committed number 7 pause_us 905 commit_us 1100 dirty_bytes 49152 ahead_bytes 0 spilled_bytes 0 epoch_us 1 early 0"))


def lines(what, begin_us=5_999_900):
    """Across a full second, because the microseconds of a trace begin anew there."""
    return [f"77@{(begin_us + at) // 1000000}.{(begin_us + at) % 1000000:06d}:{text}" for at, text in what]


class PartsTest(unittest.TestCase):
    def test_the_parts_of_a_pause(self):
        [one] = parts.checkpoints(lines(PAUSE))
        self.assertEqual((one["pause"], one["pages"]), (905, 12))
        self.assertEqual(one["parts"], {"processors stop": 60, "devices stop": 240, "epoch closed": 120, "devices saved": 80,
                                        "pages found": 100, "pages copied": 150, "devices start": 150})
        self.assertEqual(one["devices"], {"timer": 10, "cpu": 50})  # both processors together, and no RAM

    def test_only_whole_checkpoints_count(self):
        self.assertEqual(parts.checkpoints(lines(PAUSE[1:])), [])  # the trace began in the middle
        self.assertEqual(parts.checkpoints(lines(PAUSE[:-1])), [])  # it was never committed
        self.assertEqual(parts.checkpoints(lines(PAUSE[:9] + PAUSE[10:])), [])  # a step is missing
        taken_back = lines(PAUSE[:10]) + lines(PAUSE, 7_000_000)
        self.assertEqual(len(parts.checkpoints(taken_back)), 1)

    def test_a_pause_as_a_whole_needs_its_last_line_only(self):
        [one] = parts.checkpoints(lines(PAUSE[-1:]), whole=True)
        self.assertEqual((one["pause"], one["pages"], one["parts"]), (905, 12, {}))
        table = parts.table({("rest", ""): [one]})
        self.assertIn("| **pause** | 905 (905) |", table)
        self.assertFalse([line for line in table if line.startswith("| devices")], table)

    def test_other_lines_are_passed_over(self):
        self.assertEqual(len(parts.checkpoints(["qemu: warning: something", "", *lines(PAUSE)])), 1)

    def test_a_table_has_a_column_for_each_qemu(self):
        found = parts.checkpoints(lines(PAUSE) + lines(PAUSE, 9_000_000))
        table = parts.table({("rest", "before"): found, ("rest", "after"): [], ("gemm", ""): found})
        self.assertEqual(table[0], "| µs, median (mean) | rest before | rest after | gemm |")
        self.assertEqual(table[2], "| **pause** | 905 (905) |  | 905 (905) |")
        self.assertIn("| … cpu | 50 (50) |  | 50 (50) |", table)
        self.assertEqual(table[-1], "| checkpoints | 2 | 0 | 2 |")


if __name__ == "__main__":
    unittest.main()
