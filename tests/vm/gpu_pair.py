# SPDX-License-Identifier: GPL-2.0-or-later
"""
A protected VM with a GPU out of one TOML file: `kagemusha run VM.toml` and `kagemusha standby VM.toml` on one machine, joined by
Unix sockets, with the arbiter `lock`. The guest computes on its GPU without a pause and checks every result.
"""
import os
import select
import socket
import tempfile
import time
from pathlib import Path

from guest_vm import environment
from ha_pair import Hosts, wait, workers

# Each line that comes from the console: a program beside the one that runs all the time.
JOB = """#!/bin/bash
/payload/cl_job churn 36000 /tmp/stop &
echo computing
while read -r what; do
    [ "$what" != enough ] || break
    /payload/cl_job $what || echo "FAILED with $?"
done </dev/ttyS0
touch /tmp/stop
wait $!
"""

# The second fill of a program fails. (The program that runs all the time fills once.)
FAULTY = """
hang-timeout-ms = "5000"
options = "backend=opencl,on=fill:2,do={}"
"""


class GpuPair(Hosts):
    """A VM with a GPU. `parent`: where its directory is to be. Its hosts may have GPUs of different kinds: description(name)."""

    def __init__(self, hangs, parent=None):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-gpu-pair-", dir=parent))
        super().__init__(directory, dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        self.hangs = hangs
        self.runs = self.waits = None  # who has the VM, and its standby, if a test left it one
        self.turn = 0
        (self.directory / "job.sh").write_text(JOB, encoding="utf-8")
        for name, backend, more in (("good", "opencl", ""), ("lost", "faulty", FAULTY.format("lost")),
                                    ("hang", "faulty", FAULTY.format("hang"))):
            (self.directory / f"{name}.toml").write_text(f"""
name = "computes"
memory = "512M"
cpus = 2
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "job.sh"
files = ["{os.environ["KAGE_CL_JOB"]}:cl_job"]
[gpu]
backend = "{backend}"
[gpu.properties]
window-size = "16M"
{more}
[protection]
standby = "unix:standby"
epoch-ms = 100
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[supervision]
gpu-takeover-ms = 0
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
""", encoding="utf-8")

    def start_with(self, gpu, command, name, *more):
        self.description = self.directory / f"{gpu}.toml"
        return self.start(command, name, *more)

    def another(self, primary, gpu):
        """A new standby for the VM that runs, with such a GPU."""
        self.turn += 1
        address = f"unix:{self.directory}/standby{self.turn}"
        standby = self.start_with(gpu, "standby", f"standby{self.turn}", "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        protected(primary)
        return standby


def protected(primary):
    primary.wait_state("protecting")
    primary.wait_commit()


def said(supervisor):
    try:
        return supervisor.console().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def tell(supervisor, line):
    """To the job in its guest."""
    with socket.socket(socket.AF_UNIX) as console:
        console.connect(str(supervisor.pair.directory / f"{supervisor.name}.console"))
        console.sendall(line.encode() + b"\n")
        end = time.monotonic() + 0.2  # QEMU reads it before it sees the end
        while (left := end - time.monotonic()) > 0:
            if select.select([console], [], [], left)[0] and not console.recv(65536):
                return  # a viewer who does not read holds the guest's console up


def worker(supervisor):
    """The process number of its GPU worker that has worked most: of the program that runs all the time."""
    found = wait(lambda: workers(supervisor.qemu()), f"{supervisor.name} has a worker")
    return max(found)[1]


def taken_over(primary, standby, why):
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert status["takeovers"] == 1 and why in status["last_takeover"], status
    assert primary.process.wait(60) == 0, primary.said()
    for one in (primary, standby):
        assert "FAILED" not in said(one), f"{one.name}: {said(one)}"


def ends_right(supervisor, text):
    """A program in its guest says so."""
    def look():
        assert "FAILED" not in said(supervisor), said(supervisor)
        return text in said(supervisor)
    wait(look, f"'{text}' from {supervisor.name}")
