# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: `kagemusha run VM.toml` and `kagemusha standby VM.toml` on one machine, joined by Unix sockets, with the arbiter
`lock`. The guest computes on its GPU without a pause and checks every result.

Whatever fails on a protected primary's host, QEMU or its GPU, the guest's programs go on in the standby and end as if nothing
had happened; the new primary is given another standby, and fails in turn. One guest lives through all of it; another one,
[hanging], also through a GPU that hangs.
"""
import os
import signal

import pytest

from fixtures import shared
from gpu_pair import GpuPair, ends_right, protected, said, taken_over, tell, worker
from ha_pair import wait

pytestmark = pytest.mark.story
pair = shared(lambda kind: GpuPair(kind == "hanging"), params=["short", "hanging"])


def check_gpu_lost(pair):
    """the primary's GPU is lost in the middle of a program: the standby's goes on, the guest sees nothing"""
    standby = pair.start_with("good", "standby", "standby")
    primary = pair.start_with("lost", "run", "primary")
    primary.wait("the program", lambda s: "computing" in said(primary))
    protected(primary)
    tell(primary, "fill 5")
    taken_over(primary, standby, "its GPU failed")
    ends_right(standby, "5 fills are right")
    assert "fills are right" not in said(primary), said(primary)
    pair.runs = standby


def check_worker_killed(pair):
    """kill -9 of the GPU worker of a program: as above"""
    primary = pair.runs
    standby = pair.another(primary, "hang" if pair.hangs else "good")
    os.kill(worker(primary), signal.SIGKILL)
    taken_over(primary, standby, "its GPU failed")
    pair.runs = standby


def check_gpu_hangs(pair):
    """the primary's GPU hangs: as above, when the watchdog has found it"""
    if not pair.hangs:
        pytest.skip("it takes minutes, in which what runs beside it piles up: [hanging]")
    primary = pair.runs
    standby = pair.another(primary, "good")
    tell(primary, "fill 4")
    taken_over(primary, standby, "its GPU failed")
    ends_right(standby, "4 fills are right")
    pair.runs = standby


def check_standby_worker_killed(pair):
    """kill -9 of the worker in the standby: it has no copy any more, begins anew, and protects the VM again"""
    primary = pair.runs
    standby = pair.another(primary, "good")
    os.kill(worker(standby), signal.SIGKILL)
    wait(lambda: any(e["event"] == "alone" and "GPU" in e.get("text", "") for e in primary.events()),
         f"the primary gives its standby up; {primary.said()}")
    protected(primary)
    assert "FAILED" not in said(primary), said(primary)
    pair.waits = standby


def check_qemu_killed(pair):
    """QEMU killed: as above; the program that ran all the time ends, and every result was right"""
    primary, standby = pair.runs, pair.waits
    os.kill(primary.qemu(), signal.SIGKILL)
    taken_over(primary, standby, "Killed")
    tell(standby, "enough")
    wait(lambda: "KAGEMUSHA-EXIT" in said(standby), f"the program's end; {standby.said()}", 600)
    assert "rounds are right" in said(standby) and "KAGEMUSHA-EXIT 0" in said(standby), said(standby)
    assert "rounds are right" not in said(primary), said(primary)
    assert standby.process.wait(60) == 0, standby.said()
