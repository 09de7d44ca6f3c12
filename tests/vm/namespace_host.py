# SPDX-License-Identifier: GPL-2.0-or-later
"""
A host of a cluster that is made of namespaces, on one machine with its others: processes, mounts, network, name and shared memory
are its own, a folder is what its disk keeps, and Debian's real daemons run in it. A switch, a bridge in the namespace of the test,
joins them. Power can be cut: everything on a host dies at once.
"""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest


def command(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def add_switch():
    command("ip", "link", "set", "lo", "up")
    command("ip", "link", "add", "switch", "type", "bridge")
    command("ip", "link", "set", "switch", "up")


def remove_switch():
    command("ip", "link", "delete", "switch")


def hosts_file(hosts):
    return "127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in hosts)


def skip_unless_really_root(why):
    """Root of a user namespace has no other users."""
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    if os.geteuid() != 0 or mapped[2] == "1":
        pytest.skip(f"it needs root: {why}")


class NamespaceHost:
    """What it keeps on its disk, and the processes of the time that it has power. `number`: the last one of its address."""
    run_seconds = 600  # a command on it may take

    def __init__(self, directory, network, name, number):
        self.directory, self.name, self.number = directory, name, number
        self.address = f"{network}.{number}"
        self.disk = directory / name
        self.first = None
        self.boots = 0

    def write(self, path, text, mode=0o644):
        place = self.disk / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)

    def power_on(self, script, installed, *arguments):
        """Up to a network. `script` is its first process and gets its name, its disk, a folder that is laid over /usr and /etc, and
        `arguments`; `installed`: files of ours by their places in /usr."""
        self.boots += 1
        upper = self.directory / f"{self.name}-usr-{self.boots}"
        lay_out(upper, installed)
        self.first = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", script, self.name, self.disk, upper,
             *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log(script.name))
        assert self.first.stdout.readline() == b"ready\n", f"{self.name} did not boot: see {script.name}.log"
        command("ip", "link", "add", self.name, "type", "veth", "peer", "name", "net0", "netns", str(self.init()))
        command("ip", "link", "set", self.name, "master", "switch", "up")
        self.must("ip", "address", "add", f"{self.address}/24", "dev", "net0")
        self.must("ip", "link", "set", "net0", "up")

    def init(self):
        """The first process, as this side sees it."""
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    def log(self, name):
        return open(self.disk / "logs" / f"{name}.log", "ab")

    def inside(self):
        return ("nsenter", "--target", str(self.init()), "--mount", "--pid", "--net", "--uts", "--ipc", "--wd=/")

    def variables(self):
        """The environment of what runs on it."""
        return None

    def start(self, *words):
        """A daemon of this host, which needs no unit."""
        return subprocess.Popen([*self.inside(), *words], stdin=subprocess.DEVNULL, stdout=self.log(words[0]),
                                stderr=subprocess.STDOUT, start_new_session=True, env=self.variables())

    def run(self, *words, user=None, **more):
        """On this host; what became of it."""
        who = ("runuser", "-u", user, "--") if user else ()
        return subprocess.run([*self.inside(), *who, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=self.run_seconds, env=self.variables(), **more)

    def must(self, *words, **more):
        done = self.run(*words, **more)
        assert done.returncode == 0, f"{self.name}: {words}: status {done.returncode}: {done.stdout}"
        return done.stdout

    def has_power(self):
        return self.first is not None and self.first.poll() is None

    def power_off(self):
        """Everything that runs on it dies at once, and its link with it."""
        if self.has_power():
            os.kill(self.init(), signal.SIGKILL)
            self.first.wait()
        if self.first:
            self.first.stdout.close()
        subprocess.run(["ip", "link", "delete", self.name], check=False, stderr=subprocess.DEVNULL)


def lay_out(upper, installed):
    """What is installed besides Debian's packages."""
    (upper / "usr").mkdir(parents=True)
    (upper / "work").mkdir()
    tool = Path(os.environ["KAGE_TOOL"])
    for path, source in installed.items():
        target = upper / "usr" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source == tool:  # which finds what was built beside it
            target.symlink_to(source)
        else:  # other users of the host may not look into the folder of this tree
            shutil.copy(source, target)
