#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What is pure in `kage bench`: statistics, order, report, comparison. `--rewrite` writes the golden reports anew."""
import copy
import json
import re
import sys
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from price import compare, figures, hosts, main, page, plan, table, text  # pylint: disable=wrong-import-position

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

    def test_remaining_time(self):
        todo = [(1, "a", "x"), (1, "b", "x"), (1, "a", "y")]
        self.assertEqual(plan.remaining_seconds(todo, {("a", "x"): [2, 100, 2]}), 2 + 2 + plan.FIRST_GUESS_SECONDS)
        self.assertEqual(plan.remaining_seconds([], {}), 0)

    def test_durations(self):
        self.assertEqual([plan.duration(s) for s in (45, 200, 7500)], ["45 s", "3 min", "2 h 05 min"])


class ListenerTest(unittest.TestCase):
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
        self.assertEqual(hosts.Native("/bin/false").run([], 60).status, 1)
        begun = time.monotonic()
        run = hosts.Native("/bin/sleep").run(["600"], 0.2)
        self.assertEqual((run.status, run.seconds), (-1, None))
        self.assertIn("not within", run.said[-1])
        self.assertLess(time.monotonic() - begun, 500)


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
        self.assertIn("No ratio is dearer", found)
        self.assertNotIn("DEARER", found)

    def test_what_became_dearer_is_found(self):
        new = fixture()
        for cell in new["cells"]:
            if (cell["program"], cell["column"]) == ("gemm", "protected"):
                cell["seconds"] *= 3
        found = compare.report(fixture(), new)
        line, = [line for line in found.splitlines() if line.startswith("gemm") and "protected : VM" in line]
        self.assertTrue(line.endswith("DEARER"), line)
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

    def test_refusals(self):
        new = fixture()
        self.assertEqual(compare.refusal(fixture(), new), "")
        new["settings"]["scale"] = 8
        self.assertIn("scale", compare.refusal(fixture(), new))
        self.assertIn("no results", compare.refusal({"format": 2}, fixture()))


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
