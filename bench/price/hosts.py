# SPDX-License-Identifier: GPL-2.0-or-later
"""
Where the suite runs: natively, and in guests whose GPU and whose VM are replicated or not. All of it on this machine.

A column is started once and runs the suite many times. While it is not its turn it is paused: a VM is stopped by QEMU; a
protected one is frozen with its standby (SIGSTOP), because its checkpoints would take processor time from the others.

Seconds are those of this machine's clock, taken when the suite's @begin and @end arrive. The guest's own clock will not do:
it stands still while a checkpoint stops the guest.
"""
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_SECONDS = 240  # a guest without hardware virtualization on a busy machine; a boot that hangs is tried again
CATCH_UP_SECONDS = 300
HERTZ = os.sysconf("SC_CLK_TCK")

DESCRIPTION = """
name = "price"
memory = "{memory}M"
cpus = {cpus}
accel = "{accel}"
confinement = {confinement}
[boot]
guest = "{guest}"
job = "{job}"
files = ["{suite}:suite"]
[gpu]
backend = "{backend}"
gpu = "{gpu}"
[gpu.properties]
{properties}
"""
# Both sides are frozen while other columns run: nobody may think that the other one is dead.
PROTECTION = """
[protection]
standby = "unix:standby"
heartbeat-ms = 10000
heartbeat-budget-ms = 600000
qemu-budget-ms = 600000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 600000
"""


class Lost(Exception):
    """The column can't go on: it has to be started anew."""


class Run:
    """What came of one run: `status`, `seconds` between @begin and @end (or None), `said` (its lines), `more` counters.
    `missed`: both were there when somebody looked, because this process had not been run meanwhile; so nobody knows."""

    def __init__(self, status, begin, end, said):
        self.status, self.more = status, {}
        self.missed = begin is not None and begin == end
        self.seconds = end - begin if begin is not None and end is not None and not self.missed else None
        self.said = said

    def result(self):
        """The suite's own line of JSON."""
        for line in reversed(self.said):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except ValueError:
                    return {}
        return {}


class Listener:
    """Takes lines with the moment at which they came, and knows a run's end."""

    def __init__(self):
        self.rest, self.begin, self.end, self.said = b"", None, None, []

    def take(self, data, now):
        """Returns the lines that are neither @begin nor @end."""
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        others = []
        for line in lines:
            text = line.decode("utf-8", "replace").strip("\r")
            if text == "@begin":
                self.begin = now
            elif text == "@end":
                self.end = now
            else:
                others.append(text)
        self.said += others
        return others

    def done(self, status):
        return Run(status, self.begin, self.end, self.said)


def processes_below(root):
    """Process numbers of everything that `root` has started, and what those have, without itself."""
    from processes import below, processes  # of tests/vm
    return sorted(below(processes(), {root}))


def executable(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def cpu_seconds(pid):
    """→ (its own processor time, that of its children that have ended); zeros when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / HERTZ, (int(fields[13]) + int(fields[14])) / HERTZ


def usage_of_qemu(pid, processors):
    """Processor time of a QEMU: the guest's processors (thread numbers), the rest of it, its GPU workers."""
    own, ended = cpu_seconds(pid)
    guest = sum(cpu_seconds(f"{pid}/task/{thread}")[0] for thread in processors)
    workers = ended + sum(sum(cpu_seconds(child)) for child in processes_below(pid))
    return {"guest": guest, "device": own - guest, "gpu": workers}


def one_line(error, characters=400):
    """What a table has room for of an error that may quote a log: its begin and its end."""
    text = " ".join(str(error).split())
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]} … {text[-half:]}"


