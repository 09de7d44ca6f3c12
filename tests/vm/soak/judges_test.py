#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What judges a soak finds what it is there to find, and nothing else."""
import json
import socket
import struct
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import relay  # pylint: disable=wrong-import-position
from soak import kinds, leaks, pairs, run, summary  # pylint: disable=wrong-import-position
from soak.ledger import COUNT, FACTOR, PROGRAMS, Ledger, after, begins_with  # pylint: disable=wrong-import-position
from soak.speakers import Speakers  # pylint: disable=wrong-import-position


def packet(number, before, result, value, magic=b"SOAKED01"):
    return magic + struct.pack("<QQQQ", number, before, result, value)


def history(program, values):
    """What a program says that gets these random bits."""
    said, now = [], begins_with(program)
    for number, value in enumerate(values, 1):
        said.append((number, now, after(program, now, value), value))
        now = said[-1][2]
    return said


class FormulasTest(unittest.TestCase):
    def test_each_program_is_what_the_gpu_does_element_by_element(self):
        value, mask = 0x0123456789abcdef, 0xffffffff
        inputs = {
            "compute": lambda i, count: [value] * 4096,
            "transfers": lambda i, count: [value + i],
            "commands": lambda i, count: [value + launch for launch in range(64)],
            "flush": lambda i, count: [value + i],
            "mapped": lambda i, count: [value if i == 0 else value >> 32],
        }
        for program in PROGRAMS:
            ends = []
            for i in (0, COUNT[program] - 1):
                x = i
                for add in inputs[program](i, COUNT[program]):
                    x = (x * FACTOR + add) & mask
                ends.append(x)
            self.assertEqual(after(program, begins_with(program), value), ends[0] << 32 | ends[1], program)


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.said = history("compute", range(100, 110))
        self.ledger = Ledger("compute")

    def hear(self, *numbers, magic=b"SOAKED01", host=1):
        for number in numbers:
            self.ledger.hear(packet(*self.said[number - 1], magic), host)

    def test_a_true_history(self):
        self.hear(1, 2, 3)
        self.assertEqual(self.ledger.faults, [])
        self.assertTrue(self.ledger.whole())
        self.assertEqual(self.ledger.last, 3)

    def test_lost_packets_are_asked_for(self):
        self.hear(1, 4, 6)
        self.assertEqual(self.ledger.missing(), [2, 3, 5])
        self.assertFalse(self.ledger.whole())
        self.hear(3, 2, 5, magic=b"AGAIN_01", host=2)
        self.assertEqual((self.ledger.missing(), self.ledger.faults), ([], []))
        self.assertTrue(self.ledger.whole())

    def test_a_round_that_is_taken_back(self):
        self.hear(1, 2, 3)
        self.hear(3, host=2)
        self.assertIn("round 3 was said by 2 after round 3", self.ledger.faults[0])

    def test_a_round_that_was_something_else(self):
        self.hear(1, 2)
        other = history("compute", [100, 7])
        self.ledger.hear(packet(*other[1], b"AGAIN_01"), 2)
        self.assertIn("round 2 was", self.ledger.faults[0])

    def test_a_lost_command(self):
        """The GPU did not do round 2: round 3 goes on from 1."""
        self.hear(1, 2)
        number, before = 3, self.said[0][2]
        self.ledger.hear(packet(number, before, after("compute", before, 5), 5), 1)
        self.assertIn("round 3 goes on from", self.ledger.faults[0])

    def test_a_command_done_twice(self):
        self.hear(1)
        before, twice = self.said[1][1], after("compute", after("compute", self.said[1][1], 101), 101)
        self.ledger.hear(packet(2, before, twice, 101), 1)
        self.assertIn("round 2 is wrong", self.ledger.faults[0])

    def test_a_hole_is_found_when_it_is_filled(self):
        """Both ends of it are true by themselves."""
        self.hear(1)
        other = history("compute", [100, 7, 8])
        self.ledger.hear(packet(*other[2]), 2)
        self.assertEqual(self.ledger.faults, [])
        self.hear(2, magic=b"AGAIN_01")
        self.assertIn("round 3 goes on from", self.ledger.faults[0])

    def test_what_was_never_said_is_not_said_again(self):
        self.hear(1)
        self.hear(2, magic=b"AGAIN_01")
        self.assertIn("was never said", self.ledger.faults[0])

    def test_a_history_that_begins_elsewhere(self):
        self.ledger.hear(packet(1, 5, after("compute", 5, 1), 1), 1)
        self.assertIn("round 1 goes on from", self.ledger.faults[0])

    def test_other_packets_are_none_of_its_business(self):
        self.ledger.hear(b"SOAKED01", 1)
        self.ledger.hear(b"STATED01" + bytes(32), 1)
        self.assertEqual((self.ledger.faults, self.ledger.last), ([], 0))


