# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: a pod of KubeVirt's, as its sidecar sees it: `kagemusha-k8s kubevirt-hook`, and a virt-launcher of the test's own
(launcher.py). What comes out is a domain of libvirt by libvirt's own schema; no libvirtd and no KubeVirt run.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent import futures
from pathlib import Path

from fixtures import own
from kubelet import wait
from launcher import Launcher, Refused

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
VMI = json.dumps({"spec": {"domain": {"resources": {"limits": {"kagemusha.io/gpu": "100"}}}}}).encode()
# What KubeVirt makes of a headless VirtualMachineInstance without a balloon.
DOMAIN = """<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
<name>vms_web</name><uuid>5a9fc181-957e-5c32-9e5a-2de5e9673531</uuid><memory unit="b">1073741824</memory>
<os><type arch="x86_64" machine="q35">hvm</type><smbios mode="sysinfo"></smbios></os>
<sysinfo type="smbios"><system><entry name="manufacturer">KubeVirt</entry></system></sysinfo>
<devices>
<interface type="ethernet"><target dev="tap0" managed="no"></target><model type="virtio-non-transitional"></model>
<mac address="02:00:00:00:00:01"></mac><mtu size="1450"></mtu><rom enabled="no"></rom></interface>
<channel type="unix"><target name="org.qemu.guest_agent.0" type="virtio"></target></channel>
<controller type="usb" index="0" model="none"></controller>
<controller type="scsi" index="0" model="virtio-non-transitional"></controller>
<controller type="virtio-serial" index="0" model="virtio-non-transitional"></controller>
<memballoon model="none"></memballoon>
<disk device="disk" type="file" model="virtio-non-transitional"><source file="/var/run/kubevirt/a &amp; b.img"></source>
<target bus="virtio" dev="vda"></target><driver cache="none" name="qemu" type="qcow2" discard="unmap"></driver>
<alias name="ua-disk"></alias></disk>
<serial type="unix"><source mode="bind" path="/var/run/kubevirt-private/x/virt-serial0"></source><target port="0"></target></serial>
<console type="pty"><target type="serial" port="0"></target></console>
</devices>
<metadata><kubevirt xmlns="http://kubevirt.io"><uid>5a9f &lt; 6</uid></kubevirt></metadata>
<features><acpi></acpi></features>
<cpu mode="host-model"><topology sockets="1" cores="2" threads="1"></topology></cpu><vcpu placement="static">2</vcpu>
</domain>"""


