# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two nodes, each with one of PoCL's devices as its GPU and `kagemusha-k8s dra --standby-conditions`, in one cluster of the
test's own (cluster.py) that binds a pod when the conditions of its claim say so. A primary's claim names that of its standby.
"""
from cluster import ApiServer, prepare, unprepare
from dra_node import DraNode, ready, whole
from fixtures import own
from kubelet import wait

STANDBY = {"apiVersion": "gpu.kagemusha.io/v1", "kind": "ShareParameters", "standby": "web-standby"}


class Cluster:
    """`with` it two nodes run."""

    def __init__(self, features=("bindingConditions", "bindingFailureConditions")):
        self.server = ApiServer("node1", "node2", features=features)
        self.nodes = [DraNode(name=name, server=self.server, gpus=1, arguments=["--standby-conditions"]) for name in ("node1", "node2")]
        self.directory = self.nodes[0].directory

    def __enter__(self):
        for node in self.nodes:
            node.__enter__()
        return self

    def __exit__(self, *how):
        try:
            for node in self.nodes:
                node.__exit__(*how)
        finally:
            self.server.close()

    def gpu(self, number):
        return whole(self.nodes[number].published(1))[0]

    def take(self, number, name, parameters=None, share="50"):
        """The scheduler gives a claim a part of that node's GPU."""
        return self.server.allocate(name, self.gpu(number), {"share": share}, node=self.nodes[number].name, parameters=parameters)

    def says(self, name, words):
        """What the scheduler makes of the claim, once it has these words; "" is that the pod is bound."""
        def look():
            said = self.server.binding(name)
            assert said is None or not said.startswith("failed") or words in said, said
            return said is None if not words else said is not None and words in said
        wait(look, f"{name}: {words or 'bound'}")

    def start(self, number, name, uid):
        """The kubelet of that node starts the pod."""
        channel = self.nodes[number].dra_kubelet.registered()
        return ready(self.nodes[number], {name: uid}, channel)[name], channel


cluster = own(Cluster)


def check_the_primary_waits_for_its_standby(cluster):
    """a primary's pod is not bound before the standby's node has the standby's share; a pod without a standby is bound at once"""
    for number in (0, 1):
        cluster.gpu(number)
        assert all(one["bindingConditions"] == ["kagemusha.io/StandbyReady"] for one in cluster.server.pool(f"node{number + 1}").values())
    alone = cluster.take(0, "alone", share="10")
    cluster.says("alone", "")
    web = cluster.take(0, "web", STANDBY)
    cluster.says("web", "no claim web-standby")
    standby = cluster.take(1, "web-standby")
    cluster.says("web", "has not started a pod")
    cluster.says("web-standby", "")
    cluster.server.claim_conflicts_left = 2
    device, channel = cluster.start(1, "web-standby", standby)
    assert device.pool_name == "node2"
    cluster.says("web", "")
    assert cluster.server.claim_conflicts_left == 0
    cluster.start(0, "web", web)
    cluster.start(0, "alone", alone)
    # The pod of the standby ends: the pair is its supervisors' business by then.
    assert unprepare(channel, **{"web-standby": standby}) == {"web-standby": ""}
    wait(lambda: conditions(cluster, "web-standby")["kagemusha.io/ShareReady"] == "False", "its share is free")
    wait(lambda: conditions(cluster, "web")["kagemusha.io/ShareReady"] == "True", "the primary's is used")
    assert conditions(cluster, "web")["kagemusha.io/StandbyReady"] == "True"


def conditions(cluster, name, what="status"):
    with cluster.server.lock:
        entries = cluster.server.claims["vms", name]["status"].get("devices", [])
        return {one["type"]: one[what] for entry in entries for one in entry["conditions"]}


def words(cluster, name):
    return conditions(cluster, name, "message")


def check_what_no_waiting_mends(cluster):
    """a standby on the same node, or with a smaller part, or parameters that mean nothing: the pod's owner reads why; then it is moved"""
    standby = cluster.take(0, "web-standby", share="40")
    cluster.start(0, "web-standby", standby)
    cluster.take(0, "web", STANDBY, share="40")
    cluster.says("web", "would die with it")
    assert "allocation" not in cluster.server.claims["vms", "web"]["status"]
    cluster.take(1, "web", STANDBY)
    cluster.says("web", "40 percent of a GPU, and this one 50")
    odd = cluster.take(1, "odd", {"standBy": "web-standby"})
    cluster.says("odd", "is not understood")
    channel = cluster.nodes[1].dra_kubelet.registered()
    odd = cluster.take(1, "odd", {"standBy": "web-standby"})
    said = wait(lambda: (told := prepare(channel, odd=odd)["odd"]) and "no share arbiter" not in told and told, "an answer")
    assert "is not understood" in said, "also where nobody waits for conditions"
    cluster.take(1, "web", STANDBY, share="40")
    cluster.says("web", "")


def check_a_standby_whose_gpu_goes(cluster):
    """a GPU that is pulled out, then a driver that ends: the primary waits, with the words of the standby's node; conditions are kept"""
    standby = cluster.take(1, "web-standby")
    cluster.start(1, "web-standby", standby)
    cluster.nodes[1].count(0)
    wait(lambda: conditions(cluster, "web-standby").get("kagemusha.io/ShareReady") == "False", "the GPU is gone")
    cluster.take(0, "web", STANDBY)
    cluster.says("web", "is gone")
    cluster.nodes[1].count(1)
    cluster.says("web", "")
    wait(lambda: "has not started" in words(cluster, "web")["kagemusha.io/ShareReady"], "all that its own node says")
    steady = words(cluster, "web")
    cluster.nodes[0].end()
    with cluster.server.lock:
        cluster.server.claims["vms", "web"]["status"].pop("devices")
    assert "nothing was told" in cluster.server.binding("web"), "nobody else writes for this node"
    cluster.nodes[0].start()
    cluster.says("web", "")
    wait(lambda: words(cluster, "web") == steady, "the same is told again")
    writes, looks = cluster.server.claim_writes, cluster.server.claim_looks
    wait(lambda: cluster.server.claim_looks >= looks + 6, "several looks of both nodes")
    assert cluster.server.claim_writes == writes, "what is right is not written again"


without = own(lambda: Cluster(features=()))


def check_a_server_without_the_feature(without):
    """an API server that drops the fields: it is said once, slices are not written again and again, and pods are bound without waiting"""
    without.gpu(0)
    said = wait(lambda: without.nodes[0].said().count("keeps less of this node's devices"), "its words")
    assert said == 1
    writes = without.server.writes
    without.take(0, "web", STANDBY)
    without.says("web", "")
    wait(lambda: conditions(without, "web").get("kagemusha.io/StandbyReady") == "False", "the driver tells all the same")
    looks = without.server.claim_looks
    wait(lambda: without.server.claim_looks >= looks + 6, "several looks")
    # One more is a GPU whose facts have changed meanwhile; what the server drops would be written with each look.
    assert without.server.writes <= writes + 1, "slices are written again and again"
    assert without.nodes[0].said().count("keeps less of this node's devices") == 1
