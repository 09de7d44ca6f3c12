# SPDX-License-Identifier: GPL-2.0-or-later
"""
A protected VM with a network card on one machine: two supervisors, joined by Unix sockets, a Linux guest that speaks and is
spoken to all the time (guest/net_job.cpp), and a peer that both QEMUs' cards reach (net_peer.py).
"""
import os

from guest_vm import environment
from ha_pair import Pair, wait
from net_peer import GUEST_MAC, PEER, SETUP, Peer


class NetPair(Pair):
    """
    A VM with a network card; its peer is `peer`. `arbiter`: the lines of its table, `epochs`: those about their length;
    `only_answers`: of the guest.
    """

    def __init__(self, arbiter='kind = "lock"\npath = "lease"\nlease-ms = 2000', epochs="epoch-ms = 100", only_answers=False):
        super().__init__()
        self.environment = dict(environment(backend="none"), KAGEMUSHA_RUNTIME_DIR=str(self.directory))
        self.peer = Peer(self.directory)
        self.turn = 0
        self.runs = self.waits = None  # who has the VM, and its standby, which may have been used up
        (self.directory / "job.sh").write_text(f"{SETUP}exec /payload/net_job {PEER}{' answers' if only_answers else ''}\n", encoding="utf-8")
        self.text = f"""
name = "speaks"
memory = "256M"
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "job.sh"
files = ["{os.environ["KAGE_NET_JOB"]}:net_job"]
[[network]]
netdev = "{self.peer.netdev}"
mac = "{GUEST_MAC.hex(":")}"
[protection]
standby = "unix:standby"
{epochs}
heartbeat-ms = 100
heartbeat-budget-ms = 2000
qemu-budget-ms = 60000
[arbiter]
{arbiter}
"""
        self.description.write_text(self.text, encoding="utf-8")

    def __enter__(self):
        self.peer.__enter__()
        return super().__enter__()

    def __exit__(self, *what):
        super().__exit__(*what)
        self.peer.__exit__()

    def protected(self):
        """The VM runs, speaks and has a standby, another one if the last was used up. → primary, standby"""
        if not self.runs:
            self.runs, self.waits = self.begin()
        elif not self.waits:
            self.waits = self.another(self.runs)
        return self.runs, self.waits

    def begin(self):
        standby = self.start("standby", "standby")
        primary = self.start("run", "primary")
        primary.wait("the guest speaks", lambda s: self.peer.last())
        standby.wait_state("synced")
        primary.wait_state("protecting")
        self.goes_on(primary)
        return primary, standby

    def another(self, primary):
        """A new standby for the VM that runs."""
        self.turn += 1
        address = f"unix:{self.directory}/standby{self.turn}"
        standby = self.start("standby", f"standby{self.turn}", "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        primary.wait_state("protecting")
        self.goes_on(primary)
        return standby

    def goes_on(self, host):
        """It speaks, from this host, and hears: some statements and requests later. Everything fitted so far."""
        qemu, last, answers = host.qemu(), self.peer.last(), self.peer.answers()

        def it_does():
            self.peer.check()
            return self.peer.last() > last + 50 and self.peer.said()[-1].host == qemu and self.peer.answers() > answers + 5
        wait(it_does, f"the guest speaks and hears; {host.said()}")


def taken_over(standby):
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
