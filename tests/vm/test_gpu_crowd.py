# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: protected VMs whose guests compute on one GPU that they share, on two hosts, which are processes of one machine, each
with a share arbiter; the arbiter of who runs a VM is `lock`. KAGE_CROWD says how many (8).

The host of all primaries dies. By request: a guest of Linux for each, and a program in it that checks each result.
"""
import os

from crowd import Crowd, SharingPair, in_order, kill_together
from fixtures import own
from gpu_pair import ends_right, protected, said, tell

NUMBER = int(os.environ.get("KAGE_CROWD") or 8)

PRIORITIES = [i % 8 for i in range(NUMBER)]

crowd = own(lambda: Crowd(NUMBER, PRIORITIES, lambda parent: SharingPair(parent, share=100 // NUMBER)))


def check_a_host_with_many(crowd):
    """the host of many primaries dies: all go on in their standbys, by priority, and each program has right results only"""
    both = crowd.protect()
    for primary, _ in both:
        primary.wait("the program", lambda s, primary=primary: "computing" in said(primary))
        protected(primary)
    lost = [(primary, standby, None) for primary, standby in both]
    at_ns = kill_together([primary for primary, _ in both])
    for _, standby in both:
        standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    for _, standby in both:
        tell(standby, "fill 2")
    for _, standby in both:
        ends_right(standby, "2 fills are right")
        tell(standby, "enough")
    for primary, standby in both:
        ends_right(standby, "rounds are right")
        assert "rounds are right" not in said(primary), said(primary)
    rows = in_order(lost, PRIORITIES)
    decided_ms = sorted((row["decided"] - at_ns) / 1e6 for row in rows)
    print(f"{NUMBER} VMs: takeovers were decided {', '.join(f'{ms:.0f}' for ms in decided_ms)} ms after the host's death")
    runs_ms = [f"{(row['runs'] - at_ns) / 1e6:.0f}" for row in rows]
    print(f"by priority, from 7 to 0, they ran {', '.join(runs_ms)} ms after it")
