# SPDX-License-Identifier: GPL-2.0-or-later
"""
The faults of a soak: which there are, how often each is drawn, what it needs and what has to follow. Pure. README.md says what
each of them is; chain.py does them.
"""

# How often compared with the others. Of `-standby` and `disk-` faults the other host is hit; `-filling`: while it is filled.
WEIGHTS = {"kill-qemu": 21, "kill-supervisor": 9, "kill-both": 9, "freeze": 8, "freeze-supervisor": 5, "freeze-qemu": 3,
           "kill-worker": 6, "cut": 4, "cut-supervisors": 2, "cut-state": 2, "cut-gpu": 2, "cut-there": 3, "cut-back": 3,
           "large-packets": 3, "slow-link": 3, "lossy-link": 3,
           "cut-off": 5, "etcd-away": 4, "member-dies": 8, "restored": 3, "stick-main-loop": 2, "switchover": 5, "sigterm": 2,
           "kill-standby": 4, "freeze-standby": 3, "kill-filling": 4, "cut-filling": 3,
           "disk-full": 4, "disk-hangs": 3, "disk-fails": 3, "power-off": 4, "stop-without-arbiter": 4}

# What is cut between both hosts: which of the ways of the supervisors, of QEMU's state and of the GPU, and in which direction.
WAYS = ("", ".state", ".gpu")
CUTS = {"cut": (WAYS, None), "cut-off": (WAYS, None), "cut-supervisors": (("",), None), "cut-state": ((".state",), None),
        "cut-gpu": ((".gpu",), None), "cut-there": (WAYS, "there"), "cut-back": (WAYS, "back"), "cut-filling": (WAYS, None)}
# All ways are bad ones (relay.BadPath). What is lost is only late, so nobody need notice it.
BAD = {"large-packets": {"most_bytes": 600}, "slow-link": {"bytes_per_second": 8000}, "lossy-link": {"lost": 0.3}}

# Nobody takes over: the primary goes on alone, and is protected again when what was wrong is over.
ALONE = ("cut", "cut-supervisors", "cut-state", "cut-gpu", "cut-there", "cut-back", "large-packets", "slow-link", "kill-standby",
         "freeze-standby", "kill-filling", "cut-filling", "disk-full", "disk-hangs", "disk-fails")
# The VM ends with both hosts, or because somebody wants it, and is started anew.
ENDED = ("power-off", "stop-without-arbiter")
# With `fence` the one who goes on has the other one cut off, unless that one says itself that it does not.
FENCED = ("cut", "cut-supervisors", "cut-there", "cut-back", "freeze-standby", "cut-filling")

# How a primary ends that was taken over from; if with 1, it says MUST_NOT.
ENDS = {"kill-qemu": 0, "kill-supervisor": -9, "kill-both": -9, "freeze": 1, "freeze-supervisor": 1, "freeze-qemu": 0,
        "kill-worker": 0, "cut-off": 1, "etcd-away": 0, "member-dies": -9, "restored": 0, "stick-main-loop": 0, "switchover": 0,
        "sigterm": 0}
FENCED_ENDS = {**ENDS, "freeze": -9, "freeze-supervisor": -9}
MUST_NOT = "must not run here any more"


def possible(kind, *, arbiter, servers, gpu, disk, mounts):
    """Whether a VM can have this fault. `servers`: of etcd; `gpu`, `disk`: whether it has one (a disk: a writable one);
    `mounts`: whether we may mount file systems."""
    return {"cut-off": arbiter == "etcd", "etcd-away": arbiter == "etcd", "stop-without-arbiter": arbiter == "etcd",
            "member-dies": arbiter == "etcd" and servers > 1,
            "restored": arbiter == "lock" or (arbiter == "etcd" and servers == 1),
            "lossy-link": arbiter != "fence",  # it may cut the standby off at any moment, or not
            "kill-worker": gpu, "cut-gpu": gpu, "disk-full": disk and mounts}.get(kind, True)


def needs_relay(kind):
    return kind in CUTS or kind in BAD
