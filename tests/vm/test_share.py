# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: several VMs on one machine, each `kagemusha run VM.toml`, that share PoCL by what their descriptions say. In each guest
a program keeps the GPU busy and checks what it computed.

Renderers want a frame every 1/30 s.

Shares are read from the share arbiter's accounts (`kagemusha top --json`), as parts of what all VMs had together. Bounds are
wide, and what they say must be seen once, not in the first seconds: the guests are emulated, their processors are PoCL's, too,
and one that finds none for a while has nothing to do on its GPU.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpu_pair import said, tell
from guest_vm import environment
from ha_pair import Hosts, tool, wait
from processes import WORKER, processes

KERNEL_MS = 20
GPU_SECONDS = 6  # of which shares are taken: 300 kernels
TOOL_SECONDS = 0.2  # between two questions that the tool asks: it takes processor time from all of them

# Nobody computes while others boot: on the processors that emulate them.
WAIT = """#!/bin/bash
echo "waiting"
read -r _ </dev/ttyS0"""
JOB = f"""{WAIT}
/payload/cl_job busy 36000 /tmp/stop {KERNEL_MS} || echo "FAILED with $?"
"""

FPS, PATHS = 30, 1
FRAMES_JOB = f"""{WAIT}
/payload/frames_job {FPS} {PATHS} /tmp/stop || echo "FAILED with $?"
"""


