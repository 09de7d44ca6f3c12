# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a node with a kubelet of the test's own (kubelet.py), `kagemusha-k8s device-plugin` and two of PoCL's devices as GPUs.
The kubelet restarts, refuses and is killed; GPUs and share arbiters come and go; what is allocated is what a container needs. One
check starts a VM in a container that has nothing of the node but what Allocate answered.
"""
import os
import signal
import socket

import grpc
import pytest

from cdi import devices_of
from fixtures import own
from kubelet import api, wait
from node import Node, gpu_of, of_gpu

node = own(Node)
old_runtime = own(lambda: Node(arguments=["--without-cdi"]))


def two_gpus(node, number=1):
    plugin = node.kubelet.plugin(number)
    wait(lambda: len(plugin.healthy()) == 200, "two healthy GPUs")
    return plugin, sorted({gpu_of(unit) for unit in plugin.devices()})


def check_advertised(node):
    """it serves, then registers; each GPU is a hundred units; their CDI specification is there before them"""
    plugin, gpus = two_gpus(node)
    assert len(gpus) == 2 and set(node.arbiters()) == set(gpus), "an arbiter for each GPU"
    assert sorted(devices_of(node.specification())) == [f"kagemusha.io/gpu={gpu}" for gpu in gpus]
    assert [path.name for path in node.cdi.parent.iterdir()] == [node.cdi.name], "nothing half written beside it"
    assert node.shares.stat().st_mode & 0o077 == 0, "others than root may not ask the arbiters"
    assert plugin.options.get_preferred_allocation_available and not plugin.options.pre_start_required


def check_allocated(node):
    """25 units of one GPU: its share, its quota, its arbiter, its CDI device; asked again it answers the same"""
    plugin, gpus = two_gpus(node)
    units = of_gpu(plugin.healthy(), gpus[1])[10:35]
    answer, other = plugin.allocate(units, of_gpu(plugin.healthy(), gpus[0])[:100])
    memory = int(answer.envs["KAGEMUSHA_GPU_MEMORY_MIB"])
    assert answer.envs["KAGEMUSHA_GPU_SHARE"] == "25" and other.envs["KAGEMUSHA_GPU_SHARE"] == "100"
    assert abs(4 * memory - int(other.envs["KAGEMUSHA_GPU_MEMORY_MIB"])) < 4, "a quarter of the memory"
    assert answer.envs["KAGEMUSHA_GPU_ARBITER"] == f"/run/kagemusha/share/{gpus[1]}"
    assert [one.name for one in answer.cdi_devices] == [f"kagemusha.io/gpu={gpus[1]}"]
    assert not answer.devices and not answer.mounts, "or they come twice"
    assert plugin.allocate(units)[0] == answer, "a kubelet asks again for a container that starts again"


def check_without_cdi(old_runtime):
    """for a runtime that does not know CDI the answer itself has what the specification would have had"""
    plugin, gpus = two_gpus(old_runtime)
    answer = plugin.allocate(of_gpu(plugin.healthy(), gpus[0])[:5])[0]
    assert not answer.cdi_devices and not old_runtime.cdi.exists()
    assert [(one.host_path, one.container_path, one.read_only) for one in answer.mounts] == [
        (str(old_runtime.shares), "/run/kagemusha/share", True)]
    assert {one.host_path for one in answer.devices} == ({"/dev/kvm"} if os.access("/dev/kvm", os.R_OK | os.W_OK) else set())
    assert all(one.permissions == "rw" and one.container_path == one.host_path for one in answer.devices)


def check_preferred(node):
    """the units of one GPU, of the fuller one; with some that must be among them; none where no GPU has enough"""
    plugin, gpus = two_gpus(node)
    free = [*of_gpu(plugin.healthy(), gpus[0]), *of_gpu(plugin.healthy(), gpus[1])[60:]]
    chosen = plugin.preferred(free, [], 30)
    assert len(chosen) == 30 and {gpu_of(unit) for unit in chosen} == {gpus[1]}
    must = of_gpu(free, gpus[0])[7:9]
    chosen = plugin.preferred(free, must, 30)
    assert len(chosen) == 30 and {gpu_of(unit) for unit in chosen} == {gpus[0]}
    assert plugin.preferred(of_gpu(free, gpus[0])[:20] + of_gpu(free, gpus[1])[:20], [], 30) == []


def check_refused(node):
    """what is unknown, named twice, on two GPUs, or nothing is refused with a sentence for the pod's owner"""
    plugin, gpus = two_gpus(node)
    one, other = of_gpu(plugin.healthy(), gpus[0])[:5], of_gpu(plugin.healthy(), gpus[1])[:5]
    assert "no GPU of this node" in plugin.refusal(["gpu-0123456789abcdef-00"])
    assert "no GPU of this node" in plugin.refusal(["../../etc/passwd"])
    assert "asked for twice" in plugin.refusal([one[0], one[0]])
    assert "10 percent are free on no single GPU" in plugin.refusal(one + other)
    assert "1 to 100" in plugin.refusal([])
    assert "1 to 100" in plugin.refusal(one, [])
    assert plugin.allocate(one)


