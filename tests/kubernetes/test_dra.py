# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a node with two of PoCL's devices as GPUs, `kagemusha-k8s dra`, and a cluster of the test's own (cluster.py): an API server
that knows which fields there are, and a kubelet. Slices are published, kept and taken away; claims are prepared and unprepared.
"""
import signal
import subprocess

from cdi import devices_of
from cluster import prepare, unprepare
from dra_node import DraNode, ready, whole
from fixtures import own
from kubelet import wait


node = own(DraNode)


def check_shares(node):
    """two GPUs are published as capacity; a quarter of one is prepared: its CDI device has that share; then it is unprepared"""
    channel = node.dra_kubelet.registered()
    pool = node.published(2)
    gpu = whole(pool)[0]
    assert all(one["allowMultipleAllocations"] for one in pool.values())
    claims = {"small": node.server.allocate("small", gpu, {"share": "25"}), "large": node.server.allocate("large", gpu, {"share": "75"})}
    prepared = ready(node, claims, channel)
    names = set()
    for name, share in (("small", 25), ("large", 75)):
        device, allocated = prepared[name], node.server.claims["vms", name]["status"]["allocation"]["devices"]["results"][0]
        assert (list(device.request_names), device.pool_name, device.device_name, device.share_id) == (["gpu"], "node1", gpu, allocated["shareID"])
        spec = node.specifications()[f"kagemusha.io-claim-{claims[name]}.json"]
        assert devices_of(spec) == list(device.cdi_device_ids)
        assert f"KAGEMUSHA_GPU_SHARE={share}" in spec["devices"][0]["containerEdits"]["env"]
        names |= set(device.cdi_device_ids)
    assert len(names) == 2
    assert prepare(channel, **claims) == prepared, "a kubelet asks again"
    assert unprepare(channel, **claims) == {"small": "", "large": ""} and not node.specifications()
    assert unprepare(channel, **claims) == {"small": "", "large": ""}, "and again"


def check_refused(node):
    """claims that are deleted, another's, not ours, of another node or of what is gone are refused, each by itself; bad names, too"""
    channel = node.dra_kubelet.registered()
    gpus = whole(node.published(2))
    server = node.server
    good = server.allocate("good", gpus[0], {"share": "10"})
    ready(node, {"good": good}, channel)
    claims = {"elsewhere": server.allocate("elsewhere", gpus[0], {"share": "10"}, node="node2"), "good": good,
              "foreign": server.allocate("foreign", "gpu-0", driver="gpu.example.com"),
              "unknown": server.allocate("unknown", "gpu-0123456789abcdef", {"share": "10"}),
              "greedy": server.allocate("greedy", gpus[0], {"share": "101"}), "lost": "00000000-1111-4222-8333-444455556666",
              "again": server.allocate("again", gpus[0], {"share": "10"})}
    server.allocate("again", gpus[0], {"share": "10"})
    said = prepare(channel, **claims)
    assert said["good"].device_name == gpus[0], "the others' faults are not its"
    sentences = {"elsewhere": "no GPU of this node", "foreign": "no device of gpu.kagemusha.io", "unknown": "no GPU of this node",
                 "greedy": "no whole number of percent", "lost": "404", "again": "was deleted"}
    for name, sentence in sentences.items():
        assert sentence in said[name], (name, said[name])
    assert len(node.specifications()) == 1
    assert "no name of a claim" in prepare(channel, good="../../../../../../../../../../../../etc")["good"]
    assert "no uid" in unprepare(channel, good="../../../../../../../../../../../../etc")["good"]
    node.count(1)
    node.published(1)
    lost = next(gpu for gpu in gpus if gpu not in whole(node.server.pool()))
    said = prepare(channel, late=server.allocate("late", lost, {"share": "10"}))["late"]
    assert "is gone" in said, said


def check_slices_are_kept(node):
    """what others do to the slices is put right; conflicts are repeated; a GPU that goes leaves the pool, and comes back into it"""
    node.published(2)
    before = max(one["spec"]["pool"]["generation"] for one in node.server.slices.values())
    node.server.conflicts_left = 2
    node.count(1)
    node.published(1)
    assert node.server.conflicts_left == 0
    assert max(one["spec"]["pool"]["generation"] for one in node.server.slices.values()) > before
    node.count(2)
    node.published(2)
    with node.server.lock:
        node.server.slices.clear()
    node.end(signal.SIGKILL)
    node.start()
    node.published(2)
    writes, known = node.server.writes, node.said().count("the cluster knows")
    node.end(signal.SIGKILL)
    node.start()
    node.dra_kubelet.registered()
    wait(lambda: node.said().count("the cluster knows") >= known + 1, "a look at the slices")
    assert node.server.writes == writes, "what is right is not written again"


def check_registration(node):
    """its sockets come again when they are removed, and when it was killed; a kubelet that refuses it is reported"""
    node.dra_kubelet.registered(says=False)
    wait(lambda: "the kubelet of the test does not want it" in node.said(), "the kubelet's own words")
    for path in (node.dra_kubelet.folder / "plugins_registry/gpu.kagemusha.io-reg.sock", node.dra_kubelet.folder / "plugins/gpu.kagemusha.io/dra.sock"):
        assert path.stat().st_mode & 0o077 == 0
        path.unlink()
        wait(path.is_socket, "another socket")
        node.dra_kubelet.registered()
    node.end(signal.SIGKILL)
    node.start()
    channel = node.dra_kubelet.registered()
    gpu = whole(node.published(2))[0]
    ready(node, {"claim": node.server.allocate("claim", gpu, {"share": "10"})}, channel)


def check_server_away(node):
    """an API server that is away, or does not know us: it is said, and repeated; one in the clear elsewhere is refused"""
    node.published(2)
    node.know("wrong")
    node.count(1)
    wait(lambda: "the API server answers 401" in node.said(), "its words")
    node.know(node.server.tokens["node1"])
    node.published(1)
    words = [str(word) for word in node.command()]
    words[words.index("--api-server") + 1] = "http://192.0.2.1:80"
    done = subprocess.run([node.program(), *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "it is https://HOST:PORT" in done.stderr, done.stderr


halves = own(lambda: DraNode("partitions"))


def check_partitions(halves):
    """GPUs as sets of counters and their parts as devices: a quarter is prepared without a word of capacity"""
    channel = halves.dra_kubelet.registered()
    pool = halves.published(2)
    assert len(pool) == 30
    quarter = next(name for name in pool if "-1-of-4-" in name)
    claim = {"quarter": halves.server.allocate("quarter", quarter)}
    device = ready(halves, claim, channel)["quarter"]
    assert device.device_name == quarter and not device.HasField("share_id")
    assert "KAGEMUSHA_GPU_SHARE=25" in str(halves.specifications())
