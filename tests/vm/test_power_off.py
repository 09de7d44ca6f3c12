# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine and the counting guest, with a writable disk of which each host has an image. Both
hosts lose their power and are started again, in either order (docs/spec/takeover.md, section 6; docs/operations.md).

The VM runs again where its newest disks are and is protected again, without a word from a person if nobody went on with it;
a host with older disks says where to start it, and so does one that can't ask the other.
"""
from faults import PowerPair, mark, power_off
from fixtures import own
from ha_pair import counts_on

pair = own(PowerPair)


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
    assert alone.process.wait(120) == 1 and "--force-new" in alone.said(), alone.said()
    anew = pair.on("a", "run", "--force-new")
    anew.wait_state("alone")
    counts_on(anew)
    assert mark(pair.image("a")) == "newest", mark(pair.image("a"))
