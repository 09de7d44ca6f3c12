#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: three hosts, each a network namespace, at a switch (a bridge in a fourth one, where this program is): the primary,
the standby, and etcd as arbiter (skipped without Debian's etcd-server). TLS with keys of each host for the VM; the
GPU (backend null), QEMU's state and the supervisors each have their connection. The guest counts (guest/counter.S).

The rows of docs/spec/takeover.md, section 4, that are about networks. Unlike test_partition.py's relays, which close
connections, a cut here is a silence: packets vanish, nobody is told.
"""
import os
import subprocess
import sys
import time

from etcd import ETCD, Etcd
from ha_pair import Pair, check_continued, committed_count, contiguous, counts_on, gate_is_closed, run_checks, wait

SKIPPED = 77
NETWORK = "10.77.0"
HOSTS = {"primary": 1, "standby": 2, "arbiter": 3}
SWITCH = 254  # the switch's own, which nobody but this program uses


def address(name):
    return f"{NETWORK}.{HOSTS[name]}"


def command(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


class Network:
    """The switch and its hosts."""

    def __init__(self):
        self.holders = {}
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "switch", "type", "bridge")
        command("ip", "address", "add", f"{NETWORK}.{SWITCH}/24", "dev", "switch")
        command("ip", "link", "set", "switch", "up")
        for name in HOSTS:
            # A namespace lives as long as a process is in it.
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
            self.holders[name] = holder
            here = os.readlink("/proc/self/ns/net")
            wait(lambda pid=holder.pid: os.readlink(f"/proc/{pid}/ns/net") != here, f"{name} has a namespace")
            command("ip", "link", "add", name, "type", "veth", "peer", "name", "net0", "netns", str(holder.pid))
            command("ip", "link", "set", name, "master", "switch", "up")
            for words in (("address", "add", f"{address(name)}/24", "dev", "net0"), ("link", "set", "lo", "up"),
                          ("link", "set", "net0", "up")):
                command(*self.inside(name), "ip", *words)

    def inside(self, name):
        """What to put before a command line that is to run on this host."""
        return ("nsenter", f"--net=/proc/{self.holders[name].pid}/ns/net", "--")

    def part(self, parted=True):
        """Primary and standby: each reaches everybody but the other."""
        for name in ("primary", "standby"):
            command("bridge", "link", "set", "dev", name, "isolated", "on" if parted else "off")

    def unplug(self, name):
        """From the switch: the host's own link stays up."""
        command("ip", "link", "set", name, "nomaster")

    def plug(self, name):
        command("ip", "link", "set", name, "master", "switch")

    def link(self, name, up):
        """The host's own link."""
        command(*self.inside(name), "ip", "link", "set", "net0", "up" if up else "down")

    def close(self):
        for name, holder in self.holders.items():
            command("ip", "link", "delete", name)
            holder.kill()
            holder.wait()
        command("ip", "link", "delete", "switch")


class Cluster(Pair):
    def __init__(self):
        super().__init__()
        self.network = Network()
        for name in ("primary", "standby"):
            self.kagemusha("keys", "keys", "--host", f"{name},{address(name)}", "--vm", "counter")
        self.kagemusha("keys", "keys", "--host", f"arbiter,{address('arbiter')}")
        self.etcd = Etcd(self.directory, address("arbiter"), self.network.inside("arbiter"), self.directory / "keys/arbiter")
        text = self.description.read_text(encoding="utf-8")
        self.text = text[:text.index("[arbiter]")].replace('"unix:standby"', f'"{address("standby")}:7000"').replace(
            "[protection]", '[gpu]\nbackend = "null"\n[protection]')
        self.primary, self.standby = None, None

    def kagemusha(self, *words):
        subprocess.run([os.environ["KAGE_TOOL"], *words], check=True, cwd=self.directory, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def inside(self, name):
        return self.network.inside(name)

    def begin(self):
        for name in ("standby", "primary"):
            self.description = self.directory / f"{name}.toml"
            self.description.write_text(
                self.text.replace("epoch-ms = 50", f'tls = "{self.directory}/keys/{name}"\nepoch-ms = 50') +
                f'[arbiter]\nkind = "etcd"\nendpoints = ["{self.etcd.url}"]\nlease-ms = 3000\n'
                f'tls = "{self.directory}/keys/{name}"\n', encoding="utf-8")
            setattr(self, name, self.start("run" if name == "primary" else "standby", name))
        self.standby.wait_state("synced")
        self.primary.wait_state("protecting")
        return committed_count(self.primary)

    def __exit__(self, *what):
        super().__exit__(*what)
        self.etcd.end()
        self.network.close()

    def is_protected_again(self):
        self.standby.wait_state("synced")
        self.primary.wait_state("protecting")
        contiguous(self.primary.counts())
        assert not self.standby.counts(), "the standby has run"


def check_parted(hosts):
    """the hosts hear nothing of each other, both reach etcd: the primary goes on alone; later it is protected again"""
    hosts.begin()
    hosts.network.part()
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    hosts.standby.wait("it begins anew", lambda s: s["state"] in ("starting", "listening"))
    assert not gate_is_closed(hosts.primary), "the primary has the lease"
    hosts.network.part(False)
    hosts.is_protected_again()


def check_standbys_link(hosts):
    """the standby's link is down: the same"""
    hosts.begin()
    hosts.network.link("standby", False)
    hosts.primary.wait_state("alone")
    counts_on(hosts.primary)
    hosts.network.link("standby", True)
    hosts.is_protected_again()


def check_unplugged(hosts):
    """the primary is unplugged: the standby takes over after the primary's gate has closed, which ends when it hears of it"""
    committed = hosts.begin()
    hosts.network.unplug("primary")
    hosts.standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert gate_is_closed(hosts.primary), "two may speak"
    check_continued(hosts.primary, hosts.standby, committed)
    assert gate_is_closed(hosts.primary), "two may speak"
    hosts.network.plug("primary")
    assert hosts.primary.process.wait(120) == 1, hosts.primary.said()
    assert "must not run here any more" in hosts.primary.said(), hosts.primary.said()
    contiguous(hosts.standby.counts())


def check_short(hosts):
    """a silence shorter than the budget: nothing happens, and nothing is lost"""
    hosts.begin()
    checkpoints = hosts.primary.status()["checkpoints"]
    hosts.network.part()
    time.sleep(0.5)  # the budget has 2 s
    hosts.network.part(False)
    hosts.primary.wait("checkpoints go on", lambda s: s["checkpoints"] > checkpoints + 10)
    hosts.is_protected_again()
    events = [e["event"] for e in hosts.primary.events()]
    assert events[events.index("protecting"):] == ["protecting"], events


def main(names):
    return run_checks([check_parted, check_standbys_link, check_unplugged, check_short], Cluster, names)


def in_a_network_of_its_own():
    """Again, as root of a user and a network namespace; where there are none, the reason why the test is skipped."""
    if not os.path.exists(ETCD):
        return "there is no etcd on this machine (package etcd-server)"
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run([*own, "sh", "-c", "ip link add try0 type veth peer name try1 && ip link add try2 type bridge"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if tried.returncode != 0:
        return f"no network namespaces for us here: {tried.stdout.strip()}"
    os.execvp(own[0], [*own, sys.executable, "-u", __file__, "--inside", *sys.argv[1:]])


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # Debian leaves them out of an ordinary user's
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(main(sys.argv[2:]))
    print("skipped:", in_a_network_of_its_own(), flush=True)
    sys.exit(SKIPPED)