class SpeakersTest(unittest.TestCase):
    def setUp(self):
        self.speakers = Speakers()

    def test_one_after_the_other(self):
        for host in (1, 1, 2, 2, 3):
            self.speakers.heard(host)
        self.assertEqual((self.speakers.faults, self.speakers.order), ([], [1, 2, 3]))

    def test_who_was_taken_over_from_speaks(self):
        for host in (1, 2, 1):
            self.speakers.heard(host)
        self.assertIn("1 was heard after 2", self.speakers.faults[0])

    def test_two_gates_at_once(self):
        hosts = {"a": (True, 1000), "b": (True, 2000)}
        self.speakers.looked((10, hosts), (20, hosts))
        self.assertIn("a, b", self.speakers.faults[0])

    def test_a_gate_that_closed_between_the_looks(self):
        self.speakers.looked((10, {"a": (True, 15), "b": (True, 2000)}), (20, {"a": (True, 15), "b": (True, 2000)}))
        self.assertEqual(self.speakers.faults, [])

    def test_a_gate_that_opened_between_the_looks(self):
        self.speakers.looked((10, {"a": (True, 50), "b": (True, 0)}), (20, {"a": (True, 50), "b": (True, 2000)}))
        self.assertEqual(self.speakers.faults, [])

    def test_the_dead_do_not_speak(self):
        hosts = {"a": (False, 1000), "b": (True, 2000)}
        self.assertEqual(self.speakers.looked((10, hosts), (20, hosts)), {"b"})
        self.assertEqual(self.speakers.faults, [])


class LeaksTest(unittest.TestCase):
    def test_kinds_have_no_numbers(self):
        self.assertEqual(leaks.kind("socket:[1234]"), "socket:")
        self.assertEqual(leaks.kind("/memfd:guest-ram (deleted)"), "/memfd:guest-ram")
        self.assertEqual(leaks.kind("anon_inode:[eventfd]"), "anon_inode:[eventfd]")
        self.assertEqual(leaks.kind("/dev/kvm"), "device")
        self.assertEqual(leaks.kind("/tmp/some/file"), "file")

    def test_more(self):
        before, now = {"primary: qemu socket:": 4, "a": 1}, {"primary: qemu socket:": 6, "a": 1, "b": 1}
        self.assertEqual(leaks.more(before, now), ["b: 0 before, 1 now", "primary: qemu socket:: 4 before, 6 now"])
        self.assertEqual(leaks.more(before, now, (("socket:", 2),)), ["b: 0 before, 1 now"])
        self.assertEqual(leaks.more(now, before), [])

    def test_the_most_of_each(self):
        self.assertEqual(leaks.most([{"a": 1, "b": 5}, {"a": 3}]), {"a": 3, "b": 5})

    def test_workers_are_levelled_and_nothing_else(self):
        counts = {"primary: w processes": 1, "primary: w device": 24, "primary: qemu file": 9,
                  "standby: w processes": 1, "standby: w device": 8, "standby: w pipe:": 2, "standby: qemu file": 7}
        self.assertEqual(leaks.level(counts, "w"), {**counts, "standby: w device": 24, "primary: w pipe:": 2})
        del counts["standby: w processes"]
        self.assertNotIn("standby: w file", leaks.level({**counts, "primary: w file": 1}, "w"))

    def test_this_process_is_seen(self):
        counts = leaks.open_files("self")
        self.assertGreater(sum(counts.values()), 0)


