# SPDX-License-Identifier: GPL-2.0-or-later
"""Many pairs of the counting guest on one machine, and two hosts that each of them has: the one that dies, and the other."""
import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

from ha_pair import Pair, committed_count, must_continue


def kill_together(supervisors):
    """A host's death: every supervisor and its QEMU, at once. When it was, on CLOCK_BOOTTIME."""
    pids = [pid for one in supervisors for pid in (one.process.pid, one.qemu())]
    at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return at_ns


class Crowd:
    """`number` pairs."""

    def __init__(self, number):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-crowd-"))
        self.pairs = [Pair(parent=self.directory) for _ in range(number)]

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for pair in self.pairs:
            self.stack.enter_context(pair)
        return self

    def __exit__(self, *what):
        return self.stack.__exit__(*what)

    def protect(self):
        """[(primary, standby)], all protected."""
        both = [(pair.start("standby", "standby"), pair.start("run", "primary")) for pair in self.pairs]
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
