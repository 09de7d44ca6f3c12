# SPDX-License-Identifier: GPL-2.0-or-later
"""
A cluster, as far as a DRA driver can tell: an API server with a node, ResourceSlices and ResourceClaims that refuses what a real one
refuses (unknown fields, old versions, strangers), and a kubelet that finds plugins in its registry and calls drivers, as
kubelet.py does for device plugins.
"""
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import grpc

from kubelet import CALL_SECONDS, messages, wait
from manifests import known_object

dra, registry = messages("dra"), messages("pluginregistration")
TOKEN = uuid.uuid4().hex
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.message = status, message


class ApiServer:
    def __init__(self, node):
        self.node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "uid": str(uuid.uuid4())}}
        self.slices, self.claims, self.faults, self.version = {}, {}, [], 100
        self.conflicts_left, self.writes = 0, 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("Content-Length", 0))
                text = self.rfile.read(size)
                try:
                    if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                        raise Refused(401, "Unauthorized")
                    with outer.lock:
                        status, body = outer.carry_out(self.command, urlsplit(self.path), json.loads(text) if text else None)
                except Refused as refused:
                    status, body = refused.status, {"kind": "Status", "message": refused.message}
                said = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def carry_out(self, method, url, body):
        if method == "GET" and url.path == f"/api/v1/nodes/{self.node['metadata']['name']}":
            return 200, self.node
        if found := re.fullmatch(r"/apis/resource\.k8s\.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)", url.path):
            claim = self.claims.get(found.groups())
            if method != "GET" or not claim:
                raise Refused(404, f'resourceclaims "{found.group(2)}" not found')
            return 200, claim
        if url.path == SLICES:
            return self.all_slices(method, url, body)
        if url.path.startswith(SLICES + "/"):
            return self.one_slice(method, url.path[len(SLICES) + 1:], body)
        raise Refused(404, f"no {url.path}")

    def all_slices(self, method, url, body):
        if method == "GET":
            wanted = dict(pair.split("=") for pair in parse_qs(url.query)["fieldSelector"][0].split(","))
            assert set(wanted) <= {"spec.driver", "spec.nodeName"}, wanted
            some = [one for one in self.slices.values() if all(one["spec"][key[5:]] == value for key, value in wanted.items())]
            return 200, {"kind": "ResourceSliceList", "items": some}
        self.accept(body)
        if body["metadata"]["name"] in self.slices:
            raise Refused(409, "already exists")
        return 201, self.keep(body)

    def one_slice(self, method, name, body):
        if name not in self.slices:
            raise Refused(404, f'resourceslices "{name}" not found')
        if method == "DELETE":
            self.writes += 1
            return 200, self.slices.pop(name)
        self.accept(body)
        if self.conflicts_left > 0:
            self.conflicts_left -= 1
            raise Refused(409, "the object has been modified")
        if body["metadata"].get("resourceVersion") != self.slices[name]["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified")
        return 200, self.keep(body)

    def accept(self, body):
        try:
            assert known_object(body) == "ResourceSlice"
            owner = body["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["uid"]) == ("Node", self.node["metadata"]["uid"]), owner
        except (AssertionError, KeyError) as fault:
            self.faults.append(fault)
            raise Refused(422, str(fault)) from fault

    def keep(self, body):
        self.version += 1
        self.writes += 1
        body["metadata"] |= {"resourceVersion": str(self.version), "uid": str(uuid.uuid4())}
        self.slices[body["metadata"]["name"]] = body
        return body

    def pool(self):
        """The devices of the newest generation, once all of its slices are there; None before."""
        with self.lock:
            assert not self.faults, self.faults
            newest = max((one["spec"]["pool"]["generation"] for one in self.slices.values()), default=0)
            slices = [one["spec"] for one in self.slices.values() if one["spec"]["pool"]["generation"] == newest]
            if not slices or any(one["pool"]["resourceSliceCount"] != len(slices) for one in slices):
                return None
            return {device["name"]: device for one in slices for device in one.get("devices", [])}

    def allocate(self, name, device, consumed=None, node=None, driver="gpu.kagemusha.io"):
        """What the scheduler does for a claim. Its uid."""
        result = {"request": "gpu", "driver": driver, "pool": node or self.node["metadata"]["name"], "device": device}
        if consumed:
            result |= {"consumedCapacity": consumed, "shareID": str(uuid.uuid4())}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "vms", "uid": str(uuid.uuid4())},
                 "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.kagemusha.io"}}]}},
                 "status": {"allocation": {"devices": {"results": [result]}}}}
        known_object(claim)
        self.claims["vms", name] = claim
        return claim["metadata"]["uid"]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class DraKubelet:
    """`folder` is its /var/lib/kubelet. It has no socket of its own for drivers: it looks into its registry."""

    def __init__(self, folder):
        self.folder = Path(folder)
        (self.folder / "plugins_registry").mkdir(parents=True)

    def registered(self, says=True):
        """What it does with a socket that appears. A channel to the driver."""
        sockets = wait(lambda: [one for one in (self.folder / "plugins_registry").iterdir() if one.is_socket()], "a socket in the registry")
        assert len(sockets) == 1, sockets
        with grpc.insecure_channel(f"unix:{sockets[0]}") as channel:
            info = call(channel, "pluginregistration.Registration", "GetInfo", registry.InfoRequest(), registry.PluginInfo)
            assert (info.type, info.name) == ("DRAPlugin", "gpu.kagemusha.io"), info
            assert "v1.DRAPlugin" in info.supported_versions, info
            assert Path(info.endpoint).is_socket() and Path(info.endpoint).is_absolute(), "it registers before it serves"
            status = registry.RegistrationStatus(plugin_registered=says, error="" if says else "the kubelet of the test does not want it")
            call(channel, "pluginregistration.Registration", "NotifyRegistrationStatus", status, registry.RegistrationStatusResponse)
        return grpc.insecure_channel(f"unix:{info.endpoint}")


def call(channel, service, method, request, answer):
    return channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, answer.FromString)(
        request, timeout=CALL_SECONDS, wait_for_ready=True)


def claims_of(kind, claims):
    request = kind()
    for name, uid in claims.items():
        request.claims.add(namespace="vms", name=name, uid=uid)
    return request


def prepare(channel, **claims):
    """By name: the device, or the sentence that refuses it."""
    answer = call(channel, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "NodePrepareResources",
                  claims_of(dra.NodePrepareResourcesRequest, claims), dra.NodePrepareResourcesResponse)
    assert set(answer.claims) == set(claims.values()), "an entry for each claim"
    out = {}
    for name, uid in claims.items():
        one = answer.claims[uid]
        assert bool(one.error) != bool(one.devices), one
        out[name] = one.error or one.devices[0]
    return out


def unprepare(channel, **claims):
    answer = call(channel, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "NodeUnprepareResources",
                  claims_of(dra.NodeUnprepareResourcesRequest, claims), dra.NodeUnprepareResourcesResponse)
    assert set(answer.claims) == set(claims.values()), "an entry for each claim"
    return {name: answer.claims[uid].error for name, uid in claims.items()}
