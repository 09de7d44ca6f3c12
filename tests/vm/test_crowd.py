# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: several protected VMs on two hosts, which are processes of one machine, with the arbiter `lock`; guests count.

A host that dies takes all of its VMs with it at the same moment; all of them go on. Hosts protect each other crosswise.
"""
import os

from crowd import Crowd, all_go_on, committed, in_order, kill_together
from fixtures import own
from ha_pair import counts_on

NUMBER = int(os.environ.get("KAGE_CROWD") or 8)

PRIORITIES = [i % 8 for i in range(NUMBER)]

crowd = own(lambda: Crowd(NUMBER, PRIORITIES))
two = own(lambda: Crowd(2))


def check_a_host_with_many(crowd):
    """the host of many primaries (eight) dies: all go on in their standbys, by priority; none goes back behind what was committed"""
    lost = committed(crowd.protect())
    at_ns = kill_together([primary for primary, _, _ in lost])
    after_ms = all_go_on(lost, at_ns)
    print(f"{NUMBER} VMs: takeovers were decided {', '.join(f'{ms:.0f}' for ms in after_ms)} ms after the host's death")
    rows = in_order(lost, PRIORITIES)
    # Else each was done before the next was decided, and nothing was ordered.
    assert any(row["waited"] for row in rows), rows
    runs_ms = [f"{(row['runs'] - at_ns) / 1e6:.0f}" for row in rows]
    print(f"by priority, from 7 to 0, they ran {', '.join(runs_ms)} ms after it")


def check_crosswise(two):
    """two hosts that protect each other: one dies, both VMs run on the other, and both are protected again by a third"""
    here, there = committed(two.protect())
    # Host A has the first VM's primary and the second one's standby.
    at_ns = kill_together([here[0], there[1]])
    all_go_on([here], at_ns)
    there[0].wait("it says that it is without a standby", lambda s: not s["protected"] and s["degraded"])
    counts_on(there[0])
    for survivor, pair in ((here[1], two.pairs[0]), (there[0], two.pairs[1])):
        address = f"unix:{pair.directory}/third"
        third = pair.start("standby", "third", "--listen", address)
        third.wait_state("listening")
        survivor.tell("protect", address)
        survivor.wait_state("protecting")
        counts_on(survivor)