class Sidecar:
    def __init__(self, arguments=()):
        self.directory = Path(tempfile.mkdtemp(prefix="kagemusha-k8s-"))
        self.log, self.arguments = self.directory / "kagemusha-k8s.log", list(arguments)
        self.launcher = Launcher(self.directory / "hooks")
        self.launcher.folder.mkdir()

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([os.environ["KAGE_K8S"], "kubevirt-hook", "--folder", self.launcher.folder, *self.arguments],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.launcher.collect(1)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60) == 0

    def refusal(self, domain, vmi=VMI):
        try:
            self.launcher.define(domain, vmi)
        except Refused as refused:
            return str(refused)
        raise AssertionError("it was taken")

    def good(self, xml):
        """By libvirt's own schema, where that is installed."""
        if shutil.which("virt-xml-validate"):
            path = self.directory / "domain.xml"
            path.write_bytes(xml)
            done = subprocess.run(["virt-xml-validate", path, "domain"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
            assert done.returncode == 0, done.stdout
        return ElementTree.fromstring(xml)


sidecar = own(Sidecar)


def check_a_domain_gets_our_device(sidecar):
    """virt-launcher finds the sidecar, and gets a domain with our emulator, our device and shared memory, good by libvirt's schema"""
    sidecar.good(DOMAIN.encode())
    domain = sidecar.good(sidecar.launcher.define(DOMAIN.encode(), VMI))
    assert domain.findtext("devices/emulator") == "/usr/lib/kagemusha/qemu-system-x86_64"
    assert domain.find("memoryBacking/source").get("type") == "memfd"
    arguments = [one.get("value") for one in domain.findall(f"{QEMU}commandline/{QEMU}arg")]
    assert arguments[-1] == "virtio-vgpu-pci,id=vgpu0,iothread=vgpu-io,backend=opencl,bus=pcie.0,addr=0x10"
    assert domain.findtext("metadata/{http://kubevirt.io}kubevirt/{http://kubevirt.io}uid") == "5a9f < 6"
    assert domain.find("devices/disk/source").get("file") == "/var/run/kubevirt/a & b.img"
    # Nothing else is another: each element of before is there, but for the controller that has no disk.
    before, after = ElementTree.fromstring(DOMAIN), domain
    gone = [one for one in told(before) if one not in told(after)]
    assert gone == [("controller", (("index", "0"), ("model", "virtio-non-transitional"), ("type", "scsi")), "")], gone


def told(tree):
    return [(one.tag, tuple(sorted(one.attrib.items())), (one.text or "").strip()) for one in tree.iter()]


def check_what_does_not_fit(sidecar):
    """screens, parts of a GPU, foreign machines and what is no domain: refused with all sentences; and it goes on"""
    headed = DOMAIN.replace("<memballoon model=\"none\"></memballoon>",
                            "<graphics type=\"vnc\"></graphics><memballoon model=\"virtio\"></memballoon>")
    said = sidecar.refusal(headed.encode())
    assert "autoattachGraphicsDevice: false" in said and "autoattachMemBalloon: false" in said, said
    part = json.dumps({"spec": {"domain": {"resources": {"limits": {"kagemusha.io/gpu": "25"}}}}}).encode()
    assert "a whole GPU" in sidecar.refusal(DOMAIN.encode(), part)
    assert "type: q35" in sidecar.refusal(DOMAIN.replace("q35", "pc-q35-rhel9.4.0").encode())
    for hostile in (b"", b"\xff\xfe", b"<a>" * 100_000, b"<domain/>", DOMAIN.encode() + b" " * (1 << 20), DOMAIN.encode()[:-20]):
        assert sidecar.refusal(hostile), hostile[:40]
    entity = "<!DOCTYPE domain [<!ENTITY f SYSTEM 'file:///etc/passwd'>]>" + DOMAIN.replace("vms_web", "&f;")
    try:
        assert b"root:" not in sidecar.launcher.define(entity.encode(), VMI)
    except Refused:
        pass
    sidecar.good(sidecar.launcher.define(DOMAIN.encode(), VMI))
    assert sidecar.process.poll() is None


def check_it_ends_with_its_launcher(sidecar):
    """several calls at a time; then virt-launcher's Shutdown ends it, and its socket goes"""
    with futures.ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: sidecar.launcher.define(DOMAIN.encode(), VMI), range(24)))
    assert len(made) == 1
    sidecar.launcher.shutdown()
    assert sidecar.process.wait(60) == 0
    assert not any(sidecar.launcher.folder.iterdir())


def check_its_options():
    """the emulator, its firmware and the device are as the options say; a folder that is not there is told"""
    with Sidecar(["--emulator", "/opt/qemu", "--firmware", "/opt/firmware", "--backend", "null", "--gpu", "a,b"]) as other:
        domain = other.good(other.launcher.define(DOMAIN.encode(), b"{}"))
        assert domain.findtext("devices/emulator") == "/opt/qemu"
        arguments = [one.get("value") for one in domain.findall(f"{QEMU}commandline/{QEMU}arg")]
        assert arguments[:2] == ["-L", "/opt/firmware"] and "backend=null,gpu=a,,b," in arguments[-1]
    done = subprocess.run([os.environ["KAGE_K8S"], "kubevirt-hook", "--folder", "/dev/null/none"], stdin=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "nobody can listen at /dev/null/none" in done.stderr, done.stderr
    wait(lambda: other.process.poll() == 0, "its end")
