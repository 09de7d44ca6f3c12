# SPDX-License-Identifier: GPL-2.0-or-later
"""
One VM of a soak: it runs programs, loses its host, goes on in the standby, is given another standby, and so on. Everything
that is drawn comes from the chain's own random numbers, so that a chain can be had again (its times can't).
"""
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import records
from etcd import ETCD, Etcd
from guest_vm import HERE, Socket, environment
from ha_pair import Hosts, wait, workers
from net_peer import GUEST_MAC, PEER, SETUP
from relay import Relay
from soak import leaks
from soak.peer import Peer
from test_gpu_survives import tell
from test_grey import Monitor, write

# Which programs compute in a VM; net_job speaks and is spoken to in each. None: a VM without a GPU.
PROGRAMS = (("compute",), ("transfers",), ("commands",), ("mapped",), ("register",), ("compute", "mapped"),
            ("commands", "transfers"), ("register", "mapped"), ())

# What is done to the primary, and how often compared with the others. `cut` is the way between both hosts, which leaves the
# primary alone; `cut-off` also cuts its way to the arbiter. `etcd-away`: QEMU dies while etcd stands still. Of `-standby` faults
# the other host is hit; `-filling`: while it is filled.
WEIGHTS = {"kill-qemu": 21, "kill-supervisor": 9, "kill-both": 9, "freeze": 9, "freeze-supervisor": 5, "freeze-qemu": 4,
           "kill-worker": 6, "cut": 4, "cut-supervisors": 2, "cut-state": 2, "cut-gpu": 2, "cut-there": 3, "cut-back": 3,
           "cut-off": 5, "etcd-away": 4, "stick-main-loop": 2, "switchover": 5, "kill-standby": 4, "freeze-standby": 3, "kill-filling": 4}
# What is cut between both hosts: which of the ways of the supervisors, of QEMU's state and of the GPU, and in which direction.
WAYS = ("", ".state", ".gpu")
CUTS = {"cut": (WAYS, None), "cut-off": (WAYS, None), "cut-supervisors": (("",), None), "cut-state": ((".state",), None),
        "cut-gpu": ((".gpu",), None), "cut-there": (WAYS, "there"), "cut-back": (WAYS, "back")}
# Nobody takes over: the primary goes on alone, and is protected again when what was wrong is over.
OF_THE_STANDBY = (*(kind for kind in CUTS if kind != "cut-off"), "kill-standby", "freeze-standby", "kill-filling")
# With `fence` the one who goes on has the other one cut off, unless that one says itself that it does not.
FENCED = ("cut", "cut-supervisors", "cut-there", "cut-back", "freeze-standby")
# How a primary ends that was taken over from; the sentence must then be in its log.
ENDS = {"kill-qemu": 0, "kill-supervisor": -9, "kill-both": -9, "freeze": 1, "freeze-supervisor": 1, "freeze-qemu": 0,
        "kill-worker": 0, "cut-off": 1, "etcd-away": 0, "stick-main-loop": 0, "switchover": 0}
FENCED_ENDS = {**ENDS, "freeze": -9, "freeze-supervisor": -9}
MUST_NOT = "must not run here any more"
DISK_BYTES = 256 << 20

# `fence`: cuts everybody of this VM off but the host that is named last.
CUT_OFF = ("/usr/bin/python3", "-B", str(HERE / "soak" / "cut_off.py"))

# More open files than at first that are no leak: QEMU's threads come and go with what is to be done.
ALLOWED = (("anon_inode:[eventfd]", 4), ("qemu", 3))

# What QEMU's main loop can be made to wait for: a disk that no device uses, and that a limit can make slow.
NOWHERE = ["-object", "throttle-group,id=slow", "-blockdev",
           "driver=throttle,node-name=nowhere,throttle-group=slow,file.driver=null-co,file.size=1048576"]

