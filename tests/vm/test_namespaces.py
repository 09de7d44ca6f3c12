# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: three hosts, each a network namespace, at a switch (a bridge in a fourth one, where this program is): the primary,
the standby, and etcd as arbiter (skipped without Debian's etcd-server), in one check with a server on each of them. TLS with keys
of each host for the VM; the GPU (backend null), QEMU's state and the supervisors each have their connection. The guest counts
(guest/counter.S).

The rows of docs/spec/takeover.md, section 4, that are about networks. Unlike test_partition.py's relays, which close
connections, a cut here is a silence: packets vanish, nobody is told.
"""
import time

import pytest

from cluster import SUPERVISORS, Cluster, ThreeMembers, address
from etcd import ETCD
from fixtures import namespace, needs, own
from ha_pair import contiguous, counts_on, gate_is_closed, must_continue, wait

etcd, network = needs(ETCD, "etcd-server"), namespace("net")
pytestmark = pytest.mark.usefixtures("etcd", "network")
hosts, three = own(Cluster), own(ThreeMembers)


def check_parted(hosts):
    """the hosts hear nothing of each other, both reach etcd: the primary goes on alone; later it is protected again"""
    hosts.begin()
    hosts.network.part()
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    hosts.standby.wait("it begins anew", lambda s: s["state"] in ("starting", "listening"))
    assert not gate_is_closed(hosts.primary), "the primary has the lease"
    hosts.network.part(False)
    hosts.is_protected_again()


def check_standbys_link(hosts):
    """the standby's link is down: the same"""
    hosts.begin()
    hosts.network.link("standby", False)
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    hosts.network.link("standby", True)
    hosts.is_protected_again()


def check_unplugged(hosts):
    """the primary is unplugged: the standby takes over after the primary's gate has closed, which ends when it hears of it"""
    committed = hosts.begin()
    hosts.network.unplug("primary")
    hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert gate_is_closed(hosts.primary), "two may speak"
    must_continue(hosts.primary, hosts.standby, committed)
    assert gate_is_closed(hosts.primary), "two may speak"
    hosts.network.plug("primary")
    assert hosts.primary.process.wait(120) == 1, hosts.primary.said()
    assert "must not run here any more" in hosts.primary.said(), hosts.primary.said()
    contiguous(hosts.standby.counts())


def check_short(hosts):
    """a silence shorter than the budget: nothing happens, and nothing is lost"""
    hosts.begin()
    checkpoints = hosts.primary.status()["checkpoints"]
    hosts.network.part()
    time.sleep(0.5)  # the budget has 2 s
    hosts.network.part(False)
    hosts.primary.wait("checkpoints go on", lambda s: s["checkpoints"] > checkpoints + 10)
    hosts.is_protected_again()
    events = [e["event"] for e in hosts.primary.events()]
    assert events[events.index("protecting"):] == ["protecting"], events


def check_member_dies(three):
    """one of three etcd servers dies with the primary's host: the standby takes over; the host comes back and protects it"""
    committed = three.begin()
    three.network.unplug("primary")  # nothing tells anybody
    three.primary.process.kill()
    three.primary.process.wait()
    three.etcd[0].kill()
    three.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(three.primary, three.standby, committed)
    wait(lambda: not gate_is_closed(three.standby), "its gate opens: two of three servers are enough")
    three.network.plug("primary")
    three.etcd[0].start(three.etcd)
    again = three.on("primary", "standby", 2, "primary")
    again.wait_state("listening")
    three.standby.tell("protect", f"{address('primary')}:{SUPERVISORS}")
    again.wait_state("synced")
    three.standby.wait_state("protecting")
    contiguous(three.standby.counts())
