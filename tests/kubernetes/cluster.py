# SPDX-License-Identifier: GPL-2.0-or-later
"""
A cluster, as far as a DRA driver can tell: an API server with nodes, ResourceSlices and ResourceClaims that refuses what a real one
refuses (unknown fields, old versions, strangers), what a scheduler does with a claim, and a kubelet that finds plugins in its
registry and calls drivers, as kubelet.py does for device plugins.
"""
import copy
import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import grpc

from kubelet import CALL_SECONDS, messages, wait
from manifests import good_device_status, known_object

dra, registry = messages("dra"), messages("pluginregistration")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
CLAIM = re.compile(r"/apis/resource\.k8s\.io/v1/namespaces/([^/]+)/resourceclaims/([^/]+)(/status)?")
PAGE = 3  # claims in one answer, whatever the client wants


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.message = status, message


class ApiServer:
    def __init__(self, *nodes, features=("bindingConditions", "bindingFailureConditions")):
        self.nodes = {node: {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "uid": str(uuid.uuid4())}} for node in nodes}
        self.tokens = {node: uuid.uuid4().hex for node in nodes}
        self.features = features
        self.slices, self.claims, self.faults, self.version = {}, {}, [], 100
        self.conflicts_left, self.claim_conflicts_left, self.writes, self.claim_writes, self.claim_looks = 0, 0, 0, 0, 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("Content-Length", 0))
                text = self.rfile.read(size)
                try:
                    said = self.headers.get("Authorization", "").removeprefix("Bearer ")
                    node = next((node for node, token in outer.tokens.items() if token == said), None)
                    if not node:
                        raise Refused(401, "Unauthorized")
                    with outer.lock:
                        status, body = outer.carry_out(node, self.command, urlsplit(self.path), json.loads(text) if text else None)
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

    def carry_out(self, caller, method, url, body):
        for name, node in self.nodes.items():
            if method == "GET" and url.path == f"/api/v1/nodes/{name}":
                return 200, node
        if method == "GET" and url.path == CLAIMS:
            return self.some_claims(parse_qs(url.query))
        if found := CLAIM.fullmatch(url.path):
            claim = self.claims.get(found.groups()[:2])
            if method not in ("GET", "PUT") or not claim or (method == "PUT") != bool(found.group(3)):
                raise Refused(404, f'resourceclaims "{found.group(2)}" not found')
            return (200, claim) if method == "GET" else self.new_status(caller, claim, body)
        if url.path == SLICES:
            return self.all_slices(method, url, body)
        if url.path.startswith(SLICES + "/"):
            return self.one_slice(method, url.path[len(SLICES) + 1:], body)
        raise Refused(404, f"no {url.path}")

    def some_claims(self, query):
        """A page of them: its token is where the next one begins."""
        first = int(query.get("continue", ["#0"])[0].removeprefix("#"))
        self.claim_looks += first == 0
        keys = sorted(self.claims)[first:first + min(PAGE, int(query["limit"][0]))]
        more = {"continue": f"#{first + len(keys)}"} if first + len(keys) < len(self.claims) else {}
        return 200, {"kind": "ResourceClaimList", "metadata": more, "items": [self.claims[key] for key in keys]}

    def new_status(self, caller, claim, body):
        """Of a claim: a driver may change status.devices alone, and of it what its own node's devices have."""
        if self.claim_conflicts_left > 0 or body["metadata"].get("resourceVersion") != claim["metadata"]["resourceVersion"]:
            self.claim_conflicts_left = max(0, self.claim_conflicts_left - 1)
            raise Refused(409, "the object has been modified")
        try:
            assert known_object(body) == "ResourceClaim"
            assert {**body, "status": {**body["status"], "devices": 0}} == {**claim, "status": {**claim["status"], "devices": 0}}, \
                "no business of a driver's"
            key = ("driver", "pool", "device", "shareID")
            before, after = ({tuple(one.get(name) for name in key): one for one in thing["status"].get("devices", [])} for thing in (claim, body))
            assert len(after) == len(body["status"]["devices"]), "an entry comes twice"
            allocated = {tuple(one.get(name) for name in key) for one in claim["status"]["allocation"]["devices"]["results"]}
            assert set(after) <= allocated, (after, allocated)
            for name in set(before) | set(after):
                if before.get(name) != after.get(name):
                    assert name[:2] == ("gpu.kagemusha.io", caller), (caller, name)
                    good_device_status(after[name])
        except (AssertionError, KeyError) as fault:
            self.faults.append(fault)
            raise Refused(422, str(fault)) from fault
        self.claim_writes += 1
        return 200, self.keep_claim(body)

    def keep_claim(self, claim):
        self.version += 1
        claim["metadata"]["resourceVersion"] = str(self.version)
        self.claims[claim["metadata"]["namespace"], claim["metadata"]["name"]] = claim
        return claim

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
            assert (owner["kind"], owner["uid"]) == ("Node", self.nodes[body["spec"]["nodeName"]]["metadata"]["uid"]), owner
        except (AssertionError, KeyError) as fault:
            self.faults.append(fault)
            raise Refused(422, str(fault)) from fault

    def keep(self, body):
        """Without fields of features that are off, as a real one does, in silence."""
        for device in body["spec"].get("devices", []):
            for name in ("bindingConditions", "bindingFailureConditions"):
                if name not in self.features:
                    device.pop(name, None)
        self.version += 1
        self.writes += 1
        body["metadata"] |= {"resourceVersion": str(self.version), "uid": str(uuid.uuid4())}
        self.slices[body["metadata"]["name"]] = body
        return body

    def pool(self, node=None):
        """The devices of the newest generation, once all of its slices are there; None before."""
        with self.lock:
            assert not self.faults, self.faults
            of_node = [one["spec"] for one in self.slices.values() if node in (None, one["spec"]["nodeName"])]
            newest = max((one["pool"]["generation"] for one in of_node), default=0)
            slices = [one for one in of_node if one["pool"]["generation"] == newest]
            if not slices or any(one["pool"]["resourceSliceCount"] != len(slices) for one in slices):
                return None
            return {device["name"]: device for one in slices for device in one.get("devices", [])}

    def allocate(self, name, device, consumed=None, node=None, driver="gpu.kagemusha.io", parameters=None):
        """What the scheduler does for a claim: conditions are copied from the device. Its uid."""
        node = node or next(iter(self.nodes))
        result = {"request": "gpu", "driver": driver, "pool": node, "device": device}
        if consumed:
            result |= {"consumedCapacity": consumed, "shareID": str(uuid.uuid4())}
        published = (self.pool(node) or {}).get(device, {}) if node in self.nodes else {}
        result |= {key: published[key] for key in ("bindingConditions", "bindingFailureConditions") if key in published}
        config = {"opaque": {"driver": driver, "parameters": parameters}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "vms", "uid": str(uuid.uuid4())},
                 "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.kagemusha.io"}}]}},
                 "status": {"allocation": {"devices": {"results": [result]}}}}
        if parameters is not None:
            claim["spec"]["devices"]["config"] = [config]
            claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", **config}]
        known_object(claim)
        with self.lock:
            self.keep_claim(claim)
        return claim["metadata"]["uid"]

    def binding(self, name):
        """What the scheduler makes of an allocated claim before it binds the pod: None when it does, else why it waits. With a failure
        condition it takes the allocation away, and the pod waits in its queue with those words."""
        with self.lock:
            assert not self.faults, self.faults
            claim = copy.deepcopy(self.claims["vms", name])
            for result in claim["status"]["allocation"]["devices"]["results"]:
                if not result.get("bindingConditions"):
                    continue
                where = ("driver", "pool", "device")
                entry = next((one for one in claim["status"].get("devices", []) if all(one[key] == result[key] for key in where)), {})
                told = {one["type"]: one for one in entry.get("conditions", [])}
                for kind in result.get("bindingFailureConditions", []):
                    if told.get(kind, {}).get("status") == "True":
                        claim["status"] = {}
                        self.keep_claim(claim)
                        return f"failed: {told[kind]['message']}"
                for kind in result["bindingConditions"]:
                    if told.get(kind, {}).get("status") != "True":
                        return f"waits: {told.get(kind, {}).get('message', 'nothing was told')}"
        return None

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
