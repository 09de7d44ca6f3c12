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
import time

import pytest

from fixtures import own, shared
from ha_pair import wait
from net_pair import NetPair, taken_over

KILLS = int(os.environ.get("KAGE_KILLS") or 5)

# Its epochs are long, and they end when an answer waits.
asked = own(lambda: NetPair(epochs="min-epoch-ms = 5\nmax-epoch-ms = 20000", only_answers=True))
speaks = shared(NetPair)


@pytest.fixture
def pair(speaks):
    """The guest that lives through all of it. After each check: whatever it has said fits together."""
    yield speaks
    speaks.peer.check()


def check_early(asked):
    """epochs of up to 20 s: 100 answers, one after the other, do not wait for the end of one"""
    asked.start("standby", "standby")
    primary = asked.start("run", "primary")
    primary.wait_state("protecting")
    before, answers = primary.status(), asked.peer.answers()
    # Each has its own checkpoint, because it is the only one that waits. At the end of epochs alone this would take half an
    # hour, and nobody waits that long.
    wait(lambda: asked.peer.answers() >= answers + 100, f"100 answers; {primary.said()}")
    after = primary.wait("early checkpoints", lambda s: s["early_checkpoints"] >= before["early_checkpoints"] + 100)
    asked.peer.check()
    assert after["epoch_us"] < 20e6, after
    primary.tell("stop")
    assert primary.process.wait(60) == 0, primary.said()
    print(f"       {after['checkpoints'] - before['checkpoints']} checkpoints, {after['paused_percent']:.1f} % of the time paused",
          flush=True)


def made(host):
    """What its guest has made, told or not: number → chain. From the console, which is not held back."""
    found = {}
    for line in host.console().read_bytes().splitlines()[:-1]:
        words = line.split()
        if len(words) == 3 and words[0] == b"said" and len(words[1]) == len(words[2]) == 16:
            found[int(words[1], 16)] = int(words[2], 16)
    return found


def silent_from_now(pair, qemu):
    """How often this QEMU has been heard; what is still in the socket is read first."""
    time.sleep(0.2)
    return len(pair.peer.said(qemu))


@pytest.mark.story
def check_kills(pair):
    """QEMU killed at random moments: what was told stays true, and what was made and not told is made anew"""
    made_twice = 0
    for _ in range(KILLS):
        primary, standby = pair.protected()
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
        pair.runs, pair.waits = standby, None
    # Else nothing was held back when it was killed, and this test could not have failed.
    assert made_twice > 0, "no statement was made in an epoch that was lost"
    print(f"       {KILLS} kills, {made_twice} statements were made on both hosts, differently; {pair.peer.last()} made in all")


@pytest.mark.story
def check_gate(pair):
    """an unprotected VM whose supervisor is frozen falls silent with its lease, and speaks again when it wakes up"""
    if not pair.runs or pair.waits:
        pytest.skip("the VM is protected: this one follows the kills")
    alone = pair.runs
    qemu = alone.qemu()
    os.kill(alone.process.pid, signal.SIGSTOP)
    until_ns = int.from_bytes((pair.directory / f"{alone.name}.gate").read_bytes()[8:16], "little")
    wait(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > until_ns, "the lease ends")
    heard, count = silent_from_now(pair, qemu), max(made(alone))
    wait(lambda: max(made(alone)) > count + 100, "the guest talks to itself")
    assert len(pair.peer.said(qemu)) == heard, "it was heard after its lease had ended"
    os.kill(alone.process.pid, signal.SIGCONT)
    pair.goes_on(alone)


def freeze(pair, choose):
    """Freezes those of the primary's processes that `choose` names until the standby has taken over, and a while longer; then it
    wakes up."""
    primary, standby = pair.protected()
    processes, qemu = choose(primary), primary.qemu()
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
    pair.runs, pair.waits = standby, None


@pytest.mark.story
def check_frozen(pair):
    """supervisor and QEMU frozen at a random moment: the standby goes on, and who wakes up is silent"""
    pair.protected()
    time.sleep(random.uniform(0, 0.3))
    freeze(pair, lambda primary: [primary.qemu(), primary.process.pid])


@pytest.mark.story
def check_supervisor_frozen(pair):
    """only the supervisor frozen, its VM runs on: the standby goes on, the VM with nobody to answer for it is silent"""
    freeze(pair, lambda primary: [primary.process.pid])


@pytest.mark.story
def check_switchover(pair):
    """switchover: every statement is told, once"""
    primary, standby = pair.protected()
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
    pair.runs, pair.waits = standby, None


@pytest.mark.story
def check_stop(pair):
    """stop: it ends in order where it is now"""
    if not pair.runs:
        pytest.skip("nothing was begun")
    pair.runs.tell("stop")
    assert pair.runs.process.wait(60) == 0, pair.runs.said()
