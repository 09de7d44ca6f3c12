# SPDX-License-Identifier: GPL-2.0-or-later
"""
`kagemusha demo` as a newcomer runs it: the VM's host dies in the middle, the answer is right all the same, the timeline is
in order, and nothing is left: no process, no socket, no file. Also after Ctrl-C.
"""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

from guest_vm import environment, tool

SECONDS = 2400  # nobody waits for ever


class Demo:
    """One run, with directories of its own for everything that it could leave behind."""

    def __init__(self, *more):
        self.directory = Path(tempfile.mkdtemp(prefix="kagemusha-test-demo-"))
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        # How its processes are known: they inherit it.
        self.mark = f"KAGEMUSHA_TEST_DEMO={self.directory.name}"
        name, value = self.mark.split("=")
        backend = "cuda" if "--cuda" in more else "opencl"
        environ = dict(environment(backend=backend), TMPDIR=str(self.temporary), **{name: value})
        environ.pop("KAGEMUSHA_RUNTIME_DIR", None)
        command = [tool(), "demo", "--report", str(self.directory / "report.json"), "--svg", str(self.directory / "demo.svg"),
                   "--timeout", str(SECONDS), *more]
        for option, variable in (("--kernel", "KAGE_KERNEL"), ("--gpu", "KAGE_GPU")):
            if os.environ.get(variable) and (option, backend) != ("--gpu", "cuda"):
                command += [option, os.environ[variable]]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", env=environ)

    def processes(self):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                except OSError:
                    pass
        return found

    def check_nothing_left(self):
        deadline = time.monotonic() + 60  # what the kernel kills is gone a moment later
        while self.processes():
            assert time.monotonic() < deadline, f"still there: {self.processes()}"
            time.sleep(0.1)
        left = [str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")]
        assert not left, f"left in the directory for temporary files: {left}"
        sockets = [line for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines() if str(self.temporary) in line]
        assert not sockets, f"sockets: {sockets}"

    def json(self):
        return json.loads((self.directory / "report.json").read_text(encoding="utf-8"))


def watch(runtime):
    """Two readings of `kagemusha status --watch`, which Ctrl-C ends."""
    process = subprocess.Popen([tool(), "status", "--watch", "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               env=dict(os.environ, KAGEMUSHA_RUNTIME_DIR=runtime))
    readings = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0, process.returncode
    return readings


def expect_order(report):
    """What happened in the takeover, in its order, and who said how far the program was."""
    when = {point["name"]: point["boot_ns"] for point in report["timeline"]}
    order = ["begun", "kill", "detection", "decision", "takeover", "first-command", "result"]
    assert set(when) == set(order) | {"commit"}, when
    assert [when[name] for name in order] == sorted(when[name] for name in order), when
    assert when["begun"] < when["commit"] <= when["takeover"], when
    hosts = [sample["host"] for sample in report["progress"]]
    assert hosts == sorted(hosts) and set(hosts) == {"primary", "standby"}, hosts
    assert all(sample["boot_ns"] < when["takeover"] for sample in report["progress"] if sample["host"] == "primary"), report


def check_failure():
    """a demo that cannot begin says why, and where its logs are"""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([tool(), "demo", "--gpu", "no such GPU", "--svg", "", "--timeout", "300"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              env=dict(environment(), TMPDIR=directory), check=False)
        assert done.returncode == 125, f"status {done.returncode}: {done.stderr}"
        logs = re.search(r"^logs: (\S+)", done.stderr, re.MULTILINE)
        assert logs and (Path(logs.group(1)) / "primary.log").exists(), done.stderr
        assert "no such GPU" in done.stderr, done.stderr


def check_interrupted():
    """the demo can be watched; Ctrl-C in the middle of it ends it, with its status, and leaves nothing"""
    demo = Demo()
    seen = []
    for line in demo.process.stdout:
        seen.append(line)
        if "the guest is up" in line:
            runtime = re.search(r"KAGEMUSHA_RUNTIME_DIR=(\S+)", "".join(seen)).group(1)
            for reading in watch(runtime):
                assert [vm["name"] for vm in reading] == ["demo"] and reading[0]["supervisor"]["role"] == "primary", reading
            demo.process.send_signal(signal.SIGINT)
            break
    rest = demo.process.communicate(timeout=300)[0]
    assert demo.process.returncode == 128 + signal.SIGINT, f"status {demo.process.returncode}:\n{''.join(seen)}{rest}"
    demo.check_nothing_left()


def check_demo():
    """the demo kills a VM's host in the middle of a program, whose answer is right, and leaves nothing"""
    demo = Demo()
    output, _ = demo.process.communicate(timeout=SECONDS + 120)
    assert demo.process.returncode == 0, f"status {demo.process.returncode}:\n{output}"
    report = demo.json()
    assert report["verified"] is True and report["problem"] == "", report
    assert len(report["known"]) == 12 and report["known"] == report["reference"] == report["result"], report
    # The words were chosen by it, so their hashes are looked at once more.
    for line in report["result"]:
        digest, word = line.split(":")
        md5 = subprocess.run(["md5sum"], input=word.encode(), stdout=subprocess.PIPE, check=True).stdout
        assert md5.split()[0].decode() == digest, line
    expect_order(report)
    assert report["before"]["launches"] > 0 and report["after"]["launches"] > 0, report
    for part in ("kill -9", "the guest runs again, on the standby", "verified    yes", "kernel launches", "CPU by "):
        assert part in output, f"'{part}' is not in\n{output}"
    assert not re.search(r"\bNO:", output), output
    picture = xml.etree.ElementTree.parse(demo.directory / "demo.svg").getroot()
    assert picture.tag.endswith("svg") and "kill -9" in "".join(picture.itertext())
    demo.check_nothing_left()


def check_cuda():
    """the same with a training on CUDA: each loss is that of a run without a failure, and the picture shows how it falls"""
    demo = Demo("--cuda", "--driver", os.environ.get("KAGE_CUDA_DRIVER") or "ptx")
    output, _ = demo.process.communicate(timeout=SECONDS + 120)
    assert demo.process.returncode == 0, f"status {demo.process.returncode}:\n{output}"
    report = demo.json()
    assert report["verified"] is True and report["program"] == "the training", report
    assert len(report["reference"]) == 100 and report["reference"] == report["result"], report
    expect_order(report)
    losses = [sample["loss"] for sample in report["progress"]]
    assert losses[0] > 100 * losses[-1] > 0, losses
    assert report["before"]["launches"] > 0 and report["after"]["launches"] > 0, report
    assert "yes: 100 losses, each to the bit as in a run without a failure" in output, output
    picture = xml.etree.ElementTree.parse(demo.directory / "demo.svg").getroot()
    assert "loss of a training" in "".join(picture.itertext())
    demo.check_nothing_left()
