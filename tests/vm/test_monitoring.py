# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a VM with a standby and one that lost its own, an exporter, a Prometheus with the rules of `monitoring`.
"""
import json
import subprocess
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from etcd import free_port
from ha_pair import Pair, wait
from mirror import Metrics

RULES = Path(__file__).resolve().parents[2] / "monitoring" / "kagemusha.rules.yml"


class Prometheus:
    """A real one, which asks an exporter each second."""

    def __init__(self, exporter, rules):
        self.place = Path(tempfile.mkdtemp(prefix="kagemusha-prometheus-"))
        self.port = free_port()
        (self.place / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "kagemusha", "static_configs": [{"targets": [exporter]}]}]}), encoding="utf-8")
        with open(self.place / "log", "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.place}/prometheus.yml", f"--storage.tsdb.path={self.place}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def get(self, path, **query):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}",
                                        timeout=60) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None  # it is not up yet

    def value(self, expression):
        """Of the only series that there is of it, or None"""
        found = (self.get("query", query=expression) or {}).get("result", [])
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def alerts(self):
        """(name, VM), pending and firing ones"""
        return {(each["labels"]["alertname"], each["labels"].get("vm"))
                for each in (self.get("alerts") or {}).get("alerts", [])}


def check_prometheus():
    """Prometheus sees that a VM is protected, raises an alert on one that is not for long enough, and on a dead QEMU"""
    with Pair() as pair:
        # As monitoring has them; only nobody can wait for minutes here.
        rules = pair.directory / "rules.yml"
        text = RULES.read_text(encoding="utf-8")
        assert "unprotected_seconds > 300" in text, text
        rules.write_text(text.replace("unprotected_seconds > 300", "unprotected_seconds > 1"), encoding="utf-8")
        standby = pair.start("standby", "waits")
        standby.wait_state("listening")
        primary = pair.start("run", "counts")
        primary.wait_state("protecting")
        with Metrics(pair.environment) as metrics, \
                Prometheus(urllib.parse.urlsplit(metrics.address).netloc, rules) as prometheus:
            wait(lambda: prometheus.value('kagemusha_vm_protected{vm="counts"}') == 1, "Prometheus knows the VM")
            assert ("KagemushaUnprotected", "counts") not in prometheus.alerts(), prometheus.alerts()
            standby.end()
            wait(lambda: prometheus.value('kagemusha_vm_protected{vm="counts"}') == 0, "it sees that the standby is gone")
            wait(lambda: ("KagemushaUnprotected", "counts") in prometheus.alerts(), "an alert for it")
