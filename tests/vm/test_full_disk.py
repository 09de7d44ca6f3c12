# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine and the counting guest, with a writable disk (test_power_off.py). The standby's image
is in a file system of its own, a small one in memory (a mount namespace is needed for that; skipped where there is none), and
becomes full.

The VM goes on alone and says why. When there is room the same standby protects it again, with all that was written meanwhile.
"""
import pytest

from faults import BYTES, Monitor, PowerPair, fill, make_room, remove_room
from fixtures import namespace, own
from ha_pair import committed_count, counts_on, must_continue, wait

PIECE_BYTES = 64 << 10

mounts = namespace("mount")
pytestmark = pytest.mark.usefixtures("mounts")


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


pair = own(FullPair)


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
