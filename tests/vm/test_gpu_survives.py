#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: `kagemusha run VM.toml` and `kagemusha standby VM.toml` on one machine, joined by Unix sockets, with the arbiter
`lock`. The guest computes on its GPU without a pause and checks every result. The primary's QEMU is killed; the program
goes on in the standby, and ends as if nothing had happened.
"""
import os
import signal
import socket
import sys

from ha_pair import Pair, wait
from guest_vm import environment

JOB = """#!/bin/bash
/payload/cl_job churn 36000 /tmp/stop &
echo computing
read -r _ </dev/ttyS0
touch /tmp/stop
wait $!
"""


class GpuPair(Pair):
    """A VM with a GPU instead of the counting one."""

    def __init__(self):
        super().__init__()
        self.environment = dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(self.directory))
        (self.directory / "job.sh").write_text(JOB, encoding="utf-8")
        self.description.write_text(f"""
name = "computes"
memory = "512M"
cpus = 2
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "job.sh"
files = ["{os.environ["KAGE_CL_JOB"]}:cl_job"]
[gpu]
backend = "opencl"
[gpu.properties]
window-size = "16M"
[protection]
standby = "unix:standby"
epoch-ms = 100
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
""", encoding="utf-8")


def said(supervisor):
    try:
        return supervisor.console().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_program_survives(pair):
    """a GPU program in a VM of one TOML file goes on when its host's QEMU is killed, and every result is right"""
    standby = pair.start("standby", "standby")
    primary = pair.start("run", "primary")
    wait(lambda: "computing" in said(primary), f"the program; {primary.said()}", 600)
    primary.wait_state("protecting")
    primary.wait("checkpoints", lambda s: s["checkpoints"] >= 5)
    os.kill(primary.qemu(), signal.SIGKILL)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert status["takeovers"] == 1, status
    with socket.socket(socket.AF_UNIX) as console:
        console.connect(str(pair.directory / "standby.console"))
        console.sendall(b"enough\n")
        wait(lambda: "KAGEMUSHA-EXIT" in said(standby), f"the program's end; {standby.said()}", 600)
    assert "rounds are right" in said(standby) and "KAGEMUSHA-EXIT 0" in said(standby), said(standby)
    assert "rounds are right" not in said(primary), said(primary)
    assert primary.process.wait(60) == 0 and standby.process.wait(60) == 0, standby.said()


if __name__ == "__main__":
    print(f"== {check_program_survives.__doc__}", flush=True)
    with GpuPair() as both:
        check_program_survives(both)
    print("ok", flush=True)
    sys.exit(0)
