# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: that of test_gpu_survives.py; the connection of the GPUs goes through a relay that can be cut while everything else goes
on. One guest loses both of its GPUs at once, another one its link, and then its host.
"""
import os
import signal

import pytest

from fixtures import own, shared
from gpu_pair import GpuPair, ends_right, protected, said, tell, worker
from ha_pair import wait
from processes import freeze, wait_ended
from relay import Relay


class RelayedPair(GpuPair):
    """The standbys' GPUs are reached through a relay. The first standby is `far`, and listens where the relay ends."""

    def __init__(self):
        super().__init__(False)
        self.relay = Relay(f"{self.directory}/near.gpu", f"{self.directory}/far.gpu")
        path = self.directory / "good.toml"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('standby = "unix:standby"', 'standby = "unix:far"\ngpu = "unix:near.gpu"'),
                        encoding="utf-8")

    def __exit__(self, *what):
        super().__exit__(*what)
        self.relay.close()

    def both(self):
        """The VM computes and is protected. → primary, standby"""
        if self.runs:
            return self.runs, self.waits
        standby = self.start_with("good", "standby", "standby", "--listen", f"unix:{self.directory}/far")
        primary = self.start_with("good", "run", "primary")
        primary.wait("the program", lambda s: "computing" in said(primary))
        protected(primary)
        self.runs, self.waits = primary, standby
        return primary, standby


alone = own(RelayedPair)
pair = shared(RelayedPair)


def check_both_gpus_lost(alone):
    """the standby's GPU loses its copy and the primary's QEMU dies, both at once: the VM goes on, and it is said"""
    primary, standby = alone.both()
    # Both supervisors are frozen: else the primary might hear of the one before it hears of the other, and note that it is
    # alone. It asks QEMU for the copy's state, and a dead one does not answer.
    for one in (standby, primary):
        freeze(one.process.pid)
    lost, qemu = worker(standby), primary.qemu()
    os.kill(lost, signal.SIGKILL)
    # It maps all of the guest's memory: its end may be told later than that of a QEMU with a memory-keeper.
    wait_ended(lost)
    os.kill(qemu, signal.SIGKILL)
    os.kill(primary.process.pid, signal.SIGCONT)
    wait(lambda: any(e["event"] == "leaving" for e in primary.events()), f"the standby is told; {primary.said()}")
    os.kill(standby.process.pid, signal.SIGCONT)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary" and s["gpu_lost"])
    assert status["takeovers"] == 1 and "worker" in status["gpu_lost"], status
    wait(lambda: "FAILED" in said(standby), f"the program that computed gets an error; {said(standby)}")
    tell(standby, "fill 4")
    wait(lambda: "4 fills are right" in said(standby), f"a new program computes; {said(standby)}")


@pytest.mark.story
def check_link_cut(pair):
    """the connection of the GPUs is cut: nobody says that the VM is protected, and it is again when the network is mended"""
    primary, standby = pair.both()
    pair.relay.cut()
    wait(lambda: any(e["event"] == "alone" and "GPU" in e.get("text", "") for e in primary.events()),
         f"the primary gives its standby up; {primary.said()}")
    status = primary.status()
    assert not status["protected"] and "GPU" in status["degraded"], status
    tell(primary, "fill 2")
    ends_right(primary, "2 fills are right")
    standby.wait("it begins anew", lambda s: s["state"] in ("starting", "listening", "greeted"))
    assert primary.status()["state"] != "protecting", primary.status()
    pair.relay.mend()
    protected(primary)


@pytest.mark.story
def check_link_cut_unnoticed(pair):
    """the connection ends, another one is tried, and QEMU dies, all before a supervisor has noticed: the copy was kept"""
    primary, standby = pair.both()
    os.kill(primary.process.pid, signal.SIGSTOP)
    before = pair.relay.accepted
    pair.relay.reset()
    # The second attempt follows the refusal of the first one.
    wait(lambda: pair.relay.accepted >= before + 2, "the primary's GPU connects again, in vain")
    os.kill(primary.qemu(), signal.SIGKILL)
    os.kill(primary.process.pid, signal.SIGCONT)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert status["takeovers"] == 1 and not status["gpu_lost"], status
    tell(standby, "fill 3")
    ends_right(standby, "3 fills are right")
