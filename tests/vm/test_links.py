# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: that of test_namespaces.py (cluster.py). Links that are neither whole nor cut: one port, one direction or large
packets vanish, or the link is far too slow. Each of the three connections between the hosts can be hit alone, so what one of
them says of the other host may be wrong.

The VM goes on, is not called protected, and a sentence says why; when the link is whole again the VM is `protecting` again.
The arbiter is always reached, so the primary goes on alone and the standby never runs.
"""
import time

import pytest

from cluster import GPU, STATE, SUPERVISORS, Cluster, address
from etcd import ETCD
from fixtures import namespace, needs, own
from ha_pair import counts_on, wait

etcd, network = needs(ETCD, "etcd-server"), namespace("net")
pytestmark = pytest.mark.usefixtures("etcd", "network")
hosts = own(Cluster)

REASONS = ("silent", "nothing was heard", "no checkpoint has reached", "stood still", "stands still", "connection", "peer")
# A link that carries nothing of a kind for so long is found out by these; the rest is heartbeats (2 s).
BOUNDS = """
[supervision]
checkpoint-ms = 3000
transfer-ms = 5000
"""


def since_protected(one, event):
    """The texts of this event since it was last protected"""
    events = one.events()
    last = max((n for n, e in enumerate(events) if e["event"] == "protecting"), default=len(events))
    return [e.get("text", "") for e in events[last:] if e["event"] == event]


def unprotected(hosts, *reasons):
    """It goes on alone and says why, in one of these words."""
    status = hosts.primary.wait("not protected", lambda s: not s["protected"])
    assert status["degraded"], hosts.primary.said()
    # It may try to replicate again at once, so `alone` may last for less time than a look at the status takes.
    texts = wait(lambda: since_protected(hosts.primary, "alone"), f"{hosts.primary.name} is alone")
    assert any(reason in text for reason in reasons for text in texts), hosts.primary.said()
    counts_on(hosts.primary)


def port_vanishes(hosts, port, *reasons):
    """Both ways"""
    hosts.begin(BOUNDS)
    for on in (True, False):
        hosts.network.swallow("primary", "dport", str(port), on=on)
        hosts.network.swallow("standby", "sport", str(port), on=on)
        if on:
            unprotected(hosts, *reasons)
    hosts.is_protected_again()


def check_supervisors_port(hosts):
    """the supervisors' port vanishes, the VM's state and its GPU's arrive: the VM goes on alone; later it is protected again"""
    port_vanishes(hosts, SUPERVISORS, "silent", "connection")


def check_state_port(hosts):
    """the port of QEMU's state vanishes, heartbeats arrive: the same"""
    port_vanishes(hosts, STATE, "no checkpoint has reached", "stands still", "stood still")


def check_gpu_port(hosts):
    """the port of the GPU vanishes: the same"""
    port_vanishes(hosts, GPU, "GPU")


def one_direction(hosts, source, target):
    hosts.begin(BOUNDS)
    hosts.network.swallow(source, "to", address(target))
    unprotected(hosts, *REASONS)
    hosts.network.swallow(source, "to", address(target), on=False)
    hosts.is_protected_again()


def check_primary_not_heard(hosts):
    """nothing of the primary reaches the standby, the other way is fine: the same"""
    one_direction(hosts, "primary", "standby")


def check_standby_not_heard(hosts):
    """nothing of the standby reaches the primary, the other way is fine: the same"""
    one_direction(hosts, "standby", "primary")


def check_large_packets(hosts):
    """packets of more than 600 bytes vanish (a path whose MTU nobody is told), heartbeats arrive: the same"""
    hosts.begin(BOUNDS)
    hosts.network.limit("standby", 600)
    unprotected(hosts, *REASONS)
    hosts.network.limit("standby")
    hosts.is_protected_again()


def check_slow(hosts):
    """the link to the standby carries 64 kbit/s: the same"""
    hosts.begin(BOUNDS)
    hosts.network.throttle("standby", "64kbit")
    unprotected(hosts, *REASONS)
    time.sleep(3)  # it tries again meanwhile
    counts_on(hosts.primary)
    hosts.network.throttle("standby")
    hosts.is_protected_again()
