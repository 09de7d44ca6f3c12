# SPDX-License-Identifier: GPL-2.0-or-later
"""
Hosts as network namespaces at a switch, a bridge in the namespace of the test (in-namespace): `primary`, `standby`, and etcd as
arbiter on a third one. What a test does to the network are silences: packets vanish, nobody is told.
"""
import os
import subprocess

from etcd import Etcd, Member
from guest_vm import environment
from ha_pair import Pair, committed_count, contiguous, wait

NETWORK = "10.77.0"
HOSTS = {"primary": 1, "standby": 2, "arbiter": 3}
SUPERVISORS, GPU, STATE = 7000, 7001, 7002  # the standby's ports
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
            # gso_max_segs: a packet is one of the wire, also where nothing makes it one.
            for words in (("address", "add", f"{address(name)}/24", "dev", "net0"), ("link", "set", "lo", "up"),
                          ("link", "set", "net0", "up", "gso_max_segs", "1")):
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

    def swallow(self, host, *what, on=True):
        """What this host sends, as far as `what` (a selector of ip-rule) says, vanishes."""
        command(*self.inside(host), "ip", "rule", "add" if on else "delete", *what, "blackhole")

    def limit(self, host, size_bytes=1500):
        """Of packets from and to this host, larger ones vanish at the switch."""
        command("ip", "link", "set", host, "mtu", str(size_bytes))

    def throttle(self, host, rate=None):
        """What goes to this host; `rate` in tc's words."""
        if rate:
            command("tc", "qdisc", "add", "dev", host, "root", "tbf", "rate", rate, "burst", "4kb", "latency", "200ms")
        else:
            command("tc", "qdisc", "delete", "dev", host, "root")

    def close(self):
        for name, holder in self.holders.items():
            command("ip", "link", "delete", name)
            holder.kill()
            holder.wait()
        command("ip", "link", "delete", "switch")


class Cluster(Pair):
    def __init__(self):
        super().__init__()
        # With what a GPU needs, which each start would look up otherwise.
        self.environment = dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(self.directory))
        self.network = Network()
        for name in ("primary", "standby"):
            self.kagemusha("keys", "keys", "--host", f"{name},{address(name)}", "--vm", "counter")
        self.kagemusha("keys", "keys", "--host", f"arbiter,{address('arbiter')}")
        self.etcd = self.arbiters()
        text = self.description.read_text(encoding="utf-8")
        self.text = text[:text.index("[arbiter]")].replace('"unix:standby"', f'"{address("standby")}:{SUPERVISORS}"').replace(
            "[protection]", '[gpu]\nbackend = "null"\n[protection]')
        self.primary, self.standby = None, None

    def arbiters(self):
        """etcd's servers, which run"""
        return [Etcd(self.directory, address("arbiter"), self.network.inside("arbiter"), self.directory / "keys/arbiter")]

    def kagemusha(self, *words):
        subprocess.run([os.environ["KAGE_TOOL"], *words], check=True, cwd=self.directory, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def inside(self, name):
        return self.network.inside(name.rstrip("0123456789"))

    def on(self, host, what, number="", other="standby", more=""):
        """Starts `kagemusha run|standby` on this host, whose standby is on the host `other`."""
        text = self.text.replace(f'"{address("standby")}:', f'"{address(other)}:')
        endpoints = ", ".join(f'"{one.url}"' for one in self.etcd)
        self.description = self.directory / f"{host}{number}.toml"
        self.description.write_text(
            text.replace("epoch-ms = 50", f'tls = "{self.directory}/keys/{host}"\nepoch-ms = 50') +
            f'[arbiter]\nkind = "etcd"\nendpoints = [{endpoints}]\nlease-ms = 3000\n'
            f'tls = "{self.directory}/keys/{host}"\n{more}', encoding="utf-8")
        return self.start(what, f"{host}{number}")

    def begin(self, more=""):
        """Protected. `more`: of the description."""
        self.standby = self.on("standby", "standby", more=more)
        self.primary = self.on("primary", "run", more=more)
        self.standby.wait_state("synced")
        self.primary.wait_state("protecting")
        return committed_count(self.primary)

    def __exit__(self, *what):
        super().__exit__(*what)
        for one in self.etcd:
            one.end()
        self.network.close()

    def is_protected_again(self):
        self.standby.wait_state("synced")
        self.primary.wait_state("protecting")
        contiguous(self.primary.counts())
        assert not self.standby.counts(), "the standby has run"


class ThreeMembers(Cluster):
    """etcd has a server on each host: on the primary's, the standby's and a third one."""

    def arbiters(self):
        members = [Member(self.directory, name, address(name), self.network.inside(name), self.directory / "keys" / name)
                   for name in HOSTS]
        for one in members:
            one.start(members)
        for one in members:
            wait(one.answers, f"etcd answers on {one.name}")
        return members
