# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one host with `kagemusha daemon`; a cluster of two protected nodes of the image `mpi`, whose users log in by OpenSSH, whose
processes find each other by Open MPI, and whose files are in /shared. Programs of MPI compute on both GPUs while node1, where
mpirun and the files are, is killed.
"""
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from etcd import free_port
from fixtures import shared
from guest_vm import tool
from ha_pair import wait
from test_clusters import Lab

KERNEL = os.environ.get("KAGE_KERNEL") or "6.12-cloud"


class MpiLab(Lab):
    """Two protected nodes for root and for alice, whose key pair is on this host."""

    def __init__(self):
        if not os.environ.get("KAGE_MPI_JOB"):
            pytest.skip("there is no Open MPI on this host: install libopenmpi-dev")
        if KERNEL.startswith("6.1-"):
            pytest.skip("the image mpi needs a kernel 6.12")
        super().__init__()
        for who in ("alice", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / who)], check=True)
        public = (self.directory / "alice.pub").read_text(encoding="utf-8").strip()
        self.declared = {"name": "lab", "nodes": 2, "guest": KERNEL, "image": "mpi", "memory": "512M", "accel": "tcg", "protected": True,
                         "gpu": {"backend": "opencl"}, "users": [{"name": "alice", "keys": [public]}],
                         "network": {"ssh-port": free_port()}}
        (self.directory / "lab.toml").write_text(json.dumps(self.declared), encoding="utf-8")

    def start(self):
        super().start()
        self.kage("create", str(self.directory / "lab.toml"))
        self.settled()

    def ssh(self, node, *words, text=None, status=0):
        done = self.kage("ssh", "lab", node, "--", *words, text=text, check=False)
        assert done.returncode == status, done
        return done.stdout.decode()

    def as_alice(self, key, node, *words):
        """OpenSSH's client with a key of one's own, and not the cluster's owner's."""
        theirs = Path(self.kage("ssh-config", "lab").stdout.decode().strip()).read_text(encoding="utf-8")
        config = self.directory / "alice.config"
        config.write_text("".join(line + "\n" for line in theirs.splitlines() if "IdentityFile" not in line), encoding="utf-8")
        return subprocess.run(["ssh", "-F", str(config), "-o", "IdentityAgent=none", "-o", "IdentitiesOnly=yes", "-i", str(self.directory / key),
                               f"alice@{node}", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=self.environment, check=False)

    def from_outside(self, key, *words):
        """The command of somebody who knows this host's port and node1's host key, and has no account here."""
        known = Path(self.kage("ssh-config", "lab").stdout.decode().strip()).parent / "known_hosts"
        return ["ssh", "-F", "none", "-o", "IdentityAgent=none", "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known}",
                "-o", "HostKeyAlias=node1", "-i", str(self.directory / key), "-p", str(self.declared["network"]["ssh-port"]),
                "alice@127.0.0.1", *words]


lab = shared(MpiLab)


@pytest.mark.story
def check_ssh(lab):
    """root reaches each node by ssh, nodes reach each other, and nobody is asked about a host's key"""
    assert lab.ssh("node1", "cat /etc/hostname") == "node1\n"
    lab.ssh("node2", "exit 7", status=7)
    assert lab.ssh("node1", "ssh node2 cat /etc/hostname") == "node2\n"
    data = os.urandom(100_000)
    assert lab.kage("ssh", "lab", "node2", "--", "cat", text=data).stdout == data


@pytest.mark.story
def check_users(lab):
    """alice logs in with the key that the declaration has, as herself, and computes; a stranger does not"""
    done = lab.as_alice("alice", "node1", "id -un; ssh node2 id -un; cat /payload/system/node-secret")
    assert done.stdout == b"alice\nalice\n" and b"Permission denied" in done.stderr, done
    done = lab.as_alice("stranger", "node1", "id")
    assert done.returncode == 255 and b"Permission denied" in done.stderr, done
    program = Path(os.environ["KAGE_CL_JOB"]).read_bytes()
    lab.ssh("node2", "cat >/tmp/cl_job; chmod 755 /tmp/cl_job", text=program)
    assert lab.as_alice("alice", "node2", "/tmp/cl_job", "add", "1000").returncode == 0


@pytest.mark.story
def check_port(lab):
    """alice reaches node1 at a port of this host, and the other nodes from there; a stranger does not"""
    done = subprocess.run(lab.from_outside("alice", "id -un; ssh node2 cat /etc/hostname"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=lab.environment, check=False)
    assert done.stdout == b"alice\nnode2\n", done
    done = subprocess.run(lab.from_outside("stranger", "id"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=lab.environment, check=False)
    assert done.returncode == 255 and b"Permission denied" in done.stderr, done


@pytest.mark.story
def check_shared(lab):
    """what one node writes to /shared another one reads, and changes"""
    for node in ("node1", "node2"):
        wait(lambda node=node: "fuse" in lab.ssh(node, "cat /proc/mounts | grep /shared || :"), f"{node} has /shared")
    lab.ssh("node2", "echo one >/shared/lines")
    assert lab.ssh("node1", "cat /shared/lines; echo two >>/shared/lines") == "one\n"
    assert lab.ssh("node2", "cat /shared/lines; rm /shared/lines") == "one\ntwo\n"
    assert lab.ssh("node1", "ls /shared") == ""
    lab.ssh("node1", "cat >/shared/mpi_job; chmod 755 /shared/mpi_job", text=Path(os.environ["KAGE_MPI_JOB"]).read_bytes())


@pytest.mark.story
def check_mpi(lab):
    """mpirun begins a process on each node without being told of them; both compute on their GPU, and the sum is right"""
    assert lab.kage("hostfile", "lab").stdout == b"node1 slots=1\nnode2 slots=1\n"
    said = lab.ssh("node1", "mpirun /shared/mpi_job sums 4096 1000 2 check")
    assert "sums processes=2 " in said and said.rstrip().endswith(" checked"), said


@pytest.mark.story
def check_takeover(lab):
    """node1 is killed while strips of a grid are computed on both nodes: the job goes on, and its result is right to the bit"""
    before = lab.primary("node1")
    outside = subprocess.Popen(lab.from_outside("alice", "while read line; do echo $line; done"), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, env=lab.environment)
    outside.stdin.write(b"before\n")
    outside.stdin.flush()
    assert outside.stdout.readline() == b"before\n"
    job = subprocess.Popen([tool(), "cluster", "ssh", "lab", "node1", "--", "mpirun /shared/mpi_job halo 256 256 40 50 check"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=lab.environment)
    lines = [job.stdout.readline() for _ in range(4)]
    assert lines[3] == b"@step 12\n", lines
    os.kill(lab.qemu(before), signal.SIGKILL)
    lines += job.stdout.readlines()
    assert job.wait(60) == 0
    assert lines[:10] == [b"@step %d\n" % step for step in range(0, 40, 4)], lines
    assert lines[10].startswith(b"halo processes=2 ") and lines[10].endswith(b" checked\n"), lines
    assert lab.primary("node1") != before
    said, _ = outside.communicate(b"after\n", timeout=300)
    assert said == b"after\n" and outside.returncode == 0, "the connection at the host's port has not gone on"
    assert lab.ssh("node2", "ls /shared") == "mpi_job\n"
