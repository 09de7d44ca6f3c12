#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What is pure in `kage bench`: statistics, order, report, comparison. `--rewrite` writes the golden reports anew."""
import copy
import json
import os
import re
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from price import compare, crowd, figures, hosts, main, mechanisms, page, plan, real, table, text  # pylint: disable=wrong-import-position

FIXTURE = HERE / "testdata" / "results.json"


def fixture():
    return json.loads(FIXTURE.read_text(encoding="utf-8"))


def numbered(*values):
    return dict(enumerate(values))


class FiguresTest(unittest.TestCase):
    def test_median_and_quartiles(self):
        self.assertEqual(figures.median([5, 1, 3, 2, 4]), figures.Figure(3, 2, 4, 5))
        self.assertEqual(figures.median([7]), figures.Figure(7, 7, 7, 1))
        self.assertIsNone(figures.median([]))

    def test_quantile_lies_between_neighbours(self):
        self.assertEqual(figures.quantile([10, 20], 0.25), 12.5)
        self.assertEqual(figures.quantile([3, 1, 2], 1), 3)

    def test_no_ratio_from_one_run(self):
        self.assertIsNone(figures.ratio(numbered(2), numbered(1)))
        self.assertIsNone(figures.ratio({}, {}))
        # Two runs on each side that were never in the same round are no pair.
        self.assertIsNone(figures.ratio({0: 2, 1: 2}, {2: 1, 3: 1}))

    def test_a_ratio_is_made_round_by_round(self):
        # The machine was ten times slower in the second round, for both.
        found = figures.ratio(numbered(2, 20, 2.2), numbered(1, 10, 1.1))
        self.assertAlmostEqual(found.value, 2)
        self.assertAlmostEqual(found.low, 2)
        self.assertAlmostEqual(found.high, 2)
        self.assertEqual(found.rounds, 3)

    def test_the_interval_has_the_value_and_stays_in_the_range(self):
        found = figures.ratio(numbered(1.0, 1.2, 1.1, 1.5, 1.05), numbered(1, 1, 1, 1, 1))
        self.assertLessEqual(found.low, found.value)
        self.assertLessEqual(found.value, found.high)
        self.assertGreaterEqual(found.low, 1.0)
        self.assertLessEqual(found.high, 1.5)
        self.assertLess(found.low, found.high)

    def test_the_same_results_give_the_same_interval(self):
        one, other = numbered(1.0, 1.2, 1.1), numbered(1.0, 0.9, 1.1)
        self.assertEqual(figures.ratio(one, other), figures.ratio(one, other))

    def test_more_rounds_make_it_narrower(self):
        wide = figures.ratio(numbered(1, 2, 1.5), numbered(1, 1, 1))
        narrow = figures.ratio(numbered(*[1, 2, 1.5] * 30), numbered(*[1] * 90))
        self.assertLess(narrow.high - narrow.low, wide.high - wide.low)

    def test_geometric_mean(self):
        pairs = [(numbered(4, 4), numbered(1, 1)), (numbered(1, 1), numbered(1, 1))]
        self.assertAlmostEqual(figures.mean_ratio(pairs).value, 2)
        self.assertIsNone(figures.mean_ratio([*pairs, (numbered(1), numbered(1))]))
        self.assertIsNone(figures.mean_ratio([]))

    def test_a_change_is_more_than_both_are_uncertain(self):
        old = figures.Figure(1.1, 1.0, 1.2, 3)
        self.assertEqual(figures.changed(old, figures.Figure(1.3, 1.21, 1.4, 3)), 1)
        self.assertEqual(figures.changed(old, figures.Figure(1.3, 1.19, 1.4, 3)), 0)
        self.assertEqual(figures.changed(old, figures.Figure(0.9, 0.8, 0.99, 3)), -1)
        self.assertEqual(figures.changed(old, None), 0)


