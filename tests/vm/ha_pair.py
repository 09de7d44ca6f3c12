# SPDX-License-Identifier: GPL-2.0-or-later
"""
A protected VM on one machine as a test sees it: supervisors that were started from one description (kagemusha run,
kagemusha standby), the counting guest of guest/counter.S, and what each of them says.
"""
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from guest_vm import HERE, environment, tool
from processes import WORKER, freeze, processes

DIGITS = 8  # of a number that guest/counter.S prints
SECONDS = int(os.environ.get("KAGE_WAIT") or 300)  # no wait depends on speed; nobody waits for ever
SELDOM = 0.3  # seconds, the most between two looks of a wait


def wait(condition, what, seconds=SECONDS, every=0.02):
    """Until `condition` gives something true, which is returned. `every`: seconds between, at least. One that takes long, because it
    starts a program, is asked more seldom: whoever is waited for needs the processor."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        found = condition()
        if found:
            return found
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(max(every, min(4 * (now - asked), SELDOM)))


def workers(qemu):
    """The GPU workers of a QEMU, as pairs: used processor time, process number."""
    return [(one.ticks, pid) for pid, one in processes().items()
            if one.parent == qemu and one.name == WORKER and one.state not in "ZX"]


def counting_disk(directory):
    """A disk whose boot sector is the counting guest."""
    path = Path(directory)
    subprocess.run(["as", "--32", HERE / "guest" / "counter.S", "-o", path / "counter.o"], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", path / "counter.img",
                    path / "counter.o"], check=True)
    with open(path / "counter.img", "ab") as disk:
        disk.truncate(1 << 20)
    return path / "counter.img"


class Supervisor:
    """`kagemusha run|standby VM.toml`, under `name` in the pair's directory."""

    def __init__(self, pair, command, name, *more):
        self.pair, self.name = pair, name
        self.log = open(pair.directory / f"{name}.log", "wb")
        self.process = subprocess.Popen(
            [*pair.inside(name), pair.tool(name), command, str(pair.description), "--name", name, "--json", *more],
            stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT, env=pair.variables(name))

    def alive(self):
        return self.process.poll() is None

    def status(self):
        """What its supervisor says; empty while it can't be asked. Not by the tool, which also asks QEMU: tests look often."""
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(5)
                end.connect(str(self.pair.directory / f"{self.name}.control"))
                end.sendall(b'{"command": "status"}\n')
                with end.makefile("rb") as answer:
                    return json.loads(answer.read())
        except (OSError, ValueError):
            return {}

    def wait(self, what, condition):
        def look():
            if not self.alive():
                raise AssertionError(f"{self.name} ended with {self.process.returncode} instead: {self.said()}")
            status = self.status()
            return status if status and condition(status) else None
        try:
            return wait(look, f"{self.name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.said()}") from error

    def wait_commit(self):
        """Until the standby has a checkpoint that began after this call. The status is up to a quarter of a second old: its
        second change from here was read after the call, and one more checkpoint may have begun before that was read."""
        for _ in range(2):
            read = self.status()["checkpoints"]
            self.wait("more checkpoints", lambda s, read=read: s["checkpoints"] != read)
        read = self.status()["checkpoints"]
        self.wait("two more checkpoints", lambda s: s["checkpoints"] >= read + 2)

    def wait_state(self, state):
        return self.wait(f"state {state}", lambda s: s["state"] == state)

    def tell(self, *words):
        self.ask(*words)

    def ask(self, *words, status=0):
        """What the tool answers"""
        done = subprocess.run([tool(), words[0], self.name, *words[1:]], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=self.pair.environment, check=False)
        assert done.returncode == status, f"{words}: {done.stdout}"
        return done.stdout

    def events(self):
        self.log.flush()
        found = []
        for line in (self.pair.directory / f"{self.name}.log").read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": "text", "text": line})
        return found

    def said(self, lines=15):
        return "its log ends with\n" + "\n".join(f"    | {e['event']}: {e.get('text', '')}" for e in self.events()[-lines:])

    def counts(self):
        """
        The numbers that its guest has printed; the last line may be in the making, and the first one's begin may have been
        printed on the other host.
        """
        try:
            text = Path(self.console()).read_bytes()
        except OSError:
            return []
        lines = text.split(b"\n")[:-1]
        lines = lines[:1] + [line for line in lines[1:] if line]
        assert b"BAD" not in lines, f"{self.name}: memory of different moments: {lines[:10]}"
        if lines and len(lines[0]) < DIGITS:
            if len(lines) == 1:
                return []
            whole = b"%0*x" % (DIGITS, int(lines[1], 16) - 1)
            assert whole.endswith(lines[0]), f"{self.name} went on with {lines[:2]}"
            lines[0] = whole
        return [int(line, 16) for line in lines]

    def console(self):
        return self.pair.directory / f"{self.name}.d" / "console.log"

    def qemu(self):
        """The process number of its QEMU."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                    if parent == str(self.process.pid) and "qemu" in os.readlink(entry / "exe"):
                        return int(entry.name)
                except (OSError, IndexError):
                    pass
        raise AssertionError(f"{self.name} has no QEMU; {self.said()}")

    def freeze(self, on=True):
        """As if its host stood still: supervisor and QEMU."""
        for pid in (self.qemu(), self.process.pid):
            if on:
                freeze(pid)
            else:
                os.kill(pid, signal.SIGCONT)

    def end(self):
        if self.alive():
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()  # the kernel kills its QEMU
        self.process.wait()
        self.log.close()


class Hosts:
    """A VM's description, which the caller writes, and everybody who was started from it. Leaving it ends them all."""

    def __init__(self, directory, variables):
        self.directory, self.environment = directory, variables
        self.description = directory / "vm.toml"
        self.started = []

    def inside(self, _name):
        """What to put before the command line of the host of this name."""
        return ()

    def tool(self, _name):
        """The control tool of the host of this name."""
        return tool()

    def variables(self, _name):
        return self.environment

    def start(self, command, name, *more):
        self.started.append(Supervisor(self, command, name, *more))
        return self.started[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.started:
            one.end()


class Pair(Hosts):
    """The counting guest's. `more`: for its description; `parent`: where its directory is to be."""

    def __init__(self, more="", parent=None):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-ha-", dir=parent))
        super().__init__(directory, dict(environment(backend="none"), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        counting_disk(self.directory)
        self.description.write_text(f"""
name = "counter"
memory = "64M"
accel = "tcg"
[[disk]]
path = "counter.img"
[protection]
standby = "unix:standby"
epoch-ms = 50
heartbeat-ms = 100
heartbeat-budget-ms = 2000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 2000
{more}
""", encoding="utf-8")


def contiguous(counts):
    """Of numbers that came from one guest: none is missing, none comes twice."""
    for before, after in zip(counts, counts[1:]):
        assert after == before + 1, f"{after} came after {before}"


def must_continue(before, after, committed):
    """`after` went on with the VM that `before` had. `committed`: a number that was in a committed checkpoint."""
    first = wait(after.counts, "the guest counts after the takeover")
    last = before.counts()[-1]
    assert committed <= first[0] <= last + 1, f"went on with {first[0]}; committed {committed}, seen {last}"
    wait(lambda: after.counts()[-1] > last + 50, "it counts on")
    contiguous(after.counts())


def committed_count(primary):
    """A number that the primary's guest has printed, and that a checkpoint on the standby has."""
    count = wait(primary.counts, "the guest counts")[-1]
    primary.wait_commit()
    return count


def counts_on(one):
    count = wait(one.counts, f"{one.name} counts")[-1]
    wait(lambda: one.counts()[-1] > count + 50, f"{one.name} counts on; {one.said()}")


def gate_is_closed(one):
    """Nothing of its VM may leave, whatever its supervisor believes."""
    until_ns = int.from_bytes((one.pair.directory / f"{one.name}.gate").read_bytes()[8:16], "little")
    return until_ns < time.clock_gettime_ns(time.CLOCK_BOOTTIME)
