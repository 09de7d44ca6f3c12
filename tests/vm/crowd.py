# SPDX-License-Identifier: GPL-2.0-or-later
"""
Many pairs on one machine, of the counting guest or of guests that compute on a GPU, and two hosts that each of them has: the
one that dies, and the other.
"""
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

from gpu_pair import GpuPair
from ha_pair import Pair, committed_count, must_continue


def kill_together(supervisors):
    """A host's death: every supervisor and its QEMU, at once. When it was, on CLOCK_BOOTTIME."""
    pids = [pid for one in supervisors for pid in (one.process.pid, one.qemu())]
    at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return at_ns


class SharingPair(GpuPair):
    """One that has `share` percent of a GPU of its primary's host, and of one of its standby's: two arbiters, also for one GPU."""

    def __init__(self, parent, share):
        super().__init__(hangs=False, parent=parent)
        self.description = self.directory / "good.toml"
        text = self.description.read_text(encoding="utf-8")
        for old, new in (('backend = "opencl"', f'backend = "opencl"\nshare = {share}'), ("cpus = 2", "cpus = 1"),
                         ("heartbeat-budget-ms = 10000", "heartbeat-budget-ms = 4000"),
                         ("lease-ms = 10000", "lease-ms = 4000")):
            assert old in text, old
            text = text.replace(old, new)
        self.description.write_text(text, encoding="utf-8")

    def variables(self, name):
        host = self.directory.parent / ("share-b" if name.startswith("standby") else "share-a")
        return dict(self.environment, KAGEMUSHA_SHARE_DIR=str(host))


class Crowd:
    """`number` pairs. `priorities`: of each; then the standbys know of each other, as those of one host do."""

    def __init__(self, number, priorities=None, make=Pair):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-crowd-"))
        self.pairs = [make(parent=self.directory) for _ in range(number)]
        for pair, priority in zip(self.pairs, priorities or []):
            # Each pair has a runtime directory of its own; this part of it is common.
            (self.directory / "takeovers").mkdir(exist_ok=True)
            (pair.directory / "takeovers").symlink_to(self.directory / "takeovers")
            text = pair.description.read_text(encoding="utf-8")
            pair.description.write_text(text.replace("[protection]", f"[protection]\npriority = {priority}"), encoding="utf-8")

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for pair in self.pairs:
            self.stack.enter_context(pair)
        return self

    def __exit__(self, *what):
        return self.stack.__exit__(*what)

    def protect(self):
        """[(primary, standby)], all protected."""
        both = [(pair.start("standby", f"standby{i}"), pair.start("run", "primary")) for i, pair in enumerate(self.pairs)]
        for standby, primary in both:
            standby.wait_state("synced")
            primary.wait_state("protecting")
        return [(primary, standby) for standby, primary in both]


def all_go_on(lost, at_ns):
    """Each standby of `lost`, [(primary, standby, committed)], runs its VM from where it was. Milliseconds until each began."""
    after_ms = []
    for primary, standby, committed in lost:
        standby.wait("it runs the VM", lambda s: s["role"] == "primary")
        must_continue(primary, standby, committed)
        takeover = [event for event in standby.events() if event["event"] == "takeover"]
        assert len(takeover) == 1, standby.said()
        after_ms.append((takeover[0]["boot_ns"] - at_ns) / 1e6)
    return sorted(after_ms)


def committed(pairs):
    return [(primary, standby, committed_count(primary)) for primary, standby in pairs]


def in_order(lost, priorities):
    """
    Each takeover of a higher priority had ended when one of a lower priority began, unless that said that it waits no longer, or
    nothing was known of the other one yet. → what was reported, by priority
    """
    rows = []
    for (_, standby, _), priority in zip(lost, priorities):
        of = {event["event"]: event for event in standby.events()}
        order = of.get("takeover-order")
        rows.append({"priority": priority, "decided": of["takeover"]["boot_ns"], "runs": of["running"]["boot_ns"], "waited": bool(order),
                     "began": (order or of["takeover"])["boot_ns"], "gave up": "no longer" in (order or {"text": ""})["text"]})
    for low in rows:
        for high in rows:
            if high["priority"] > low["priority"] and not low["gave up"] and high["decided"] <= low["began"]:
                assert high["runs"] <= low["began"], (low, high)
    return sorted(rows, key=lambda row: -row["priority"])