class PlanTest(unittest.TestCase):
    def test_each_cell_once(self):
        found = list(plan.cells(3, ["a", "b"], ["x", "y", "z"]))
        self.assertEqual(len(found), 18)
        self.assertEqual(len(set(found)), 18)

    def test_columns_take_turns_within_a_program(self):
        found = list(plan.cells(2, ["a", "b"], ["x", "y", "z"]))
        for start in range(0, len(found), 3):
            self.assertEqual(len({cell[:2] for cell in found[start:start + 3]}), 1)

    def test_everybody_begins_once(self):
        first = [cell[2] for cell in list(plan.cells(3, ["a"], ["x", "y", "z"]))[::3]]
        self.assertEqual(sorted(first), ["x", "y", "z"])

    def test_what_is_done_is_not_done_again(self):
        whole = list(plan.cells(2, ["a", "b"], ["x", "y"]))
        self.assertEqual(plan.left_over(2, ["a", "b"], ["x", "y"], whole[:3]), whole[3:])
        self.assertEqual(plan.left_over(2, ["a", "b"], ["x", "y"], whole), [])

    def test_what_is_not_there_is_not_planned(self):
        found = list(plan.cells(1, ["a", "b"], ["x", "y"], {"b": ["x"]}))
        self.assertEqual(sorted(found), [(0, "a", "x"), (0, "a", "y"), (0, "b", "y")])

    def test_remaining_time(self):
        todo = [(1, "a", "x"), (1, "b", "x"), (1, "a", "y")]
        self.assertEqual(plan.remaining_seconds(todo, {("a", "x"): [2, 100, 2]}), 2 + 2 + plan.FIRST_GUESS_SECONDS)
        self.assertEqual(plan.remaining_seconds([], {}), 0)

    def test_durations(self):
        self.assertEqual([plan.duration(s) for s in (45, 200, 7500)], ["45 s", "3 min", "2 h 05 min"])


class ListenerTest(unittest.TestCase):
    def test_a_begin_and_an_end_that_were_seen_at_once_are_no_time(self):
        listener = hosts.Listener()
        listener.take(b"@begin\n@end\n", 5.0)
        run = listener.done(0)
        self.assertTrue(run.missed)
        self.assertIsNone(run.seconds)
        cell = main.Columns.cell({"name": "sort"}, run, {}, {})
        self.assertIn("seen at once", cell["error"])
        listener = hosts.Listener()
        listener.take(b"@begin\n", 5.0)
        listener.take(b"@end\n", 5.5)
        self.assertEqual((listener.done(0).missed, listener.done(0).seconds), (False, 0.5))

    def test_takes_the_time_of_both_marks_in_pieces(self):
        listener = hosts.Listener()
        self.assertEqual(listener.take(b"hello\r\n@beg", 1.0), ["hello"])
        self.assertEqual(listener.take(b"in\n", 2.0), [])
        self.assertEqual(listener.take(b'@end\n{"wrong": ""}\n@done 1 0\n', 5.5), ['{"wrong": ""}', "@done 1 0"])
        run = listener.done(0)
        self.assertEqual((run.status, run.seconds, run.result()), (0, 3.5, {"wrong": ""}))

    def test_without_an_end_there_are_no_seconds(self):
        listener = hosts.Listener()
        listener.take(b"@begin\n{broken\n", 1.0)
        self.assertIsNone(listener.done(1).seconds)
        self.assertEqual(listener.done(1).result(), {})


class NativeTest(unittest.TestCase):
    def test_a_program_that_fails_or_hangs_is_a_result(self):
        self.assertEqual(hosts.Native("/bin/false").run(["x"], 60).status, 1)
        begun = time.monotonic()
        run = hosts.Native("/bin/sleep").run(["600"], 0.2)
        self.assertEqual((run.status, run.seconds), (-1, None))
        self.assertIn("not within", run.said[-1])
        self.assertLess(time.monotonic() - begun, 500)


