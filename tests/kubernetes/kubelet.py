# SPDX-License-Identifier: GPL-2.0-or-later
"""
A kubelet, as far as a device plugin can tell: it follows the device plugin API (v1beta1) to the letter, and what the plugin does
against it is a failure of the test. Messages are those of kubernetes/api, compiled by protoc; the names of services, versions and
folders are written here a second time.
"""
import importlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from concurrent import futures
from pathlib import Path

import grpc

from waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
CALL_SECONDS = 60  # a kubelet waits for ever or for 30 s; nothing is timed here
WAIT_SECONDS = 240
# A qualified name of Kubernetes: DNS name, slash, name.
QUALIFIED = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")


def messages(name):
    """The Python module of kubernetes/api/NAME.proto."""
    folder = Path(tempfile.mkdtemp(prefix="kagemusha-proto-"))
    subprocess.run(["protoc", f"--python_out={folder}", "-I", ROOT / "kubernetes/api", f"{name}.proto"], check=True)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"{name}_pb2")
    finally:
        sys.path.remove(str(folder))
        subprocess.run(["rm", "-r", str(folder)], check=True)


api = messages("deviceplugin")


def wait(condition, what, seconds=WAIT_SECONDS):
    """Its first true value."""
    return wait_for(condition, what, seconds, every=0.05)


class Plugin:
    """What the kubelet has of a plugin that registered: a connection, and what its stream says."""

    def __init__(self, path, options, resource):
        self.path, self.options, self.resource = path, options, resource
        self.channel = grpc.insecure_channel(f"unix:{path}")
        grpc.channel_ready_future(self.channel).result(timeout=CALL_SECONDS)
        self.lists, self.ended = [], None
        self.stream = self.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", api.Empty.SerializeToString,
                                                api.ListAndWatchResponse.FromString)(api.Empty())
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            for answer in self.stream:
                devices = {device.ID: device for device in answer.devices}
                assert len(devices) == len(answer.devices), "an id comes twice"
                for device in answer.devices:
                    assert device.health in ("Healthy", "Unhealthy"), device
                    assert re.fullmatch(r"[-a-z0-9.]{1,63}", device.ID), device
                self.lists.append({name: device.health == "Healthy" for name, device in devices.items()})
        except grpc.RpcError as error:
            self.ended = error
        except AssertionError as error:
            self.ended = error
            raise
        else:
            self.ended = EOFError("the plugin ended its stream")

    def call(self, method, request, answer):
        return self.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString, answer.FromString)(
            request, timeout=CALL_SECONDS)

    def devices(self):
        """By id, whether it is healthy."""
        wait(lambda: self.lists or self.ended, "a first list")
        assert self.lists, self.ended
        return self.lists[-1]

    def healthy(self):
        return {name for name, healthy in self.devices().items() if healthy}

    def allocate(self, *containers):
        request = api.AllocateRequest()
        for ids in containers:
            request.container_requests.add().devices_ids.extend(ids)
        answer = self.call("Allocate", request, api.AllocateResponse)
        assert len(answer.container_responses) == len(containers), "an answer for each container, in their order"
        return answer.container_responses

    def refusal(self, *containers):
        try:
            self.allocate(*containers)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
            return error.details()
        raise AssertionError("it was allocated")

    def preferred(self, available, must, size):
        assert self.options.get_preferred_allocation_available, "a kubelet would not ask"
        request = api.PreferredAllocationRequest()
        one = request.container_requests.add(allocation_size=size)
        one.available_deviceIDs.extend(sorted(available))
        one.must_include_deviceIDs.extend(must)
        answer = self.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        assert len(answer.container_responses) == 1
        chosen = list(answer.container_responses[0].deviceIDs)
        assert len(set(chosen)) == len(chosen) and set(chosen) <= set(available), "of what is available, each once"
        assert not chosen or set(must) <= set(chosen)
        return chosen

    def close(self):
        self.stream.cancel()
        self.reader.join(CALL_SECONDS)
        self.channel.close()


class Kubelet:
    """`folder` is its /var/lib/kubelet/device-plugins."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = self.folder / "kubelet.sock"
        self.plugins, self.faults, self.refusals_left, self.refused = [], [], 0, 0
        self.server = None

    def start(self):
        """As a kubelet does: the sockets of plugins are removed, they have to come again."""
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        handler = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": grpc.unary_unary_rpc_method_handler(
            self.register, request_deserializer=api.RegisterRequest.FromString, response_serializer=api.Empty.SerializeToString)})
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        self.server.add_generic_rpc_handlers((handler,))
        assert self.server.add_insecure_port(f"unix:{self.socket}") == 1
        self.server.start()

    def stop(self):
        """It ends; its socket stays where a killed one leaves it, and nobody listens."""
        self.server.stop(0).wait(CALL_SECONDS)
        for plugin in self.plugins:
            plugin.close()
        self.plugins = []

    def register(self, request, context):
        if self.refusals_left > 0:
            self.refusals_left -= 1
            self.refused += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        try:
            assert request.version == "v1beta1", request
            assert QUALIFIED.match(request.resource_name) and "kubernetes.io/" not in request.resource_name, request
            assert os.path.basename(request.endpoint) == request.endpoint != "kubelet.sock", request
            path = self.folder / request.endpoint
            assert path.is_socket(), "it registers before it serves"
            assert path.stat().st_mode & 0o077 == 0, "others than root may ask for GPUs"
            plugin = Plugin(path, request.options, request.resource_name)
            said = plugin.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
            assert said == request.options, "it says the same both times"
            self.plugins.append(plugin)
        except Exception as fault:
            self.faults.append(fault)
            raise
        return api.Empty()

    def plugin(self, number=1):
        """The one that registered as the so-manyth since the kubelet began."""
        wait(lambda: len(self.plugins) >= number or self.faults, f"registration {number}")
        assert not self.faults, self.faults
        return self.plugins[number - 1]

    def of_resource(self, name):
        """The newest one of a resource."""
        def look():
            assert not self.faults, self.faults
            return [plugin for plugin in list(self.plugins) if plugin.resource == name]
        return wait(look, name)[-1]
