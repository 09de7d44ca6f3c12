# SPDX-License-Identifier: GPL-2.0-or-later
"""
What tests, soaks and benches do to hosts: disks and main loops that stand still, a file system that gets full, a power cut, an
arbiter's record that is put back to an older one.
"""
import itertools
import json
import socket
import subprocess
from pathlib import Path

from ha_pair import SECONDS, Pair, wait

# ---- something in QEMU stands still ----


class Monitor:
    """QMP to a QEMU under a supervisor: as if somebody were at its machine."""

    def __init__(self, host):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(str(host.pair.directory / f"{host.name}.qmp"))
        self.file = self.socket.makefile("rw", encoding="utf-8")
        self.file.readline()
        self.ask("qmp_capabilities")

    def send(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()

    def ask(self, command, **arguments):
        self.send(command, **arguments)
        while True:
            answer = json.loads(self.file.readline())
            if "error" in answer:
                raise AssertionError(f"{command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]

    def throttle(self, bytes_per_second):
        self.ask("qom-set", path="/objects/slow", property="limits", value={"bps-write": bytes_per_second})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def write(disk, sector, size="64k"):
    """A command of qemu-io. `disk`: a drive, or a node that no device uses"""
    return {"command-line": f'qemu-io {disk} "write {sector * 512} {size}"'}


# What QEMU's main loop can be made to wait for: a disk that no device uses, and that a limit can make slow.
NOWHERE = ("-object", "throttle-group,id=slow", "-blockdev",
           "driver=throttle,node-name=nowhere,throttle-group=slow,file.driver=null-co,file.size=1048576")


DATA_BYTES = 4 << 20
FAILS = (3 << 20) // 512  # a sector of this disk, far from the others: writes of anything but zeroes to it fail


def data_disk(image):
    """A disk beside the VM's own that the same limit can make slow. One file for both hosts, because nobody reads it."""
    image.write_bytes(bytes(DATA_BYTES))
    return ("-drive", "if=none,id=data-drive,node-name=data,driver=checkpoint-disk,file.driver=blkdebug,"
            f"file.inject-error.0.event=none,file.inject-error.0.iotype=write,file.inject-error.0.sector={FAILS},"
            "file.image.driver=throttle,file.image.throttle-group=slow,file.image.file.driver=file,"
            f"file.image.file.locking=off,file.image.file.filename={image}",
            "-device", "virtio-blk-pci,drive=data-drive")


def write_until_given_up(primary):
    """What the standby's disk has to take. The first write after a rest goes through at any limit, and what one checkpoint brings
    may be one write."""
    with Monitor(primary) as here:
        def given_up(sectors=itertools.cycle((0, 128, 256))):
            if primary.status().get("state", "protecting") != "protecting":
                return True
            here.ask("human-monitor-command", **write("data-drive", next(sectors)))
            return False
        wait(given_up, f"the standby is given up; {primary.said()}")


# ---- a file system gets full ----


def make_room(directory, size_bytes):
    """A file system of its own, in memory."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", directory], check=True)
    return directory


def remove_room(directory):
    subprocess.run(["umount", directory], check=True)
    directory.rmdir()


def fill(room):
    """Not a byte is left."""
    with open(room / "filler", "wb", buffering=0) as filler:
        for piece in (bytes(1 << 20), bytes(4096)):
            try:
                while filler.write(piece):
                    pass
            except OSError:
                pass


# ---- hosts lose their power ----

BYTES = 4 << 20


class PowerPair(Pair):
    """Hosts `a` and `b`, by the images that they have."""

    def __init__(self):
        super().__init__()
        text = self.description.read_text(encoding="utf-8")
        text = text.replace("[protection]", '[[disk]]\npath = "none.img"\nwritable = true\n[protection]')
        self.description.write_text(text, encoding="utf-8")
        self.turn = 0
        for host in "ab":
            with open(self.image(host), "wb") as image:
                image.truncate(BYTES)

    def image(self, host):
        return self.directory / f"{host}.img"

    def on(self, host, command, *more):
        self.turn += 1
        return self.start(command, f"{host}{self.turn}", "--disk", str(self.image(host)), *more)

    def begin(self):
        """The VM runs on a, b is its standby. → both supervisors"""
        standby = self.on("b", "standby")
        primary = self.on("a", "run")
        standby.wait_state("synced")
        primary.wait_state("protecting")
        return primary, standby


def power_off(*supervisors):
    for one in supervisors:
        one.process.kill()  # the kernel kills its QEMU
    for one in supervisors:
        one.process.wait()


def mark(image):
    """The state that the mark beside an image says: that of its newer slot."""
    text = Path(f"{image}.kagemusha").read_text(encoding="utf-8")
    return max((int(words[1]), words[3]) for words in map(str.split, text.splitlines()) if words)[1]


# ---- the arbiter's record is an older one ----


def put_back(copy, record):
    """In its place: who has it open, has the old one again."""
    with open(record, "r+b") as file:
        file.write(copy.read_bytes())