class RealTest(unittest.TestCase):
    def test_what_the_host_does_not_have_runs_in_vms_only(self):
        found = {one["name"]: one["not_in"] for one in real.programs(lambda name: None if name == "hashcat" else name)}
        self.assertEqual(found, {"clblast": [], "clpeak": [], "hashcat": ["logged", "native"]})

    def test_a_program_has_to_say_what_it_says_when_it_is_right(self):
        hashcat = next(one for one in real.PROGRAMS if one["name"] == "hashcat")
        self.assertEqual(real.wrong(hashcat, 0, [f"{real.WORDS_MD5}:{real.WORD}"]), "")
        self.assertIn("did not say", real.wrong(hashcat, 0, ["nothing found"]))
        self.assertIn("status 3", real.wrong(hashcat, 3, [f"{real.WORDS_MD5}:{real.WORD}"]))
        clblast = next(one for one in real.PROGRAMS if one["name"] == "clblast")
        self.assertNotEqual(real.wrong(clblast, 0, ["   0 test(s) passed"]), "")

    def test_a_whole_command_natively(self):
        run = hosts.Native("").run(["whole", "echo there; exit 3"], 60)
        self.assertEqual((run.status, run.said), (3, ["there"]))
        self.assertGreater(run.seconds, 0)


class CrowdTest(unittest.TestCase):
    def samples(self):
        return [{"vms": count, "column": column, "round": number, "error": None, "processor_seconds": 2.0, "memory_mib": 300.0,
                 "seconds": [count * (1.1 if column == "logged" else 1.0)] * count}
                for number in range(2) for count in (1, 2) for column in crowd.USUAL]

    def test_each_turn_once(self):
        everything = crowd.todo(2, (1, 2), [])
        self.assertEqual(len(set(everything)), 8)
        self.assertEqual(crowd.todo(2, (1, 2), self.samples()), [])
        self.assertEqual(len(crowd.todo(3, (1, 2), self.samples())), 4)

    def test_the_ratio_for_each_count(self):
        lines = crowd.lines(self.samples())
        self.assertEqual([line[0] for line in lines], ["VMs", "1", "2"])
        self.assertTrue(lines[2][3].startswith("1.10 "), lines[2])

    def test_a_third_kind_of_vms_has_a_ratio_of_its_own(self):
        more = [{**one, "column": "protected", "seconds": [1.2 * second for second in one["seconds"]]}
                for one in self.samples() if one["column"] == "vm"]
        self.assertEqual(len(crowd.todo(2, (1, 2), self.samples(), crowd.COLUMNS)), 8)
        lines = crowd.lines(self.samples() + more)
        self.assertEqual(lines[0][3:6], ["protected s", "logged : unprotected", "protected : unprotected"])
        self.assertTrue(lines[1][5].startswith("1.20 "), lines[1])

    def test_the_goal_is_for_eight(self):
        results = fixture()
        results["crowd"] = self.samples()
        self.assertNotIn("at once", "".join(what for what, *_ in table.goals(results)))
        results["crowd"] += [{**one, "vms": 8} for one in self.samples() if one["vms"] == 2]
        [(_, figure, goal, reached)] = [one for one in table.goals(results) if "8 at once" in one[0]]
        self.assertEqual((round(figure.value, 2), goal, reached), (1.10, 1.10, figure.high <= 1.10))
        results["crowd"] += [{**one, "column": "checkpointed", "seconds": [1.5 * second for second in one["seconds"]]}
                             for one in results["crowd"] if one["vms"] == 8 and one["column"] == "vm"]
        judged = [(what, round(figure.value, 2), reached) for what, figure, _, reached in table.goals(results) if "8 at once" in what]
        self.assertEqual([one[1:] for one in judged if one[0].startswith("checkpointed")], [(1.5, False)])

    def test_a_failure_is_in_the_table_and_among_the_errors(self):
        results = fixture()
        results["crowd"] = self.samples()
        results["crowd"][0].update(error="a VM is gone", seconds=[])
        self.assertIn("1 FAILED", text.report(results))
        self.assertIn("1 VMs, vm, round 1: a VM is gone", text.report(results))
        self.assertIn("a VM is gone", page.page(results))
        self.assertTrue(text.failed(results))

    def test_memory_that_two_processes_have_together_counts_once(self):
        with subprocess.Popen(["sleep", "60"]) as other:
            try:
                self.assertTrue(crowd.share_memory(os.getpid(), os.getpid()))
                self.assertFalse(crowd.share_memory(os.getpid(), other.pid))
                alone = crowd.memory_mib([os.getpid()])
                self.assertGreater(alone, 1)
                self.assertLess(crowd.memory_mib([os.getpid(), os.getpid()]), 1.5 * alone)
                self.assertGreater(crowd.memory_mib([other.pid]), 0)
            finally:
                other.kill()

    def test_all_run_at_the_same_time_and_one_that_fails_fails_alone(self):
        class Fake:
            def __init__(self, error):
                self.error = error

            def run(self, words, seconds):
                meeting.wait(60)  # only when the other one runs too
                if self.error:
                    raise hosts.Lost("gone")
                return (words, seconds)
        import threading
        meeting = threading.Barrier(2)
        runs = crowd.together([Fake(False), Fake(True)], ["x"], 5)
        self.assertEqual(runs[0], (["x"], 5))
        self.assertIsInstance(runs[1], hosts.Lost)


