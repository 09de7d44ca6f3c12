# SPDX-License-Identifier: GPL-2.0-or-later
"""
A VM whose guest is a service on its GPU (bench/service), in a network of this machine: a bridge, a tap for each host's QEMU,
and clients that are ordinary programs. To be used inside a network namespace (in-namespace net).
"""
import os
import socket
import subprocess
from pathlib import Path

from guest_vm import environment
from ha_pair import Hosts, wait

GUEST, HERE = "10.77.0.2", "10.77.0.1"
HTTP, RESP = 8080, 6379
MAC = "52:54:00:77:00:02"

JOB = f"""#!/bin/bash
ip=/payload/system/busybox
$ip ip link set lo up
$ip ip link set eth0 up
$ip ip addr add {GUEST}/24 dev eth0
exec /payload/service {{keys}}
"""

DESCRIPTION = """
name = "serves"
memory = "512M"
cpus = {cpus}
accel = "{accel}"
[boot]
guest = "{guest}"
job = "job.sh"
files = ["{service}:service"]
[gpu]
backend = "opencl"
gpu = "{gpu}"
[[network]]
netdev = "tap,ifname={tap},script=no,downscript=no"
mac = "{mac}"
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Bridge:
    """Of this namespace, with an address; `tap` makes one more port."""

    def __init__(self):
        self.taps = 0
        ip("link", "set", "lo", "up")
        # Of its own, or its address is that of a port and changes when there are more of them.
        ip("link", "add", "kage0", "address", "52:54:00:77:00:01", "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", "kage0")
        ip("link", "set", "kage0", "up")

    def tap(self):
        self.taps += 1
        name = f"kage-tap{self.taps}"
        ip("tuntap", "add", "dev", name, "mode", "tap")
        ip("link", "set", name, "master", "kage0")
        ip("link", "set", name, "up")
        return name


class ServicePair(Hosts):
    """`protection`: the tables [protection] and [arbiter] of its description, empty for a VM that nobody protects."""

    def __init__(self, directory, bridge, protection, *, keys=65536, cpus=1, accel="tcg", gpus=("", "")):
        super().__init__(Path(directory), dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        self.bridge, self.protection, self.cpus, self.accel, self.gpus = bridge, protection, cpus, accel, gpus
        self.turn = 0
        (self.directory / "job.sh").write_text(JOB.format(keys=keys), encoding="utf-8")

    def describe(self, name, gpu):
        """A description of its own for each host: their taps differ, the VM is the same."""
        self.description = self.directory / f"{name}.toml"
        self.description.write_text(DESCRIPTION.format(
            cpus=self.cpus, accel=self.accel, guest=os.environ.get("KAGE_KERNEL") or "6.12-cloud",
            service=os.environ["KAGE_SERVICE"], gpu=gpu, tap=self.bridge.tap(), mac=MAC) + self.protection, encoding="utf-8")

    def primary(self):
        self.describe("primary", self.gpus[0])
        return self.start("run", "primary")

    def standby(self):
        """→ the first standby, which the description names"""
        self.describe("standby", self.gpus[1])
        return self.start("standby", "standby")

    def another(self, primary):
        """A new standby for the VM that runs."""
        self.turn += 1
        name = f"standby{self.turn}"
        self.describe(name, self.gpus[self.turn % 2])
        address = f"unix:{self.directory}/{name}.replication"
        standby = self.start("standby", name, "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        primary.wait_state("protecting")
        return standby


def serves(host):
    """Waits until the guest answers on both ports."""
    def answers(port):
        try:
            socket.create_connection((GUEST, port), 2).close()
            return True
        except OSError:
            assert host.alive(), host.said()
            return False
    for port in (HTTP, RESP):
        wait(lambda port=port: answers(port), f"port {port} is open; {host.said()}")
