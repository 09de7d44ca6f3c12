# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two hosts of a cluster on one machine: each has namespaces of its own for processes, mounts, network, its name and memory
that is shared, a folder for what its disk keeps, and real corosync and Pacemaker. A switch (a bridge in the namespace of
the test) joins them. A power switch, which the cluster reaches through its fence agent, kills all of a host at once.
"""
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from ha_pair import wait

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NETWORK = "10.79.0"
COROSYNC = """totem {{
    version: 2
    cluster_name: kagemusha
    transport: knet
    crypto_cipher: none
    crypto_hash: none
    token: 1000
}}
nodelist {{
{nodes}}}
quorum {{
    provider: corosync_votequorum
    {quorum}
}}
logging {{
    to_logfile: yes
    logfile: /var/log/corosync/corosync.log
    to_syslog: no
}}
"""
NODE = """    node {{
        ring0_addr: {network}.{number}
        name: {name}
        nodeid: {number}
    }}
"""
CIB = """<cib crm_feature_set="3.16.1" validate-with="pacemaker-3.0" epoch="1" num_updates="0" admin_epoch="0">
<configuration><crm_config><cluster_property_set id="cib-bootstrap-options">
<nvpair id="cib-bootstrap-options-dc-deadtime" name="dc-deadtime" value="2s"/>
</cluster_property_set></crm_config><nodes/><resources/><constraints/></configuration><status/></cib>
"""


def really_root():
    """A fixture that skips where we are root of a user namespace only: there are no other users for Pacemaker's daemons then."""
    @pytest.fixture(scope="module")
    def there():
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        if os.geteuid() != 0 or mapped[2] == "1":
            pytest.skip("it needs root: Pacemaker's daemons run as another user")
    return there


def command(*words):
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


class Node:
    """A host: what it keeps on its disk, and the processes of the time that it has power."""

    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.disk = cluster.directory / name
        self.first = None
        self.boots = 0
        for folder in ("etc/corosync", "etc/kagemusha", "var/lib/corosync", "var/lib/kagemusha", "logs"):
            (self.disk / folder).mkdir(parents=True)
        for folder, mode in (("", 0o750), ("blackbox", 0o750), ("cib", 0o750), ("cores", 0o750), ("pengine", 0o750)):
            path = self.disk / "var/lib/pacemaker" / folder
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            shutil.chown(path, "hacluster", "haclient")
        self.seed()

    @property
    def address(self):
        return f"{NETWORK}.{self.number}"

    def seed(self):
        """The cluster's first configuration: what Pacemaker makes itself, but it does not wait 20 s for more nodes."""
        cib = self.disk / "var/lib/pacemaker/cib/cib.xml"
        cib.write_text(CIB, encoding="utf-8")
        cib.chmod(0o600)
        shutil.chown(cib, "hacluster", "haclient")

    def write(self, path, text):
        (self.disk / path).write_text(text, encoding="utf-8")

    def boot(self):
        """Power on, up to a cluster that answers."""
        self.boots += 1
        upper = self.cluster.directory / f"{self.name}-usr-{self.boots}"
        self.lay_out(upper)
        self.first = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", HERE / "node", self.name, self.disk, upper],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log("node"))
        assert self.first.stdout.readline() == b"ready\n", f"{self.name} did not boot: see node.log"
        command("ip", "link", "add", self.name, "type", "veth", "peer", "name", "net0", "netns", str(self.init()))
        command("ip", "link", "set", self.name, "master", "switch", "up")
        self.must("ip", "address", "add", f"{self.address}/24", "dev", "net0")
        self.must("ip", "link", "set", "net0", "up")
        self.start("corosync", "-f")
        wait(lambda: self.run("corosync-quorumtool", "-s").returncode in (0, 1, 2), f"{self.name}: corosync answers")
        self.start("pacemakerd")
        wait(lambda: self.run("cibadmin", "--query", "--local", "--scope", "nodes").returncode == 0, f"{self.name}: Pacemaker answers")

    def lay_out(self, upper):
        """What is installed on it besides Debian's packages: that of ours."""
        files = {"bin/kagemusha": Path(os.environ["KAGE_TOOL"]), "sbin/fence_power_switch": HERE / "fence_power_switch",
                 "lib/ocf/resource.d/kagemusha/vm": ROOT / "pacemaker/vm",
                 "libexec/kagemusha/fence-with-pacemaker": ROOT / "pacemaker/fence-with-pacemaker"}
        (upper / "work").mkdir(parents=True)
        tool = Path(os.environ["KAGE_TOOL"])
        for path, source in files.items():
            target = upper / "usr" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source == tool:  # which finds what was built beside it
                target.symlink_to(source)
            else:  # other users of the host may not look into the folder of this tree
                shutil.copy(source, target)

    def init(self):
        """The first process, as this side sees it."""
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    def log(self, name):
        return open(self.disk / "logs" / f"{name}.log", "ab")

    def inside(self):
        return ("nsenter", "--target", str(self.init()), "--mount", "--pid", "--net", "--uts", "--ipc", "--wd=/")

    def variables(self):
        return dict(self.cluster.environment, PCMK_logfile=str(self.disk / "logs/pacemaker.log"), PCMK_logpriority="notice",
                    PCMK_fail_fast="no", HOSTNAME=self.name, KAGEMUSHA_RUNTIME_DIR="/run/kagemusha")

    def start(self, *words):
        subprocess.Popen([*self.inside(), *words], stdin=subprocess.DEVNULL, stdout=self.log(words[0]), stderr=subprocess.STDOUT,
                         env=self.variables())

    def run(self, *words, **more):
        """On this host; what became of it."""
        return subprocess.run([*self.inside(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, env=self.variables(), timeout=300, **more)

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


class PowerSwitch(threading.Thread):
    """Answers `ACTION NODE` lines with an exit status."""

    def __init__(self, path, nodes):
        super().__init__(daemon=True)
        self.nodes, self.path, self.said = nodes, path, []
        self.works = True
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.start()

    def run(self):
        while True:
            try:
                end, _ = self.listener.accept()
            except OSError:
                return
            with end:
                words = end.makefile().readline().split()
                end.sendall(f"{self.carry_out(*words)}\n".encode())

    def carry_out(self, action, node=""):
        if action not in ("monitor", "status", "list"):
            self.said.append((action, node))
        if not self.works:
            return 1
        if action in ("off", "reboot"):
            self.nodes[node].power_off()
        elif action == "status":
            return 0 if self.nodes[node].has_power() else 2
        return 0

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class Nodes:
    """The cluster."""

    def __init__(self, directory, environment, names=("hosta", "hostb")):
        self.directory, self.environment = directory, environment
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "switch", "type", "bridge")
        command("ip", "link", "set", "switch", "up")
        self.nodes = {name: Node(self, name, number) for number, name in enumerate(names, 1)}
        hosts = "127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in self.nodes.values())
        listed = "".join(NODE.format(network=NETWORK, number=one.number, name=one.name) for one in self.nodes.values())
        quorum = "two_node: 1" if len(names) == 2 else ""
        for one in self.nodes.values():
            one.write("etc/hosts", hosts)
            one.write("etc/corosync/corosync.conf", COROSYNC.format(nodes=listed, quorum=quorum))
        self.switch = PowerSwitch(directory / "power", self.nodes)

    def part(self, parted=True):
        """Nobody hears anybody."""
        for one in self.nodes.values():
            if one.has_power():
                command("bridge", "link", "set", "dev", one.name, "isolated", "on" if parted else "off")

    def close(self):
        self.switch.close()
        for one in self.nodes.values():
            one.power_off()
        command("ip", "link", "delete", "switch")
