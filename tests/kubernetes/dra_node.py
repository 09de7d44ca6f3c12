# SPDX-License-Identifier: GPL-2.0-or-later
"""A node with `kagemusha-k8s dra`, in a cluster of the test's own (cluster.py) that it may share with other nodes."""
import json

from cluster import ApiServer, DraKubelet, prepare
from kubelet import wait
from node import Node


class DraNode(Node):
    """Without a device plugin."""

    def __init__(self, how="shares", name="node1", server=None, gpus=2, arguments=()):
        super().__init__(gpus, arguments)
        self.name, self.server, self.dra_kubelet = name, server or ApiServer(name), DraKubelet(self.directory / "kubelet")
        self.its_server = not server
        self.know(self.server.tokens[name])
        self.how, self.cdi_folder = how, self.directory / "cdi"

    def know(self, token):
        (self.directory / "token").write_text(token + "\n", encoding="ascii")

    def command(self):
        return ["dra", "--node-name", self.name, "--api-server", self.server.url, "--token-file", self.directory / "token", "--kubelet",
                self.dra_kubelet.folder, "--cdi-folder", self.cdi_folder, "--slices", self.how, "--share-dir", self.shares,
                "--lister", self.directory / "lister", "--look-every", "1", *self.arguments]

    def published(self, gpus):
        """The pool, once it has so many whole GPUs, of which each can be allocated."""
        def look():
            pool = self.server.pool(self.name)
            return pool if pool is not None and len(whole(pool)) == gpus and set(whole(pool)) <= set(self.arbiters()) else None
        return wait(look, f"{gpus} GPUs in the pool")

    def specifications(self):
        return {one.name: json.loads(one.read_text(encoding="utf-8")) for one in self.cdi_folder.glob("*")} if self.cdi_folder.exists() else {}

    def __exit__(self, *how):
        super().__exit__(*how)
        if self.its_server:
            self.server.close()


def whole(pool):
    return sorted({name.partition("-1-of-")[0] for name in pool})


def ready(node, claim, device):
    """A claim of this device can be prepared: the arbiter of its GPU has been asked."""
    def look():
        said = prepare(device, **claim)
        return None if any("no share arbiter" in str(one) for one in said.values()) else said
    return wait(look, "a share arbiter")