DESCRIPTION = """
name = "soak"
qemu-options = {options}
memory = "{memory}"
cpus = 2
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
[arbiter]
{arbiter}
"""
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
        self.kinds = {kind: weight for kind, weight in WEIGHTS.items()
                      if (not only or kind in only) and (kind not in ("cut-off", "etcd-away") or self.arbiter == "etcd")
                      and (kind not in ("kill-worker", "cut-gpu") or self.programs)}
        self.hosts = Hosts(self.directory, dict(environment(backend="opencl" if self.programs else "none"),
                                                KAGEMUSHA_RUNTIME_DIR=str(self.directory)))
        self.peer = Peer(self.directory, self.programs, f"{seed}:{number}")
        self.etcd = Etcd(self.directory) if self.arbiter == "etcd" else None
        self.relays = {}  # of hosts: name → to the arbiter
        self.network = []  # between primary and standby, when it is to be cut
        self.gpu_keys = self.gpu_properties = ""  # more of [gpu] and [gpu.properties], for hosts that are started from here on
        self.started = 0
        self.turn = 0
        self.fault = "start"
        self.primary, self.standby, self.baseline = None, None, {}
        self.monitor = None  # of a QEMU whose main loop is stuck
        self.on_disk = 0  # statements that were found on the disk of a host that took over
        disk = "mkdir -p /tmp/disk && mount -t ext4 /dev/vdc /tmp/disk || exit 1" if self.disk else ""
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
        for relay in (*self.network, *self.relays.values()):
            relay.close()
        if self.etcd:
            self.etcd.end()

    # ---- hosts ----

    def host(self, command, near, other=None):
        """Starts a supervisor. `near`: where its standby, or the primary of it, finds the other one. It has the GPU that the
        other host does not have, when there are two."""
        self.started += 1
        name = f"host{self.started}"
        arbiter = 'kind = "lock"\npath = "lease"\nlease-ms = 3000'
        if self.etcd:
            self.relays[name] = Relay(0, self.etcd.address[1])
            arbiter = f'kind = "etcd"\nendpoints = ["http://127.0.0.1:{self.relays[name].port}"]\nlease-ms = 3000'
        if self.arbiter == "fence":
            arbiter = (f'kind = "fence"\npath = "{name}.fence"\ncommand = {json.dumps([*CUT_OFF, str(self.directory), name])}\n'
                       "delay-ms = 4000")
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
            options=json.dumps(NOWHERE),
            memory="512M" if self.programs else "256M", accel="tcg", guest=os.environ.get("KAGE_KERNEL") or "6.12-cloud",
            files=", ".join(files), netdev=self.peer.netdev, mac=GUEST_MAC.hex(":"),
            gpu=GPU.format(gpu=f'gpu = "{gpu}"' if gpu else "", keys=self.gpu_keys, properties=self.gpu_properties)
            if self.programs else "",
            disk='[[disk]]\npath = "none.img"\nwritable = true' if self.disk else "",
            directory=self.directory, near=near, arbiter=arbiter), encoding="utf-8")
        more = ["--listen", f"unix:{self.directory}/far{self.started}"] if command == "standby" else []
        if command == "run" and self.arbiter == "fence":
            more.append("--anew")  # no host has a record yet
        if self.disk:
            more += ["--disk", str(self.image(name))]
            if command == "run":
                records.make_file_system(self.image(name), DISK_BYTES)
            else:
                with open(self.image(name), "wb") as image:
                    image.truncate(DISK_BYTES)
        one = self.hosts.start(command, name, *more)
        (self.directory / f"{name}.pid").write_text(str(one.process.pid), encoding="ascii")
        one.number, one.command, one.gpu = self.started, command, gpu
        return one

    def image(self, name):
        return self.directory / f"{name}.img"

    def way_to(self, standby):
        """The address under which the primary finds this standby: with a relay between them when that is to be cut."""
        for relay in self.network:
            relay.close()
        self.network = []
        if self.fault not in CUTS:
            return f"far{standby.number}"
        near = f"near{standby.number}"
        self.network = [Relay(f"{self.directory}/{near}{of}", f"{self.directory}/far{standby.number}{of}") for of in WAYS]
        return near

    def begin(self):
        """The VM runs, its programs compute, a standby protects it."""
        self.draw()
        self.standby = self.host("standby", "unused")
        self.primary = self.host("run", self.way_to(self.standby), self.standby)
        self.standby.wait("it has begun", lambda s: s["state"])
        self.primary.wait("the guest's programs", lambda s: "computing" in console(self.primary))
        self.settled()

    def another(self):
        """The next fault is drawn, and a standby comes that is to survive it."""
        self.draw()
        self.standby = self.host("standby", "unused", self.primary)
        self.standby.wait_state("listening")
        self.primary.tell("protect", f"unix:{self.directory}/{self.way_to(self.standby)}")
        self.settled()

    def draw(self):
        kinds = dict(self.kinds)
        if self.primary and self.primary.command != "run":
            kinds.pop("stick-main-loop", None)  # a QEMU that was a standby's has the disk for that closed
        kinds = kinds or {"kill-qemu": 1}
        self.fault = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.rest = self.random.choice((0, 0, self.random.uniform(0, 0.2), self.random.uniform(0, 2)))
        self.sleeps_long = self.random.random() < 0.5

    def settled(self):
        self.protects()
        checkpoints = self.primary.status()["checkpoints"]
        self.primary.wait("two more checkpoints", lambda s: s["checkpoints"] >= checkpoints + 2)
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
                                 f"{self.peer.last()}, request {answers} before, now {self.peer.answers()}; {host.said()}") from error

    # ---- a fault ----

    def hit(self):
        """Does it. Returns when, in ns."""
        primary, qemu = self.primary, self.primary.qemu()
        primary.fault = self.fault
        begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if self.fault in ("kill-supervisor", "kill-both"):
            primary.process.kill()
        if self.fault == "stick-main-loop":
            self.monitor = Monitor(primary)  # stays open: a monitor that is closed forgets what it was told and has not begun
            self.monitor.throttle(1)
            for sector in (0, 128, 256):
                self.monitor.send("human-monitor-command", **write("nowhere", sector))
        if self.fault == "etcd-away":
            self.etcd.freeze()
        if self.fault in ("kill-qemu", "kill-both", "etcd-away"):
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
        if self.fault == "cut-off":
            self.relays[primary.name].cut()
        if self.fault == "switchover":
            primary.tell("switchover")
        if self.fault in ("kill-standby", "kill-filling"):
            os.kill(self.standby.qemu(), signal.SIGKILL)
        if self.fault == "freeze-standby":
            self.standby.freeze()
        return begin

    def lose(self):
        """One fault, and all that has to hold after it. Returns what is known of it."""
        self.turn += 1
        time.sleep(self.rest)
        before = self.memory(self.primary)
        begin = self.hit()
        result = {"fault": self.fault, "turn": self.turn, "at_ns": begin}
        if self.fault in OF_THE_STANDBY:
            self.goes_on_alone(begin)
            return result
        self.taken_over(begin)
        if self.monitor:
            self.monitor.socket.close()
            self.monitor = None
        if self.fault == "etcd-away":
            self.etcd.freeze(False)  # it runs on the word of the former host; its output waits
        old, self.primary = self.primary, self.standby
        self.check_disk()
        self.speaks(self.primary)
        result.update(self.times(begin))
        result["made_twice"] = made_twice(old, self.primary)
        status = self.primary.status()
        assert status["takeovers"] == 1 and not status["gpu_lost"], status
        assert self.fault != "stick-main-loop" or "main loop" in status["last_takeover"], status
        after = self.memory(self.primary)
        assert before == after, f"GPU memory and files of the guest: {before} before, {after} after"
        if not (self.sleeps_long and self.fault.startswith("freeze")):
            self.ends(old)
            old = None
        self.another()
        if old:
            self.ends(old)
            self.speaks(self.primary)
        self.nothing_left()
        return result

    def goes_on_alone(self, begin):
        """The primary keeps the arbiter and goes on; its standby begins anew when what was wrong with it is over."""
        self.primary.wait("it goes on alone", lambda s: state_after(self.primary, begin, "alone"))
        self.speaks(self.primary)
        if self.arbiter == "fence" and self.fault in FENCED:
            status = self.standby.process.wait(120)
            assert status == -9, f"who was cut off ended with {status}; {self.standby.said()}"
            return self.replaced(self.standby)
        if self.fault == "kill-filling":
            self.kill_while_filled()
        if self.fault == "freeze-standby":
            self.standby.freeze(False)
        if self.fault in ("cut", "freeze-standby"):
            self.standby.wait("it begins anew", lambda s: s["state"] not in ("synced", "claiming"))
        for relay in self.network:
            relay.mend()
        self.settled()
        # The next one has another standby.
        self.standby.tell("stop")
        assert self.standby.process.wait(120) == 0, self.standby.said()
        self.primary.wait_state("alone")
        return self.replaced(self.standby)

    def replaced(self, old):
        """Who has ended gets a successor as standby."""
        self.sweep(old)
        self.forget(old)
        self.another()
        self.nothing_left()

    def kill_while_filled(self):
        """The standby's QEMU once more, at a moment at which the state transfer to it is under way."""
        moment = self.random.uniform(0, 0.5)
        self.primary.wait("its standby is filled", lambda s: s["state"] in ("replicating", "protecting"))
        time.sleep(moment)
        try:
            os.kill(self.standby.qemu(), signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended by itself

    def taken_over(self, begin):
        def look():
            if any(e["event"] == "running" for e in self.standby.events()):
                return True
            state = state_at(self.primary, begin)
            if state not in ("protecting", "losing", "leaving") and not self.primary.alive():
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
        if old.name in self.relays:
            self.relays[old.name].mend()
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

    def forget(self, old):
        self.peer.forget(old.name)
        for path in self.directory.glob(f"{old.name}.*"):
            if path.suffix in (".pid", ".fence", ".img", ".kagemusha"):
                path.unlink()
        relay = self.relays.pop(old.name, None)
        if relay:
            relay.close()

    def check_disk(self):
        """What the peer has been told since the last time is on the disk of the host that runs the VM."""
        if not self.disk:
            return
        told = self.peer.said()[self.on_disk:]
        lost = records.missed(self.image(self.primary.name), told)
        assert not lost, f"{len(lost)} of {len(told)} told records are not on {self.primary.name}'s disk: {lost[0]}"
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
            self.baseline[origin] = leaks.most(look() for _ in range(10))
        # QEMU has fewer files while a checkpoint stops the VM, and more at times. What is left over is always there.
        for _ in range(10):
            found = leaks.more(self.baseline[origin], look(), ALLOWED)
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
            records.check_history(self.image(self.primary.name), self.peer.said(), self.directory / "records")

        def left():
            found = leaks.look(self.directory, {})
            found.pop("nobody's: etcd processes", None)
            return leaks.more({}, found)
        # Its memory-keeper gives a QEMU's memory back after it has ended.
        try:
            wait(lambda: not left(), "nothing is left over")
        except AssertionError as error:
            raise AssertionError(f"left over: {left()}") from error
        return {"rounds": dict(zip(self.programs, self.peer.rounds())), "statements": self.peer.last(), "looks": self.peer.looks,
                "on_disk": self.on_disk}


def is_possible(arbiter, directory):
    """Whether there is such an arbiter on this machine."""
    if arbiter == "fence":  # its record must outlive the host: `fence` refuses a directory in memory
        done = subprocess.run(["stat", "-f", "-c", "%T", directory], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip() not in ("tmpfs", "ramfs")
    return arbiter == "lock" or os.path.exists(ETCD)


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
    states = ("opening", "alone", "replicating", "telling", "recording", "protecting", "losing", "handing-over", "taking-back",
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
