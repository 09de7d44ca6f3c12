# SPDX-License-Identifier: GPL-2.0-or-later
"""
A VM whose hosts give each other up after a few milliseconds, on a machine that is kept busy: at any moment the standby may take
over from a primary that lives, or the primary go on without a standby that lives. So nothing is expected of a fault but that
one host goes on, that everything told stays true, and that the VM can be protected again. Who goes on is found out.
"""
import os
import signal
import subprocess
import sys
import time

from guest_vm import tool
from ha_pair import SECONDS
from soak import suspicion
from soak.chain import Chain
from soak.courses import Unprotected
from soak.kinds import MUST_NOT
from soak.suspicion import WEIGHTS
from soak.views import console, made_twice, now_ns, qemu_of

LOOK_SECONDS = 0.1
SURELY_SECONDS = 3  # for so long nobody goes on with a VM before it is called lost
WAITS_SECONDS = 10  # for a state transfer that waits because others have failed, before it is asked for
LAST_WORD = "nobody"  # an address where no standby is
COMPUTES = (sys.executable, "-c", "while True: pass")


class Suspicious(Chain):
    """Chain has the arguments. `budget_ms`: of heartbeats, and the arbiter's lease; `gpu_budget_ms`: of the GPU's heartbeats,
    if it is another one; `busy`: so many processes compute beside the VM, from when it is protected first until its programs are
    to end. They have the same priority as everybody else."""

    # What watches QEMU is not what is tested here, and QEMU waits long for a processor.
    qemu_budget_ms = checkpoint_ms = main_loop_ms = 60000
    leak_looks = 100  # of many QEMUs that come and go the last may still give its memory back

    def __init__(self, seed, number, only=None, programs=None, arbiter=None, budget_ms=30, gpu_budget_ms=None, busy=0):
        super().__init__(seed, number, None, programs, arbiter or "lock")
        self.kinds = {kind: weight for kind, weight in WEIGHTS.items() if not only or kind in only}
        self.heartbeat_ms, self.budget_ms, self.lease_ms = max(1, budget_ms // 3), budget_ms, budget_ms
        if gpu_budget_ms:
            self.gpu_properties = f'heartbeat-ms = "{max(1, gpu_budget_ms // 10)}"\nheartbeat-budget-ms = "{gpu_budget_ms}"'
        self.busy, self.computing = busy, []
        self.taken_over = []  # losses of this turn of which the standby took over
        self.changes = []  # their hosts: who had the VM, and who has it then
        self.took_part = []  # supervisors of which this turn has events
        self.asked = 0

    def __exit__(self, *what):
        self.calm()
        super().__exit__(*what)

    def calm(self):
        for one in self.computing:
            one.kill()
            one.wait()
        self.computing = []

    # ---- a turn

    def draw(self):
        self.fault = self.random.choices(list(self.kinds), list(self.kinds.values()))[0]
        self.rest = self.random.uniform(1, 5) if self.fault == "rest" else self.random.uniform(0, 1)
        self.moment = self.random.choice((self.random.uniform(0, 0.1), self.random.uniform(0.1, 3)))  # for how long it is frozen

    def begin(self):
        self.standby = self.host("standby", "unused")
        self.primary = self.host("run", self.way_to(self.standby.number), self.standby)
        self.took_part = [self.primary, self.standby]
        self.find_out(2 * SECONDS)
        self.computing = [subprocess.Popen(COMPUTES) for _ in range(self.busy)]

    def lose(self):
        """One turn. → what is known of it"""
        self.turn += 1
        self.draw()
        self.last_fault = self.fault
        self.taken_over, self.changes, self.asked = [], [], 0
        seen = {one: len(states(one)) for one in (self.primary, self.standby)}
        self.took_part = list(seen)
        time.sleep(self.rest)
        begin = now_ns()
        refused = self.hit_whoever_it_is()
        self.find_out(SECONDS)
        losses, claims, given_up, protecting = list(self.taken_over), 0, 0, []
        for one in self.took_part:
            events, first = states(one), seen.get(one, 0)
            of_this, filled = suspicion.alone(events, first)
            losses += of_this
            given_up += filled
            claims += sum(e["event"] == "claiming" for e in events[first:])
            protecting += [e["boot_ns"] for e in events[first:] if e["event"] == "protecting"]
        losses = suspicion.protected_again(suspicion.attributed(losses, "rest" if refused else self.fault, begin), protecting)
        for loss in losses:
            if "running_ns" in loss:
                loss["runs_ms"] = round((loss["running_ns"] - (begin if loss["of"] != "suspicion" else loss["at_ns"])) / 1e6, 1)
        result = {"fault": self.fault, "turn": self.turn, "at_ns": begin, "losses": losses, "claims": claims, "given_up": given_up,
                  "asked": self.asked, "made_twice": sum(made_twice(old, new) for old, new in self.changes)}
        again = [loss["protected_ms"] for loss in losses if "protected_ms" in loss]
        if again:
            result["protected_ms"] = max(again)
        after_fault = [loss["runs_ms"] for loss in losses if loss["of"] != "suspicion" and "runs_ms" in loss]
        if after_fault:
            result["takeover_ms"] = after_fault[0]
        self.nothing_left()
        return {**result, **self.known()}

    def hit_whoever_it_is(self):
        """Who runs the VM now, or who is its standby. → whether nothing was done after all"""
        self.primary.fault = self.fault
        hit = self.standby if self.fault == "freeze-standby" else self.primary
        pids = [pid for pid in (hit.process.pid, qemu_of(hit)) if pid]
        if self.fault in ("freeze", "freeze-standby"):
            signal_all(pids, signal.SIGSTOP)
            time.sleep(self.moment)
            signal_all(pids, signal.SIGCONT)
        elif self.fault in suspicion.KILLS:
            signal_all(pids if self.fault == "kill-both" else pids[1:], signal.SIGKILL)
        elif self.fault == "switchover":
            done = subprocess.run([tool(), "switchover", self.primary.name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=self.hosts.environment, check=False)
            return done.returncode != 0  # it has no standby just now
        return False

    # ---- what came of it

    def find_out(self, seconds):
        """Until the VM speaks from one host, and is protected. Who that is may change again and again."""
        deadline, before, ended_at, waits_since = time.monotonic() + seconds, self.heard(), None, None
        while True:
            self.peer.check()
            if self.moves():
                before, ended_at, waits_since = self.heard(), None, None
                continue
            status = self.primary.status()
            if status.get("state") == "protecting" and self.standby and self.heard_since(before, status.get("qemu_pid")):
                return
            assert time.monotonic() < deadline, (
                f"after {self.fault} the VM is not protected and heard within {seconds} s: before {before}, now {self.heard()}; "
                f"{self.primary.said()}; {self.standby.said() if self.standby else 'no standby'}")
            if self.primary.alive():
                ended_at = None
                waits_since = self.hurries(status, waits_since)
            else:
                ended_at = ended_at or time.monotonic()
                self.nobody_goes_on(ended_at)
            time.sleep(LOOK_SECONDS)

    def moves(self):
        """What has happened to the hosts is followed up. → whether somebody else runs the VM now"""
        for one in filter(None, (self.primary, self.standby)):
            status = one.status()
            if status.get("qemu_pid"):
                self.peer.knows(one.name, self.directory / f"{one.name}.gate", status["qemu_pid"])
            assert "FAILED" not in console(one), console(one)[-2000:]
            if one is self.standby and status.get("role") == "primary":
                self.changes_over(status)
                return True
        if self.standby and not self.standby.alive():
            raise AssertionError(f"the standby ended with {self.standby.process.returncode}; {self.standby.said()}; "
                                 f"{self.primary.said()}")
        return False

    def changes_over(self, status):
        """The standby took over: its disk has what was told, the other one ends as it has to, and another standby comes."""
        old, self.primary, self.standby = self.primary, self.standby, None
        status = self.primary.wait("its output leaves", lambda s: s["last_takeover_ns"]["output"])
        assert status["takeovers"] == 1 and not status["gpu_lost"], status
        times = status["last_takeover_ns"]
        self.taken_over.append({"what": "taken-over", "at_ns": times["decided"], "running_ns": times["running"],
                                "why": status["last_takeover"]})
        self.changes.append((old, self.primary))
        ended = old.process.wait(120)
        assert (ended in (0, 1) or (ended == -9 and getattr(old, "fault", "") == "kill-both")) and (ended != 1 or MUST_NOT in old.said()), (
            f"who was taken over from ended with {ended}; {old.said()}")
        self.check_disk(self.primary)
        self.sweep(old)
        self.forget(old)
        if self.fault != LAST_WORD:
            self.gets_another()

    def gets_another(self):
        self.standby = self.host("standby", "unused", self.primary)
        self.took_part.append(self.standby)
        self.standby.wait_state("listening")
        self.primary.tell("protect", self.address())

    def address(self):
        return f"unix:{self.directory}/{self.way_to(self.standby.number)}"

    def hurries(self, status, since):
        """A primary does not fill a standby at once that it has given up several times. A person who does not want to wait for
        that says so. → since when it waits"""
        if status.get("state") != "alone" or not self.standby:
            return None
        if since and time.monotonic() > since + WAITS_SECONDS and "failed" in status.get("waiting_for", ""):
            self.asked += 1
            subprocess.run([tool(), "protect", self.primary.name, self.address()], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, env=self.hosts.environment, check=False)
            return None
        return since or time.monotonic()

    def nobody_goes_on(self, ended_at):
        """Of a primary that has ended: is the VM lost?"""
        record, = self.directory.glob("lease.*")
        word = int.from_bytes(record.read_bytes()[8:16], "little")
        found = suspicion.lost(self.fault, self.standby.status().get("state", ""), suspicion.is_paired(word))
        if found and time.monotonic() > ended_at + SURELY_SECONDS:
            is_right, why = found
            raise (Unprotected if is_right else AssertionError)(f"{why}; {self.primary.said()}; {self.standby.said()}")

    def nothing_left(self):
        """Unless the hosts have changed again while that was looked at."""
        seen = [(one, len(states(one))) for one in (self.primary, self.standby)]
        try:
            super().nothing_left()
        except AssertionError:
            if all(len(states(one)) == number for one, number in seen):
                raise

    def finish(self):
        """On a machine that is not kept busy any more, and without a standby that could take over meanwhile."""
        self.calm()
        self.fault = LAST_WORD
        waits = self.standby
        self.primary.tell("protect", f"unix:{self.directory}/{LAST_WORD}")
        deadline = time.monotonic() + SECONDS
        while not self.moves() and self.primary.status().get("state") != "alone":
            assert time.monotonic() < deadline, f"it does not leave its standby; {self.primary.said()}"
            time.sleep(LOOK_SECONDS)
        if self.standby:
            self.standby = None
            waits.tell("stop")
            assert waits.process.wait(120) == 0, waits.said()
            self.sweep(waits)
            self.forget(waits)
        return super().finish()


def states(host):
    """What its supervisor has said of itself; lines of QEMU have no such time."""
    return [event for event in host.events() if "boot_ns" in event]


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has just ended by itself
