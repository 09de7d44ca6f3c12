# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a node with one of PoCL's devices and an NVIDIA GPU that tests/mig's management library pretends: it is cut by `kagemusha
gpus mig`, and its instances are GPUs for pods, through the device plugin or the DRA driver. Nothing computes on them.
"""
import os
import subprocess

from cdi import devices_of
from cluster import unprepare
from dra_node import DraNode, ready
from fixtures import own
from kubelet import wait
from node import Node

SMALL, LARGE = "kagemusha.io/mig-1g.10gb", "kagemusha.io/mig-3g.40gb"


class Cut:
    """What a node has more with such a GPU."""

    def __init__(self, **options):
        super().__init__(gpus=1, **options)
        self.environment |= {"KAGEMUSHA_NVML": os.environ["KAGE_NVML"], "FAKE_NVML_STATE": str(self.directory / "nvml")}
        self.nvml("mode 1")

    def nvml(self, *lines):
        new = self.directory / "nvml.new"
        new.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        new.rename(self.directory / "nvml")

    def mig(self, *words):
        subprocess.run([os.environ["KAGE_TOOL"], "gpus", "mig", *words, "--library", os.environ["KAGE_NVML"]], env=self.environment,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60)


class CutNode(Cut, Node):
    pass


class CutDraNode(Cut, DraNode):
    def instances(self, count):
        """By profile, the devices of instances, once there are so many."""
        def look():
            pool = self.server.pool()
            found = [one for one in (pool or {}).values() if one["attributes"]["kind"]["string"] == "mig"]
            return pool is not None and len(found) == count and {one["attributes"]["profile"]["string"]: one for one in found}
        return wait(look, f"{count} instances in the pool") if count else wait(lambda: look() is not False, "no instance")


node, dra = own(CutNode), own(CutDraNode)


def check_instances_are_resources(node):
    """an instance is one unit of a resource of its profile, and whole; one that is destroyed is refused, one that comes is offered"""
    whole = node.kubelet.of_resource("kagemusha.io/gpu")
    wait(lambda: len(whole.healthy()) == 100, "the whole GPU")
    node.mig("--gpu", "0", "--create", "3g.40gb,1g.10gb")
    small, large = node.kubelet.of_resource(SMALL), node.kubelet.of_resource(LARGE)
    assert not small.options.get_preferred_allocation_available
    wait(lambda: len(small.healthy()) == len(large.healthy()) == 1, "an instance of each")
    unit = next(iter(large.healthy()))
    given = large.allocate([unit])[0]
    assert given.envs["KAGEMUSHA_GPU"].startswith("MIG-") and given.envs["KAGEMUSHA_GPU_SHARE"] == "100"
    assert given.envs["KAGEMUSHA_GPU_MEMORY_MIB"] == "40448"
    assert [one.name for one in given.cdi_devices] == [f"kagemusha.io/gpu={unit}"]
    assert unit in devices_of_names(node) and unit in node.arbiters(), "its runtime finds it, and it has an arbiter"
    assert "1 percent" not in small.refusal([f"{unit}-00"])
    node.mig("--gpu", "0", "--create", "1g.10gb")
    wait(lambda: len(small.healthy()) == 2, "another one")
    assert "2 MIG instances" in small.refusal(sorted(small.healthy()))
    node.mig("--gpu", "0", "--destroy", given.envs["KAGEMUSHA_GPU"])
    wait(lambda: not large.healthy() and len(small.healthy()) == 2, "it is unhealthy")
    assert "is gone" in large.refusal([unit])
    assert len(whole.healthy()) == 100, "nobody touched that one"


def devices_of_names(node):
    return {name.partition("=")[2] for name in devices_of(node.specification())}


def check_a_library_that_does_not_answer(node):
    """NVML that does not answer any more: the instances are unhealthy, and the other GPU is not; a kubelet that begins anew has both"""
    node.mig("--gpu", "0", "--create", "1g.10gb")
    small = node.kubelet.of_resource(SMALL)
    wait(lambda: len(small.healthy()) == 1, "an instance")
    before = (node.directory / "nvml").read_text(encoding="ascii").splitlines()
    node.nvml("lost 1", *before)
    wait(lambda: not small.healthy(), "no instance")
    assert "MIG instances are not known" in node.said()
    whole = node.kubelet.of_resource("kagemusha.io/gpu")
    assert len(whole.healthy()) == 100
    node.nvml(*before)
    wait(lambda: len(small.healthy()) == 1, "the instance again")
    node.kubelet.stop()
    node.kubelet.start()
    both = [node.kubelet.of_resource(name) for name in (SMALL, "kagemusha.io/gpu")]
    wait(lambda: [len(one.healthy()) for one in both] == [1, 100], "both resources are registered again")
    assert {one.path.name for one in both} == {"kagemusha-mig-1g.10gb.sock", "kagemusha-gpu.sock"}


def check_instances_are_devices(dra):
    """an instance is a device with its profile and its GPU; a claim has a part of it; it leaves the pool when it is destroyed"""
    channel = dra.dra_kubelet.registered()
    dra.published(1)
    dra.mig("--gpu", "0", "--create", "3g.40gb,1g.10gb")
    found = dra.instances(2)
    large = found["3g.40gb"]
    assert large["attributes"]["parent"] == {"string": "pci:0000:17:00.0"}
    assert large["attributes"]["memoryMiB"] == {"int": 40448}
    uid = dra.server.allocate("half", large["name"], {"share": "50"})
    device = ready(dra, {"half": uid}, channel)["half"]
    assert device.device_name == large["name"]
    env = next(iter(dra.specifications().values()))["devices"][0]["containerEdits"]["env"]
    assert "KAGEMUSHA_GPU_SHARE=50" in env and "KAGEMUSHA_GPU_MEMORY_MIB=20224" in env
    selector = next(one.partition("=")[2] for one in env if one.startswith("KAGEMUSHA_GPU="))
    assert selector.startswith("MIG-")
    assert unprepare(channel, half=uid) == {"half": ""}
    dra.mig("--gpu", "0", "--destroy-all")
    dra.instances(0)
    assert len(dra.server.pool()) == 1
