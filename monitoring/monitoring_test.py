#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The alerts and the board fit each other, the exporter and the documents, and Prometheus understands them.

    monitoring_test.py TOOL    the control tool, whose `metrics` names what there is
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
RULES = HERE / "kagemusha.rules.yml"
BOARD = HERE / "kagemusha.dashboard.json"
OPERATIONS = HERE.parent / "docs" / "operations.md"
TOOL = sys.argv.pop(1)

# Which nobody has to look at: they are for `kage status` and for whoever debugs.
NOT_ON_THE_BOARD = {"kagemusha_vm_up", "kagemusha_replication_info", "kagemusha_replication_epoch",
                    "kagemusha_replication_committed_epoch", "kagemusha_replication_lag_entries",
                    "kagemusha_replication_shipped_objects", "kagemusha_replication_transferred_bytes_total",
                    "kagemusha_replication_held_back_seconds_max", "kagemusha_replication_connections_total",
                    "kagemusha_replication_built_bytes_total", "kagemusha_replication_built_dropped_total"}


def promtool(*words):
    """Its status and what it says"""
    done = subprocess.run(["promtool", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, cwd=HERE)
    return done.returncode, done.stdout


def exported():
    """name → type, as an exporter without VMs says"""
    with tempfile.TemporaryDirectory() as empty:
        with subprocess.Popen([TOOL, "metrics", "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, env=dict(os.environ, KAGEMUSHA_RUNTIME_DIR=empty)) as exporter:
            try:
                with urllib.request.urlopen(exporter.stderr.readline().strip(), timeout=60) as page:
                    text = page.read().decode()
            finally:
                exporter.terminate()
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def names(text):
    return set(re.findall(r"kagemusha_[a-z_]+", text))


def expressions_of_rules():
    return re.findall(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", RULES.read_text(encoding="utf-8"), re.MULTILINE)


def expressions_of_board():
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    found += [each["expr"] for each in board["annotations"]["list"]]
    return [each.replace("$__rate_interval", "5m").replace("$vm", ".*") for each in found]


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.exported = {name: kind for name, kind in exported().items() if name.startswith("kagemusha_")}

    def test_prometheus_takes_the_rules(self):
        status, said = promtool("check", "rules", RULES)
        self.assertEqual(status, 0, said)

    def test_each_alert_fires_when_it_should(self):
        status, said = promtool("test", "rules", "rules_test.yml")
        self.assertEqual(status, 0, said)
        tested = set(re.findall(r"alertname: (\w+)", (HERE / "rules_test.yml").read_text(encoding="utf-8")))
        self.assertEqual(set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8"))), tested)

    def test_prometheus_takes_the_example(self):
        status, said = promtool("check", "config", "prometheus.example.yml")
        self.assertEqual(status, 0, said)

    def test_prometheus_takes_the_boards_expressions(self):
        with tempfile.TemporaryDirectory() as place:
            rules = pathlib.Path(place) / "rules.yml"
            rules.write_text(json.dumps({"groups": [{"name": "board", "rules": [
                {"record": f"board:{i}", "expr": each} for i, each in enumerate(expressions_of_board())]}]}), encoding="utf-8")
            status, said = promtool("check", "rules", rules)
        self.assertEqual(status, 0, said)

    def test_what_is_used_is_exported(self):
        used = names(RULES.read_text(encoding="utf-8")) | names(" ".join(expressions_of_board()))
        self.assertGreater(len(used), 20)
        self.assertEqual(used - set(self.exported), set())

    def test_what_is_exported_is_on_the_board(self):
        shown = names(" ".join(expressions_of_board()))
        self.assertEqual(set(self.exported) - shown, NOT_ON_THE_BOARD)

    def test_counters_are_asked_for_their_increase(self):
        for each in [*("".join(pair) for pair in expressions_of_rules()), *expressions_of_board()]:
            for name in names(each):
                asked = re.search(rf"(rate|increase)\({name}\b", each) is not None
                if self.exported[name] == "counter" and name != "kagemusha_replication_takeovers_total":
                    self.assertTrue(asked, each)
                elif self.exported[name] == "gauge":
                    self.assertFalse(asked, each)

    def test_the_operators_page_has_each_alert_and_its_section(self):
        page = OPERATIONS.read_text(encoding="utf-8")
        sections = {re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
                    for line in re.findall(r"^## (.*)$", page, re.MULTILINE)}
        text = RULES.read_text(encoding="utf-8")
        alerts, wanted = re.findall(r"alert: (\w+)", text), re.findall(r'section: "(.*)"', text)
        self.assertEqual(len(alerts), len(wanted))
        self.assertEqual(set(wanted) - sections, set())
        self.assertEqual([name for name in alerts if f"`{name}`" not in page], [])


if __name__ == "__main__":
    unittest.main()
