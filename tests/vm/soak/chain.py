# SPDX-License-Identifier: GPL-2.0-or-later
"""
One VM of a soak: it runs programs, loses its host, goes on in the standby, is given another standby, and so on. Everything
that is drawn comes from the chain's own random numbers, so that a chain can be had again (its times can't).
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import records
from etcd import ETCD, Etcd, Member, free_port
from faults import NOWHERE, data_disk, make_room, remove_room
from gpu_pair import tell
from guest_vm import HERE, environment
from ha_pair import Hosts, wait
from net_peer import GUEST_MAC
from processes import WORKER
from relay import Relay
from soak import leaks
from soak.courses import Courses
from soak.description import DESCRIPTION, GPU, job
from soak.kinds import WAYS, WEIGHTS, needs_relay, possible
from soak.peer import Peer
from soak.views import console


# Which programs compute in a VM; net_job speaks and is spoken to in each. None: a VM without a GPU.
PROGRAMS = (("compute",), ("transfers",), ("commands",), ("mapped",), ("register",), ("compute", "mapped"),
            ("commands", "transfers"), ("register", "mapped"), (), ())

DISK_BYTES = 384 << 20

# `fence`: cuts everybody of this VM off but the host that is named last.
CUT_OFF = (sys.executable, "-B", str(HERE / "soak" / "cut_off.py"))

# More open files than at first that are no leak: QEMU's threads come and go with what is to be done.
ALLOWED = (("anon_inode:[eventfd]", 4), ("qemu", 3))

ARBITERS = ("lock", "etcd", "fence")


class Chain(Courses):
    """Use as a context manager. `number` of `seed` decides everything; `only`: the faults to draw from; `programs`, `arbiter`,
    `disk` (whether there is a writable one): instead of those that would be drawn."""

    heartbeat_ms, budget_ms, lease_ms = 300, 3000, 3000
    qemu_budget_ms, checkpoint_ms, main_loop_ms = 8000, 6000, 8000
    leak_looks = 10

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
        (self.directory / "job.sh").write_text(job(self.programs, self.disk), encoding="utf-8")

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
        arbiter = f'kind = "lock"\npath = "lease"\nlease-ms = {self.lease_ms}'
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
            directory=self.directory, near=near, arbiter=arbiter, heartbeat=self.heartbeat_ms, budget=self.budget_ms,
            qemu_budget=self.qemu_budget_ms, checkpoint=self.checkpoint_ms, main_loop=self.main_loop_ms), encoding="utf-8")
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
        qemu, before = host.qemu(), self.heard()

        def look():
            assert "FAILED" not in console(host), console(host)[-2000:]
            assert host.alive(), f"{host.name} ended; {host.said()}"
            self.peer.check()
            return self.heard_since(before, qemu)
        try:
            wait(look, f"the programs go on in {host.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; last statement, last request, rounds: {before} before, now {self.heard()}; "
                                 f"{host.said()}") from error

    def heard(self):
        return self.peer.last(), self.peer.answers(), self.peer.rounds()

    def heard_since(self, before, qemu):
        """Whether each program was heard since heard() gave that, from this QEMU, and all rounds up to then are known."""
        said, answers, rounds = before
        return (self.peer.last() > said + 5 and self.peer.answers() > answers and self.peer.speaker() == qemu
                and all(now > then + 1 for now, then in zip(self.peer.rounds(), rounds)) and self.peer.whole(rounds))

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
        for _ in range(self.leak_looks):
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
        if self.standby:
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
