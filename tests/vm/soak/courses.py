# SPDX-License-Identifier: GPL-2.0-or-later
"""One fault of a soak, and all that has to hold after it."""
import os
import random
import signal
import time

import records
from faults import FAILS, Monitor, fill, power_off, put_back, remove_room, write, write_until_given_up
from ha_pair import gate_is_closed, wait, workers
from soak.kinds import ALONE, BAD, CUTS, ENDED, ENDS, FENCED, FENCED_ENDS, MUST_NOT, WAYS
from soak.views import ask, made_twice, now_ns, qemu_of, state_after, state_at

LEASE_SECONDS = 3


class Unprotected(Exception):
    """The VM was lost in a moment in which it said itself that it had no standby."""


class Courses:
    """Of a Chain (chain.py), which has the hosts: what is done to them, and what comes of it."""

    def hit(self):
        """Does it. Returns when, in ns."""
        primary, qemu = self.primary, self.primary.qemu()
        primary.fault = self.fault
        begin = now_ns()
        if self.fault in ("kill-supervisor", "kill-both", "member-dies"):
            primary.process.kill()
        if self.fault == "member-dies":
            self.etcd[self.turn % len(self.etcd)].kill()
        if self.fault == "stick-main-loop":
            self.monitor = Monitor(primary)  # stays open: one that is closed forgets what it was told and has not begun
            self.monitor.throttle(1)
            for sector in (0, 128, 256):
                self.monitor.send("human-monitor-command", **write("nowhere", sector))
        if self.fault == "etcd-away":
            self.freeze_etcd()
        if self.fault in ("kill-qemu", "kill-both", "member-dies", "etcd-away", "restored"):
            try:
                os.kill(qemu, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the kernel was faster: QEMU dies with its supervisor
        if self.fault in ("freeze", "freeze-supervisor"):
            os.kill(primary.process.pid, signal.SIGSTOP)
        if self.fault in ("freeze", "freeze-qemu"):
            os.kill(qemu, signal.SIGSTOP)
        if self.fault == "kill-worker":
            os.kill(self.random.choice(sorted(pid for _, pid in workers(qemu))), signal.SIGKILL)
        ways, direction = CUTS.get(self.fault, ((), None))
        for of, relay in zip(WAYS, self.network):
            if of in ways:
                relay.cut(direction)
        if self.fault in BAD:
            for number, relay in enumerate(self.network):
                relay.degrade(draw=random.Random(f"{self.turn}:{number}").random, **BAD[self.fault])
        if self.fault == "cut-off":
            for relay in self.relays[primary.name]:
                relay.cut()
        if self.fault == "switchover":
            primary.tell("switchover")
        if self.fault == "sigterm":
            primary.process.send_signal(signal.SIGTERM)
        if self.fault in ("kill-standby", "kill-filling"):
            os.kill(self.standby.qemu(), signal.SIGKILL)
        if self.fault == "freeze-standby":
            self.standby.freeze()
        if self.fault == "disk-full":
            fill(self.room(self.standby.machine))
        if self.fault == "disk-hangs":
            with Monitor(self.standby) as there:
                there.throttle(1)
            write_until_given_up(primary)
        if self.fault == "disk-fails":
            self.write_past_us(FAILS, b"x" * 512)
            with Monitor(primary) as here:  # the rest of the block that this is in: the standby gets all of it
                here.ask("human-monitor-command", **write("data-drive", FAILS + 1, 7 * 512))
        return begin

    def write_past_us(self, sector, data):
        """To the disk that can fail, and no QEMU sees it."""
        with open(self.failing, "r+b") as image:
            image.seek(sector * 512)
            image.write(data)

    def freeze_etcd(self, on=True):
        for one in self.etcd:
            one.freeze(on)

    def lose(self):
        """One fault, and all that has to hold after it. Returns what is known of it."""
        self.turn += 1
        self.last_fault = self.fault
        time.sleep(self.rest)
        if self.fault in ENDED:
            return self.ends_and_begins()
        if self.fault == "restored":
            self.restore()
        before = self.memory(self.primary)
        begin = self.hit()
        result = {"fault": self.fault, "turn": self.turn, "at_ns": begin}
        if self.fault in ALONE:
            result["protected_ms"] = self.goes_on_alone(begin)
            return {**result, **self.known()}
        if self.fault == "lossy-link":
            result["protected_ms"] = self.endures()
            return {**result, **self.known()}
        self.taken_over(begin)
        if self.monitor:
            self.monitor.socket.close()
            self.monitor = None
        if self.fault == "etcd-away":
            self.freeze_etcd(False)  # it runs on the word of the former host; its output waits
        old, self.primary = self.primary, self.standby
        self.check_disk(self.primary)
        self.speaks(self.primary)
        result.update(self.times(begin))
        result["made_twice"] = made_twice(old, self.primary)
        status = self.primary.status()
        assert status["takeovers"] == 1 and not status["gpu_lost"], status
        assert self.fault != "stick-main-loop" or "main loop" in status["last_takeover"], status
        after = self.memory(self.primary)
        assert before == after, f"GPU memory and files of the guest: {before} before, {after} after"
        if self.fault == "member-dies":
            self.etcd[self.turn % len(self.etcd)].start(self.etcd)
        if not (self.sleeps_long and self.fault.startswith("freeze")):
            self.ends(old)
            old = None
        healed = now_ns()
        self.another()
        result["protected_ms"] = self.protected_ms(healed)
        if old:
            self.ends(old)
            self.speaks(self.primary)
        self.nothing_left()
        return {**result, **self.known()}

    def known(self):
        """What was checked up to now, since the guest was started."""
        return {"life": self.life, "rounds": self.all_rounds(), "statements": self.peer.last(), "looks": self.peer.looks}

    def all_rounds(self):
        return {f"{program} {stream}": said for stream, (program, said) in enumerate(zip(self.programs, self.peer.rounds()), 1)}

    def protected_ms(self, healed):
        """How long it took from a moment at which nothing was wrong any more until the VM was protected, as it is now."""
        at = [e["boot_ns"] for e in self.primary.events() if e["event"] == "protecting"]
        return max(0, round((at[-1] - healed) / 1e6))

    def restore(self):
        """The arbiter gets back what it had before this pair was one; the pair has its record made again by itself."""
        if not self.copies:  # the first pair of a VM: nothing is older
            self.fault = self.last_fault = "kill-qemu"
            return
        copy = self.copies[0 if self.heads else -1]
        if self.etcd:
            self.etcd[0].restore(copy)
        else:
            record, = self.directory.glob("lease.*")
            put_back(copy, record)
        self.settled()
        wait(lambda: not gate_is_closed(self.primary), f"its gate is open; {self.primary.said()}")
        self.primary.wait("the standby reaches the arbiter", lambda s: s["protected"] and not s["standby_problem"])

    def endures(self):
        """The way between both hosts is bad for a while. Who gives whom up is not ours to say; the VM goes on."""
        time.sleep(1 + 4 * self.moment)
        return self.heals()

    def goes_on_alone(self, begin):
        """The primary keeps the arbiter and goes on; its standby begins anew when what was wrong is over. → protected_ms"""
        self.primary.wait("it goes on alone", lambda s: state_after(self.primary, begin, "alone"))
        self.speaks(self.primary)
        if self.arbiter == "fence" and self.fault in FENCED:
            status = self.standby.process.wait(120)
            assert status == -9, f"who was cut off ended with {status}; {self.standby.said()}"
            return self.replaced(self.standby)
        if self.fault == "kill-filling":
            self.kill_while_filled()
        if self.fault == "cut-filling":
            self.cut_while_filled()
        if self.fault == "freeze-standby":
            self.standby.freeze(False)
        if self.fault in ("cut", "freeze-standby"):
            self.standby.wait("it begins anew", lambda s: s["state"] not in ("synced", "claiming"))
        if self.fault == "disk-full":
            (self.room(self.standby.machine) / "filler").unlink()
        if self.fault == "disk-fails":
            self.write_past_us(FAILS, bytes(4096))
        return self.heals()

    def heals(self):
        """The standby, or a new one if it was cut off, protects the VM again. → protected_ms"""
        for relay in self.network:
            relay.mend()
        # Cut off; or its QEMU could not even begin with a full disk. Then somebody starts another one.
        if not self.standby.alive() and ((self.arbiter == "fence" and self.standby.process.returncode == -9)
                                         or self.fault == "disk-full"):
            return self.replaced(self.standby)
        healed = now_ns()
        self.settled()
        found = self.protected_ms(healed)
        self.goes_on()
        self.nothing_left()
        return found

    def replaced(self, old):
        """Who has ended gets a successor as standby. → protected_ms"""
        self.sweep(old)
        self.forget(old)
        healed = now_ns()
        self.another()
        found = self.protected_ms(healed)
        self.nothing_left()
        return found

    def kill_while_filled(self):
        """The standby's QEMU once more, at a moment at which the state transfer to it is under way."""
        self.primary.wait("its standby is filled", lambda s: s["state"] in ("replicating", "protecting"))
        time.sleep(self.moment)
        try:
            os.kill(self.standby.qemu(), signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended by itself

    def cut_while_filled(self):
        """The ways are mended, and cut once more while the state transfer is under way."""
        for relay in self.network:
            relay.mend()
        self.primary.wait("its standby is filled", lambda s: s["state"] in ("replicating", "protecting"))
        time.sleep(self.moment)
        begin = now_ns()
        for relay in self.network:
            relay.cut()
        self.primary.wait("it is alone again", lambda s: state_after(self.primary, begin, "alone"))
        self.speaks(self.primary)

    def ends_and_begins(self):
        """The VM ends with all its memory, and is started anew where its disks are the newest, by a person's word if need be."""
        begin, old, waits = now_ns(), self.primary, self.standby
        qemus = [old.qemu()]
        if self.fault == "power-off":
            qemus.append(waits.qemu())
            power_off(old, waits)
            self.peer.silent(qemus)
            self.check_disk(old)
            self.sweep(waits)
            self.forget(waits, keep=True)
        else:
            self.freeze_etcd()
            old.tell("stop")
            assert old.process.wait(60) == 0, old.said()
            assert "--force-new" in old.said(), old.said()
            self.freeze_etcd(False)
            waits.wait_state("listening")
            time.sleep(LEASE_SECONDS + 1)
            assert not any(e["event"] == "running" for e in waits.events()), f"it runs what was stopped; {waits.said()}"
            self.peer.silent(qemus)
            self.check_disk(old)
        self.peer.check()
        self.sweep(old)
        self.forget(old, keep=True)
        # Without a disk nobody can know better than a person that nothing is wanted of what was there.
        self.anew = self.fault != "power-off" or not self.disk or self.arbiter == "fence"
        result = {"fault": self.fault, "turn": self.turn, "at_ns": begin, **self.known()}
        self.life += 1
        self.on_disk = 0
        self.peer.anew(f"life {self.life}")
        healed = now_ns()
        self.draw()
        if self.fault in ("disk-full", "restored"):
            self.fault = "kill-qemu"
        if result["fault"] == "power-off" and self.heads:  # the other order
            self.standby = self.host("standby", "unused", None, waits)
            self.standby.wait_state("listening")
            self.primary = self.host("run", self.way_to(self.standby.number), self.standby, old)
        elif result["fault"] == "power-off":
            self.primary = self.host("run", self.way_to(self.started + 2), None, old)
            if not self.anew:
                self.primary.wait("it asks", lambda s: s["state"] == "comparing")
            self.standby = self.host("standby", "unused", self.primary, waits)
        else:
            self.primary = self.host("run", self.way_to(self.standby.number), self.standby, old)
        self.anew = False
        self.computes()
        result["protected_ms"] = self.protected_ms(healed)
        self.nothing_left()
        return result

    def taken_over(self, begin):
        def look():
            if any(e["event"] == "running" for e in self.standby.events()):
                return True
            state = state_at(self.primary, begin)
            if state not in ("protecting", "unpairing", "leaving") and not self.primary.alive():
                raise Unprotected(f"{self.primary.name} was '{state}' when it was hit; {self.primary.said()}")
            assert self.standby.alive(), f"{self.standby.name} ended; {self.standby.said()}"
            return False
        try:
            wait(look, f"{self.standby.name} takes over after {self.fault}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.primary.said()}; {self.standby.said()}") from error

    def ends(self, old):
        """Who was taken over from wakes up, is heard no more, and ends as it has to."""
        if old.alive():
            for pid in (qemu_of(old), old.process.pid):
                if pid:
                    os.kill(pid, signal.SIGCONT)
        for relay in self.relays.get(old.name, ()):
            relay.mend()
        status = old.process.wait(120)
        ends = FENCED_ENDS if self.arbiter == "fence" else ENDS
        assert status == ends[old.fault], f"after {old.fault} it ended with {status}, not {ends[old.fault]}; {old.said()}"
        assert (status == 1) == (MUST_NOT in old.said()), old.said()
        self.sweep(old)
        self.forget(old)

    def sweep(self, old):
        """What a supervisor leaves that was killed; the next one of its name would do it."""
        if old.process.returncode == -9:
            for path in [*self.directory.glob(f"{old.name}.*"), *self.directory.glob(f"far{old.number}*")]:
                if path.suffix not in (".d", ".log", ".toml"):
                    path.unlink()

    def forget(self, old, keep=False):
        """Nobody asks for it any more. `keep`: its machine comes back."""
        self.peer.forget(old.name)
        (self.directory / f"{old.name}.pid").unlink(missing_ok=True)
        for relay in self.relays.pop(old.name, ()):
            relay.close()
        if keep:
            return
        if self.room(old.machine).exists():
            remove_room(self.room(old.machine))
        for path in self.directory.glob(f"{old.machine}.*"):
            path.unlink()

    def check_disk(self, host):
        """What the peer has been told since the last time is on this host's disk."""
        if not self.disk:
            return
        told = self.peer.said()[self.on_disk:]
        lost = records.missed(self.image(host.machine), told)
        assert not lost, f"{len(lost)} of {len(told)} told records are not on {host.name}'s disk: {lost[0]}"
        self.on_disk += len(told)

    def times(self, begin):
        status = self.primary.wait("its GPU has computed", lambda s: not self.programs or
                                   s.get("last_takeover_ns", {}).get("first_command", 0))
        times = status["last_takeover_ns"]
        # A VM that stood still and was started late has no other figure than these: from the fault on.
        names = {"decided_ms": "decided", "takeover_ms": "running", "output_ms": "output"}
        if self.programs:
            names["computing_ms"] = "first_command"
        return {name: round((times[what] - begin) / 1e6, 1) for name, what in names.items()}

    def memory(self, host):
        """What the guest has on its GPU."""
        if not self.programs:
            return None
        stats = ask(self.directory / f"{host.name}.qmp", "qom-get", path="/machine/peripheral/vgpu0", property="stats")
        return {name: stats[name] for name in ("files-open", "memory-bytes")}
