# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: three hosts (fleet.py), each with `kagemusha daemon` and a member of etcd; a cluster of two protected nodes, whose standbys
are on other hosts. A host loses its power, and comes back. With --long there are twelve protected nodes: ten of this cluster, and two
of another one, on whose GPUs a program of MPI computes meanwhile.
"""
import json
import os
from pathlib import Path

import pytest

from etcd import ETCD
from fixtures import namespace, needs, shared
from fleet import Fleet
from ha_pair import wait

etcd, network = needs(ETCD, "etcd-server"), namespace("net")
pytestmark = pytest.mark.usefixtures("etcd", "network")
fleet = shared(Fleet)

LONG = os.environ.get("KAGE_LONG")
MPI_JOB = os.environ.get("KAGE_MPI_JOB") if LONG else None
NODES = 10 if LONG else 2
NAMES = [f"node{number}" for number in range(1, NODES + 1)]
USUAL = ["etcd", "kagemusha-daemo", "sleep"]  # what runs on a host without clusters, by names of 15 characters
ALL_PROTECTED = {name: "protected" for name in NAMES}
DECLARATION = f"""
name = "lab"
nodes = {NODES}
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
memory = "256M"
accel = "tcg"
protected = true
"""


def states(now):
    return {node["name"]: node["state"] for node in now["node_states"]}


def hosts_of(now):
    return {node["name"]: node["hosts"] for node in now["node_states"]}


def primary_host(node):
    return node["hosts"][node["primary"]]


def wait_for_hosts(asked, expected):
    """Until the host that is asked sees these hosts and no others, all of them ready, of which one places."""
    def look():
        status, said = asked.ask("GET", "/v1/hosts")
        assert status == 200, said
        found = {host["name"]: host for host in said["hosts"]}
        fits = (set(found) == {host.name for host in expected} and all(host["state"] == "ready" for host in found.values())
                and [host["leads"] for host in found.values()].count(True) == 1)
        return found if fits else None
    return wait(look, f"{asked.name} sees {[host.name for host in expected]}, not {asked.ask('GET', '/v1/hosts')}")


class MpiJob:
    """A cluster of two nodes, and a program on their GPUs, which computes when this returns."""

    def __init__(self, host):
        host.kage("create", "-", text=DECLARATION.replace('"lab"', '"paper"').replace(f"nodes = {NODES}", "nodes = 2").replace("256M", "512M")
                  .encode() + b'image = "mpi"\n[gpu]\nbackend = "opencl"\n')
        self.first = host.settled("paper")["node_states"][0]
        self.run(host, "bash", "-c", "cat >/tmp/job; chmod 755 /tmp/job", text=Path(MPI_JOB).read_bytes())
        wait(lambda: " /shared fuse" in self.run(host, "cat", "/proc/mounts"), "/shared is there", every=0.5)
        self.run(host, "bash", "-c", "cp /tmp/job /shared; setsid mpirun /shared/job halo 256 256 200 50 check >/tmp/said 2>&1 </dev/null &")
        wait(lambda: "@step 20\n" in self.said(host), "it computes", every=0.5)
        assert "halo processes" not in self.said(host), "it was over too soon"

    def run(self, host, *words, text=None):
        return host.run("node1", *words, name="paper", text=text)

    def said(self, host):
        return self.run(host, "cat", "/tmp/said")

    def ends_right(self, host):
        wait(lambda: "halo processes" in self.said(host) or "mpirun" in self.said(host), "it ends", 900, every=1)
        lines = self.said(host).splitlines()
        assert [line for line in lines if line.startswith("@")] == [f"@step {step}" for step in range(0, 200, 20)], lines
        assert lines[-1].startswith("halo processes=2 ") and lines[-1].endswith(" checked"), lines
        host.kage("delete", "paper", "--wait")


@pytest.mark.story
def check_create(fleet):
    """a cluster is created at host1: both nodes run, each with its standby on another host, and host2 and host3 show the same"""
    first, second, third = fleet.hosts
    for asked in fleet.hosts:
        wait_for_hosts(asked, fleet.hosts)
    first.kage("create", "-", text=DECLARATION.encode())
    now = second.settled()
    assert states(now) == ALL_PROTECTED, now
    for node in now["node_states"]:
        assert len(set(node["hosts"].values())) == 2, node
    assert "host1" in str(hosts_of(now)), now
    assert hosts_of(third.settled()) == hosts_of(now) == hosts_of(first.settled())
    for asked in fleet.hosts:
        found = wait_for_hosts(asked, fleet.hosts).values()
        assert (sum(host["vms"] for host in found), sum(host["standbys"] for host in found)) == (NODES, NODES), found


@pytest.mark.story
def check_exec(fleet):
    """commands run in nodes from each host, and nodes on different hosts reach each other by name"""
    for host in fleet.hosts:
        for node in NAMES:
            assert host.run(node, "cat", "/etc/hostname") == node + "\n"
    where = {node["name"]: primary_host(node) for node in fleet.hosts[1].show()["node_states"]}
    assert len(set(where.values())) > 1, where
    assert "2 packets received" in fleet.hosts[2].run("node1", "/payload/system/busybox", "ping", "-c", "2", "-w", "60", "node2")


@pytest.mark.story
def check_drill(fleet):
    """a drill that is asked for at a host without the node's VM: the VM goes on at its standby's host, and is protected again"""
    now = fleet.hosts[0].settled()
    node = now["node_states"][0]
    other = next(host for host in fleet.hosts if host.name != primary_host(node))
    boot = other.run("node1", "cat", "/proc/sys/kernel/random/boot_id")
    status, said = other.ask("GET", "/v1/clusters/lab/nodes/node1/log")
    assert status == 200 and any("protecting" in line for line in said["lines"]), said
    status, said = other.ask("POST", "/v1/clusters/lab/nodes/node1/drill")
    assert status == 202, said
    now = other.settled(condition=lambda now: now["node_states"][0]["primary"] != node["primary"])
    assert hosts_of(now)["node1"] == node["hosts"], now
    assert other.run("node1", "cat", "/proc/sys/kernel/random/boot_id") == boot


@pytest.mark.story
def check_conflict(fleet):
    """two administrators on two hosts change the cluster from one revision: the second one is refused, and nothing is lost"""
    first, second, _ = fleet.hosts
    seen = first.show()
    text = DECLARATION + "[network]\nlatency-ms = %d\n"
    assert second.show()["revision"] == seen["revision"]
    first.kage("apply", "-", text=(text % 1).encode())
    done = second.ask("PUT", "/v1/clusters/lab", dict(seen["declaration"], network={"latency-ms": 2}), seen["revision"])
    assert done[0] == 409 and "somebody else" in done[1]["error"], done
    second.settled(condition=lambda now: now["declaration"]["network"]["latency-ms"] == 1)


@pytest.mark.story
def check_daemon_restarts(fleet):
    """a daemon is killed and started again: it finds its own, and nothing else moved"""
    first, second, _ = fleet.hosts
    before = second.show()
    first.stop_daemon()
    first.start_daemon()
    now = first.settled()
    assert hosts_of(now) == hosts_of(before)
    assert [n["primary"] for n in now["node_states"]] == [n["primary"] for n in before["node_states"]]


@pytest.mark.story
def check_host_dies(fleet):
    """the host of a node1's VM loses its power: its nodes go on where their standbys were, and all are protected again without it"""
    before = fleet.hosts[0].settled()
    job = MpiJob(fleet.hosts[0]) if MPI_JOB else None
    first = job.first if job else before["node_states"][0]
    dead = next(host for host in fleet.hosts if host.name == primary_host(first))
    second, third = [host for host in fleet.hosts if host is not dead]
    fleet.dead = dead
    boots = {node: third.run(node, "cat", "/proc/sys/kernel/random/boot_id") for node in NAMES}
    dead.power_off()
    now = third.settled(condition=lambda now: dead.name not in str(hosts_of(now)))
    assert states(now) == ALL_PROTECTED, now
    for node, was in zip(now["node_states"], before["node_states"]):
        for slot in "ab":  # no second choice of what had one
            assert was["hosts"][slot] in (dead.name, node["hosts"][slot]), (node, was)
        if primary_host(was) == dead.name:
            assert node["primary"] != was["primary"], (node, was)
    wait_for_hosts(second, [second, third])
    for node, boot in boots.items():
        assert second.run(node, "cat", "/proc/sys/kernel/random/boot_id") == boot, f"{node} was started anew"
    assert "1 packets received" in second.run("node2", "/payload/system/busybox", "ping", "-c", "1", "-w", "120", "node1")
    if job:
        now = third.settled("paper", condition=lambda now: dead.name not in str(hosts_of(now)))
        assert set(states(now).values()) == {"protected"} and now["node_states"][0]["primary"] != job.first["primary"], now
        job.ends_right(second)


