# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one node (real_cluster.py) with a real kubelet, containerd and runc, `kagemusha-k8s device-plugin` of the build, and two of
PoCL's devices as its GPUs. Pods ask for shares; the kubelet restarts, the plugin dies, a GPU goes. Prints each thing that was seen,
and ends with 1 at the first that was not. Run by `run`, inside of `enter`.
"""
import json
import os
import signal
import sys
import time
from pathlib import Path

from real_cluster import IMAGE, LOGS, NODE, Cluster, must, wait

BUILD = Path(os.environ["KAGE_BUILD_DIR"])
RESOURCE = "kagemusha.io/gpu"
PLUGINS, SHARES = Path("/var/lib/kubelet/device-plugins"), Path("/run/kagemusha/share")
# Two of PoCL's devices, or as many as the file says.
LISTER = f"""#!/bin/sh
export POCL_DEVICES="$(yes pthread | sed "$(cat /run/gpus)q" | tr '\\n' ' ' | sed 's/ $//')"
exec {BUILD}/replicator/gpu/kagemusha-gpus "$@"
"""
BEGAN = time.monotonic()


def say(what):
    print(f"== {time.monotonic() - BEGAN:6.0f} s  {what}", flush=True)


class Site:
    def __init__(self):
        self.cluster = Cluster()
        self.count(2)
        lister = Path("/run/lister")
        lister.write_text(LISTER, encoding="ascii")
        lister.chmod(0o755)

    @staticmethod
    def count(gpus):
        Path("/run/gpus.new").write_text(f"{gpus}\n", encoding="ascii")
        Path("/run/gpus.new").rename("/run/gpus")

    def start_plugin(self):
        self.cluster.start("device-plugin", BUILD / "kubernetes/kagemusha-k8s", "device-plugin", "--without-cdi", "--lister", "/run/lister",
                           "--look-every", "2")

    def has(self, allocatable, capacity=None):
        cluster = self.cluster
        wait(lambda: cluster.resource("allocatable", RESOURCE) == allocatable
             and (capacity is None or cluster.resource("capacity", RESOURCE) == capacity), f"{allocatable} allocatable, {capacity} at all")

    def pod(self, name, share):
        self.cluster.kubectl("create", "-f", "-", text=json.dumps({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
                     "containers": [{"name": "vm", "image": IMAGE, "resources": {"limits": {RESOURCE: str(share)}}}]}}))

    def state(self, name):
        return (self.cluster.get("pod", name) or {}).get("status", {})

    def container(self, name):
        """Of a running pod: its container's id and how often it was started again."""
        def look():
            self.cluster.alive()
            status = self.state(name)
            assert status.get("phase") != "Failed", status
            one = (status.get("containerStatuses") or [{}])[0]
            return "running" in one.get("state", {}) and (one["containerID"], one["restartCount"])
        return wait(look, f"pod {name} runs")

    def inside(self, name, *words):
        return self.cluster.kubectl("exec", name, "--", *words)

    def granted(self, name):
        """What the container has of us in its environment."""
        return dict(line.split("=", 1) for line in self.inside(name, "env").splitlines() if line.startswith("KAGEMUSHA_"))

    def units(self, name):
        """The kubelet's own record: which units a pod's container has."""
        uid = self.cluster.get("pod", name)["metadata"]["uid"]
        entries = json.loads((PLUGINS / "kubelet_internal_checkpoint").read_text(encoding="utf-8"))["Data"]["PodDeviceEntries"] or []
        return sorted(unit for entry in entries if entry["PodUID"] == uid for unit in units_of(entry["DeviceIDs"]))

    def cgroup(self, name, controller, file):
        container = self.container(name)[0].rpartition("/")[2]
        found, = Path("/sys/fs/cgroup", controller).rglob(container)
        return (found / file).read_text(encoding="ascii")

    def registrations(self):
        return self.cluster.said("device-plugin").count(f"the kubelet knows {RESOURCE}")

    def delete(self, *names):
        self.cluster.kubectl("delete", "pod", "--wait=false", *names)
        wait(lambda: not any(self.cluster.get("pod", name) for name in names), f"the end of {names}")


def units_of(ids):
    return ids if isinstance(ids, list) else [unit for units in ids.values() for unit in units]


def gpus_of(units):
    return {unit.rpartition("-")[0] for unit in units}


def check_registered(site):
    """the real kubelet takes the plugin; the node has a hundred units for each GPU"""
    site.has(200, 200)
    assert site.registrations() == 1, site.cluster.said("device-plugin")
    assert sorted(path.name for path in PLUGINS.iterdir() if path.is_socket()) == ["kagemusha-gpu.sock", "kubelet.sock"]