class Native:
    """On the host."""

    def __init__(self, suite, environment=None):
        self.suite = suite
        self.environment = environment
        self.directories = []

    def start(self):
        pass

    def enter(self):
        pass

    def leave(self):
        pass

    def end(self):
        pass

    def counters(self):
        _, ended = cpu_seconds(os.getpid())
        return {"cpu-native": ended}

    def run(self, words, seconds):
        if words[0] != "whole":
            return self.run_command([self.suite, *words], seconds)
        with tempfile.TemporaryDirectory() as directory:  # programs leave files where they are
            begin = time.monotonic()
            run = self.run_command(["bash", "-c", " ".join(words[1:])], seconds, directory)
            run.seconds = time.monotonic() - begin
            return run

    def run_command(self, command, seconds, directory=None):
        listener = Listener()
        with subprocess.Popen(command, cwd=directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as process:
            deadline = time.monotonic() + seconds
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    process.kill()
                    process.wait()
                    listener.said.append(f"not within {seconds:.0f} s")
                    return listener.done(-1)
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    break
                listener.take(data, time.monotonic())
            return listener.done(process.wait())


class Loopback(Native):
    """On the host, with the guest's OpenCL driver linked to the device library (tests/loopback), and a worker that has the
    GPU. Payloads from 1 MiB on are in pages that program and worker share, where a guest's pages would be pinned."""

    def __init__(self, options):
        build = options.build.resolve()
        self.vendors = tempfile.TemporaryDirectory()  # not every loader takes the library itself for it
        library = build / "tests" / "loopback" / "libkagemusha_opencl_loopback.so"
        Path(self.vendors.name, "loopback.icd").write_text(f"{library}\n", encoding="utf-8")
        super().__init__(options.suite, {
            **os.environ, "OCL_ICD_VENDORS": self.vendors.name,
            "SUITE_DEVICE": "0.0", "KAGEMUSHA_LOOPBACK_GPU": options.gpu, "KAGEMUSHA_LOOPBACK_SHARE": str(1 << 20),
            "KAGEMUSHA_LOOPBACK_OPTIONS": options.gpu_options,
            "KAGEMUSHA_WORKER": str(build / "replicator" / "worker" / "kagemusha-worker")})

    def counters(self):
        return {}  # the worker is not this process's child


class Machine:
    """A VM out of a description, as `kagemusha run` starts it, and its console. Not protected."""

    protection, confinement = "", "true"

    def __init__(self, options, name, properties=None):
        import ha_pair  # needs the environment
        self.ha_pair = ha_pair
        self.options, self.name = options, name
        self.properties = {"vm-id": "price", "heartbeat-ms": "1000", "heartbeat-budget-ms": "60000",
                           **(properties or {})}
        self.pair, self.primary, self.console, self.number = None, None, None, 0
        self.processors = ()
        self.directories = []  # of everything that was started

    def describe(self, name, gpu, backend="opencl"):
        """What is started next is started from this."""
        properties = dict(self.properties)
        if backend == "opencl" and self.options.gpu_options:
            properties["options"] = self.options.gpu_options
        self.pair.description = self.pair.directory / f"{name}.toml"
        self.pair.description.write_text(DESCRIPTION.format(
            memory=self.options.memory, cpus=self.options.cpus, accel=self.options.accel, gpu=gpu, backend=backend,
            guest=self.options.kernel, job=HERE / "guest.sh", suite=self.options.suite, confinement=self.confinement,
            properties="\n".join(f'{key} = "{value}"' for key, value in properties.items())) + self.protection,
            encoding="utf-8")

    def start(self):
        directory = Path(tempfile.mkdtemp(prefix=f"kagemusha-bench-{self.name}-"))
        self.directories.append(directory)
        self.pair = self.ha_pair.Hosts(directory, dict(self.ha_pair.environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        try:
            self.boot()
        except (AssertionError, OSError) as error:
            raise Lost(f"{self.name} does not start: {error}") from error

    def boot(self):
        self.describe("primary", self.options.gpu)
        self.primary = self.pair.start("run", "primary")
        self.connect()

    def connect(self):
        """Waits until the guest's job is ready."""
        deadline = time.monotonic() + START_SECONDS
        while self.console is None:
            try:
                made = socket.socket(socket.AF_UNIX)
                made.connect(str(self.pair.directory / "primary.console"))
                self.console = made
            except OSError as error:
                made.close()
                if time.monotonic() > deadline or not self.primary.alive():
                    raise Lost(f"{self.name}: {error}; {self.primary.said()}") from error
                time.sleep(0.1)
        log = self.primary.console()
        # It may have been said before we were connected.
        self.ha_pair.wait(lambda: not self.primary.alive() or b"@ready" in log.read_bytes(), "the guest", START_SECONDS)
        if not self.primary.alive():
            # A guest whose boot fails ends its VM, and only its console says why.
            raise Lost(f"{self.name}: its VM ended before its guest was ready, with status {self.primary.process.returncode}; "
                       f"{self.primary.said()}; its console: {log.read_text(encoding='utf-8', errors='replace')[-600:]}")
        self.processors = [one["thread-id"] for one in self.qmp("query-cpus-fast")]

    def qmp(self, command, **arguments):
        """Asked on the socket that `kagemusha status` uses."""
        import guest_vm
        try:
            monitor = guest_vm.Socket(self.pair.directory / "primary.qmp", self.primary.alive, 60)
            monitor.line(60)
            for words in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                monitor.send(json.dumps(words))
                answer = {}
                while "return" not in answer:
                    answer = json.loads(monitor.line(60))
                    if "error" in answer:
                        raise Lost(f"{self.name}: QMP {command}: {answer['error'].get('desc')}")
            monitor.socket.close()
        except (guest_vm.GuestError, TimeoutError) as error:
            raise Lost(f"{self.name}: QMP {command}: {error or 'no answer'}") from error
        return answer["return"]

    def caught_up(self):
        """Waits until the standby has done all that there is now: its work must not fall into the turn of another column.
        → how long that took"""
        begin = time.monotonic()
        status = self.property("replication")
        last = status["appended"]
        while status["executed"] < last and status["state"] == "protecting":
            if time.monotonic() - begin > CATCH_UP_SECONDS:
                raise Lost(f"{self.name}: its standby did not catch up within {CATCH_UP_SECONDS} s: {status}")
            time.sleep(0.01)
            status = self.property("replication")
        return time.monotonic() - begin

    def property(self, name):
        return self.qmp("qom-get", path="/machine/peripheral/vgpu0", property=name)

    def enter(self):
        if self.qmp("query-status")["status"] == "paused":
            self.qmp("cont")

    def leave(self):
        self.qmp("stop")

    def counters(self):
        return {f"cpu-{key}": value for key, value in usage_of_qemu(self.primary.qemu(), self.processors).items()}

    def run(self, words, seconds):
        self.number += 1
        listener = Listener()
        try:
            self.drain()
            self.console.sendall(f"{self.number} {' '.join(words)}\n".encode())
            deadline = time.monotonic() + seconds
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Lost(f"{self.name}: {' '.join(words)} did not end within {seconds:.0f} s; it said {listener.said}")
                if not select.select([self.console], [], [], min(left, 1))[0]:
                    if not self.primary.alive():
                        raise Lost(f"{self.name}: its VM is gone; {self.primary.said()}")
                    continue
                data = self.console.recv(1 << 16)
                if not data:
                    raise Lost(f"{self.name}: its console is gone; {self.primary.said()}")
                for line in listener.take(data, time.monotonic()):
                    if line.startswith(f"@done {self.number} "):
                        return listener.done(int(line.split()[2]))
        except OSError as error:
            raise Lost(f"{self.name}: {error}") from error

    def drain(self):
        while select.select([self.console], [], [], 0)[0]:
            if not self.console.recv(1 << 16):
                raise Lost(f"{self.name}: its console is gone")

    def end(self):
        """Whatever state it is in: nothing stays behind but the logs."""
        if self.console:
            self.console.close()
            self.console = None
        if self.pair:
            for one in self.pair.started:
                for pid in processes_below(one.process.pid):
                    try:
                        os.kill(pid, signal.SIGCONT)
                    except ProcessLookupError:
                        pass
                one.end()
            self.pair = None


class Mirrored(Machine):
    """A machine whose GPU has a standby, and whose VM has none. `backend`: the standby's; `null` takes everything and executes
    nothing."""

    confinement = "false"  # the way to the standby is a socket in its directory, which a confined QEMU does not see

    def __init__(self, options, name, backend):
        # What `null` has in its memory is nobody's result: there is nothing to compare.
        super().__init__(options, name, {"digest-interval-ms": "0"} if backend == "null" else {})
        self.backend, self.standby = backend, None

    def boot(self):
        import guest_vm
        gpu = ("--gpu", self.options.standby_gpu) if self.backend == "opencl" and self.options.standby_gpu else ()
        self.standby = guest_vm.Machine(
            f"bench-{self.name}-standby", "standby", backend=self.backend, memory=self.options.memory,
            device_options=("heartbeat-ms=1000", "heartbeat-budget-ms=60000"),
            extra=("--vm-id", "price", "--listen", "unix:{directory}/gpu", "--accel", self.options.accel, *gpu))
        self.properties["replicate-to"] = f"unix:{self.standby.directory}/gpu"
        try:
            self.standby.connect_qmp()
        except guest_vm.GuestError as error:
            raise Lost(f"the standby with backend {self.backend} does not start: {error}") from error
        super().boot()

    def standby_qemu(self):
        for pid in processes_below(self.standby.process.pid):
            if executable(pid).startswith("qemu"):
                return pid
        raise Lost(f"{self.name}: its standby is gone; {self.standby.tail()}")

    def enter(self):
        super().enter()
        self.ha_pair.wait(lambda: self.property("replication")["state"] == "protecting", f"{self.name}: a mirror", 120)

    def counters(self):
        return {**super().counters(), **of_standby(self.standby_qemu()), **of_replication(self.property("replication"))}

    def run(self, words, seconds):
        run = super().run(words, seconds)
        run.more["caught-up-s"] = self.caught_up()
        status = self.property("replication")
        if status["state"] != "protecting" or status["degraded"]:
            run.said.append(f"the mirror was lost meanwhile: {status['state']} {status['degraded']}")
            run.status = run.status or -2
        return run

    def end(self):
        super().end()
        if self.standby:
            self.directories.append(self.standby.directory)
            self.standby.__exit__(None, None, None)
            self.standby = None


def of_standby(pid):
    return {f"cpu-standby-{key}": value for key, value in usage_of_qemu(pid, ()).items()}


def of_replication(status):
    return {"sent-bytes": status.get("sent-bytes", 0), "held-back-s": status.get("held-back-ns", 0) / 1e9}


class Protected(Machine):
    """A VM whose GPU is mirrored and whose memory and devices are checkpointed to a standby. `backend`: the standby's; with
    `null` it loads the checkpoints, and executes nothing."""

    protection = PROTECTION

    def __init__(self, options, name, backend="opencl"):
        super().__init__(options, name)
        self.backend, self.standby, self.frozen = backend, None, []
        self.properties = {"digest-interval-ms": "0"} if backend == "null" else {}

    def boot(self):
        self.describe("standby", self.options.standby_gpu if self.backend == "opencl" else "", self.backend)
        self.standby = self.pair.start("standby", "standby")
        super().boot()
        self.settle()

    def settle(self):
        self.primary.wait_state("protecting")
        seen = self.primary.status().get("checkpoints", 0)
        self.primary.wait("checkpoints", lambda s: s["checkpoints"] >= seen + 3)

    def enter(self):
        for pid in self.frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it had ended, and its parent, which goes on now, has seen that
        was, self.frozen = bool(self.frozen), []
        if was:
            try:
                self.settle()
            except AssertionError as error:
                raise Lost(str(error)) from error

    def leave(self):
        for one in (self.primary, self.standby):
            for pid in (one.process.pid, *processes_below(one.process.pid)):
                try:
                    os.kill(pid, signal.SIGSTOP)
                    self.frozen.append(pid)
                except ProcessLookupError:
                    pass

    def counters(self):
        found = {**super().counters(), **of_standby(self.standby.qemu()), **of_replication(self.property("replication"))}
        status = self.primary.status()
        found["checkpoints"] = status.get("checkpoints", 0)
        found["paused-s"] = status.get("total_pause_us", 0) / 1e6
        return found

    def run(self, words, seconds):
        run = super().run(words, seconds)
        run.more["caught-up-s"] = self.caught_up()
        state = self.primary.status().get("state")
        if state != "protecting":
            run.said.append(f"the VM was not protected meanwhile: {state}")
            run.status = run.status or -2
        return run
