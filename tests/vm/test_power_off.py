#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine and the counting guest, with a writable disk of which each host has an image. Both
hosts lose their power and are started again, in either order (docs/spec/takeover.md, section 6; docs/operations.md).

The VM runs again where its newest disks are and is protected again, without a word from a person if nobody went on with it;
a host with older disks says where to start it, and so does one that can't ask the other.
"""
import sys

from ha_pair import Pair, counts_on, run_checks
from test_disks import mark

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


def protected(primary, standby):
    standby.wait_state("synced")
    primary.wait_state("protecting")
    counts_on(primary)


def check_primary_first(pair):
    """both lose their power, the primary's host is back first: it waits for the other one's word, then the VM is protected"""
    power_off(*pair.begin())
    assert (mark(pair.image("a")), mark(pair.image("b"))) == ("protected", "paired")
    primary = pair.on("a", "run")
    primary.wait("it asks", lambda s: s["state"] == "comparing")
    assert not primary.counts(), primary.said()
    protected(primary, pair.on("b", "standby"))


def check_standby_first(pair):
    """the same in the other order"""
    power_off(*pair.begin())
    standby = pair.on("b", "standby")
    standby.wait_state("listening")
    protected(pair.on("a", "run"), standby)


def check_newer_elsewhere(pair):
    """the standby went on alone before it lost its power, too: the first host says so, the VM runs where it ran last"""
    primary, standby = pair.begin()
    power_off(primary)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    standby.wait_state("alone")
    counts_on(standby)
    power_off(standby)
    assert mark(pair.image("b")) == "newest", mark(pair.image("b"))
    asked = pair.on("b", "standby")
    older = pair.on("a", "run")
    assert older.process.wait(120) == 1, older.said()
    assert "Start the VM there" in older.said() and not older.counts(), older.said()
    asked.tell("stop")
    asked.process.wait(60)
    assert mark(pair.image("b")) == "newest", asked.said()
    standby = pair.on("a", "standby")
    standby.wait_state("listening")
    protected(pair.on("b", "run"), standby)
    assert mark(pair.image("a")) == "paired", mark(pair.image("a"))


def check_other_host_stays_off(pair):
    """the other host stays off: the VM is not started before a person says so"""
    power_off(*pair.begin())
    alone = pair.on("a", "run")
    assert alone.process.wait(120) == 1 and "--anew" in alone.said(), alone.said()
    anew = pair.on("a", "run", "--anew")
    anew.wait_state("alone")
    counts_on(anew)
    assert mark(pair.image("a")) == "newest", mark(pair.image("a"))


CHECKS = [check_primary_first, check_standby_first, check_newer_elsewhere, check_other_host_stays_off]

if __name__ == "__main__":
    sys.exit(run_checks(CHECKS, PowerPair, sys.argv[1:]))
