#!/usr/bin/python3
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

from cluster import SUPERVISORS, Cluster, ThreeMembers, address, run_cluster_checks
from ha_pair import must_continue, contiguous, counts_on, gate_is_closed, wait


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


def check_member_dies(hosts):
    """one of three etcd servers dies with the primary's host: the standby takes over; the host comes back and protects it"""
    committed = hosts.begin()
    hosts.network.unplug("primary")  # nothing tells anybody
    hosts.primary.process.kill()
    hosts.primary.process.wait()
    hosts.etcd[0].kill()
    hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(hosts.primary, hosts.standby, committed)
    wait(lambda: not gate_is_closed(hosts.standby), "its gate opens: two of three servers are enough")
    hosts.network.plug("primary")
    hosts.etcd[0].start(hosts.etcd)
    again = hosts.on("primary", "standby", 2, "primary")
    again.wait_state("listening")
    hosts.standby.tell("protect", f"{address('primary')}:{SUPERVISORS}")
    again.wait_state("synced")
    hosts.standby.wait_state("protecting")
    contiguous(hosts.standby.counts())


if __name__ == "__main__":
    run_cluster_checks(__file__, (Cluster, [check_parted, check_standbys_link, check_unplugged, check_short]),
                       (ThreeMembers, [check_member_dies]))
