# SPDX-License-Identifier: GPL-2.0-or-later
"""
One VM of a soak: it runs programs, loses its host, goes on in the standby, is given another standby, and so on. Everything
that is drawn comes from the chain's own random numbers, so that a chain can be had again (its times can't).
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import records
from etcd import ETCD, Etcd, Member, free_port
from faults import (FAILS, NOWHERE, Monitor, data_disk, fill, make_room, power_off, put_back, remove_room, write,
                    write_until_given_up)
from gpu_pair import tell
from guest_vm import HERE, Socket, environment
from ha_pair import Hosts, gate_is_closed, wait, workers
from net_peer import GUEST_MAC, PEER, SETUP
from processes import WORKER
from relay import Relay
from soak import leaks
from soak.kinds import ALONE, BAD, CUTS, ENDED, ENDS, FENCED, FENCED_ENDS, MUST_NOT, WAYS, WEIGHTS, needs_relay, possible
from soak.peer import Peer

# Which programs compute in a VM; net_job speaks and is spoken to in each. None: a VM without a GPU.
PROGRAMS = (("compute",), ("transfers",), ("commands",), ("mapped",), ("register",), ("compute", "mapped"),
            ("commands", "transfers"), ("register", "mapped"), (), ())

DISK_BYTES = 384 << 20

# `fence`: cuts everybody of this VM off but the host that is named last.
CUT_OFF = (sys.executable, "-B", str(HERE / "soak" / "cut_off.py"))

# More open files than at first that are no leak: QEMU's threads come and go with what is to be done.
ALLOWED = (("anon_inode:[eventfd]", 4), ("qemu", 3))

DESCRIPTION = """
name = "soak"
qemu-options = {options}
memory = "{memory}"
cpus = {cpus}
accel = "{accel}"
[boot]
guest = "{guest}"
job = "job.sh"
files = [{files}]
{disk}
[[network]]
netdev = "{netdev}"
mac = "{mac}"
{gpu}
[protection]
standby = "unix:{directory}/{near}"
epoch-ms = 50
heartbeat-ms = 300
heartbeat-budget-ms = 3000
qemu-budget-ms = 8000
[supervision]
checkpoint-ms = 6000
main-loop-ms = 8000
gpu-takeover-ms = 0
[arbiter]
{arbiter}
"""
LEASE_SECONDS = 3
GPU = """
[gpu]
backend = "opencl"
{gpu}
{keys}
[gpu.properties]
window-size = "16M"
{properties}
"""


ARBITERS = ("lock", "etcd", "fence")


class Unprotected(Exception):
    """The VM was lost in a moment in which it said itself that it had no standby."""


class Chain:
    """Use as a context manager. `number` of `seed` decides everything; `only`: the faults to draw from; `programs`, `arbiter`,
    `disk` (whether there is a writable one): instead of those that would be drawn."""

    def __init__(self, seed, number, only=None, programs=None, arbiter=None, disk=None):
        self.random = random.Random(f"{seed}:{number}")
        drawn = self.random.choice(PROGRAMS)
        self.programs = drawn if programs is None else tuple(programs)
        self.directory = Path(tempfile.mkdtemp(prefix="kagemusha-soak-"))
        drawn = self.random.choice(ARBITERS)
        self.arbiter = arbiter or (drawn if is_possible(drawn, self.directory) else "lock")
        drawn = self.random.random() < 0.5
        self.disk = drawn if disk is None else disk
        drawn = self.random.choice((1, 3))
        self.servers = drawn if self.arbiter == "etcd" else 0
        self.cpus = self.random.choice((1, 2))
        self.kinds = {kind: weight for kind, weight in WEIGHTS.items() if (not only or kind in only) and possible(
            kind, arbiter=self.arbiter, servers=self.servers, gpu=bool(self.programs), disk=self.disk, mounts=own_mounts())}
        self.hosts = Hosts(self.directory, dict(environment(backend="opencl" if self.programs else "none"),
                                                KAGEMUSHA_RUNTIME_DIR=str(self.directory)))
        self.peer = Peer(self.directory, self.programs, f"{seed}:{number}")
        self.etcd = etcd_servers(self.directory, self.servers)
        self.copies = []  # of the arbiter's record, the oldest first
        self.relays = {}  # of hosts: name → to each of the arbiter's servers
        self.network = []  # between primary and standby, when it is to be cut
        self.gpu_keys = self.gpu_properties = ""  # more of [gpu] and [gpu.properties], for hosts that are started from here on
        self.started = 0
        self.anew = False  # whether a person says that the VM is to be begun anew where it is started now
        self.turn = 0
        self.fault = self.last_fault = "start"  # the one that is drawn, and the one that was done last
        self.primary, self.standby, self.baseline = None, None, {}
        self.monitor = None  # of a QEMU whose main loop is stuck
        self.failing = self.directory / "data.img"  # a disk that can hang or fail
        self.options = [*NOWHERE, *data_disk(self.failing)]
        self.life = 1  # how often the guest was started
        self.on_disk = 0  # statements that were found on the disk of a host that took over
        disk = ("mkdir -p /tmp/disk && mount -t ext4 /dev/vdc /tmp/disk || exit 1\n"
                "rm -f /tmp/disk/records  # of a life before" if self.disk else "")
        speaks = "keep /tmp/disk/records >/dev/null" if self.disk else "quiet"
        jobs = "".join(f"/payload/{command(program)} {stream} {PEER} /tmp/stop &\nall+=($!)\n"
                       for stream, program in enumerate(self.programs, 1))
        (self.directory / "job.sh").write_text(f"""#!/bin/bash
{SETUP}
{disk}
/payload/net_job {PEER} {speaks} &
net=$!
all=()
{jobs}
echo computing
read -r _ </dev/ttyS0
touch /tmp/stop
status=0
for each in "${{all[@]}}"; do
    wait "$each" || status=1
