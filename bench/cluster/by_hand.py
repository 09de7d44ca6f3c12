# SPDX-License-Identifier: GPL-2.0-or-later
"""
A cluster of protected nodes as a person makes it who has no daemon: each file that he writes and each command that he types is a
step, which is executed and counted. He knows what to write, and types without thinking: what is measured is what is left.
"""
import json
import os
import signal
import subprocess
import time

from lab import Failure

JOB = """#!/bin/bash
b=/payload/system/busybox
$b hostname node{number}
printf '127.0.0.1 localhost\\n' >/etc/hosts
for n in {all_numbers}; do echo "10.77.0.$((10 + n)) node$n"; done >>/etc/hosts
$b ip link set eth0 up
$b ip addr add 10.77.0.{address}/24 dev eth0
while :; do sleep 1000; done
"""

NODE = """name = "hand{number}"
memory = "{memory}"
cpus = 1
accel = "{accel}"
[boot]
guest = "6.12-cloud"
job = "job.sh"
[[network]]
netdev = "stream,server=off,reconnect-ms=1000,addr.type=unix,addr.path={network}/switch/socket"
mac = "52:54:00:00:00:{number:02x}"
[gpu]
backend = "opencl"
[protection]
standby = "unix:{folder}/b"
heartbeat-ms = 100
heartbeat-budget-ms = 5000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
"""


class Hands:
    def __init__(self, lab, shape):
        self.lab, self.shape, self.steps, self.characters, self.children = lab, shape, 0, 0, []
        self.folder = lab.folder / "hand"
        self.folder.mkdir(exist_ok=True)

    def writes(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.steps += 1
        self.characters += len(text) + len(str(path))

    def types(self, *words, background=False):
        self.steps += 1
        self.characters += len(" ".join(words))
        log = open(self.folder / "log", "ab")
        command = [self.lab.tool, *words]
        if not background:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.lab.environment, check=True)
            return
        self.children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.lab.environment))

    def status(self, name):
        said = subprocess.run([self.lab.tool, "status", name, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=self.lab.environment, check=False).stdout
        found = json.loads(said) if said.strip() else []
        return (found[0] if found else {}).get("supervisor") or {}

    def creates(self, nodes):
        network = self.folder / "net"
        network.mkdir()
        self.types("--cluster-network", str(network), json.dumps({"nodes": nodes}), background=True)
        self.lab.until((network / "switch" / "socket").exists, "the network listens", 60)
        for number in range(1, nodes + 1):
            folder = self.folder / f"node{number}"
            self.writes(folder / "job.sh", JOB.format(number=number, address=10 + number, all_numbers=" ".join(map(str, range(1, nodes + 1)))))
            self.writes(folder / "vm.toml", NODE.format(number=number, folder=folder, network=network, **self.shape))
            self.types("standby", str(folder / "vm.toml"), "--name", f"hand{number}.b", "--listen", f"unix:{folder}/b", background=True)
            self.types("run", str(folder / "vm.toml"), "--name", f"hand{number}.a", background=True)
        for number in range(1, nodes + 1):
            self.lab.until(lambda number=number: self.protects(number), f"hand{number} is protected", 900)
            self.types("status", f"hand{number}.a")

    def protects(self, number):
        if any(child.poll() is not None for child in self.children):
            raise Failure(f"by hand: something has ended: {(self.folder / 'log').read_text(errors='replace')[-2000:]}")
        return self.status(f"hand{number}.a").get("state") == "protecting"

    def deletes(self, nodes):
        for number in range(1, nodes + 1):
            self.types("stop", f"hand{number}.a")
            self.types("stop", f"hand{number}.b")
        self.steps += 1
        self.end()

    def end(self):
        """Whatever is left: ours alone."""
        for child in self.children:
            if child.poll() is None:
                os.kill(child.pid, signal.SIGTERM)
        end = time.monotonic() + 60
        for child in self.children:
            try:
                child.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