@pytest.mark.story
def check_host_returns(fleet):
    """it comes back with its disk: what it had is cleared away, and it sees what there is"""
    files = fleet.dead.directory / "s" / "clusters" / "lab"
    assert list(files.glob("node*"))
    fleet.boot_again(fleet.dead)
    wait(lambda: not files.exists(), f"its files are gone; {fleet.dead.said()}")
    other = next(host for host in fleet.hosts if host is not fleet.dead)
    assert hosts_of(fleet.dead.settled()) == hosts_of(other.settled())
    for asked in (fleet.dead, other):
        wait_for_hosts(asked, fleet.hosts)


@pytest.mark.story
def check_scale_and_delete(fleet):
    """at host3 one node more is made, and then all go: no process, no file and no key is left on any host"""
    third = fleet.hosts[2]
    third.kage("scale", "lab", str(NODES + 1))
    now = fleet.hosts[0].settled(condition=lambda now: now["nodes"] == NODES + 1)
    assert states(now)[f"node{NODES + 1}"] == "protected", now
    third.kage("delete", "lab", "--wait")
    for host in fleet.hosts:
        wait(lambda host=host: not list((host.directory / "s" / "clusters").iterdir()), f"no files on {host.name}; {host.said()}")
        left = sorted(path.name for path in (host.directory / "run").iterdir()
                      if path.name != "takeovers" or any(path.iterdir()))
        assert left == ["daemon.socket"], (host.name, left)
        wait(lambda host=host: host.processes() == USUAL, f"{USUAL} on {host.name}, not {host.processes()}; {host.said()}")
        assert json.loads(host.kage("list", "--json").stdout) == {"clusters": []}
    # A daemon takes back what it said of the cluster in its next round.
    wait(lambda: not [key for key in third.keys("kagemusha/") if "/lab" in key], f"no key is left of {third.keys('kagemusha/')}")
    assert third.keys("kagemusha/fleet/hosts/") == [f"kagemusha/fleet/hosts/{host.name}" for host in fleet.hosts]