class Sharers(Hosts):
    """VMs without protection that share a GPU."""

    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-share-"))
        super().__init__(directory, dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        (directory / "job.sh").write_text(JOB, encoding="utf-8")
        (directory / "frames.sh").write_text(FRAMES_JOB, encoding="utf-8")

    def run(self, name, keys, job="job.sh", files=f'{os.environ["KAGE_CL_JOB"]}:cl_job'):
        self.description = self.directory / f"{name}.toml"
        self.description.write_text(f"""
name = "{name}"
memory = "512M"
cpus = 1
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "{job}"
files = ["{files}"]
[gpu]
backend = "opencl"
{keys}
[gpu.properties]
window-size = "16M"
""", encoding="utf-8")
        return self.start("run", name)

    def vms(self):
        """What the arbiter says of each VM, by its name."""
        answer = subprocess.run([tool(), "top", "--json", "--once"], stdout=subprocess.PIPE, text=True, env=self.environment,
                                check=True).stdout
        return {vm["vm"]: vm for gpu in json.loads(answer) for vm in gpu["vms"]}

    def until_had(self, what, right):
        """Waits until `right` holds for the parts of GPU_SECONDS of GPU time that the VMs had, by their names."""
        def had_since(before):
            now = self.vms()
            had = {name: now[name]["held_ns"] - before[name]["held_ns"] for name in before if name in now}
            return had if sum(had.values()) >= GPU_SECONDS * 1e9 else None

        def look():
            before = self.vms()
            had = wait(lambda: had_since(before), f"{GPU_SECONDS} s of GPU time", every=TOOL_SECONDS)
            parts = {name: ns / sum(had.values()) for name, ns in had.items()}
            print(f"       {what}: {parts}", flush=True)
            return right(parts)
        wait(look, what)

    def arbiter(self):
        """Its process number."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0].endswith(b"kagemusha-gpu") and str(self.directory).encode() in words[2]:
                    return int(entry.name)
        return None

    def __exit__(self, *how):
        super().__exit__(*how)
        if self.arbiter():
            os.kill(self.arbiter(), signal.SIGTERM)
        shutil.rmtree(self.directory, ignore_errors=True)


def compute(*vms):
    """All of them are up, then each begins."""
    begin(*vms)
    for vm in vms:
        wait_said(vm, "busy")


def begin(*vms):
    for vm in vms:
        wait_said(vm, "waiting")
    for vm in vms:
        tell(vm, "begin")


def wait_said(vm, word):
    def look():
        assert "FAILED" not in said(vm), said(vm)
        assert vm.alive(), vm.said()
        return word in said(vm)
    wait(look, f"'{word}' from {vm.name}")


@pytest.fixture(name="sharers")
def fixture_sharers():
    with Sharers() as sharers:
        yield sharers


def check_shares(sharers):
    """two guests, 75 and 25 percent: they get that; one is killed, the other has it all; what does not fit is refused"""
    one = sharers.run("large", 'share = 75\npolicy = "fair"')
    other = sharers.run("small", "share = 25")
    compute(one, other)
    sharers.until_had("75 and 25 percent", lambda had: 0.6 < had["large"] < 0.9)
    for name, vm in sharers.vms().items():
        busy = [program for program in vm["program_accounts"] if program["tasks"] and program["gpu_ns"]]
        assert busy and processes()[busy[0]["worker"]].name == WORKER, (name, vm)

    refused = sharers.run("late", "share = 10")
    assert refused.process.wait(60) == 125
    assert "0 % of this GPU is free" in refused.said(), refused.said()
    odd = sharers.run("odd", 'policy = "fixed"')
    assert odd.process.wait(60) == 125
    assert 'share it by the policy' in odd.said(), odd.said()

    os.kill(one.qemu(), signal.SIGKILL)
    wait(lambda: "large" not in sharers.vms(), "the end of the killed VM", every=TOOL_SECONDS)
    before = sharers.vms()["small"]["tasks"]
    wait(lambda: sharers.vms()["small"]["tasks"] > before + 50, "the other one goes on", every=TOOL_SECONDS)


def check_arbiter_dies(sharers):
    """kagemusha-gpu is killed: the guests go on, it is started again, and programs that begin then are scheduled"""
    one = sharers.run("one", "share = 50")
    compute(one)
    first = sharers.arbiter()
    os.kill(first, signal.SIGKILL)
    wait(lambda: any(e["event"] == "share" and "runs again" in e["text"] for e in one.events()), "another arbiter")
    assert sharers.arbiter() != first
    assert "one" in sharers.vms()
    two = sharers.run("two", "share = 50")
    compute(two)
    before = sharers.vms()["two"]["tasks"]
    wait(lambda: sharers.vms()["two"]["tasks"] > before + 20, "the second VM's program is scheduled", every=TOOL_SECONDS)
    assert "FAILED" not in said(one) + said(two)


@pytest.mark.parametrize("policy", ["fair", "round-robin", "fixed", "priority"])
def check_policies(sharers, policy):
    """four guests with unlike shares under each policy"""
    keys = {"a": "share = 40\npriority = 5", "b": "share = 30\npriority = 3", "c": "share = 20\npriority = 2", "d": "share = 10"}
    vms = [sharers.run(name, f'{k}\npolicy = "{policy}"') for name, k in keys.items()]
    compute(*vms)

    def right(had):
        if policy == "round-robin":
            return all(0.12 < part < 0.4 for part in had.values())
        if policy == "priority":
            return had["a"] > had["b"] + had["c"] + had["d"] and had["d"] > 0
        return had["a"] > 1.5 * had["c"] and had["b"] > 1.5 * had["d"] and had["d"] > 0.03
    sharers.until_had(policy, right)


def frames(vm):
    """What its renderer has said last: frames due, rendered, missed."""
    lines = [line.split() for line in said(vm).splitlines()[:-1] if line.startswith("frames ")]
    whole = [line for line in lines if len(line) == 6]
    return tuple(int(word) for word in whole[-1][1::2]) if whole else None


def check_frames(sharers):
    """three guests, each with a frame every 1/30 s: every frame is the one that this machine renders, missed ones are counted"""
    native = subprocess.run([os.environ["KAGE_FRAMES_JOB"], "0", str(PATHS), "none"], stdout=subprocess.PIPE, text=True, check=True)
    vms = [sharers.run(name, "share = 30", "frames.sh", f'{os.environ["KAGE_FRAMES_JOB"]}:frames_job') for name in ("a", "b", "c")]
    begin(*vms)

    def look():
        for vm in vms:
            assert "FAILED" not in said(vm), said(vm)
            assert vm.alive(), vm.said()
        shown = [frames(vm) for vm in vms]
        return shown if all(one and one[1] >= 30 for one in shown) else None
    for vm, (due, rendered, missed) in zip(vms, wait(look, "30 frames of each")):
        assert native.stdout.strip() in said(vm).replace("\r", ""), f"{native.stdout} is right: {said(vm)}"
        # Each frame that was due was in time, or was missed; late ones were rendered all the same.
        assert due - missed <= rendered <= due, (due, rendered, missed)
        print(f"       {vm.name}: {due} frames were due, {missed} missed", flush=True)
    tasks = sharers.vms()
    assert all(tasks[vm.name]["tasks"] >= 30 for vm in vms), tasks
