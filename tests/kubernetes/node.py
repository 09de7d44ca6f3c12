# SPDX-License-Identifier: GPL-2.0-or-later
"""
A node: a kubelet of ours, our program, and PoCL's devices as its GPUs. How many there are stands in a file, which the listing
program reads: so one can be pulled out.
"""
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from kubelet import Kubelet, wait

LISTER = """#!/bin/sh
# kagemusha-gpus where so many of PoCL's devices are there as the file says; with 0 no driver answers
count=$(cat {directory}/gpus)
[ "$count" -gt 0 ] || exit 1
export POCL_DEVICES="$(yes pthread | sed "${{count}}q" | tr '\\n' ' ' | sed 's/ $//')"
exec {gpus} "$@"
"""


class Node:
    def __init__(self, gpus=2, arguments=(), variables=None):
        self.directory = Path(tempfile.mkdtemp(prefix="kagemusha-k8s-"))
        self.shares, self.cdi = self.directory / "shares", self.directory / "cdi/kagemusha.io-gpu.json"
        self.kubelet = Kubelet(self.directory / "device-plugins")
        self.environment = dict(variables or os.environ, KAGEMUSHA_RUNTIME_DIR=str(self.directory / "runtime"),
                                KAGEMUSHA_SHARE_DIR=str(self.shares))
        self.arguments, self.process = list(arguments), None
        self.count(gpus)
        lister = self.directory / "lister"
        lister.write_text(LISTER.format(directory=self.directory, gpus=os.environ["KAGE_GPUS"]), encoding="utf-8")
        lister.chmod(0o700)
        self.log = self.directory / "kagemusha-k8s.log"

    def count(self, gpus):
        new = self.directory / "gpus.new"
        new.write_text(f"{gpus}\n", encoding="ascii")
        new.rename(self.directory / "gpus")

    @staticmethod
    def program():
        return os.environ["KAGE_K8S"]

    def command(self):
        return ["device-plugin", "--folder", self.kubelet.folder, "--share-dir", self.shares, "--cdi-file", self.cdi,
                "--lister", self.directory / "lister", "--look-every", "1", *self.arguments]

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.program(), *self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment)

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def arbiters(self):
        """Process numbers of the share arbiters, by the GPU's id."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if words and words[0].endswith(b"kagemusha-gpu") and words[2].startswith(os.fsencode(self.shares)):
                found[os.path.basename(os.fsdecode(words[2]))] = int(entry.name)
        return found

    def specification(self):
        return json.loads(self.cdi.read_text(encoding="utf-8"))

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)

    def __enter__(self):
        self.kubelet.start()
        self.start()
        return self

    def __exit__(self, *_):
        try:
            if self.process.poll() is None:
                self.end()
        finally:
            self.kubelet.stop()
            for pid in self.arbiters().values():
                os.kill(pid, signal.SIGKILL)
        wait(lambda: not self.arbiters(), "the end of the arbiters")


def gpu_of(unit):
    return unit.rpartition("-")[0]


def of_gpu(units, gpu):
    return sorted(unit for unit in units if gpu_of(unit) == gpu)
