# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a node as in test_device_plugin.py with one GPU (PoCL), and a pod: a container of the test's own (container.py) that has
nothing of the node but what Allocate answered. In it `kagemusha run` starts a VM whose description says nothing about shares.
"""
import json
import os
import subprocess
from pathlib import Path

import pytest

from container import edits_of_answer, start
from fixtures import namespace, own
from guest_vm import environment, tool
from kubelet import ROOT, wait
from node import Node, of_gpu, gpu_of

mounts = namespace("mount")
pytestmark = pytest.mark.usefixtures("mounts")
node = own(lambda: Node(1, variables=environment()))

JOB = """#!/bin/bash
/payload/cl_job add 1000000
echo "added, status $?"
until [ -e /tmp/stop ]; do sleep 0.2; done
"""
DESCRIPTION = """
name = "web"
memory = "512M"
cpus = 1
accel = "tcg"
[boot]
guest = "{guest}"
job = "job.sh"
files = ["{job}:cl_job"]
[gpu]
backend = "opencl"
{keys}
[gpu.properties]
window-size = "16M"
"""


class Pod:
    def __init__(self, node, answer, keys=""):
        self.node, self.disk = node, node.directory / f"pod-{len(list(node.directory.glob('pod-*')))}"
        self.disk.mkdir()
        (self.disk / "job.sh").write_text(JOB, encoding="utf-8")
        guest = os.environ.get("KAGE_KERNEL") or "6.12-cloud"
        (self.disk / "web.toml").write_text(DESCRIPTION.format(guest=guest, job=os.environ["KAGE_CL_JOB"], keys=keys), encoding="utf-8")
        self.edits = edits_of_answer(answer, node.specification())
        image = image_folders(node.environment["KAGE_ASSETS"])
        variables = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "KAGE_ASSETS": node.environment["KAGE_ASSETS"],
                     "KAGE_BUILD_DIR": os.environ["KAGE_BUILD_DIR"], "KAGEMUSHA_RUNTIME_DIR": "/run/kagemusha"}
        with open(self.disk / "pod.log", "wb") as log:
            self.process = start(node.directory / f"{self.disk.name}-root", self.edits, image, [self.disk], variables,
                                 [tool(), "run", self.disk / "web.toml"], stdout=log, stderr=log)

    def said(self):
        return (self.disk / "pod.log").read_text(encoding="utf-8", errors="replace")

    def console(self):
        """As the node sees it: through the container's root."""
        for child in children(self.process.pid):
            try:
                return Path(f"/proc/{child}/root/run/kagemusha/web.d/console.log").read_text(encoding="utf-8", errors="replace")
            except OSError:
                pass
        return ""

    def end(self):
        for child in children(self.process.pid):
            os.kill(child, 9)  # the first process of its namespace: all of them end
        self.process.wait(60)


def children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def image_folders(assets):
    """Where the parts of a VM are that a package would have put below /usr."""
    files = [Path(assets), *(Path(value) for value in json.loads(Path(assets).read_text(encoding="utf-8")).values() if value.startswith("/"))]
    folders = {path.resolve().parent for path in files if path.exists()} | {Path(os.environ["KAGE_BUILD_DIR"]), ROOT}
    folders |= {path.parents[2] for path in files if path.name.startswith("qemu-system")}  # what it was linked with is beside it
    folders -= {Path("/tmp")}
    outer = {one for one in folders if not any(other != one and other in one.parents for other in folders)}
    return [*sorted(outer), assets]


def shared(node):
    """What the arbiters of the node say of the VMs of pods."""
    said = subprocess.run([tool(), "top", "--json", "--once"], stdout=subprocess.PIPE, text=True, env=node.environment, check=True).stdout
    return [vm for gpu in json.loads(said) for vm in gpu["vms"] if vm["vm"].startswith("web.")]


def check_pod(node):
    """a VM in a pod with 30 percent computes, its arbiter on the node knows that share; one that describes more is refused"""
    plugin = node.kubelet.plugin()
    wait(lambda: len(plugin.healthy()) == 100, "the GPU")
    units = of_gpu(plugin.healthy(), gpu_of(next(iter(plugin.healthy()))))
    answer = plugin.allocate(units[:30])[0]
    greedy = Pod(node, answer, "share = 31")
    assert greedy.process.wait(120) == 125
    assert "wants 31 percent of the GPU, and 30 were given" in greedy.said(), greedy.said()
    pod = Pod(node, answer)
    try:
        def added():
            assert pod.process.poll() is None, pod.said() + pod.console()
            return "added, status" in pod.console()
        wait(added, "the guest has computed", 900)
        assert "1000000 sums are right" in pod.console() and "added, status 0" in pod.console(), pod.console()
        vm, = shared(node)
        assert vm["share_permille"] == 300, vm
        assert vm["tasks"] > 0 and vm["memory_bytes"] >> 20 == int(answer.envs["KAGEMUSHA_GPU_MEMORY_MIB"]), vm
        # Of the node it sees what it was given.
        inside = Path(f"/proc/{children(pod.process.pid)[0]}/root")
        given = {node["path"].rpartition("/")[2] for node in pod.edits.get("deviceNodes", [])}
        assert {path.name for path in (inside / "dev").iterdir()} == {"null", "zero", "full", "random", "urandom", "tty", "shm"} | given
    finally:
        pod.end()
    wait(lambda: not shared(node), "the arbiter has noticed the pod's end")