class ColumnsTest(unittest.TestCase):
    class Fake:
        directories = []

        def __init__(self, failures):
            self.failures = failures

        def start(self):
            if self.failures:
                raise hosts.Lost(self.failures.pop())

        def end(self):
            pass

    def columns(self, failures):
        columns = main.Columns(None)
        columns.make = lambda name: self.Fake(failures)
        return columns

    def test_what_does_not_start_is_started_again(self):
        self.assertIsInstance(self.columns(["a panic", "a panic"]).get("vm"), self.Fake)

    def test_but_not_for_ever_and_the_reason_is_kept(self):
        with self.assertRaisesRegex(hosts.Lost, "not started any more: its log ends with . the first reason"):
            self.columns(["its log ends with\n    | the first reason"] * 3).get("vm")

    def test_the_reason_is_that_of_the_last_start(self):
        columns = self.columns(["a panic"] * 3)
        for _ in range(3):
            try:
                columns.get("vm")
            except hosts.Lost as error:
                columns.lose("vm", error)
        self.assertEqual(columns.reason["vm"], "a panic")

    def test_a_frozen_process_that_had_ended_is_none_too_few(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        pair = hosts.Protected.__new__(hosts.Protected)
        pair.frozen, settled = [ended.pid], []
        pair.settle = lambda: settled.append(True)
        pair.enter()
        self.assertEqual((pair.frozen, settled), ([], [True]))

    def test_an_error_is_one_line_with_its_begin_and_its_end(self):
        self.assertEqual(hosts.one_line("a\n  b"), "a b")
        self.assertRegex(hosts.one_line("begin " + "x" * 1000 + " end"), "^begin x+ … x+ end$")


class MechanismsTest(unittest.TestCase):
    def test_status_and_output_are_kept(self):
        one = {"name": "n", "title": "a title", "command": "echo {out}; exit 4"}
        found = mechanisms.measure(one, {"out": "here"})
        self.assertEqual((found["status"], found["said"]), (4, ["here"]))
        results = fixture()
        results["mechanisms"] = [found]
        self.assertIn("a title: FAILED with status 4", text.report(results))
        self.assertTrue(text.failed(results))

    def test_a_place_is_one_word_even_when_it_is_empty(self):
        found = mechanisms.measure({"name": "n", "title": "t", "command": "printf '<%s>' {out} {gpu}"}, {"out": "a b", "gpu": ""})
        self.assertEqual(found["said"], ["<a b><>"])

    def test_what_a_table_means_is_beside_it(self):
        results = fixture()
        results["mechanisms"] = [{"name": "n", "title": "t", "about": ["a peer <does> this"], "status": 0, "said": ["1"]}]
        self.assertIn("a peer <does> this", text.report(results))
        self.assertIn("<p>a peer &lt;does&gt; this</p>", page.page(results))

    def test_whole_programs_have_a_picture_of_their_own(self):
        results = fixture()
        pictures = page.where_pictures(results).count("<svg")
        longest = results["programs"][0]
        longest["command"] = "something"
        self.assertEqual((pictures, page.where_pictures(results).count("<svg")), (1, 2))

    def test_a_printed_table_is_a_table_of_the_page(self):
        shown = page.printed(["before", "| a | b<c |", "|---|---|", "| 1 | 2 |", "| it ended |", "after"])
        self.assertEqual(shown, "<pre>before</pre><table><tr><th>a</th><th>b&lt;c</th></tr><tr><td>1</td><td>2</td></tr>"
                                "<tr><td colspan=2>it ended</td></tr></table><pre>after</pre>")

    def test_one_that_hangs_is_ended(self):
        found = mechanisms.measure({"name": "n", "title": "t", "command": "sleep 600"}, {}, seconds=0.2)
        self.assertEqual(found["status"], -1)
        self.assertIn("not within", found["said"][-1])

    def test_what_is_done_is_not_done_again(self):
        names = [one["name"] for one in mechanisms.ALL]
        self.assertEqual([one["name"] for one in mechanisms.left_over([{"name": names[0]}])], names[1:])
        self.assertEqual([one["name"] for one in mechanisms.left_over([], ["tracer"])], ["tracer"])

    def test_every_command_has_its_places(self):
        places = dict.fromkeys(("root", "build", "out", "qemu", "tool", "gpu", "standby_gpu"), "x")
        for one in mechanisms.ALL:
            self.assertNotRegex(one["command"].format(**places), r"[{}]")


class TiedTest(unittest.TestCase):
    def test_what_a_killed_bench_has_started_dies_with_it(self):
        # A shell in the bench's place starts the tool (here: sleep), says its number, and is killed.
        import os
        import subprocess
        with subprocess.Popen(["sh", "-c", f"'{HERE}/tied.sh' 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True,
                              env=dict(os.environ, KAGE_BENCH_TOOL="/bin/sleep")) as parent:
            child = int(parent.stdout.readline())
            deadline = time.monotonic() + 60
            while hosts.executable(child) != "sleep":
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            parent.kill()
        while hosts.executable(child) == "sleep":
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class TableTest(unittest.TestCase):
    def test_a_failed_run_is_an_error_and_no_time(self):
        results = fixture()
        row = next(row for row in table.rows(results) if row.name == "mapped")
        self.assertEqual(len(row.errors["protected"]), 1)
        self.assertEqual(row.times["protected"].rounds, 2)
        self.assertEqual(row.ratios["protected", "vm"].rounds, 2)
        self.assertIn("mapped, protected, round 2: the kernel did not see a store into part 3", text.report(results))

    def test_a_program_without_results_makes_no_mean(self):
        results = fixture()
        for cell in results["cells"]:
            if cell["program"] == "gemm" and cell["column"] == "protected":
                cell.update(seconds=None, error="lost")
        means = table.means(results)
        self.assertIsNone(means["protected", "vm"])
        self.assertIsNotNone(means["mirrored", "vm"])

    def test_goals_are_judged(self):
        results = fixture()
        (_, figure, goal, reached), = table.goals(results)
        self.assertEqual((goal, reached), (1.10, True))
        self.assertLess(figure.high, 1.10)
        for cell in results["cells"]:
            if cell["column"] == "logged" and cell["seconds"]:
                cell["seconds"] *= 10
        self.assertIs(table.goals(results)[0][3], False)

    def test_a_goal_that_is_not_reached_has_reasons(self):
        results = fixture()
        self.assertEqual(table.reasons(results), [])
        for cell in results["cells"]:
            if cell["column"] == "logged" and cell["seconds"]:
                cell["seconds"] *= 20 if cell["program"] == "mapped" else 3
                cell["counters"] = dict(cell["counters"] or {}, **{"cpu-device": 7.0, "sent-bytes": 3e9})
            elif cell["column"] == "vm" and cell["seconds"]:
                cell["counters"] = dict(cell["counters"] or {}, **{"cpu-device": 2.0})
        dearest, where, _ = table.reasons(results)
        self.assertIn("the dearest program is mapped", dearest)
        self.assertIn("device, encoding, link 5.00", where)
        self.assertIn("3.00 GB were sent", where)
        self.assertIn(where, text.report(results))
        self.assertIn("the dearest program is mapped", page.page(results))

    def test_what_two_gpus_are_judged_by(self):
        results = fixture()
        results["settings"].update(gpu="0", standby_gpu="1")
        for cell in results["cells"]:
            natively = {"gemm": 1.0, "launches": 0.2, "mapped": 0.3}[cell["program"]]
            price = {"gemm": 1.01, "launches": 1.1, "mapped": 1.3}[cell["program"]] if cell["column"] == "protected" else 1.0
            cell.update(seconds=natively if cell["column"] == "native" else price, error=None)
        found = table.goals(results)
        self.assertEqual([(what.split(", ", 1)[1], reached) for what, _, _, reached in found[1:]], [
            ("geometric mean of what the GPU bounds (gemm)", True), ("geometric mean of all programs", False),
            ("the dearest program (mapped)", False)])
        for cell in results["cells"]:
            if cell["program"] == "gemm" and cell["column"] == "protected":
                cell["seconds"] = 1.03
        self.assertIs(table.goals(results)[1][3], False)

    def test_a_goal_within_the_interval_is_neither_reached_nor_missed(self):
        results = fixture()
        for cell in results["cells"]:
            if cell["column"] == "logged" and cell["seconds"]:
                cell["seconds"] *= (1.0, 1.05, 1.2)[cell["round"]]
        (_, figure, goal, reached), = table.goals(results)
        self.assertTrue(figure.low < goal < figure.high)
        self.assertIsNone(reached)

    def test_processor_time_of_the_primary_leaves_the_standby_out(self):
        results = fixture()
        row = table.rows(results)[0]
        self.assertAlmostEqual(row.processor_ratios["mirrored", "vm"].value, row.ratios["mirrored", "vm"].value, places=2)
        for cell in results["cells"]:
            if cell["column"] == "mirrored":
                cell["counters"]["cpu-standby-gpu"] *= 100
        self.assertEqual(table.rows(results)[0].processor_ratios["mirrored", "vm"], row.processor_ratios["mirrored", "vm"])

    def test_a_busy_machine_and_an_interrupted_run_are_said(self):
        results = fixture()
        self.assertEqual(table.problems(results), [])
        results["machine"]["load_begin"] = 7.0
        results["finished"] = False
        self.assertEqual(len(table.problems(results)), 2)

    def test_one_round_has_times_and_no_ratio(self):
        results = fixture()
        results["settings"]["rounds"] = 1
        results["cells"] = [cell for cell in results["cells"] if cell["round"] == 0]
        for row in table.rows(results):
            self.assertTrue(all(figure is None for figure in row.ratios.values()))
            self.assertIsNotNone(row.times["native"])
        self.assertNotRegex(page.ratio_picture(results, table.rows(results)), "circle")
        self.assertIn("no ratio is shown", text.report(results))


class ReportTest(unittest.TestCase):
    maxDiff = None

    def golden(self, name, found):
        path = HERE / "testdata" / name
        if "--rewrite" in sys.argv:
            path.write_text(found, encoding="utf-8")
        self.assertEqual(found, path.read_text(encoding="utf-8"), f"{name}: if that is right, price_test.py --rewrite")

    def test_text(self):
        self.golden("report.txt", text.report(fixture()) + "\n")

    def test_page(self):
        self.golden("report.html", page.page(fixture()))

    def test_page_needs_nothing_from_elsewhere(self):
        self.assertNotRegex(page.page(fixture()), r"(?i)<script|src=|href=|url\(|@import")

    def test_pictures_are_well_formed(self):
        pictures = re.findall(r"<svg.*?</svg>", page.page(fixture()), re.DOTALL)
        self.assertEqual(len(pictures), 2)
        for picture in pictures:
            xml.etree.ElementTree.fromstring(picture)

    def test_names_from_elsewhere_are_escaped(self):
        results = fixture()
        results["machine"]["gpu"] = "<b>GPU & Co"
        results["cells"][0].update(seconds=None, error="<script>")
        found = page.page(results)
        self.assertIn("&lt;b&gt;GPU &amp; Co", found)
        self.assertNotIn("<script>", found)

    def test_both_reports_have_every_ratio(self):
        results = fixture()
        plain, html = text.report(results), page.page(results)
        for row in table.rows(results):
            for figure in row.ratios.values():
                self.assertIn(text.ratio(figure), plain)
                self.assertIn(f"{figure.value:.2f}", html)


class CompareTest(unittest.TestCase):
    def test_the_same_results_are_no_change(self):
        found = compare.report(fixture(), fixture())
        self.assertIn("reproduces the old one within their spread", found)
        self.assertNotIn("DEARER", found)

    def test_what_became_dearer_is_found(self):
        new = fixture()
        for cell in new["cells"]:
            if (cell["program"], cell["column"]) == ("gemm", "protected"):
                cell["seconds"] *= 3
        found = compare.report(fixture(), new)
        line, = [line for line in found.splitlines() if line.startswith("gemm") and "protected : VM" in line]
        self.assertTrue(line.endswith("DEARER"), line)
        self.assertIn("Dearer by more than both intervals: gemm, protected : VM", found)
        self.assertNotIn("within their spread", found)
        self.assertIn("cheaper", compare.report(new, fixture()))

    def test_a_slower_machine_is_no_change(self):
        new = fixture()
        for cell in new["cells"]:
            if cell["seconds"]:
                cell["seconds"] *= 5
        new["machine"]["cpu"] = "another one"
        found = compare.report(fixture(), new)
        self.assertNotIn("DEARER", found)
        self.assertIn("is another one", found)

    def test_what_has_one_round_is_neither_reproduced_nor_not(self):
        new = fixture()
        new["cells"] = [cell for cell in new["cells"] if cell["round"] == 0]
        self.assertIn("Nothing can be compared", compare.report(fixture(), new))
        new = fixture()
        new["cells"] = [cell for cell in new["cells"] if cell["round"] == 0 or cell["program"] != "gemm"]
        found = compare.report(fixture(), new)
        self.assertRegex(found, r"[0-9]+ can't be compared")

    def test_few_rounds_differ_by_chance(self):
        self.assertAlmostEqual(compare.by_chance(3, 3), 0.1)
        self.assertLess(compare.by_chance(5, 5), 0.01)

    def test_a_report_says_whether_it_was_reproduced(self):
        again = compare.again(fixture(), fixture())
        self.assertIn("within their spread", text.report(fixture(), again))
        shown = page.page(fixture(), again)
        self.assertIn("<h2>A second time</h2>", shown)
        self.assertIn("href='previous.json'", shown)
        other = fixture()
        other["settings"]["scale"] = 8
        self.assertEqual(compare.again(other, fixture()), [])
        self.assertEqual(compare.again(None, fixture()), [])

    def test_refusals(self):
        new = fixture()
        self.assertEqual(compare.refusal(fixture(), new), "")
        new["settings"]["scales"] = {}  # older results do not have it
        self.assertEqual(compare.refusal(fixture(), new), "")
        new["settings"]["scales"] = {"gemm": 2}
        self.assertIn("scales", compare.refusal(fixture(), new))
        new = fixture()
        new["settings"]["scale"] = 8
        self.assertIn("scale", compare.refusal(fixture(), new))
        self.assertIn("no results", compare.refusal({"format": 2}, fixture()))


class ScalesTest(unittest.TestCase):
    def test_one_for_all_and_some_of_their_own(self):
        self.assertEqual(main.scales("8"), (8, {}))
        self.assertEqual(main.scales("32,gemm=24,mapped=1"), (32, {"gemm": 24, "mapped": 1}))
        settings = {"scale": 32, "scales": {"gemm": 24}}
        self.assertEqual([plan.scale_of(settings, name) for name in ("gemm", "fft")], [24, 32])
        self.assertEqual(plan.scale_of({"scale": 4}, "gemm"), 4)

    def test_refusals(self):
        for wrong in ("0", "257", "gemm=", "gemm=x", "=", "-3"):
            with self.assertRaises(ValueError, msg=wrong):
                main.scales(wrong)


class GoingOnTest(unittest.TestCase):
    """begun_before(): only the same run is gone on with."""

    def begun(self, **changes):
        import tempfile
        results = copy.deepcopy(fixture())
        results["finished"] = changes.pop("finished", False)
        settings = {key: value for key, value in results["settings"].items() if key != "repeats"}
        settings.update(changes)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "results.json"
            self.assertIsNone(main.begun_before(path, settings, "x"))
            main.write_whole(path, json.dumps(results))
            return main.begun_before(path, settings, changes.get("commit", results["machine"]["commit"]))

    def test_the_same_run(self):
        self.assertEqual(len(self.begun()["cells"]), len(fixture()["cells"]))

    def test_another_one(self):
        self.assertIsNone(self.begun(finished=True))
        self.assertIsNone(self.begun(rounds=9))
        self.assertIsNone(self.begun(commit="another"))


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--rewrite"])
