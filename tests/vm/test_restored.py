# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, the guest counts (guest/counter.S). The arbiter is put back to what it was before:
etcd (that of test_partition.py; left out without Debian's etcd-server) from a copy of its data, `lock` from a copy of its file.

The record is then older than what both hosts know (docs/spec/takeover.md, section 2): nobody is killed for it, nobody runs
twice, and the pair has it made again by itself.
"""
import os
import shutil
import signal

import pytest

from etcd import ETCD
from etcd_pair import EtcdPair
from faults import put_back
from fixtures import needs, own
from ha_pair import Pair, committed_count, contiguous, counts_on, gate_is_closed, must_continue, wait

etcd = needs(ETCD, "etcd-server")
hosts, pair = own(EtcdPair), own(Pair)


def still_protected(primary, standby):
    """By a standby that takes over when it has to."""
    counts_on(primary)
    wait(lambda: not gate_is_closed(primary), f"its gate is open; {primary.said()}")
    primary.wait_state("protecting")
    standby.wait_state("synced")
    contiguous(primary.counts())
    assert not standby.counts(), "the standby has run"
    primary.wait("the standby reaches the arbiter", lambda s: not s["standby_problem"])
    committed = committed_count(primary)
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary" and not gate_is_closed(standby))
    must_continue(primary, standby, committed)
    assert primary.process.wait(60) == 0, primary.said()


@pytest.mark.usefixtures("etcd")
def check_before_the_pair(hosts):
    """etcd is put back to before there was a standby: the VM goes on and is protected"""
    hosts.primary = hosts.start_here("run", "primary", hosts.to_etcd.port)
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    copy = hosts.etcd.backup()
    hosts.begin_standby()
    hosts.etcd.restore(copy)
    still_protected(hosts.primary, hosts.standby)


@pytest.mark.usefixtures("etcd")
def check_before_the_takeover(hosts):
    """etcd is put back to before a takeover: who went on goes on, and is protected when there is a standby again"""
    committed = hosts.begin()
    copy = hosts.etcd.backup()
    hosts.primary.process.kill()
    hosts.primary.process.wait()
    runs = hosts.standby
    runs.wait("it runs the VM", lambda s: s["role"] == "primary")
    must_continue(hosts.primary, runs, committed)
    hosts.etcd.restore(copy)
    counts_on(runs)
    wait(lambda: not gate_is_closed(runs), f"its gate is open; {runs.said()}")
    another = hosts.start_here("standby", "another", hosts.etcd.address[1], "--listen", f"unix:{hosts.directory}/another.at")
    another.wait_state("listening")
    runs.tell("protect", f"unix:{hosts.directory}/another.at")
    still_protected(runs, another)


def check_lock(pair):
    """the file of `lock` is put back to before there was a standby: the VM goes on and is protected"""
    primary = pair.start("run", "primary")
    primary.wait_state("alone")
    record, = pair.directory.glob("lease.*")
    copy = pair.directory / "copy-of-the-lease"
    shutil.copyfile(record, copy)
    standby = pair.start("standby", "standby")
    standby.wait_state("synced")
    primary.wait_state("protecting")
    put_back(copy, record)
    still_protected(primary, standby)
