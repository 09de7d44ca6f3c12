# SPDX-License-Identifier: GPL-2.0-or-later
"""
KubeVirt's virt-launcher, as far as a hook sidecar can tell: it looks into the folder that they share, asks each socket what it is,
and calls those that want to see the domain, one after another (hooks v1alpha3). Names of services and hook points are written here
a second time.
"""
from pathlib import Path

import grpc

from kubelet import CALL_SECONDS, messages, wait

info, hooks = messages("kubevirt_hooks_info"), messages("kubevirt_hooks_v1alpha3")
POINTS = {"OnDefineDomain", "PreCloudInitIso", "Shutdown"}


class Refused(Exception):
    pass


class Launcher:
    def __init__(self, folder):
        self.folder, self.sidecars = Path(folder), {}

    def collect(self, count):
        """Every sidecar that the VirtualMachineInstance asked for must come."""
        def sockets():
            found = [one for one in self.folder.iterdir() if one.is_socket()]
            return found if len(found) == count else None
        for path in wait(sockets, f"{count} sidecars"):
            said = self.call(path, "kubevirt.hooks.info.Info", "Info", info.InfoParams(), info.InfoResult)
            assert "v1alpha3" in said.versions, said
            points = [point.name for point in said.hookPoints]
            assert said.name and points and set(points) <= POINTS and len(set(points)) == len(points), said
            self.sidecars[path] = points

    @staticmethod
    def call(path, service, method, request, answer):
        with grpc.insecure_channel(f"unix:{path}") as channel:
            return channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, answer.FromString)(
                request, timeout=CALL_SECONDS, wait_for_ready=True)

    def define(self, domain, vmi):
        """The domain that libvirt gets, as bytes."""
        for path, points in self.sidecars.items():
            if "OnDefineDomain" not in points:
                continue
            try:
                domain = self.call(path, "kubevirt.hooks.v1alpha3.Callbacks", "OnDefineDomain",
                                   hooks.OnDefineDomainParams(domainXML=domain, vmi=vmi), hooks.OnDefineDomainResult).domainXML
            except grpc.RpcError as error:
                raise Refused(error.details()) from error
        return domain

    def shutdown(self):
        for path, points in self.sidecars.items():
            if "Shutdown" in points:
                self.call(path, "kubevirt.hooks.v1alpha3.Callbacks", "Shutdown", hooks.ShutdownParams(), hooks.ShutdownResult)
