# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, joined by Unix sockets, with the arbiter `lock`; the guest counts (guest/counter.S).
The way of the VM's state goes through a relay that can fall silent by itself; disks and blocks of QEMU can be slowed down until
they hang (a throttle group of each QEMU, which the test sets).

Nobody dies here: something stands still while the supervisors' heartbeats go on. Whoever stands still for longer than the
bounds in [supervision] is given up, and says why. And the ends that somebody wants: a signal, a switchover that is called off,
a guest that starts anew, a drill.
"""
import json
import os
import signal

from faults import NOWHERE, Monitor, data_disk, write, write_until_given_up
from fixtures import own
from ha_pair import Pair, committed_count, contiguous, counts_on, must_continue, wait
from relay import Relay

BOUNDS = """
[supervision]
checkpoint-ms = {checkpoint}
main-loop-ms = {main_loop}
switchover-ms = {switchover}
log-mib = 1
"""
# For what nobody waits: a busy host is not to be taken for a broken one.
LONG = 120000


class GreyPair(Pair):
    """`begin`: protected, with these bounds."""

    def __init__(self):
        super().__init__()
        self.state = None

    def begin(self, checkpoint=LONG, main_loop=LONG, switchover=LONG, options=(), standby=True):
        text = self.description.read_text(encoding="utf-8").replace('"unix:standby"', '"unix:near"')
        words = [*NOWHERE, *options]
        self.description.write_text(
            f"qemu-options = {json.dumps(words)}\n{text}" +
            BOUNDS.format(checkpoint=checkpoint, main_loop=main_loop, switchover=switchover), encoding="utf-8")
        self.relays = [Relay(f"{self.directory}/near{of}", f"{self.directory}/far{of}") for of in ("", ".state")]
        self.state = self.relays[1]
        other = self.start("standby", "standby", "--listen", f"unix:{self.directory}/far") if standby else None
        primary = self.start("run", "primary")
        if not standby:
            counts_on(primary)
            return primary
        other.wait_state("synced")
        primary.wait_state("protecting")
        return primary, other

    def __exit__(self, *what):
        super().__exit__(*what)
        for relay in self.relays:
            relay.close()


pair = own(GreyPair)


def said(host, text):
    return any(text in e.get("text", "") for e in host.events())


def protected_again(primary, standby):
    primary.wait_state("protecting")
    standby.wait_state("synced")
    counts_on(primary)
    contiguous(primary.counts())
    assert not standby.counts(), "the standby has run"


def check_state_silent(pair):
    """the way of the state swallows everything, heartbeats go on: the standby is given up within the bound, and comes back"""
    primary, standby = pair.begin(checkpoint=3000)
    committed_count(primary)
    pair.state.cut()
    wait(lambda: said(primary, "no checkpoint has reached the standby for 3000 ms"), f"the reason; {primary.said()}")
    status = primary.wait("it is not protected", lambda s: not s["protected"])
    assert status["degraded"], status
    counts_on(primary)
    pair.state.mend()
    protected_again(primary, standby)


def check_standbys_disk(pair):
    """the standby's disk hangs: the standby is given up and its VM goes on; a standby with a sound disk comes back"""
    primary, standby = pair.begin(checkpoint=6000, main_loop=3000, options=data_disk(pair.directory / "slow.img"))
    with Monitor(standby) as there:
        there.throttle(1)
    write_until_given_up(primary)
    counts_on(primary)
    protected_again(primary, standby)
    assert said(primary, "stands still") or said(primary, "no checkpoint has reached"), primary.said()


def check_main_loop(pair):
    """the primary's main loop stands still, its standby is fine: it is killed and the standby goes on, which was not given up"""
    primary, standby = pair.begin(checkpoint=2000, main_loop=2000)
    committed = committed_count(primary)
    with Monitor(primary) as here:
        here.throttle(1)
        for sector in (0, 128, 256):
            here.send("human-monitor-command", **write("nowhere", sector))
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert "its main loop has stood still" in status["last_takeover"], status
    must_continue(primary, standby, committed)
    assert primary.process.wait(60) == 0, primary.said()


def check_main_loop_alone(pair):
    """the same without a standby: nobody kills the VM, there is a warning, and it goes on when it can"""
    primary = pair.begin(main_loop=1000, standby=False)
    with Monitor(primary) as here:
        here.throttle(16384)  # a second write waits for 4 s, a third one again
        for sector in (0, 128, 256):
            here.send("human-monitor-command", **write("nowhere", sector))
        primary.wait("a warning", lambda s: "main loop" in s["warning"])
        primary.wait("it is over", lambda s: not s["warning"])
    counts_on(primary)
    contiguous(primary.counts())


