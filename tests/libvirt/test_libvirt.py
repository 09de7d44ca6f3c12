# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one host, made of namespaces (host), with Debian's libvirtd. Its domains are those of docs/libvirt.md, with the commands as
they stand there; the guest is the counting one of tests/vm. What libvirt can't do with them is refused by it or by us.
"""
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from fixtures import mounts_of_its_own, needs, shared
from guest_vm import environment, tool
from ha_pair import counting_disk, wait

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = (ROOT / "docs/libvirt.md").read_text(encoding="utf-8")
IMAGE = "/var/lib/libvirt/images/web.img"
# A host of namespaces has neither control groups nor AppArmor of its own.
CONF = ('user = "root"\ngroup = "root"\ncgroup_controllers = []\nnamespaces = []\nsecurity_driver = "none"\nremember_owner = 0\n'
        'stdio_handler = "file"\n')

mounts = mounts_of_its_own()
libvirtd, virsh = needs("/usr/sbin/libvirtd", "libvirt-daemon"), needs("/usr/bin/virsh", "libvirt-clients")


@pytest.fixture(scope="module")
def root():
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2] == "1":
        pytest.skip("it needs root: libvirtd is the system's")


pytestmark = [pytest.mark.usefixtures("root", "mounts", "libvirtd", "virsh"), pytest.mark.story]


def documented(language, beginning=""):
    """The block of docs/libvirt.md that begins so."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    found, = [block for block in blocks if block.startswith(beginning)]
    return found


class Host:
    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kage-v-"))
        self.environment = dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(self.directory / "run"))
        (self.directory / "run").mkdir(mode=0o700)
        self.parts = json.loads(Path(self.environment["KAGE_ASSETS"]).read_text(encoding="utf-8"))
        for name, line in (("passwd", "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin\n"), ("group", "libvirt-qemu:x:64055:\n")):
            text = Path(f"/etc/{name}").read_text(encoding="utf-8")
            (self.directory / name).write_text(text + ("" if "libvirt-qemu:" in text else line), encoding="utf-8")
        (self.directory / "qemu.conf").write_text(CONF + documented("conf"), encoding="utf-8")
        self.first = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", ROOT / "tests/libvirt/host", self.directory],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.first.stdout.readline() == b"ready\n", "the host did not boot"
        self.init = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text(encoding="ascii").split()[0]
        counting_disk(self.directory)
        self.must("cp", self.directory / "counter.img", IMAGE)
        # The package's QEMU finds its library beside it. What libvirtd has here its QEMUs have.
        self.daemon = subprocess.Popen([*self.inside(), "env", f"LD_LIBRARY_PATH={os.environ['KAGE_DEVICE_FOLDER']}", "libvirtd"], stdin=subprocess.DEVNULL,
                                       stdout=open(self.directory / "libvirtd.log", "wb"), stderr=subprocess.STDOUT)
        wait(lambda: self.run("virsh", "list").returncode == 0, "libvirtd answers")

    def inside(self):
        return ("nsenter", "--target", self.init, "--mount", "--pid", "--net", "--uts", "--ipc", f"--wd={self.directory}")

    def run(self, *words):
        return subprocess.run([*self.inside(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env=self.environment, timeout=300)

    def must(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}; {self.run('sh', '-c', 'tail -n 5 /var/log/libvirt/qemu/*').stdout}"
        return done.stdout

    def write(self, xml):
        """The document's domain, with our build in the place of the package."""
        qemu = Path(self.parts["qemu"])
        xml = xml.replace("/usr/lib/kagemusha/qemu-system-x86_64", str(qemu))
        (self.directory / "web.xml").write_text(xml, encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.run("virsh", "destroy", "web")
        os.kill(int(self.init), signal.SIGKILL)
        self.first.wait()
        self.first.stdout.close()
        self.daemon.wait()


host = shared(Host)


def check_domain(host):
    """the domain of docs/libvirt.md: define, start, console, domstats, destroy"""
    host.write(documented("xml", "<domain"))
    host.must("bash", "-ec", "virsh define web.xml && virsh start web")
    assert "running" in host.must("virsh", "domstate", "web")
    console = host.must("virsh", "ttyconsole", "web").strip()
    said = host.run("timeout", "10", "head", "-c", "200", console).stdout
    numbers = [int(word, 16) for word in re.findall(r"^([0-9a-f]{8})\s*$", said, re.MULTILINE)]
    assert len(numbers) > 3 and numbers == list(range(numbers[0], numbers[0] + len(numbers))), said
    stats = host.must("virsh", "domstats", "web")
    assert "block.0.name=vda" in stats and "state.state=1" in stats, stats
    assert "vgpu0" in host.must("virsh", "qemu-monitor-command", "web", "--hmp", "info qtree")


def check_what_can_not_be(host):
    """to save it or to take it elsewhere is refused, and it runs on"""
    for words in (("virsh", "save", "web", "/var/lib/libvirt/saved"), ("virsh", "managedsave", "web")):
        done = host.run(*words)
        assert done.returncode != 0 and "virtio-vgpu" in done.stdout, done.stdout
    assert "running" in host.must("virsh", "domstate", "web")
    host.must("virsh", "destroy", "web")
    assert "shut off" in host.must("virsh", "domstate", "web")


def check_import_refused(host):
    """a domain with more than we have becomes no description: each thing has its sentence"""
    host.must("sh", "-c", "virsh dumpxml --inactive web >web.xml")
    done = host.run("sh", "-c", f"{tool()} import web.xml >web.toml")
    assert done.returncode == 125 and "<qemu:commandline> can't be described" in done.stdout, done.stdout
    assert (host.directory / "web.toml").read_text(encoding="utf-8") == ""


def check_import(host):
    """the document's commands make a description of a domain; the VM that it describes runs, its device included"""
    xml = re.sub(r"(?s)  <qemu:commandline>.*?</qemu:commandline>\n", documented("xml", "<metadata>"), documented("xml", "<domain"))
    host.write(xml)
    host.must("virsh", "undefine", "web")
    host.must("virsh", "define", "web.xml")
    host.must("bash", "-ec", f'kagemusha() {{ {tool()} "$@"; }}\n{documented("sh")}')
    log = open(host.directory / "run.log", "wb")
    vm = subprocess.Popen([*host.inside(), tool(), "run", "web.toml"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                          env=host.environment)
    console = host.directory / "run/web.d/console.log"
    wait(lambda: (console.exists() and len(console.read_bytes().split()) > 20) or vm.poll() is not None, "the guest counts")
    assert vm.poll() is None, (host.directory / "run.log").read_text(encoding="utf-8")
    host.must(tool(), "stop", "web")
    assert vm.wait(60) == 0
    log.close()