class SummaryTest(unittest.TestCase):
    def test_percentiles(self):
        values = list(range(1, 101))
        self.assertEqual([summary.percentile(values, share) for share in (50, 90, 99, 100)], [50, 90, 99, 100])
        self.assertEqual(summary.percentile([7], 99), 7)

    def test_a_whole_one(self):
        results = [
            {"what": "chain", "chain": 0, "seed": 1, "programs": ["network", "compute"], "arbiter": "lock",
             "disk": True},
            {"what": "fault", "chain": 0, "turn": 1, "fault": "kill-qemu", "takeover_ms": 10.0, "computing_ms": 20.0},
            {"what": "fault", "chain": 0, "turn": 2, "fault": "cut"},
            {"what": "end", "chain": 0, "faults": 2, "rounds": {"compute": 30}, "statements": 40},
            {"what": "failure", "chain": 1, "turn": 3, "fault": "freeze", "why": "it hung", "logs": "/somewhere"},
        ]
        text = summary.text(summary.read([json.dumps(each) for each in results] + ['{"what": "fau']))
        for part in ("2 faults survived in 1 VMs, 1 failures", "30 rounds and 40 statements", "| kill-qemu | 1 | 10 |",
                     "cut, nobody takes over: 1", "FAILED in VM 1, fault 3 (freeze): it hung", "compute 2",
                     "faults by arbiter: lock 2", "faults by disk: with 2"):
            self.assertIn(part, text)

    def test_what_was_checked_counts_once_for_each_life(self):
        """A fault has all that was checked since the guest was started; a VM that was cut short has no end."""
        known = {"statements": 0, "looks": 0}
        results = [
            {"what": "chain", "chain": 0, "programs": ["network", "compute", "register"], "arbiter": "etcd", "servers": 3},
            {"what": "fault", "chain": 0, "fault": "cut", "life": 1, "rounds": {"compute 1": 10, "register 2": 100}, **known,
             "protected_ms": 5},
            {"what": "fault", "chain": 0, "fault": "power-off", "life": 1, "rounds": {"compute 1": 20, "register 2": 200},
             "statements": 7, "looks": 50, "protected_ms": 4321},
            {"what": "fault", "chain": 0, "fault": "kill-qemu", "life": 2, "rounds": {"compute 1": 3, "register 2": 30},
             "statements": 5, "looks": 60, "takeover_ms": 12.4, "made_twice": 2},
        ]
        self.assertEqual(summary.totals(results), (23, 230, 12, 60))
        text = summary.tables(results, {"seed": 1})
        for part in ("| seed | 1 |", "| 3 in 1 VMs |", "| 0; 1 more were ended by the time limit |", "| none |", "| 230 |",
                     "| 23; 12 |", "| 2, after 1 of the faults |", "| etcd × 3 3 |", "| 4,321 ms |", "| 0; 0 |",
                     "| `kill-qemu` | 1 | 1 | 12 | 12 | - | - |", "| `power-off` | 1 | 1 | - | - | 4,321 | 4,321 |"):
            self.assertIn(part, text)
        failed = summary.tables([*results, {"what": "failure", "chain": 0, "turn": 4, "fault": "cut", "why": "it hung"}])
        for part in ("| see the failures |", "| 1; 0 |", "FAILED in VM 0, fault 4 (cut): it hung"):
            self.assertIn(part, failed)


class KindsTest(unittest.TestCase):
    def test_each_kind_has_one_course(self):
        """It is one of those after which nobody takes over, or somebody does and the former primary ends somehow."""
        for kind in kinds.WEIGHTS:
            courses = [kind in kinds.ALONE, kind in kinds.ENDED, kind == "lossy-link", kind in kinds.ENDS]
            self.assertEqual(courses.count(True), 1, kind)
        self.assertLessEqual(set(kinds.FENCED), set(kinds.ALONE))

    def test_what_a_vm_does_not_have_is_not_hit(self):
        bare = {kind for kind in kinds.WEIGHTS
                if kinds.possible(kind, arbiter="fence", servers=0, gpu=False, disk=False, mounts=True)}
        self.assertFalse(bare & {"cut-off", "etcd-away", "member-dies", "stop-without-arbiter", "restored", "lossy-link",
                                 "kill-worker", "cut-gpu", "disk-full"})
        self.assertIn("kill-qemu", bare)
        for servers, also in ((1, "restored"), (3, "member-dies")):
            of = {kind for kind in kinds.WEIGHTS
                  if kinds.possible(kind, arbiter="etcd", servers=servers, gpu=True, disk=True, mounts=True)}
            self.assertEqual(of & {"restored", "member-dies"}, {also})