def check_gpu_goes(node):
    """a GPU that its driver does not list any more is unhealthy and is not allocated; it comes back; no driver answers; one does"""
    plugin, gpus = two_gpus(node)
    lost = gpus[0] if f"kagemusha.io/gpu={gpus[0]}" not in listed_alone(node, plugin) else gpus[1]
    assert plugin.devices().keys() >= set(of_gpu(plugin.devices(), lost)), "it is not forgotten"
    assert "is gone" in plugin.refusal(of_gpu(plugin.devices(), lost)[:5])
    node.count(2)
    wait(lambda: len(plugin.healthy()) == 200, "both GPUs")
    wait(lambda: len(devices_of(node.specification())) == 2, "both are in the specification")
    node.count(0)
    wait(lambda: not plugin.healthy(), "no GPU")
    wait(lambda: not node.cdi.exists(), "no specification")
    node.count(2)
    wait(lambda: len(plugin.healthy()) == 200, "both GPUs")
    assert plugin.ended is None, "all of that in one stream"


def listed_alone(node, plugin):
    node.count(1)
    wait(lambda: len(plugin.healthy()) == 100, "one GPU")
    return wait(lambda: len(names := devices_of(node.specification())) == 1 and names, "one in the specification")


def check_arbiter_goes(node):
    """a share arbiter that is killed: its GPU is unhealthy until there is another one; one that stands still: until it goes on"""
    plugin, gpus = two_gpus(node)
    seen = len(plugin.lists)
    first = node.arbiters()[gpus[0]]
    os.kill(first, signal.SIGKILL)
    wait(lambda: any(not now[f"{gpus[0]}-00"] for now in plugin.lists[seen:]), "the kubelet is told")
    wait(lambda: len(plugin.healthy()) == 200, "another arbiter")
    assert node.arbiters()[gpus[0]] != first
    still = node.arbiters()[gpus[1]]
    os.kill(still, signal.SIGSTOP)
    try:
        wait(lambda: len(plugin.healthy()) == 100, "the kubelet is told")
        assert "has no share arbiter" in plugin.refusal(of_gpu(plugin.devices(), gpus[1])[:5])
    finally:
        os.kill(still, signal.SIGCONT)
    wait(lambda: len(plugin.healthy()) == 200, "it answers again")
    assert node.arbiters()[gpus[1]] == still


def check_kubelet_restarts(node):
    """a kubelet that starts removes all sockets and is told again; one that refuses, too; one that is dead is waited for"""
    plugin, gpus = two_gpus(node)
    before = plugin.allocate(of_gpu(plugin.healthy(), gpus[0])[:7])[0]
    for _ in range(3):
        node.kubelet.stop()
        node.kubelet.start()
        plugin, again = two_gpus(node)
        assert again == gpus, "ids stay"
    node.kubelet.stop()
    node.kubelet.refusals_left = 2
    node.kubelet.start()
    plugin, _ = two_gpus(node)
    assert node.kubelet.refused == 2
    assert plugin.allocate(of_gpu(plugin.healthy(), gpus[0])[:7])[0] == before
    plugin.path.unlink()  # somebody removes ours alone
    two_gpus(node, 2)


def check_plugin_restarts(node):
    """killed and started again: it takes the place of its old socket, registers, and knows what was allocated before"""
    plugin, gpus = two_gpus(node)
    units, arbiters = of_gpu(plugin.healthy(), gpus[1])[:9], node.arbiters()
    before = plugin.allocate(units)[0]
    node.end(signal.SIGKILL)
    wait(lambda: plugin.ended, "the kubelet notices")
    assert plugin.path.is_socket(), "left over"
    node.start()
    plugin, again = two_gpus(node, 2)
    assert again == gpus and node.arbiters() == arbiters, "the arbiters have gone on"
    assert plugin.allocate(units)[0] == before
    assert node.end() == 0
    wait(lambda: plugin.ended, "the stream ends with it")


def check_streams(node):
    """a kubelet that opens its stream again and again is served; a crowd of streams is not"""
    plugin, _ = two_gpus(node)
    method = plugin.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", api.Empty.SerializeToString,
                                         api.ListAndWatchResponse.FromString)
    for _ in range(12):
        def first():
            stream = method(api.Empty(), timeout=60)
            try:
                return len(next(stream).devices) == 200
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                return False
            finally:
                stream.cancel()
        wait(first, "a list for one more stream")
    crowd = [method(api.Empty(), timeout=60) for _ in range(20)]
    codes = set()
    for stream in crowd:
        try:
            next(stream)
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    for stream in crowd:
        stream.cancel()
    assert len(plugin.healthy()) == 200 and plugin.ended is None


def check_nonsense(node):
    """bytes that are no gRPC, messages that are none or too large, methods that there are not: refused, and it goes on"""
    plugin, gpus = two_gpus(node)
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 9000):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(plugin.path))
            end.sendall(nonsense)
            end.shutdown(socket.SHUT_WR)
    for method, request in (("Allocate", b"\x0a\xff"), ("Allocate", b"\x0a\x02" + b"\xff" * 64), ("Allocate", b"\0" * (3 << 20)),
                            ("Reallocate", b""), ("GetPreferredAllocation", b"\x0a\x0b\x18" + b"\xff" * 9 + b"\x01")):
        with pytest.raises(grpc.RpcError):
            plugin.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=60)
    assert plugin.allocate(of_gpu(plugin.healthy(), gpus[0])[:5])
