# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two hosts of a cluster on one machine, made of namespaces (namespace_host.py), with real corosync and Pacemaker. A power switch,
which the cluster reaches through its fence agent, kills all of a host at once.
"""
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from ha_pair import wait
from namespace_host import NamespaceHost, add_switch, command, hosts_file, remove_switch, skip_unless_really_root

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
        skip_unless_really_root("Pacemaker's daemons run as another user")
    return there


class Node(NamespaceHost):
    """With corosync and Pacemaker."""
    run_seconds = 300

    def __init__(self, cluster, name, number):
        super().__init__(cluster.directory, NETWORK, name, number)
        self.cluster = cluster
        for folder in ("etc/corosync", "etc/kagemusha", "var/lib/corosync", "var/lib/kagemusha", "logs"):
            (self.disk / folder).mkdir(parents=True)
        for folder, mode in (("", 0o750), ("blackbox", 0o750), ("cib", 0o750), ("cores", 0o750), ("pengine", 0o750)):
            path = self.disk / "var/lib/pacemaker" / folder
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
            shutil.chown(path, "hacluster", "haclient")
        self.seed()

    def seed(self):
        """The cluster's first configuration: what Pacemaker makes itself, but it does not wait 20 s for more nodes."""
        cib = self.disk / "var/lib/pacemaker/cib/cib.xml"
        cib.write_text(CIB, encoding="utf-8")
        cib.chmod(0o600)
        shutil.chown(cib, "hacluster", "haclient")

    def boot(self):
        """Power on, up to a cluster that answers."""
        self.power_on(HERE / "node", {
            "bin/kagemusha": Path(os.environ["KAGE_TOOL"]), "sbin/fence_power_switch": HERE / "fence_power_switch",
            "lib/ocf/resource.d/kagemusha/vm": ROOT / "pacemaker/vm",
            "libexec/kagemusha/fence-with-pacemaker": ROOT / "pacemaker/fence-with-pacemaker"})
        self.start("corosync", "-f")
        wait(lambda: self.run("corosync-quorumtool", "-s").returncode in (0, 1, 2), f"{self.name}: corosync answers")
        self.start("pacemakerd")
        wait(lambda: self.run("cibadmin", "--query", "--local", "--scope", "nodes").returncode == 0, f"{self.name}: Pacemaker answers")

    def variables(self):
        return dict(self.cluster.environment, PCMK_logfile=str(self.disk / "logs/pacemaker.log"), PCMK_logpriority="notice",
                    PCMK_fail_fast="no", HOSTNAME=self.name, KAGEMUSHA_RUNTIME_DIR="/run/kagemusha")


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
        add_switch()
        self.nodes = {name: Node(self, name, number) for number, name in enumerate(names, 1)}
        hosts = hosts_file(self.nodes.values())
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
        remove_switch()
