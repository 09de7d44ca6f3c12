# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine with etcd as arbiter (skipped without Debian's etcd-server); the guest counts
(guest/counter.S). The way from primary to standby, and the primary's way to etcd, go through relays that can be cut.

Rows of docs/spec/takeover.md, section 4, that need an arbiter beside both hosts: partitions, an arbiter that is away, a QEMU
that stands still, both hosts dead.
"""
import os
import signal
import time

import pytest

from etcd import ETCD
from etcd_pair import EtcdPair
from fixtures import needs, own
from ha_pair import contiguous, counts_on, gate_is_closed, must_continue, wait

etcd = needs(ETCD, "etcd-server")
pytestmark = pytest.mark.usefixtures("etcd")
hosts = own(EtcdPair)


def check_partition(hosts):
    """partition, both reach etcd: the primary goes on alone, the standby does not start, and later protects it again"""
    hosts.begin()
    hosts.cut()
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    hosts.standby.wait("it begins anew", lambda s: s["state"] in ("starting", "listening"))
    assert not gate_is_closed(hosts.primary), "the primary has the lease"
    hosts.mend()
    hosts.standby.wait_state("synced")
    hosts.primary.wait_state("protecting")
    contiguous(hosts.primary.counts())
    assert not hosts.standby.counts(), "the standby has run"


def check_unpaired_lost(hosts):
    """QEMU's stream is reset while the supervisors' connection is dead, so UNPAIRED is lost: it is protected again"""
    # Long enough for the standby not to find out from the arbiter, by a claim.
    hosts.text = hosts.text.replace("heartbeat-budget-ms = 2000", "heartbeat-budget-ms = 15000")
    hosts.begin()
    supervisors, state = hosts.network
    supervisors.cut()
    state.reset()
    hosts.primary.wait_state("alone")
    supervisors.reset()  # what was on its way does not arrive
    supervisors.mend()
    hosts.primary.wait_state("protecting")
    hosts.standby.wait_state("synced")
    contiguous(hosts.primary.counts())


def check_stop_without_arbiter(hosts):
    """etcd stands still and the VM is stopped: the standby confirms it, and does not start it when etcd is back"""
    hosts.begin()
    hosts.etcd.freeze()
    hosts.primary.tell("stop")
    assert hosts.primary.process.wait(60) == 0, hosts.primary.said()
    assert "--force-new" in hosts.primary.said(), hosts.primary.said()
    hosts.etcd.freeze(False)
    hosts.standby.wait_state("listening")
    until = time.monotonic() + 5  # longer than the lease
    while time.monotonic() < until:
        assert not hosts.standby.counts(), "the standby has run what was stopped"
        time.sleep(0.05)


def check_primary_cut_off(hosts):
    """partition, only the standby reaches etcd: it takes over, after the primary's gate has closed; which ends itself later"""
    committed = hosts.begin()
    hosts.cut(hosts.to_etcd)
    hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert gate_is_closed(hosts.primary), "two may speak"
    must_continue(hosts.primary, hosts.standby, committed)
    assert gate_is_closed(hosts.primary), "two may speak"
    hosts.mend(hosts.to_etcd)
    assert hosts.primary.process.wait(120) == 1, hosts.primary.said()
    assert "must not run here any more" in hosts.primary.said(), hosts.primary.said()
    contiguous(hosts.standby.counts())


def check_arbiter_away(hosts):
    """etcd stands still: nothing happens; QEMU dies: the standby starts, and speaks when etcd is back"""
    committed = hosts.begin()
    hosts.etcd.freeze()
    checkpoints = hosts.primary.status()["checkpoints"]
    until = time.monotonic() + 5  # longer than the lease
    while time.monotonic() < until:
        assert not gate_is_closed(hosts.primary), "heartbeats keep it open"
        time.sleep(0.05)
    status = hosts.primary.wait("checkpoints go on", lambda s: s["checkpoints"] > checkpoints)
    assert status["state"] == "protecting", status
    os.kill(hosts.primary.qemu(), signal.SIGKILL)
    must_continue(hosts.primary, hosts.standby, committed)
    status = hosts.standby.wait("it waits for etcd", lambda s: s["waiting_for"])
    assert status["role"] == "standby" and gate_is_closed(hosts.standby), status
    hosts.etcd.freeze(False)
    hosts.standby.wait("it has the lease", lambda s: s["role"] == "primary" and not gate_is_closed(hosts.standby))
    contiguous(hosts.standby.counts())


def check_arbiter_away_standby_lost(hosts):
    """etcd stands still and the standby dies: the VM computes on and is silent until etcd has noted that it is alone"""
    hosts.begin()
    hosts.etcd.freeze()
    hosts.standby.process.kill()
    hosts.primary.wait_state("unpairing")
    wait(lambda: gate_is_closed(hosts.primary), "its gate closes")
    counts_on(hosts.primary)
    assert gate_is_closed(hosts.primary) and hosts.primary.status()["state"] == "unpairing", hosts.primary.status()
    hosts.etcd.freeze(False)
    hosts.primary.wait_state("alone")
    wait(lambda: not gate_is_closed(hosts.primary), "its gate opens")
    counts_on(hosts.primary)
    contiguous(hosts.primary.counts())


def check_arbiter_away_primary_silent(hosts):
    """etcd stands still and the primary is silent: the standby waits and says why; then etcd is back, and it goes on"""
    committed = hosts.begin()
    hosts.etcd.freeze()
    hosts.primary.freeze()
    hosts.standby.wait("it says what it waits for", lambda s: s["state"] == "claiming" and s["waiting_for"])
    assert not hosts.standby.counts(), "it has started without leave"
    hosts.etcd.freeze(False)
    hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(hosts.primary, hosts.standby, committed)
    hosts.primary.freeze(False)
    assert hosts.primary.process.wait(120) == 1, hosts.primary.said()


def check_qemu_frozen(hosts):
    """only the primary's QEMU stands still: its supervisor kills it, and the standby goes on"""
    committed = hosts.begin()
    os.kill(hosts.primary.qemu(), signal.SIGSTOP)
    status = hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert "its monitor gave no answer" in status["last_takeover"], status
    must_continue(hosts.primary, hosts.standby, committed)
    assert hosts.primary.process.wait(60) == 0, hosts.primary.said()


def check_both_die(hosts):
    """both hosts die: the VM is only begun anew when somebody says so"""
    hosts.begin()
    for one in (hosts.primary, hosts.standby):
        one.process.kill()
        one.process.wait()
    again = hosts.start_here("run", "again", hosts.etcd.address[1])
    assert again.process.wait(120) == 1 and "--force-new" in again.said(), again.said()
    anew = hosts.start_here("run", "anew", hosts.etcd.address[1], "--force-new")
    anew.wait_state("alone")
    counts_on(anew)
