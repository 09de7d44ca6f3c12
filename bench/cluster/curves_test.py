# SPDX-License-Identifier: GPL-2.0-or-later
"""Speed-ups and the physical model, from runs that are made up here."""
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

sys.dont_write_bytecode = True
sys.path.append(str(Path(__file__).resolve().parent))
import curves  # noqa: E402

HALO = {"columns": 1000, "steps": 100}


def run(limit, nodes, seconds, program="halo"):
    return {"program": program, "limit": limit, "nodes": nodes, "seconds": seconds}


RUNS = [run(None, 1, 8.0), run(None, 2, 4.0), run(None, 2, 4.4), run(None, 2, 9.0), run(10, 1, 8.0), run(10, 2, 5.0), run(10, 2, None)]


class Curves(unittest.TestCase):
    def test_the_median_counts_and_failed_runs_do_not(self):
        self.assertEqual(curves.seconds(RUNS, "halo", None, 2), 4.4)
        self.assertEqual(curves.seconds(RUNS, "halo", 10, 2), 5.0)
        self.assertIsNone(curves.seconds(RUNS, "halo", 10, 4))
        self.assertAlmostEqual(curves.speedup(RUNS, "halo", 10, 2), 1.6)
        self.assertIsNone(curves.speedup(RUNS, "halo", 10, 4))

    def test_the_wire_takes_what_its_bandwidth_says(self):
        # Two rows of 4,000 bytes with their headers, and one frame more, a hundred times.
        self.assertAlmostEqual(curves.wire_seconds(1000, 100, 10, 2), 100 * (8000 * 1514 / 1448 + 1514) * 8 / 10e6)
        self.assertEqual(curves.wire_seconds(1000, 100, 10, 1), 0)
        self.assertEqual(curves.wire_seconds(1000, 100, None, 4), 0)

    def test_only_who_communicates_waits_for_the_wire(self):
        self.assertGreater(curves.model(RUNS, "halo", 10, 2, HALO), 4.4)
        runs = [run(None, 2, 3.0, "sums")]
        self.assertEqual(curves.model(runs, "sums", 10, 2, HALO), 3.0)
        self.assertIsNone(curves.model(runs, "sums", 10, 4, HALO))

    def test_the_table_has_each_limit_and_number_of_nodes_once(self):
        lines = curves.table(RUNS, "halo", HALO)
        self.assertEqual(len(lines), 2 + 4)
        self.assertTrue(lines[2].startswith("| none | 1 | 8.00 | 1.00 |"), lines[2])
        self.assertTrue(lines[5].startswith("| 10 Mbit/s | 2 | 5.00 | 1.60 |"), lines[5])

    def test_the_picture_is_xml_with_a_line_for_each_limit(self):
        tree = ElementTree.fromstring(curves.picture(RUNS, "halo"))
        self.assertEqual(sum(one.tag.endswith("polyline") for one in tree.iter()), 2)


if __name__ == "__main__":
    unittest.main()
