#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, joined by Unix sockets, with the arbiter `lock`; a Linux guest with a network card,
and a peer that both QEMUs' cards reach (net_peer.py). The guest speaks and is spoken to all the time.

Whatever happens to the primary, the peer never hears what a later statement contradicts: nothing of an epoch that was not
committed, nothing twice, nothing from a host that may not run the VM any more; and what the guest has acknowledged it knows
for ever. One guest lives through all of it; another one is only asked, with epochs that end when an answer waits.
"""
import os
import random
import signal
import sys
import time

from ha_pair import Pair, wait
from guest_vm import environment
from net_peer import GUEST_MAC, PEER, SETUP, Peer

KILLS = int(os.environ.get("KAGE_KILLS") or 5)


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

    def begin(self):
        """The VM runs, speaks and is protected. → primary, standby"""
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


def made(host):
    """What its guest has made, told or not: number → chain. From the console, which is not held back."""
    found = {}
    for line in host.console().read_bytes().splitlines()[:-1]:
        words = line.split()
        if len(words) == 3 and words[0] == b"said" and len(words[1]) == len(words[2]) == 16:
            found[int(words[1], 16)] = int(words[2], 16)
    return found


def taken_over(standby):
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")


def silent_from_now(pair, qemu):
    """How often this QEMU has been heard; what is still in the socket is read first."""
    time.sleep(0.2)
    return len(pair.peer.said(qemu))


def check_kills(pair, primary, standby):
    """QEMU killed at random moments: what was told stays true, and what was made and not told is made anew"""
    made_twice = 0
    for turn in range(KILLS):
        time.sleep(random.uniform(0, 0.3))
        qemu = primary.qemu()
        os.kill(qemu, signal.SIGKILL)
        taken_over(standby)
        pair.goes_on(standby)
        told = max(s.number for s in pair.peer.said(qemu))
        before, after = made(primary), made(standby)
        again = [n for n in before if n in after and n > told]
        made_twice += sum(before[n] != after[n] for n in again)
        wait(lambda: pair.peer.announcements(standby.qemu()), "switches are told where the guest is now")
        assert primary.process.wait(60) == 0, primary.said()
        if turn < KILLS - 1:
            primary, standby = standby, pair.another(standby)
    # Else nothing was held back when it was killed, and this test could not have failed.
    assert made_twice > 0, "no statement was made in an epoch that was lost"
    print(f"       {KILLS} kills, {made_twice} statements were made on both hosts, differently; {pair.peer.last()} made in all")
    return standby


def check_gate(pair, alone):
    """an unprotected VM whose supervisor is frozen falls silent with its lease, and speaks again when it wakes up"""
    qemu = alone.qemu()
    os.kill(alone.process.pid, signal.SIGSTOP)
    until_ns = int.from_bytes((pair.directory / f"{alone.name}.gate").read_bytes()[8:16], "little")
    wait(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > until_ns, "the lease ends")
    heard, count = silent_from_now(pair, qemu), max(made(alone))
    wait(lambda: max(made(alone)) > count + 100, "the guest talks to itself")
    assert len(pair.peer.said(qemu)) == heard, "it was heard after its lease had ended"
    os.kill(alone.process.pid, signal.SIGCONT)
    pair.goes_on(alone)


def freeze(pair, primary, standby, processes):
    """Freezes some of the primary's processes until the standby has taken over, and a while longer; then it wakes up."""
    qemu = primary.qemu()
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    taken_over(standby)
    pair.goes_on(standby)
    heard = len(pair.peer.said(qemu))
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    assert primary.process.wait(60) == 1, primary.said()
    assert "must not run here any more" in primary.said(), primary.said()
    pair.goes_on(standby)
    assert len(pair.peer.said(qemu)) == heard, "the old primary was heard after it woke up"


def check_frozen(pair, primary, standby):
    """supervisor and QEMU frozen at a random moment: the standby goes on, and who wakes up is silent"""
    time.sleep(random.uniform(0, 0.3))
    freeze(pair, primary, standby, [primary.qemu(), primary.process.pid])


def check_supervisor_frozen(pair, primary, standby):
    """only the supervisor frozen, its VM runs on: the standby goes on, the VM with nobody to answer for it is silent"""
    freeze(pair, primary, standby, [primary.process.pid])


def check_switchover(pair, primary, standby):
    """switchover: every statement is told, once"""
    last, qemu = pair.peer.last(), primary.qemu()
    primary.tell("switchover")
    taken_over(standby)
    assert primary.process.wait(60) == 0, primary.said()
    pair.goes_on(standby)
    told = pair.peer.said()
    numbers = [s.number for s in told if s.number >= last]
    lost = sorted(set(range(last, numbers[-1])) - set(numbers))
    assert not lost, f"lost {lost}; the old host's last one was {[s for s in told if s.host == qemu][-1]}, it made " \
                     f"{max(made(primary))}, the new one's first one was {[s for s in told if s.host == standby.qemu()][0]}"


def check_early(names):
    """epochs of up to 20 s: 100 answers, one after the other, do not wait for the end of one"""
    if names and check_early.__name__ not in names:
        return
    started = time.monotonic()
    with NetPair(epochs="min-epoch-ms = 5\nmax-epoch-ms = 20000", only_answers=True) as pair:
        pair.start("standby", "standby")
        primary = pair.start("run", "primary")
        primary.wait_state("protecting")
        before, answers = primary.status(), pair.peer.answers()
        # Each has its own checkpoint, because it is the only one that waits. At the end of epochs alone this would take
        # half an hour, and nobody waits that long.
        wait(lambda: pair.peer.answers() >= answers + 100, f"100 answers; {primary.said()}")
        after = primary.wait("early checkpoints", lambda s: s["early_checkpoints"] >= before["early_checkpoints"] + 100)
        pair.peer.check()
        assert after["epoch_us"] < 20e6, after
        primary.tell("stop")
        assert primary.process.wait(60) == 0, primary.said()
    print(f"ok     {check_early.__doc__} ({time.monotonic() - started:.1f} s; {after['checkpoints'] - before['checkpoints']} "
          f"checkpoints, {after['paused_percent']:.1f} % of the time paused)", flush=True)


def main(names):
    check_early(names)
    if names == [check_early.__name__]:
        return 0
    pair = NetPair()

    def step(check, *hosts):
        if names and check.__name__ not in names:
            return hosts[0]
        started = time.monotonic()
        result = check(pair, *hosts)
        pair.peer.check()
        print(f"ok     {check.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
        return result

    with pair:
        primary, standby = pair.begin()
        runs = step(check_kills, primary, standby)
        if runs != primary:
            step(check_gate, runs)
        for check in (check_frozen, check_supervisor_frozen, check_switchover):
            if runs != primary:
                standby = pair.another(runs)
            if step(check, runs, standby) != runs:
                runs = standby
        runs.tell("stop")
        assert runs.process.wait(60) == 0, runs.said()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
