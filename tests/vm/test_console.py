# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest without a GPU, described by a TOML file, and somebody on its console's socket.

A guest's UART has 16 bytes, and a Unix socket takes 277 writes of one byte from QEMU before somebody has to read. What the
guest says meanwhile waits in its kernel, which throws it away when a program hangs the terminal up.
"""
import os
import socket
import tempfile
import time
from pathlib import Path

from guest_vm import environment
from ha_pair import Hosts, wait

LINES = 40

JOB = f"""#!/bin/bash
echo ready
read -r _ </dev/ttyS0
for i in $(seq {LINES}); do
    echo "line $i of {LINES} and some words to make it longer"
done
"""


def check_last_words():
    """what a job says last is in the console's log, though a viewer reads nothing until the job has ended"""
    directory = Path(tempfile.mkdtemp(prefix="kagemusha-console-"))
    (directory / "job.sh").write_text(JOB, encoding="utf-8")
    with Hosts(directory, dict(environment(backend="none"), KAGEMUSHA_RUNTIME_DIR=str(directory))) as hosts:
        hosts.description.write_text(f"""
name = "talks"
memory = "256M"
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "job.sh"
""", encoding="utf-8")
        vm = hosts.start("run", "talks")
        wait(lambda: vm.console().exists() and "ready" in vm.console().read_text(errors="replace"), "the job is there")
        with socket.socket(socket.AF_UNIX) as viewer:
            viewer.connect(str(directory / "talks.console"))
            viewer.sendall(b"go\n")
            time.sleep(3)  # the job has said everything and ended
        assert vm.process.wait(120) == 0, vm.said()
        text = vm.console().read_text(errors="replace")
        for i in range(1, LINES + 1):
            assert f"line {i} of {LINES} and some words to make it longer\n" in text, text
        assert "KAGEMUSHA-EXIT 0" in text, text
