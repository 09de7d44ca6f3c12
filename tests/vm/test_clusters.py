# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one host with `kagemusha daemon` and its etcd; a cluster of two nodes, later three, of which node1 is protected: its
standby is on the same machine. The nodes' network, their names and what `kage cluster exec` runs in them are real; so is what is
killed: the daemon in the middle of its work, node1's QEMU.
"""
import json
import os
import random
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from fixtures import shared
from guest_vm import environment, tool
from ha_pair import wait
from processes import processes

DECLARATION = f"""
name = "lab"
nodes = 2
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
cpus = 1
memory = "400M"
accel = "tcg"

[gpu]
backend = "opencl"

[[node]]
name = "node1"
protected = true
"""


class Lab:
    """The daemon, and what its client says. A directory with a short path: sockets are below it."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-l-"))
        (self.directory / "run").mkdir(mode=0o700)
        (self.directory / "lab.toml").write_text(DECLARATION, encoding="utf-8")
        self.environment = dict(environment(), KAGEMUSHA_STATE_DIR=str(self.directory / "s"),
                                KAGEMUSHA_RUNTIME_DIR=str(self.directory / "run"),
                                KAGEMUSHA_SHARE_DIR=str(self.directory / "share"))
        self.log = open(self.directory / "daemon.log", "ab")
        self.process = None
        self.client = str(self.directory / "run" / "daemon.socket")

    def start(self):
        self.process = subprocess.Popen([tool(), "daemon"], stdin=subprocess.DEVNULL, stderr=self.log, env=self.environment)
        wait(lambda: self.kage("list", check=False).returncode == 0 or self.process.poll() is not None, "the daemon answers")
        assert self.process.poll() is None, self.said()

    def said(self):
        return (self.directory / "daemon.log").read_text(encoding="utf-8")[-6000:]

    def kage(self, *words, check=True, text=None):
        done = subprocess.run([tool(), "cluster", *words], input=text, stdin=None if text is not None else subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, check=False)
        assert not check or done.returncode == 0, f"{words}: {done}; {self.said()}"
        return done

    def show(self):
        return json.loads(self.kage("show", "lab", "--json").stdout)

    def settled(self):
        """What the cluster is once everything is as it was wanted."""
        def look():
            assert self.process.poll() is None, self.said()
            now = self.show()
            return now if now["settled"] else None
        try:
            return wait(look, "the cluster is as it was wanted", 600)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.show()}; {self.said()}") from error

    def run(self, node, *words, text=None, status=0):
        """Of a command in a node, once its agent answers."""
        done = self.kage("exec", "lab", node, "--wait", "--", *words, text=text, check=False)
        assert done.returncode == status, done
        return done.stdout.decode()

    def supervisors(self):
        """Process numbers by name: lab.node1.a, …"""
        found = {}
        for path in (self.directory / "run").glob("lab.*.json"):
            try:
                entry = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if entry["pid"] in processes():
                found[entry["name"]] = entry["pid"]
        return found

    def primary(self, node):
        """The name of the supervisor that runs its VM."""
        for name in self.supervisors():
            if name.startswith(f"lab.{node}."):
                said = subprocess.run([tool(), "status", name, "--json"], stdout=subprocess.PIPE, env=self.environment,
                                      check=False)
                if b'"role": "primary"' in said.stdout:
                    return name
        raise AssertionError(f"nobody runs {node}")

    def network(self):
        """The process number of its switch."""
        words = f"--cluster-network\0{self.directory}/".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and words in (entry / "cmdline").read_bytes():
                    return int(entry.name)
            except OSError:
                pass
        return None

    def qemu(self, supervisor):
        pid = self.supervisors()[supervisor]
        return next(p for p, one in processes().items() if one.parent == pid and one.name.startswith("qemu"))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kage("delete", "lab", "--wait", check=False)
            self.process.terminate()
        self.process.wait(60)
        self.log.close()


lab = shared(Lab)


@pytest.mark.story
def check_create(lab):
    """two nodes are created, and the daemon is killed in the middle of it: the next one goes on, and nothing is there twice"""
    made = json.loads(lab.kage("create", str(lab.directory / "lab.toml"), "--json").stdout)
    assert made["state"] == "starting" and made["nodes"] == 2, made
    wait(lambda: (lab.directory / "s" / "clusters" / "lab" / "net").exists(), "it has begun")
    until = random.choice((0, 1, 2))  # of the supervisors
    wait(lambda: len(lab.supervisors()) >= until, f"{until} supervisors; {lab.said()}")
    lab.process.kill()
    lab.process.wait()
    print(f"       killed with {sorted(lab.supervisors())}")
    lab.start()
    now = lab.settled()
    assert {n["name"]: n["state"] for n in now["node_states"]} == {"node1": "protected", "node2": "running"}, now
    names = sorted(lab.supervisors())
    assert len(names) == 3 and names[2].startswith("lab.node2."), names
    again = json.loads(lab.kage("create", str(lab.directory / "lab.toml"), "--json").stdout)
    assert again["revision"] == made["revision"], "a second create of the same changed something"