class PairsTest(unittest.TestCase):
    def test_each_soak_draws_for_itself_what_all_of_them_may_draw(self):
        def parse(*words):
            with unittest.mock.patch.object(sys, "argv", ["test_soak.py", *words]):
                return run.parse("", kinds.WEIGHTS, faults=4, faults_per_vm=25)
        many = parse("--pairs", "3", "--directory", "out", "--seed", "7", "--only", "cut,power-off", "--programs", "",
                     "--arbiter", "etcd", "--faults-per-vm", "9")
        one = parse(*pairs.words(many, "test_soak.py", 2, Path("/nowhere"), 500)[4:])
        self.assertEqual((one.seed, one.chain, one.only, one.programs, one.arbiter, one.faults_per_vm, one.pairs),
                         (7, 2000, ["cut", "power-off"], [], "etcd", 9, None))
        self.assertLess(one.minutes * 60, one.end_after)
        self.assertLess(one.end_after, 500)
        self.assertEqual(one.faults, run.NO_END)

    def test_so_do_those_of_a_short_budget(self):
        def parse(*words):
            with unittest.mock.patch.object(sys, "argv", ["test_soak.py", *words]):
                return run.parse("", kinds.WEIGHTS, faults=4, faults_per_vm=25)
        many = parse("--pairs", "3", "--directory", "out", "--budget-ms", "30", "--busy", "8", "--only", "rest,freeze",
                     "--gpu-budget-ms", "500")
        one = parse(*pairs.words(many, "test_soak.py", 2, Path("/nowhere"), 500)[4:])
        self.assertEqual((one.budget_ms, one.gpu_budget_ms, one.busy, one.only), (30, 500, 8, ["rest", "freeze"]))
        for wrong in (("--budget-ms", "30", "--only", "cut"), ("--budget-ms", "30", "--arbiter", "etcd"), ("--busy", "3")):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                parse(*wrong)

    def test_how_a_failure_of_a_short_budget_is_had_again(self):
        with unittest.mock.patch.object(sys, "argv", ["test_soak.py", "--budget-ms", "30", "--busy", "8", "--seed", "5"]):
            options = run.parse("", kinds.WEIGHTS, faults=4, faults_per_vm=25)
            self.assertTrue(run.again(options, 2, 3).endswith("--budget-ms 30 --busy 8"))

    def test_what_tells_of_a_failure_is_kept_and_images_are_not(self):
        with tempfile.TemporaryDirectory() as directory:
            vm = Path(directory, "3", "vm")
            (vm / "host1.d").mkdir(parents=True)
            (vm / "why").write_text("it hung", encoding="utf-8")
            (vm / "machine1.img").write_bytes(bytes(100))
            (vm / "host1.d" / "console.log").write_bytes(bytes(pairs.FILE_BYTES) + b"the end")
            pairs.keep([vm], Path(directory, "kept"))
            with tarfile.open(Path(directory, "kept")) as archive:
                self.assertEqual(sorted(archive.getnames()), ["3/vm/host1.d/console.log.end", "3/vm/why"])
                end = archive.extractfile("3/vm/host1.d/console.log.end").read()
            self.assertEqual((len(end), end[-7:]), (pairs.FILE_BYTES, b"the end"))


class BadPathTest(unittest.TestCase):
    def test_a_large_packet_vanishes_again_and_again(self):
        path = relay.BadPath(most_bytes=600)
        self.assertEqual([path.allows(now, size) for now, size in ((0, 600), (1, 1), (2, 601), (3, 1), (1000, 601))],
                         [600, 1, 0, 0, 0])

    def test_a_slow_one_carries_what_its_rate_allows(self):
        path = relay.BadPath(bytes_per_second=1000)
        self.assertEqual([path.allows(now, 10 ** 6) for now in (5, 5.5, 6)], [0, 500, 500])
        self.assertEqual(path.allows(7, 10), 10)

    def test_what_is_lost_is_late_and_later_each_time(self):
        lost = iter((0.1, 0.1, 0.9, 0.1))
        path = relay.BadPath(lost=0.3, draw=lambda: next(lost))
        self.assertEqual([path.allows(now, 7) for now in (0, 0.1, 0.2, 0.5, 0.7, 1.0)], [0, 0, 0, 0, 7, 0])

    def test_a_relay_that_is_mended_brings_all_in_order(self):
        with tempfile.TemporaryDirectory() as directory:
            with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as near:
                listener.bind(f"{directory}/far")
                listener.listen()
                between = relay.Relay(f"{directory}/near", f"{directory}/far")
                try:
                    near.connect(f"{directory}/near")
                    far, _ = listener.accept()
                    with far, far.makefile("rb") as heard:
                        between.degrade(most_bytes=100)
                        near.sendall(b"small")
                        self.assertEqual(heard.read(5), b"small")
                        near.sendall(b"L" * 101)
                        while not any(path.stuck for path in list(between.paths.values())):
                            time.sleep(0.01)
                        near.sendall(b"behind")
                        between.mend()
                        self.assertEqual(heard.read(107), b"L" * 101 + b"behind")
                finally:
                    between.close()


if __name__ == "__main__":
    unittest.main()