def check_switchover_called_off(pair):
    """a switchover whose state does not get through: after its time the VM runs on here, and is protected again"""
    primary, standby = pair.begin(checkpoint=6000, switchover=1000)
    committed_count(primary)
    pair.state.cut()
    primary.tell("switchover")
    wait(lambda: said(primary, "the standby did not have all of the VM within 1000 ms"), f"the reason; {primary.said()}")
    pair.state.mend()
    counts_on(primary)
    protected_again(primary, standby)


def check_sigterm(pair):
    """SIGTERM to the primary's supervisor: the VM moves to its standby with the very next number"""
    primary, standby = pair.begin()
    committed_count(primary)
    primary.process.send_signal(signal.SIGTERM)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert primary.process.wait(60) == 0, primary.said()
    last = primary.counts()[-1]
    must_continue(primary, standby, last)
    assert standby.counts()[0] in (last, last + 1), f"{last} there, then {standby.counts()[0]} here"


def check_qemu_ended(pair):
    """SIGTERM to the primary's QEMU, as at the end of a service: no wish of the guest's, the standby goes on"""
    primary, standby = pair.begin()
    committed = committed_count(primary)
    os.kill(primary.qemu(), signal.SIGTERM)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(primary, standby, committed)


def since_the_start(host):
    counts = host.counts()
    starts = [i for i, count in enumerate(counts) if count == 1]
    return counts[starts[-1]:] if starts else counts


def check_reset(pair):
    """a protected VM starts anew: it is protected all the time, and the standby goes on with what began then"""
    primary, standby = pair.begin()
    before = committed_count(primary)
    with Monitor(primary) as here:
        here.ask("system_reset")
    wait(lambda: len(since_the_start(primary)) < len(primary.counts()), "it counts from one")
    wait(lambda: since_the_start(primary)[-1] > 100, "it counts on")
    committed_count(primary)
    committed = since_the_start(primary)[-1]
    contiguous(since_the_start(primary))
    events = [e["event"] for e in primary.events()]
    assert events[events.index("protecting"):].count("protecting") == 1 and primary.status()["protected"], events
    primary.wait("a checkpoint that has it", lambda s, had=primary.status()["checkpoints"]: s["checkpoints"] >= had + 2)
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    first = wait(standby.counts, "the guest counts after the takeover")
    last = primary.counts()[-1]
    assert committed <= first[0] <= last + 1, f"went on with {first[0]}; committed {committed}, seen {last}, {before} before"
    counts_on(standby)
    contiguous(standby.counts())


def check_device_error(pair):
    """a device stops the VM after an error, as one whose worker may still write its memory: the standby goes on; alone it runs again by itself"""
    primary, standby = pair.begin(options=("-device", "checkpoint-testdev,id=broken"))
    committed = committed_count(primary)
    with Monitor(primary) as here:
        here.ask("qom-set", path="/machine/peripheral/broken", property="io-error", value=True)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert "a device has stopped the VM" in status["last_takeover"], status
    must_continue(primary, standby, committed)
    with Monitor(standby) as here:
        here.ask("qom-set", path="/machine/peripheral/broken", property="io-error", value=True)
        wait(lambda: said(standby, "a device has stopped the VM"), f"a warning; {standby.said()}")
    standby.wait("it is over", lambda s: not s["warning"])
    counts_on(standby)
    contiguous(standby.counts())


def check_drill(pair):
    """a drill: QEMU is killed, the standby goes on, and the one who asked gets the times; a VM without a standby is not touched"""
    primary, standby = pair.begin()
    committed = committed_count(primary)
    times = json.loads(primary.ask("drill", "--json"))
    assert times["running_ms"] > 0 and times["noticed_ms"] > 0, times
    assert standby.status()["role"] == "primary", standby.said()
    must_continue(primary, standby, committed)
    assert primary.process.wait(60) == 0, primary.said()
    refused = standby.ask("drill", status=125)
    assert "not protected" in refused, refused
    assert standby.status()["unprotected_ms"] > 0
    counts_on(standby)


def check_logs(pair):
    """a console that prints more than its bound, and a QEMU: both begin anew, and the last of them is kept beside"""
    primary = pair.begin(standby=False)
    directory = pair.directory / "primary.d"
    for name in ("console.log", "qemu.log"):
        with open(directory / name, "ab") as file:  # as QEMU has it open
            file.write(b"\n" * ((1 << 20) + 1))
        wait(lambda file=directory / name: file.stat().st_size < 1 << 20, f"{name} begins anew")
        assert 0 < (directory / f"{name}.1").stat().st_size <= 1 << 20, name
    counts_on(primary)
    contiguous(primary.counts())
