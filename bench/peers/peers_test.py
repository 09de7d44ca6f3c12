#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the scripts of this folder make of what they see."""
import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(Path(__file__).resolve().parent / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


colo, state = load("colo"), load("state")


class MomentTest(unittest.TestCase):
    def test_memory_as_the_guest_leaves_it_is_of_one_moment(self):
        for ahead in range(9):  # so many pages have been written in this round
            for rounds in (0, 7, 254, 255):  # the bytes turn over
                pages = [(rounds + (1 if place < ahead else 0)) % 256 for place in range(8)]
                self.assertEqual(colo.of_two_moments(bytes(pages)), 0, pages)

    def test_a_page_that_stayed_behind_or_ran_ahead_is_seen(self):
        self.assertEqual(colo.of_two_moments(bytes([5, 5, 4, 3, 4, 4])), 1)
        self.assertEqual(colo.of_two_moments(bytes([5, 5, 4, 9, 9, 4])), 2)
        self.assertGreater(colo.of_two_moments(bytes([5, 3, 5, 5, 4, 4])), 0)


class ColoRowTest(unittest.TestCase):
    def test_an_end_is_a_row(self):
        self.assertIn("ended after 1 pauses: why", colo.row(
            {"qemu": "debian", "pages": 64, "pauses_ms": [], "kills": [], "ended": ["ended after 1 pauses: why"]}))

    def test_torn_memory_is_said_aloud(self):
        row = colo.row({"qemu": "tcg", "pages": 64, "pauses_ms": [1.0, 3.0], "kills": [(5.0, 0), (7.0, 12)], "ended": ["a third one"]})
        self.assertIn("of TWO MOMENTS in 1 of 2: 12 to 12 pages; a third one", row)
        self.assertIn("6.0 (5.0-7.0)", row)


class StateRowTest(unittest.TestCase):
    def figures(self, unit="s", differences=0):
        out = []
        for words in ("transfer of 64 MiB, the guest writes 1 MiB again and again", "transfer of 64 MiB, the guest writes all of it again and again"):
            out += [{"part": words, "name": name, "value": value, "unit": unit} for name, value in (
                ("until protected", 0.5), ("rate", 2.0), ("a launch, alone: longest", 0.25), ("a launch, meanwhile: longest", 3.5),
                ("digest of everything: differences", 0), ("digest of everything: differences", differences))]
        return out

    def test_both_kinds_and_the_comparison(self):
        self.assertEqual(state.row("64", self.figures()), "| 64 | 500 | 2.0 | 3.5 (0.2) | 500 | 2.0 | 3.5 (0.2) | equal |")
        self.assertIn("3 chunks DIFFERENT", state.row("64", self.figures(differences=3)))
        self.assertIn("NOT DONE", state.row("64", self.figures(unit="s, NOT DONE")))


if __name__ == "__main__":
    unittest.main()