done
kill $net
wait $net
{"umount /tmp/disk || status=1" if self.disk else ""}
exit $status
""", encoding="utf-8")

    def __enter__(self):
        self.peer.__enter__()
        return self

    def __exit__(self, *what):
        self.hosts.__exit__(*what)
        self.peer.__exit__(*what)
        for relay in (*self.network, *(each for of_host in self.relays.values() for each in of_host)):
            relay.close()
        for one in self.etcd:
            one.end()
        for room in self.directory.glob("*.room"):
            remove_room(room)

    # ---- hosts ----

    def host(self, command, near, other=None, was=None):
        """Starts a supervisor. `near`: where its standby, or the primary of it, finds the other one. It has the GPU that the
        other host does not have, when there are two. `was`: who ran on this host before; else it is a new host."""
        self.started += 1
        name = f"host{self.started}"
        machine = was.machine if was else self.machine(f"machine{self.started}", command)
        arbiter = 'kind = "lock"\npath = "lease"\nlease-ms = 3000'
        if self.etcd:
            self.relays[name] = [Relay(0, one.address[1]) for one in self.etcd]
            endpoints = [f"http://127.0.0.1:{relay.port}" for relay in self.relays[name]]
            arbiter = f'kind = "etcd"\nendpoints = {json.dumps(endpoints)}\nlease-ms = 3000'
        if self.arbiter == "fence":
            cut_off = json.dumps([*CUT_OFF, str(self.directory), name])
            arbiter = f'kind = "fence"\npath = "{machine}.fence"\ncommand = {cut_off}\ndelay-ms = 4000'
        files = [f'"{os.environ["KAGE_NET_JOB"]}:net_job"']
        if self.programs:
            files.append(f'"{os.environ["KAGE_SOAK_JOB"]}:soak_job"')
            files.append(f'"{os.environ["KAGE_REGISTER_JOB"]}:register_job"')
        if "flush" in self.programs:
            files.append(f'"{os.environ["KAGE_FLUSH_JOB"]}:flush_job"')
        if any(program.startswith("differ") for program in self.programs):
            files.append(f'"{os.environ["KAGE_DIFFER_JOB"]}:differ_job"')
        gpu = os.environ.get("KAGE_GPU", "")
        if other and other.gpu == gpu:
            gpu = os.environ.get("KAGE_STANDBY_GPU") or gpu
        self.hosts.description = self.directory / f"{name}.toml"
        self.hosts.description.write_text(DESCRIPTION.format(
            options=json.dumps(self.options),
            memory="320M" if self.programs else "256M", cpus=self.cpus, accel="tcg",
            guest=os.environ.get("KAGE_KERNEL") or "6.12-cloud", files=", ".join(files),
            netdev=self.peer.netdev, mac=GUEST_MAC.hex(":"),
            gpu=GPU.format(gpu=f'gpu = "{gpu}"' if gpu else "", keys=self.gpu_keys, properties=self.gpu_properties)
            if self.programs else "",
            disk='[[disk]]\npath = "none.img"\nwritable = true' if self.disk else "",
            directory=self.directory, near=near, arbiter=arbiter), encoding="utf-8")
        more = ["--listen", f"unix:{self.directory}/far{self.started}"] if command == "standby" else []
        if command == "run" and (self.anew or (self.arbiter == "fence" and not was)):
            more.append("--force-new")
        if self.disk:
            more += ["--disk", str(self.image(machine))]
        one = self.hosts.start(command, name, *more)
        (self.directory / f"{name}.pid").write_text(str(one.process.pid), encoding="ascii")
        one.number, one.command, one.gpu, one.machine = self.started, command, gpu, machine
        return one

    def machine(self, name, command):
        """A new one: what outlives who runs on it has its name."""
        if self.disk and command == "standby" and self.fault == "disk-full":
            make_room(self.room(name), 2 * DISK_BYTES)
        if self.disk and command == "run":
            records.make_file_system(self.image(name), DISK_BYTES)
        elif self.disk:
            with open(self.image(name), "wb") as image:
                image.truncate(DISK_BYTES)
        return name

    def room(self, machine):
        """Where the file system of this machine's image is, if it can become full."""
        return self.directory / f"{machine}.room"

    def image(self, machine):
        room = self.room(machine)
        return (room if room.exists() else self.directory) / f"{machine}.img"

    def way_to(self, number):
        """Where the primary finds the standby of this number: with relays between them if the fault needs some."""
        for relay in self.network:
            relay.close()
        self.network = []
        if not needs_relay(self.fault):
            return f"far{number}"
        near = f"near{number}"
        self.network = [Relay(f"{self.directory}/{near}{of}", f"{self.directory}/far{number}{of}") for of in WAYS]
        return near

    def begin(self):
        """The VM runs, its programs compute, a standby protects it."""
        self.draw()
        self.standby = self.host("standby", "unused")
        self.primary = self.host("run", self.way_to(self.standby.number), self.standby)
        self.standby.wait("it has begun", lambda s: s["state"])
        self.computes()

    def computes(self):
        self.primary.wait("the guest's programs", lambda s: "computing" in console(self.primary))
        self.settled()

    def another(self):
        """The next fault is drawn, and a standby comes that is to survive it."""
        self.draw()
        self.comes()

    def comes(self):
        self.standby = self.host("standby", "unused", self.primary)
        self.standby.wait_state("listening")
        self.primary.tell("protect", f"unix:{self.directory}/{self.way_to(self.standby.number)}")
        self.settled()

    def goes_on(self):
        """The next fault is drawn. It hits this pair, unless it needs what this one does not have."""
        self.draw()
        if (self.network or not needs_relay(self.fault)) and self.fault not in ("disk-full", "restored"):
            return
        self.standby.tell("stop")
        assert self.standby.process.wait(120) == 0, self.standby.said()
        self.primary.wait_state("alone")
        self.sweep(self.standby)
        self.forget(self.standby)
        self.comes()

    def draw(self):
        kinds = dict(self.kinds)
        if self.primary and self.primary.command != "run":
            kinds.pop("stick-main-loop", None)  # a QEMU that was a standby's has the disk for that closed
        kinds = kinds or {"kill-qemu": 1}
        self.fault = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.rest = self.random.choice((0, 0, self.random.uniform(0, 0.2), self.random.uniform(0, 2)))
        self.sleeps_long = self.random.random() < 0.5
        self.moment = self.random.uniform(0, 0.5)  # after a state transfer has begun
        self.heads = self.random.random() < 0.5
        if self.fault == "restored" and self.primary:
            self.copy_record()

    def copy_record(self):
        if self.etcd:
            self.copies.append(self.etcd[0].backup(f"backup{self.turn}"))
        else:
            record, = self.directory.glob("lease.*")
            self.copies.append(Path(shutil.copyfile(record, self.directory / f"copy{self.turn}-of-the-lease")))
        for copy in self.copies[1:-1]:  # only the oldest and the newest are put back
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
        self.copies = self.copies[:1] + self.copies[1:][-1:]

    def settled(self):
        self.protects()
        self.primary.wait_commit()
        for one in (self.primary, self.standby):
            self.peer.knows(one.name, self.directory / f"{one.name}.gate", one.qemu())
        self.speaks(self.primary)
        self.protects()

    def protects(self):
        def look(status):
            assert self.standby.alive(), f"{self.standby.name} ended; {self.standby.said()}"
            return status["state"] == "protecting"
        self.primary.wait("state protecting", look)

    def speaks(self, host):
        """Each program does, from this host, and hears. Everything fits, and all rounds up to now are known."""
        qemu, said, answers, rounds = host.qemu(), self.peer.last(), self.peer.answers(), self.peer.rounds()

        def look():
            assert "FAILED" not in console(host), console(host)[-2000:]
            assert host.alive(), f"{host.name} ended; {host.said()}"
            self.peer.check()
            return (self.peer.last() > said + 5 and self.peer.answers() > answers and self.peer.speaker() == qemu
                    and all(now > before + 1 for now, before in zip(self.peer.rounds(), rounds)) and self.peer.whole(rounds))
        try:
            wait(look, f"the programs go on in {host.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; rounds {rounds} before, now {self.peer.rounds()}, statement {said} before, now "
                                 f"{self.peer.last()}, request {answers} before, now {self.peer.answers()}; {host.said()}"
                                 ) from error

    # ---- a fault ----

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

    def nothing_left(self):
        def look():
            return leaks.look(self.directory, {"primary": self.primary.process.pid, "standby": self.standby.process.pid})
        # A primary that was a standby has more than one that was not: its GPU's socket, until it ends.
        origin = self.primary.command
        if origin not in self.baseline:
            self.baseline[origin] = leaks.level(leaks.most(look() for _ in range(10)), WORKER)
        # QEMU has fewer files while a checkpoint stops the VM, and more at times. What is left over is always there.
        # A supervisor keeps its connections to those servers of etcd that it had to ask because the first one was slow.
        allowed = (*ALLOWED, ("kagemusha socket:", max(0, len(self.etcd) - 1)))
        for _ in range(10):
            found = leaks.more(self.baseline[origin], look(), allowed)
            if not found:
                return
            time.sleep(0.2)
        raise AssertionError("left over: " + "; ".join(found))

    def finish(self):
        """The programs end, every result was right, nothing is left. → rounds of each, statements of net_job"""
        rounds = self.peer.rounds()
        tell(self.primary, "enough")
        wait(lambda: "KAGEMUSHA-EXIT" in console(self.primary) or not self.primary.alive(), "the programs end", 600)
        text = console(self.primary)
        assert "KAGEMUSHA-EXIT 0" in text and text.count("rounds are right") == len(self.programs), text[-2000:]
        assert self.primary.process.wait(120) == 0, self.primary.said()
        self.standby.wait_state("listening")
        self.standby.tell("stop")
        assert self.standby.process.wait(120) == 0, self.standby.said()
        self.peer.check()
        assert self.peer.whole(rounds)
        if self.disk:
            records.check_history(self.image(self.primary.machine), self.peer.said(), self.directory / "records")

        def left():
            found = leaks.look(self.directory, {})
            found.pop("nobody's: etcd processes", None)
            return leaks.more({}, found)
        # Its memory-keeper gives a QEMU's memory back after it has ended.
        try:
            wait(lambda: not left(), "nothing is left over")
        except AssertionError as error:
            raise AssertionError(f"left over: {left()}") from error
        return {**self.known(), "on_disk": self.on_disk}


