#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A soak in which nobody knows who will go on still counts right who did, and calls no VM lost that somebody has."""
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from soak import suspicion  # pylint: disable=wrong-import-position

MS = 10 ** 6


def events(*names):
    """One each ten milliseconds."""
    return [{"event": name, "boot_ns": at * 10 * MS} for at, name in enumerate(names, 1)]


BEGINS = ("opening", "alone", "replicating", "announcing", "recording", "protecting")


class AloneTest(unittest.TestCase):
    def test_a_vm_that_has_only_begun_has_lost_nobody(self):
        self.assertEqual(suspicion.alone(events(*BEGINS)), ([], 0))

    def test_a_pair_is_lost_when_it_is_left_and_not_when_that_is_recorded(self):
        said = events(*BEGINS, "link", "unpairing", "link", "alone")
        self.assertEqual(suspicion.alone(said), ([{"what": "alone", "at_ns": 80 * MS}], 0))

    def test_a_switchover_that_is_taken_back(self):
        said = events(*BEGINS, "handing-over", "reclaiming", "alone")
        self.assertEqual(suspicion.alone(said), ([{"what": "alone", "at_ns": 70 * MS}], 0))

    def test_a_standby_that_never_protected_is_given_up_and_not_lost(self):
        said = events("opening", "alone", "replicating", "alone", "replicating", "announcing", "alone", "replicating")
        self.assertEqual(suspicion.alone(said), ([], 2))

    def test_each_is_counted_once_whatever_came_before(self):
        said = events(*BEGINS, "unpairing", "alone", "replicating", "alone", "replicating", "announcing", "recording", "protecting",
                      "unpairing", "alone")
        self.assertEqual(suspicion.alone(said), ([{"what": "alone", "at_ns": 70 * MS}, {"what": "alone", "at_ns": 150 * MS}], 1))
        self.assertEqual(suspicion.alone(said, 8), ([{"what": "alone", "at_ns": 150 * MS}], 1))
        self.assertEqual(suspicion.alone(said, 10), ([{"what": "alone", "at_ns": 150 * MS}], 0))
        self.assertEqual(suspicion.alone(said, 16), ([], 0))

    def test_a_pair_that_was_left_before_the_count_began_is_lost_when_that_is_recorded(self):
        said = events(*BEGINS, "unpairing", "alone")
        self.assertEqual(suspicion.alone(said, 7), ([{"what": "alone", "at_ns": 70 * MS}], 0))

    def test_who_leaves_for_a_takeover_is_not_alone(self):
        self.assertEqual(suspicion.alone(events(*BEGINS, "unpairing", "leaving", "ended")), ([], 0))


class AttributedTest(unittest.TestCase):
    LOSSES = [{"what": "taken-over", "at_ns": 30}, {"what": "alone", "at_ns": 10}, {"what": "alone", "at_ns": 20}]

    def test_a_fault_makes_one_and_the_first_after_it(self):
        found = suspicion.attributed(self.LOSSES, "freeze", 15)
        self.assertEqual([loss["of"] for loss in found], ["suspicion", "freeze", "suspicion"])
        self.assertEqual([loss["at_ns"] for loss in found], [10, 20, 30])

    def test_nothing_was_done(self):
        found = suspicion.attributed(self.LOSSES, "rest", 0)
        self.assertEqual({loss["of"] for loss in found}, {"suspicion"})

    def test_all_of_it_came_before_the_fault(self):
        found = suspicion.attributed(self.LOSSES, "kill-qemu", 31)
        self.assertEqual({loss["of"] for loss in found}, {"suspicion"})


class ProtectedAgainTest(unittest.TestCase):
    def times(self, losses, protecting):
        found = suspicion.protected_again([{"at_ns": at * MS} for at in losses], [at * MS for at in protecting])
        return [loss.get("protected_ms") for loss in found]

    def test_from_each_loss_to_the_next_protection(self):
        self.assertEqual(self.times((10, 50), (25, 30, 90)), [15, 40])

    def test_a_loss_before_it_was_protected_again(self):
        self.assertEqual(self.times((10, 20), (90,)), [None, 70])

    def test_a_protection_from_before_is_none(self):
        self.assertEqual(self.times((10,), (5,)), [None])


class LostTest(unittest.TestCase):
    def test_only_a_standby_that_has_nothing_and_a_record_that_says_so(self):
        for state in ("synced", "claiming", "taking-over", "running", ""):
            self.assertIsNone(suspicion.lost("kill-both", state, False), state)
        self.assertIsNone(suspicion.lost("kill-both", "outdated", True))
        self.assertTrue(suspicion.lost("kill-both", "outdated", False)[0])

    def test_without_a_kill_it_is_never_right(self):
        for fault in ("rest", "freeze", "freeze-standby", "switchover"):
            self.assertFalse(suspicion.lost(fault, "listening", False)[0], fault)

    def test_the_record_of_the_arbiter(self):
        self.assertTrue(suspicion.is_paired(7 << 42 | 1 << 41 | 123456))
        self.assertFalse(suspicion.is_paired(7 << 42 | (1 << 41) - 1))


class TextTest(unittest.TestCase):
    def test_a_turn_in_a_few_words(self):
        self.assertEqual(suspicion.brief([]), "nobody gave anybody up")
        self.assertEqual(suspicion.brief([{"what": "alone", "of": "suspicion"}, {"what": "taken-over", "of": "freeze", "runs_ms": 31.4,
                                                                                "protected_ms": 4000}]),
                         "the primary went on alone (suspicion), the standby took over (freeze, the guest runs after 31 ms, protected "
                         "after 4,000 ms)")

    def test_what_a_person_reads(self):
        lines = [{"what": "chain", "chain": 0, "programs": ["network"]},
                 {"what": "fault", "chain": 0, "turn": 1, "fault": "rest", "claims": 3, "given_up": 1, "asked": 0, "rounds": {},
                  "statements": 10, "looks": 20,
                  "losses": [{"what": "alone", "of": "suspicion", "at_ns": 1, "protected_ms": 1500},
                             {"what": "taken-over", "of": "suspicion", "at_ns": 2, "runs_ms": 2.5, "protected_ms": 4000}]},
                 {"what": "fault", "chain": 0, "turn": 2, "fault": "freeze", "claims": 1, "rounds": {"compute 1": 7},
                  "statements": 30, "looks": 50, "losses": [{"what": "taken-over", "of": "freeze", "at_ns": 3, "runs_ms": 31.0}]},
                 {"what": "failure", "chain": 0, "turn": 3, "fault": "rest", "why": "x", "logs": "y"}]
        said = suspicion.text(json.loads(json.dumps(lines)))
        self.assertIn("2 turns: rest 1, kill-qemu 0, kill-both 0, freeze 1,", said)
        self.assertIn("claims that a standby made: 4; standbys given up before they protected: 1;", said)
        self.assertIn("| the standby | suspicion | 1 | 2 | 2 | 4,000 | 4,000 | 4,000 |", said)
        self.assertIn("| the standby | freeze | 1 | 31 | 31 | - | - | - |", said)
        self.assertIn("| the primary | suspicion | 1 | - | - | 1,500 | 1,500 | 1,500 |", said)
        self.assertIn("rounds 7, register operations 0, statements 30, looks at all gates 50; failures 1;", said)


if __name__ == "__main__":
    unittest.main()
