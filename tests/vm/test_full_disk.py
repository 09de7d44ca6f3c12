#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine and the counting guest, with a writable disk (test_power_off.py). The standby's image
is in a file system of its own, a small one in memory (a mount namespace is needed for that; skipped where there is none), and
becomes full.

The VM goes on alone and says why. When there is room the same standby protects it again, with all that was written meanwhile.
"""
import os
import subprocess
import sys

from ha_pair import must_continue, committed_count, counts_on, run_checks, wait
from test_grey import Monitor
from test_power_off import BYTES, PowerPair

SKIPPED = 77
PIECE_BYTES = 64 << 10


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


class FullPair(PowerPair):
    room = None  # the directory of the small file system

    def __init__(self):
        super().__init__()
        self.room = make_room(self.directory / "room", 2 * BYTES)
        with open(self.image("b"), "wb") as image:
            image.truncate(BYTES)

    def __exit__(self, *what):
        super().__exit__(*what)
        remove_room(self.room)

    def image(self, host):
        return self.room / "b.img" if host == "b" and self.room else super().image(host)


def pieces(image):
    """The first byte of each piece"""
    with open(image, "rb") as file:
        return [file.read(PIECE_BYTES)[0] for _ in range(BYTES // PIECE_BYTES)]


def check_standbys_disk_full(pair):
    """the standby's disk is full: the VM goes on alone and says why; with room again it is protected, and nothing is missing"""
    primary, standby = pair.begin()
    fill(pair.room)
    written = 0
    with Monitor(primary) as here:
        def given_up():
            nonlocal written
            status = primary.status()
            if status and not status["protected"]:
                return status
            if written < BYTES // PIECE_BYTES:
                here.ask("human-monitor-command", **{
                    "command-line": f'qemu-io disk1-drive "write -P {written + 1} {written * PIECE_BYTES} {PIECE_BYTES}"'})
                written += 1
            return None
        wait(given_up, f"the standby is given up; {primary.said()}")
    status = primary.wait("why", lambda s: s["degraded"])
    print(f"       after {written} pieces: {status['degraded']}", flush=True)
    primary.wait_state("alone")
    counts_on(primary)
    (pair.room / "filler").unlink()
    if not standby.alive():
        standby = pair.on("b", "standby")
    standby.wait_state("synced")
    primary.wait_state("protecting")
    committed = committed_count(primary)
    primary.process.kill()
    primary.process.wait()
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(primary, standby, committed)
    expected = [number + 1 if number < written else 0 for number in range(BYTES // PIECE_BYTES)]
    assert pieces(pair.image("b")) == expected, f"{pieces(pair.image('b'))}, {written} written"


if __name__ == "__main__":
    if sys.argv[1:2] != ["--inside"]:
        own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        tried = subprocess.run([*own, "mount", "-t", "tmpfs", "none", "/mnt"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, check=False)
        if tried.returncode:
            print(f"skipped: no mounts for us here: {tried.stdout.strip()}", flush=True)
            sys.exit(SKIPPED)
        os.execvp(own[0], [*own, sys.executable, "-u", __file__, "--inside", *sys.argv[1:]])
    sys.exit(run_checks([check_standbys_disk_full], FullPair, sys.argv[2:]))