def is_possible(arbiter, directory):
    """Whether there is such an arbiter on this machine."""
    if arbiter == "fence":  # its record must outlive the host: `fence` refuses a directory in memory
        done = subprocess.run(["stat", "-f", "-c", "%T", directory], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip() not in ("tmpfs", "ramfs")
    return arbiter == "lock" or os.path.exists(ETCD)


def own_mounts():
    """Whether what we mount is nobody else's: run.py has seen to it."""
    return os.environ.get("KAGE_SOAK_NAMESPACES") == "1"


def etcd_servers(directory, count):
    if count <= 1:
        return [Etcd(directory) for _ in range(count)]
    members = [Member(directory, f"member{number}", "127.0.0.1", ports=(free_port(), free_port())) for number in range(count)]
    for one in members:
        one.start(members)
    for one in members:
        wait(one.answers, f"{one.name} of etcd answers")
    return members


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def command(program):
    """What the guest starts for it."""
    name, *words = program.split("-")  # "differ-counts": differ_job counts
    return " ".join([f"{name}_job", *words]) if name in ("register", "flush", "differ") else f"soak_job {program}"


# ---- what is seen of a host ----

def console(host):
    try:
        return host.console().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def ask(monitor, command, **arguments):
    qmp = Socket(monitor, lambda: True, 60)
    try:
        qmp.line(60)
        for words in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
            qmp.send(json.dumps(words))
            answer = {}
            while "return" not in answer:
                answer = json.loads(qmp.line(60))
                assert "error" not in answer, answer
        return answer["return"]
    finally:
        qmp.socket.close()


def qemu_of(host):
    try:
        return host.qemu()
    except AssertionError:
        return None


def state_at(host, ns):
    """The state that its supervisor was in then."""
    states = ("opening", "alone", "replicating", "announcing", "recording", "protecting", "unpairing", "handing-over", "reclaiming",
              "leaving", "ended")
    return next((e["event"] for e in reversed(host.events()) if e["event"] in states and e.get("boot_ns", 0) <= ns), None)


def state_after(host, ns, state):
    """Whether its supervisor was in that state at some moment since then."""
    return any(e["event"] == state and e.get("boot_ns", 0) >= ns for e in host.events())


def made_twice(before, after):
    """How many rounds were made on both hosts, with different results: those of epochs that were lost."""
    def made(host):
        return {(words[5], words[1]): words[2] for words in map(str.split, console(host).splitlines())
                if len(words) == 6 and words[0] == "made"}
    first, second = made(before), made(after)
    return sum(second[which] != result for which, result in first.items() if which in second)