def check_pod(site):
    """a pod with 25 percent: units of one GPU (as we preferred), our environment, the arbiter's folder read-only, /dev/kvm alone"""
    site.pod("web", 25)
    site.container("web")
    units, given = site.units("web"), site.granted("web")
    assert len(units) == 25 and len(gpus_of(units)) == 1, units
    assert given["KAGEMUSHA_GPU_SHARE"] == "25", given
    arbiter = SHARES / gpus_of(units).pop()
    assert given["KAGEMUSHA_GPU_ARBITER"] == str(arbiter) and int(given["KAGEMUSHA_GPU_MEMORY_MIB"]) > 0, given
    # The very sockets of the node's arbiters, and nothing to write there.
    inside = site.inside("web", "stat", "-c", "%F %i", arbiter).split()
    assert inside == ["socket", str(arbiter.stat().st_ino)], inside
    mounts = [line.split() for line in site.inside("web", "cat", "/proc/mounts").splitlines()]
    assert [line[3].split(",")[0] for line in mounts if line[1] == str(SHARES)] == ["ro"], mounts
    wanted = {"/dev/kvm"} if os.access("/dev/kvm", os.R_OK | os.W_OK) else set()
    nodes = {f"/dev/{name}" for name in site.inside("web", "ls", "/dev").split()}
    assert nodes & {"/dev/kvm", "/dev/fuse", "/dev/vda", "/dev/kmsg"} == wanted, nodes
    if wanted:  # and its group of devices lets it
        site.inside("web", "sh", "-c", "exec 3<>/dev/kvm")
        allowed = site.cgroup("web", "devices", "devices.list").splitlines()
        assert "c 10:232 rw" in allowed and "a *:* rwm" not in allowed, allowed
    say(f"   {given}; device nodes {sorted(wanted)}")


def check_full(site):
    """what the node does not have waits at the scheduler; what no single GPU has fails at the node, with our sentence"""
    site.pod("large", 90)
    site.container("large")
    assert len(gpus_of(site.units("large"))) == 1 and not set(site.units("large")) & set(site.units("web"))
    site.pod("waits", 95)
    wait(lambda: any("Insufficient kagemusha.io/gpu" in one.get("message", "") for one in site.state("waits").get("conditions", [])),
         "the scheduler refuses")
    site.pod("split", 80)  # 75 and 10 percent are free
    wait(lambda: site.state("split").get("phase") == "Failed", "the kubelet refuses")
    said = site.state("split")
    say(f"   {said['reason']}: {said['message']}")
    assert said["reason"] == "UnexpectedAdmissionError" and "80 percent are free on no single GPU of this node" in said["message"], said
    site.delete("split")
    site.delete("large")
    site.container("waits")
    assert len(gpus_of(site.units("waits"))) == 1 and site.granted("waits")["KAGEMUSHA_GPU_SHARE"] == "95"
    site.delete("waits")


def check_container_restarts(site):
    """a container that ends is started again with the same share"""
    before, units, given = site.container("web"), site.units("web"), site.granted("web")
    site.inside("web", "kill", "1")
    wait(lambda: site.container("web")[1] > before[1], "it is started again")
    assert site.units("web") == units and site.granted("web") == given


def check_kubelet_restarts(site):
    """a kubelet that restarts removes the plugin's socket; the plugin comes again; what runs goes on with its units"""
    for how in (signal.SIGTERM, signal.SIGKILL):
        before, units, times = site.container("web"), site.units("web"), site.registrations()
        made = (PLUGINS / "kagemusha-gpu.sock").stat().st_ctime_ns
        site.cluster.stop("kubelet", how)
        site.cluster.start_kubelet()
        wait(lambda: site.registrations() > times, "it registers again")
        site.has(200, 200)
        assert site.registrations() == times + 1, "once"
        assert (PLUGINS / "kagemusha-gpu.sock").stat().st_ctime_ns > made
        assert site.container("web") == before and site.units("web") == units
    site.pod("next", 100)  # the GPU that `web` has nothing of
    site.container("next")
    assert not gpus_of(site.units("next")) & gpus_of(site.units("web"))
    site.delete("next")


def check_plugin_dies(site):
    """a plugin that is killed: nothing is allocatable, pods go on; started again it is taken again"""
    before, units = site.container("web"), site.units("web")
    site.cluster.stop("device-plugin", signal.SIGKILL)
    site.has(0)
    site.start_plugin()
    site.has(200, 200)
    assert site.container("web") == before and site.units("web") == units


def check_gpu_goes(site):
    """a GPU that its driver does not list any more: its units are not allocatable; it comes back"""
    site.count(1)
    site.has(100, 200)
    site.count(2)
    site.has(200, 200)


def check_deleted(site):
    """the last pod is deleted: its units are free, its container is gone, the plugin ends when it is told to"""
    container = site.container("web")[0].rpartition("/")[2]
    site.delete("web")
    wait(lambda: container not in must("ctr", "-n", "k8s.io", "containers", "list", "-q"), "the container is gone")
    site.pod("both", 100)
    site.pod("sides", 100)
    site.container("both"), site.container("sides")
    assert len(site.units("both") + site.units("sides")) == 200 and gpus_of(site.units("both")) != gpus_of(site.units("sides"))
    site.delete("both", "sides")
    assert site.cluster.stop("device-plugin") == 0


CHECKS = (check_registered, check_pod, check_full, check_container_restarts, check_kubelet_restarts, check_plugin_dies, check_gpu_goes, check_deleted)


def main():
    site = Site()
    cluster = site.cluster
    try:
        for step in (cluster.start_containerd, cluster.start_control_plane, cluster.start_kubelet):
            step()
            say(step.__name__)
        wait(cluster.node_ready, "the node is ready")
        say(f"{NODE} is ready, kubelet {cluster.node()['status']['nodeInfo']['kubeletVersion']}, "
            f"{cluster.node()['status']['nodeInfo']['containerRuntimeVersion']}")
        site.start_plugin()
        for check in CHECKS:
            check(site)
            say(check.__doc__)
    except BaseException:
        print(f"logs are in {LOGS} of the root", file=sys.stderr)
        raise
    finally:
        cluster.end()


if __name__ == "__main__":
    main()
