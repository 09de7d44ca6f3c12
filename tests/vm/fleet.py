# SPDX-License-Identifier: GPL-2.0-or-later
"""
Hosts of a fleet, each with namespaces of its own for processes, mounts and network at a switch (a bridge in the namespace of the
test): on each of them `kagemusha daemon` and a member of etcd, with keys of `kagemusha keys`. Power can be cut: everything on a
host dies at once, and nobody is told.
"""
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from etcd import Member
from guest_vm import environment, tool
from ha_pair import wait

NETWORK = "10.79.0"
SECONDS = 600


def command(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


class Host:
    """What it keeps in its directory, and the processes of the time that it has power."""

    def __init__(self, fleet, name, number):
        self.fleet, self.name, self.address = fleet, name, f"{NETWORK}.{number}"
        self.directory = fleet.directory / name
        for folder in ("s", "run"):
            (self.directory / folder).mkdir(parents=True, mode=0o700)
        self.environment = dict(environment(), KAGEMUSHA_STATE_DIR=str(self.directory / "s"),
                                KAGEMUSHA_RUNTIME_DIR=str(self.directory / "run"),
                                KAGEMUSHA_SHARE_DIR=str(self.directory / "share"))
        self.log = open(fleet.directory / f"{name}.log", "ab")
        self.first, self.daemon, self.member = None, None, None

    def boot(self):
        """Power on, up to a network."""
        self.first = subprocess.Popen(["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sleep",
                                       "infinity"], stdin=subprocess.DEVNULL)
        here = os.readlink("/proc/self/ns/net")
        wait(lambda: self.init() and os.readlink(f"/proc/{self.init()}/ns/net") != here, f"{self.name} has namespaces")
        command("ip", "link", "add", self.name, "type", "veth", "peer", "name", "net0", "netns", str(self.init()))
        command("ip", "link", "set", self.name, "master", "switch", "up")
        for words in (("address", "add", f"{self.address}/24", "dev", "net0"), ("link", "set", "lo", "up"),
                      ("link", "set", "net0", "up", "gso_max_segs", "1")):
            command(*self.inside(), "ip", *words)

    def init(self):
        """The first process, as this side sees it."""
        found = children(self.first.pid)
        return found[0] if found else None

    def inside(self):
        return ("nsenter", "--target", str(self.init()), "--mount", "--net", "--pid", "--")

    def start_daemon(self):
        self.daemon = subprocess.Popen([*self.inside(), tool(), "daemon"], stdin=subprocess.DEVNULL, stderr=self.log,
                                       env=self.environment)
        wait(lambda: self.kage("list", check=False).returncode == 0 or self.daemon.poll() is not None, "the daemon answers", SECONDS)
        assert self.daemon.poll() is None, self.said()

    def stop_daemon(self):
        """Its death alone: what it started lives."""
        for pid in children(self.daemon.pid):  # of nsenter
            os.kill(pid, signal.SIGKILL)
        self.daemon.wait()

    def power_off(self):
        """Everything on it dies. Its packets vanish from then on, and nobody is told."""
        command("ip", "link", "set", self.name, "down")
        self.first.kill()
        self.first.wait()
        self.daemon.wait()
        self.member.process.wait()
        # Its namespace would take the cable along when the kernel has cleared it away, which may be minutes later.
        subprocess.run(["ip", "link", "delete", self.name], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def said(self):
        return self.name + ": " + (self.fleet.directory / f"{self.name}.log").read_text(encoding="utf-8")[-5000:]

    def kage(self, *words, check=True, text=None):
        done = subprocess.run([*self.inside(), tool(), "cluster", *words], input=text,
                              stdin=None if text is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=self.environment, check=False)
        assert not check or done.returncode == 0, f"{words}: {done}; {self.said()}"
        return done

    def ask(self, method, target, body=None, revision=None):
        """Of the daemon's API at its Unix socket: status and answer."""
        text = json.dumps(body).encode() if body is not None else b""
        match = f'If-Match: "{revision}"\r\n' if revision else ""
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(SECONDS)
            end.connect(str(self.directory / "run" / "daemon.socket"))
            end.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{match}"
                        f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
            with end.makefile("rb") as answer:
                head, said = answer.read().split(b"\r\n\r\n", 1)
        return int(head.split()[1]), json.loads(said)

    def processes(self):
        """Names of those that run on it, but for the two that look. The first process lets the dead lie."""
        done = subprocess.run([*self.inside(), "sh", "-c", "cat /proc/[0-9]*/stat"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True)
        found = re.findall(r"^[0-9]+ \((.*)\) (.)", done.stdout, re.MULTILINE)
        return sorted(name for name, state in found if state not in "ZX" and name not in ("sh", "cat"))

    def ask_etcd(self, seconds, path, *more):
        """Its member, with its keys, by curl and these words of it."""
        of = self.fleet.directory / "keys" / self.name
        return subprocess.run([*self.inside(), "curl", "-s", "--max-time", str(seconds), "--cacert", of / "ca.pem", "--cert",
                               of / "cert.pem", "--key", of / "key.pem", f"https://{self.address}:2379{path}", *more],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)

    def keys(self, prefix):
        """Of etcd, those that begin so, as its member here has them."""
        behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        encoded = [base64.b64encode(word.encode()).decode() for word in (prefix, behind)]
        done = self.ask_etcd(60, "/v3/kv/range", "-d", json.dumps({"key": encoded[0], "range_end": encoded[1], "keys_only": True}))
        done.check_returncode()
        return sorted(base64.b64decode(one["key"]).decode() for one in json.loads(done.stdout).get("kvs", []))

    def show(self, name="lab"):
        return json.loads(self.kage("show", name, "--json").stdout)

    def settled(self, name="lab", condition=lambda now: True):
        """What the cluster is once everything is as it was wanted, as this host's daemon has it."""
        def look():
            done = self.kage("show", name, "--json", check=False)
            if b"can't reach its etcd" in done.stderr:
                return None  # its members choose another leader
            assert done.returncode == 0, done
            now = json.loads(done.stdout)
            return now if now["settled"] and condition(now) else None
        try:
            return wait(look, "the cluster is as it was wanted", SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.show(name)}; {self.fleet.said()}") from error

    def run(self, node, *words, name="lab", text=None):
        """Of a command in a node, once its agent answers."""
        done = self.kage("exec", name, node, "--wait", "--", *words, text=text, check=False)
        assert done.returncode == 0, f"{words}: {done}; {self.fleet.said()}"
        return done.stdout.decode()


class Fleet:
    """host1 to host3 with power, and a daemon on each."""

    names = ("host1", "host2", "host3")

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-f-"))
        self.dead = None  # the host that has lost its power
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "switch", "type", "bridge")
        command("ip", "link", "set", "switch", "up")
        self.hosts = [Host(self, name, number) for number, name in enumerate(self.names, 1)]
        for one in self.hosts:
            subprocess.run([tool(), "keys", "keys", "--host", f"{one.name},{one.address}"], check=True, cwd=self.directory,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        endpoints = ", ".join(f'"https://{one.address}:2379"' for one in self.hosts)
        for one in self.hosts:
            (one.directory / "s" / "daemon.toml").write_text(
                f'name = "{one.name}"\naddress = "{one.address}"\ntls = "{self.directory}/keys/{one.name}"\n'
                f"endpoints = [{endpoints}]\n", encoding="utf-8")

    def start(self):
        for one in self.hosts:
            one.boot()
            one.member = Member(self.directory, one.name, one.address, one.inside(), self.directory / "keys" / one.name)
        members = [one.member for one in self.hosts]
        for one in members:
            one.start(members)
        for one in self.hosts:
            wait(lambda one=one: b'"health":"true"' in one.ask_etcd(5, "/health").stdout, f"etcd answers on {one.name}")
        for one in self.hosts:
            one.start_daemon()

    def boot_again(self, host):
        """One that was without power: with its disk."""
        host.boot()
        host.member.inside = host.inside()
        host.member.start([one.member for one in self.hosts])
        host.start_daemon()

    def said(self):
        return "\n".join(one.said() for one in self.hosts)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        for one in self.hosts:
            if one.first and one.first.poll() is None:
                one.power_off()
            one.log.close()
            if one.member:
                one.member.log.close()
        command("ip", "link", "delete", "switch")
        if not kind:
            shutil.rmtree(self.directory)