@pytest.mark.story
def check_exec(lab):
    """commands in nodes: their output, errors, input and exit status; nodes have their names, and reach each other by them"""
    for node, other, address in (("node1", "node2", "10.77.0.12"), ("node2", "node1", "10.77.0.11")):
        assert lab.run(node, "/payload/system/busybox", "hostname") == node + "\n"
        assert lab.run(node, "getent", "hosts", other).split() == [address, other]
        assert "2 packets received" in lab.run(node, "/payload/system/busybox", "ping", "-c", "2", "-w", "60", other)
    data = os.urandom(300_000)
    assert lab.kage("exec", "lab", "node1", "--", "cat", text=data).stdout == data
    done = lab.kage("exec", "lab", "node2", "--", "bash", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n"), done
    assert lab.kage("exec", "lab", "node2", "--", "/none", check=False).returncode == 127
    assert lab.kage("exec", "lab", "node3", "--", "true", check=False).returncode == 125


@pytest.mark.story
def check_opencl(lab):
    """an OpenCL program computes on the GPU in each node"""
    program = Path(os.environ["KAGE_CL_JOB"]).read_bytes()
    for node in ("node1", "node2"):
        lab.run(node, "bash", "-c", "cat >/tmp/cl_job; chmod +x /tmp/cl_job", text=program)
        lab.run(node, "/tmp/cl_job", "add", "100000")


@pytest.mark.story
def check_takeover(lab):
    """node1's QEMU is killed while a command runs in it: its output goes on without a gap, and node1 gets a standby again"""
    before = lab.primary("node1")
    counts = subprocess.Popen([tool(), "cluster", "exec", "lab", "node1", "--", "bash", "-c",
                               "for i in $(seq 100); do echo $i; sleep 0.1; done"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=lab.environment)
    lines = [counts.stdout.readline() for _ in range(20)]
    os.kill(lab.qemu(before), signal.SIGKILL)
    lines += counts.stdout.readlines()
    assert counts.wait(60) == 0
    assert [int(line) for line in lines] == list(range(1, 101)), lines
    assert lab.primary("node1") != before
    now = lab.settled()
    assert {n["name"]: n["state"] for n in now["node_states"]}["node1"] == "protected", now
    assert lab.run("node1", "cat", "/etc/hostname") == "node1\n"
    lab.run("node1", "/tmp/cl_job", "add", "100000")


@pytest.mark.story
def check_scale(lab):
    """two nodes become three while the network is limited; the third one is reached by its name, and the others were left alone"""
    before = lab.supervisors()
    text = DECLARATION.replace("nodes = 2", "nodes = 3") + "\n[network]\nbandwidth-mbit = 100\nlatency-ms = 20\n"
    (lab.directory / "lab.toml").write_text(text, encoding="utf-8")
    lab.kage("apply", str(lab.directory / "lab.toml"))
    lab.settled()
    after = lab.supervisors()
    assert {name: after.get(name) for name in before} == before, (before, after)
    lab.run("node3", "getent", "hosts", "node1")
    said = lab.run("node2", "/payload/system/busybox", "ping", "-c", "3", "-w", "60", "node3")
    fastest = float(said.rsplit("min/avg/max = ", 1)[1].split("/")[0])
    assert fastest >= 40, said  # there and back; less would be no latency


@pytest.mark.story
def check_network_dies(lab):
    """the network's process is killed: it is started again, and the nodes are connected again"""
    network = lab.network()
    os.kill(network, signal.SIGKILL)
    wait(lambda: lab.network() not in (None, network), f"it is started again; {lab.said()}")
    lab.settled()
    assert lab.run("node3", "cat", "/etc/hostname") == "node3\n"
    assert "received" in lab.run("node2", "/payload/system/busybox", "ping", "-c", "1", "-w", "60", "node1")


@pytest.mark.story
def check_delete(lab):
    """three nodes become two, and then none: no process, no socket, no file and no key is left"""
    lab.kage("scale", "lab", "2")
    now = lab.settled()
    assert len(now["node_states"]) == 2, now
    assert not (lab.directory / "s" / "clusters" / "lab" / "node3").exists()
    lab.kage("delete", "lab", "--wait")
    assert not list((lab.directory / "s" / "clusters").iterdir())
    assert not lab.supervisors() and not lab.network()
    # takeovers/ is the host's, of all VMs: empty when there are none.
    left = sorted(path.name for path in (lab.directory / "run").iterdir() if path.name != "takeovers" or any(path.iterdir()))
    assert left == ["daemon.socket"], left
    assert json.loads(lab.kage("list", "--json").stdout) == {"clusters": []}
