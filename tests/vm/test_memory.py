# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, joined by Unix sockets; a Linux guest that writes a file of 160 MiB again and again, and
says its sum. What each QEMU has in memory: what the guest uses, and for the standby what is still to be loaded.
"""
import os
import re
import signal
import tempfile
from pathlib import Path

from fixtures import own
from guest_vm import environment
from ha_pair import Hosts, wait
from residency import MIB, guest_ram, memory_files, own_bytes

FILE_MIB = 160
JOB = f"""#!/bin/bash
box=/payload/system/busybox
$box mkdir -p /tmp/files
$box mount -t tmpfs -o size=90% none /tmp/files
$box dd if=/dev/urandom of=/tmp/files/first bs=1M count={FILE_MIB} 2>/dev/null
while :; do
    $box dd if=/tmp/files/first of=/tmp/files/copy bs=1M 2>/dev/null
    echo "SUM $($box md5sum </tmp/files/copy)"
done
"""
DESCRIPTION = """
name = "writes"
memory = "768M"
accel = "tcg"
[boot]
guest = "{guest}"
job = "job.sh"
[gpu]
backend = "opencl"
[protection]
standby = "unix:standby"
epoch-ms = 20
[supervision]
checkpoint-ms = 120000
[arbiter]
kind = "lock"
path = "lease"
"""
# A leak of one set of memory's views for each checkpoint was 50 KiB with the smallest VM, 300 with this one.
CHECKPOINTS, LEAK = 300, 48 * MIB


class WritingPair(Hosts):
    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-memory-"))
        super().__init__(directory, dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        (directory / "job.sh").write_text(JOB, encoding="utf-8")
        self.description = directory / "vm.toml"
        self.description.write_text(DESCRIPTION.format(guest=os.environ.get("KAGE_KERNEL") or "6.12-cloud"), encoding="utf-8")


def sums(one):
    """The sums that its guest has said, of whole lines."""
    try:
        return re.findall(rb"SUM ([0-9a-f]{32})[^\n]*\n", Path(one.console()).read_bytes())
    except OSError:
        return []


pair = own(WritingPair)


def check_memory(pair):
    """both hosts have what the guest uses, the standby once; nothing grows; after the primary's death each byte is there"""
    standby = pair.start("standby", "standby")
    primary = pair.start("run", "primary")
    primary.wait_state("protecting")
    for one in (primary, standby):
        resident, size = guest_ram(one.qemu())
        assert resident < size // 2, f"{one.name}: {resident // MIB} of {size // MIB} MiB after the first copy"
        window, size = memory_files(one.qemu())["virtio-vgpu-window"]
        assert window < size // 2, f"{one.name}: {window // MIB} of {size // MIB} MiB of the window, which nobody uses"

    wait(lambda: len(sums(primary)) >= 3, "the guest has written its file three times")
    primary.wait_commit()
    resident, _ = guest_ram(standby.qemu())
    mine = own_bytes(standby.qemu())
    assert resident > 2 * FILE_MIB * MIB, resident
    assert mine < resident * 2 // 3, f"the standby has {mine // MIB} MiB beside the {resident // MIB} of its guest's RAM"

    begin = primary.status()["checkpoints"]
    primary.wait("more checkpoints", lambda status: status["checkpoints"] >= begin + CHECKPOINTS)
    grown = own_bytes(standby.qemu()) - mine
    assert grown < LEAK, f"{grown // MIB} MiB more on the standby after {CHECKPOINTS} checkpoints"

    said = set(sums(primary))
    assert len(said) == 1, f"the same file has {len(said)} sums"
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait_state("alone")
    count = len(sums(standby))
    wait(lambda: len(sums(standby)) >= count + 2, "the guest writes on after the takeover")
    assert set(sums(standby)) == said, "a byte of the guest's memory changed in the takeover"
