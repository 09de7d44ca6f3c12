# SPDX-License-Identifier: GPL-2.0-or-later
"""
A protected VM in a cluster of two nodes (nodes.py): the counting guest of tests/vm/guest/counter.S, described for both with the
arbiter of docs/pacemaker.md, and what Pacemaker, the supervisors and the guest's console say.
"""
import json
import re
import subprocess
import tempfile
from pathlib import Path

from guest_vm import environment, tool
from ha_pair import contiguous, counting_disk, wait
from nodes import ROOT, Nodes

AGENT = "/usr/lib/ocf/resource.d/kagemusha/vm"
FENCE = "/usr/libexec/kagemusha/fence-with-pacemaker"
DOCUMENT = ROOT / "docs/pacemaker.md"
DESCRIPTION = """name = "web"
memory = "64M"
accel = "tcg"
console-log = "/var/lib/kagemusha/web.console"
[[disk]]
path = "/etc/kagemusha/counter.img"
[protection]
standby = "hostb:7000"
tls = "/etc/kagemusha/keys"
epoch-ms = 50
heartbeat-ms = 100
heartbeat-budget-ms = 2500
qemu-budget-ms = 60000
"""


class VmCluster(Nodes):
    """Both nodes know the VM; none has power."""

    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-pacemaker-"))
        directory.chmod(0o755)
        super().__init__(directory, dict(environment(backend="none")))
        keys = directory / "keys"
        hosts = [word for one in self.nodes.values() for word in ("--host", f"{one.name},{one.address}")]
        subprocess.run([tool(), "keys", keys, *hosts, "--vm", "web"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        arbiter, = self.document("toml")
        for one in self.nodes.values():
            subprocess.run(["cp", "-a", keys / one.name, one.disk / "etc/kagemusha/keys"], check=True)
            one.write("etc/kagemusha/web.toml", DESCRIPTION + arbiter)
            counting_disk(one.disk / "etc/kagemusha")
        self.hosta, self.hostb = self.nodes.values()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def document(language):
        """What docs/pacemaker.md has in this language: the commands and the arbiter of its set-up."""
        return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    def configure(self, *commands):
        for words in commands:
            self.hosta.must("bash", "-ec", words)

    def agent(self, node, action, description):
        """The agent by hand."""
        return node.run("env", "OCF_ROOT=/usr/lib/ocf", "OCF_RESOURCE_INSTANCE=web", "OCF_RESOURCE_TYPE=vm", "OCF_RA_VERSION_MAJOR=1",
                        "OCF_RA_VERSION_MINOR=1", "OCF_RESKEY_CRM_meta_interval=0", f"OCF_RESKEY_description={description}", AGENT, action)

    # ---- what it says ----

    @staticmethod
    def shown(node):
        return node.run("crm_mon", "-1").stdout

    def shows(self, role, node):
        return any(re.search(rf"\* {role}: \[[^]]*\b{node.name}\b", self.shown(one)) for one in self.nodes.values() if one.has_power())

    @staticmethod
    def status(node):
        """What the VM's supervisor on this node says; empty while there is none."""
        if not node.has_power():
            return {}
        try:
            return json.loads(node.run("kagemusha", "status", "web", "--json").stdout)[0]["supervisor"] or {}
        except (ValueError, KeyError, IndexError):
            return {}

    def roles(self):
        """The node that runs the VM, and the one that protects it."""
        primary = self.wait_protected()
        return primary, next(one for one in self.nodes.values() if one is not primary)

    def console(self, node):
        return node.disk / Path(self.status(node)["console_log"]).relative_to("/")

    def counts(self, node, skip=0):
        """The numbers that the guest has printed there, behind so many bytes. The last line may be in the making, and the first
        one after a takeover have begun on the other host."""
        text = self.console(node).read_bytes()[skip:]
        lines = text[:text.rfind(b"\n") + 1].split()
        return [int(line, 16) for line in lines[1 if lines and len(lines[0]) < 8 else 0:]]

    # ---- what is waited for ----

    def wait_members(self):
        wait(lambda: all("Online: [ hosta hostb ]" in self.shown(one) for one in self.nodes.values()), "both nodes are members")

    def wait_protected(self):
        def protected():
            return next((one for one in self.nodes.values() if self.status(one).get("protected")), None)
        return wait(protected, "the VM is protected")

    def wait_runs(self, node):
        wait(lambda: self.status(node).get("role") == "primary", f"the VM runs on {node.name}")

    def wait_promoted(self, node):
        wait(lambda: self.shows("Promoted", node), f"Pacemaker shows {node.name} as promoted")

    # ---- the guest ----

    def committed(self, primary):
        """A number that its guest has printed, and that a checkpoint on the standby has."""
        count = wait(lambda: self.counts(primary), "the guest counts")[-1]
        seen = self.status(primary)["checkpoints"]
        wait(lambda: self.status(primary)["checkpoints"] > seen + 4, "checkpoints go on")
        # What a console has from a former life on its host.
        self.former = {one.name: self.console(one).stat().st_size for one in self.nodes.values() if one is not primary}
        self.last_console = self.console(primary)
        return count

    def went_on(self, before, after, committed):
        """The guest goes on there with nothing lost that was committed."""
        skip = self.former[after.name]
        text = self.last_console.read_bytes()
        last = int(text[:text.rfind(b"\n") + 1].split()[-1], 16)
        first = wait(lambda: self.counts(after, skip), f"the guest counts on {after.name}")[0]
        assert committed <= first <= last + 2, f"went on with {first:#x}; committed {committed:#x}, {before.name} printed {last:#x}"
        wait(lambda: self.counts(after, skip)[-1] > last + 50, "it counts on")
        contiguous(self.counts(after, skip))
