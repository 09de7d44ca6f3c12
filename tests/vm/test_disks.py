# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: as in test_network.py, two supervisors on one machine and a peer that both cards reach. The guest has an ext4 file
system on a writable disk, of which each host has an image of its own. Each statement is in a file, and fsync has returned,
before the peer is told.

Whatever happens to the primary: what the peer was told is on the disk of whoever goes on, intact; the file is one history,
without a gap or a second version; and the file system, whose memory and disk come from the same checkpoint, is clean.

The guest [qcow2] has images of that format, and a GPU, too, which computes all the time beside it.
"""
import os
import random
import signal
import struct
import subprocess
import time

import pytest

import images
import records
from faults import mark
from fixtures import own, shared
from guest_vm import environment, tool
from ha_pair import Pair, wait
from net_pair import NetPair, taken_over
from net_peer import PEER, SETUP, udp_frame

KILLS = int(os.environ.get("KAGE_KILLS") or 3)
DISK_BYTES = 48 << 20


class DiskPair(NetPair):
    """Whoever is started gets an image of its own: the first primary's has the file system, others have rubbish."""

    def __init__(self):
        super().__init__()
        (self.directory / "job.sh").write_text(f"""{SETUP}
mkdir -p /tmp/disk && mount -t ext4 /dev/vdc /tmp/disk || exit 1
{self.program()}
umount /tmp/disk
""", encoding="utf-8")
        self.text = self.text.replace("[[network]]", '[[disk]]\npath = "none.img"\nwritable = true\n[[network]]')
        self.description.write_text(self.text, encoding="utf-8")

    def program(self):
        return f"/payload/net_job {PEER} keep /tmp/disk/records"

    def image(self, name):
        return self.directory / f"{name}.img"

    def make_image(self, path, rubbish):
        if rubbish:
            path.write_bytes(os.urandom(DISK_BYTES))
            return
        records.make_file_system(path, DISK_BYTES)

    def raw(self, host):
        """The path of a raw image with what the guest sees."""
        return self.image(host.name)

    def start(self, command, name, *more):
        path = self.image(name)
        if not path.exists():
            self.make_image(path, command != "run")
        return super().start(command, name, "--disk", str(path), *more)

    def missed(self, host, told):
        """Those of the told statements that are not in this host's image."""
        return records.missed(self.raw(host), told)

    def check_disk(self, host, told):
        """All that the peer had been told is in this host's image."""
        lost = self.missed(host, told)
        assert not lost, f"{host.name}: {len(lost)} of {len(told)} told records are not on its disk, the first is {lost[0]}"

    def check_files(self, image):
        """What else the guest has left on its disk; a raw image."""


class QcowGpuPair(DiskPair):
    """Images in the format qcow2, and a GPU that computes all the time. What its program says is on the disk at the end."""

    def __init__(self):
        super().__init__()
        self.environment = dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(self.directory))
        self.text = self.text.replace('"256M"', '"512M"').replace('writable = true', 'writable = true\nformat = "qcow2"')
        self.text = self.text.replace("files = [", f'files = ["{os.environ["KAGE_CL_JOB"]}:cl_job", ')
        self.text = self.text.replace("[[network]]", '[gpu]\nbackend = "opencl"\n[[network]]')
        self.description.write_text(self.text, encoding="utf-8")

    def program(self):
        return f"""/payload/cl_job churn 36000 /tmp/stop >/tmp/disk/churn 2>&1 &
{super().program()}
touch /tmp/stop
wait $! || echo FAILED >>/tmp/disk/churn"""

    def make_image(self, path, rubbish):
        raw = self.directory / "raw"
        super().make_image(raw, rubbish)
        images.to_qcow2(raw, path)
        raw.unlink()

    def raw(self, host):
        path = self.directory / "raw"
        images.to_raw(self.image(host.name), path, DISK_BYTES)
        return path

    def check_disk(self, host, told):
        # QEMU writes the tables of an image after the data; at a takeover it does so beside the VM's start.
        wait(lambda: not self.missed(host, told), f"{host.name}: what was told is on its disk", 60)

    def check_files(self, image):
        path = self.directory / "churn"
        records.dump(image, "churn", path)
        text = path.read_text(encoding="utf-8")
        assert "rounds are right" in text and "FAILED" not in text, text
        print(f"       {text.splitlines()[-1]}", flush=True)


FORMATS = {"raw": DiskPair, "qcow2": QcowGpuPair}
keeps = shared(lambda image_format: FORMATS[image_format](), params=list(FORMATS))
counts = own(Pair)


@pytest.fixture
def pair(keeps):
    """The guest that lives through all of it. After each check: whatever it has said fits together."""
    yield keeps
    keeps.peer.check()


def check_unreadable(counts):
    """a disk that can't be read: the VM goes on alone and says why, it is never called protected"""
    path = counts.directory / "bad.img"
    path.write_bytes(os.urandom(1 << 20))
    bad = ("if=none,id=bad-drive,node-name=bad,driver=checkpoint-disk,file.driver=blkdebug,file.inject-error.0.event=none,"
           "file.inject-error.0.iotype=read,file.inject-error.0.sector=1024,"
           f"file.image.driver=file,file.image.locking=off,file.image.filename={path}")
    text = counts.description.read_text(encoding="utf-8")
    counts.description.write_text(f'qemu-options = ["-drive", "{bad}", "-device", "virtio-blk-pci,drive=bad-drive"]\n{text}',
                                  encoding="utf-8")
    counts.start("standby", "standby").wait_state("listening")
    primary = counts.start("run", "primary")
    status = primary.wait("it is alone", lambda s: s["degraded"])
    assert not status["protected"], status
    wait(lambda: any("can't be read" in e.get("text", "") for e in primary.events()), f"the reason; {primary.said()}")
    count = wait(primary.counts, "the guest counts")[-1]
    wait(lambda: primary.counts()[-1] > count + 50, "it counts on")
    assert not any(e["event"] == "protecting" for e in primary.events()), primary.said()


def dies_and_its_standby_goes_on(pair, primary, standby):
    """The primary's QEMU is killed; its standby has the disk as the peer heard of it, and nobody stands by any more."""
    os.kill(primary.qemu(), signal.SIGKILL)
    taken_over(standby)
    pair.check_disk(standby, pair.peer.said())
    pair.goes_on(standby)
    assert primary.process.wait(60) == 0, primary.said()
    pair.runs, pair.waits = standby, None


@pytest.mark.story
def check_missing(pair):
    """no image for a writable disk: the standby is not started, and a sentence says why"""
    done = subprocess.run([tool(), "standby", str(pair.description), "--name", "missing"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=pair.environment, check=False, timeout=300)
    assert done.returncode == 125 and "Each host has one of its own" in done.stdout, f"{done.returncode}: {done.stdout}"


@pytest.mark.story
def check_kills(pair):
    """QEMU killed at random moments: each record that the peer was told of is on the standby's disk, intact"""
    for _ in range(KILLS):
        primary, standby = pair.protected()
        status = primary.status()
        assert status["disk_missing_bytes"] == 0, status
        time.sleep(random.uniform(0, 0.5))
        os.kill(primary.qemu(), signal.SIGKILL)
        taken_over(standby)
        told = pair.peer.said()
        pair.check_disk(standby, told)
        pair.goes_on(standby)
        assert primary.process.wait(60) == 0, primary.said()
        pair.runs, pair.waits = standby, None


@pytest.mark.story
def check_standby_lost(pair):
    """the standby dies: the guest goes on writing; the same image is a standby's again, and gets what it missed"""
    primary, standby = pair.protected()
    standby.process.kill()
    status = primary.wait("it is alone", lambda s: s["state"] == "alone")
    assert status["degraded"] and not status["protected"], status
    pair.goes_on(primary)
    standby.process.wait()
    pair.image(standby.name).rename(pair.image(f"standby{pair.turn + 1}"))
    standby = pair.another(primary)
    dies_and_its_standby_goes_on(pair, primary, standby)


@pytest.mark.story
def check_standby_back(pair):
    """the standby's QEMU is killed, another one has its image: a raw one gets only what it missed, and has all of it"""
    primary, standby = pair.protected()
    os.kill(standby.qemu(), signal.SIGKILL)
    primary.wait("it is alone", lambda s: not s["protected"])
    pair.goes_on(primary)
    status = primary.wait("it is protected again", lambda s: s["protected"])
    print(f"       copied {status['disk_copied_bytes']} of {DISK_BYTES} bytes", flush=True)
    if type(pair) is DiskPair:
        assert 0 < status["disk_copied_bytes"] < DISK_BYTES // 4, status
    else:
        # All of it, less what the guest itself wrote before the copy got there.
        assert status["disk_copied_bytes"] > DISK_BYTES // 4 * 3, status
    dies_and_its_standby_goes_on(pair, primary, standby)


@pytest.mark.story
def check_switchover(pair):
    """switchover: the disk goes with the VM"""
    primary, standby = pair.protected()
    primary.tell("switchover")
    taken_over(standby)
    assert primary.process.wait(60) == 0, primary.said()
    pair.check_disk(standby, pair.peer.said())
    pair.goes_on(standby)
    pair.runs, pair.waits = standby, None


@pytest.mark.story
def check_history(pair):
    """the guest unmounts the disk and ends: the file system is clean, the file is all that was said, once and in order"""
    host = pair.runs or pair.protected()[0]
    frame = udp_frame(b"FINISH01" + bytes(16))

    def ended():
        with pair.peer.lock:
            where = pair.peer.where
        try:
            where.send(struct.pack(">I", len(frame)) + frame)
        except OSError:
            pass  # it has ended
        time.sleep(0.2)
        return not host.alive()
    wait(ended, f"the guest ends; {host.said()}")
    image = pair.raw(host)
    count, told = records.check_history(image, pair.peer.said(), pair.directory / "records")
    pair.check_files(image)
    assert mark(pair.image(host.name)) == "newest", mark(pair.image(host.name))
    print(f"       {count} records, {told} of them told", flush=True)


@pytest.mark.story
def check_old(pair):
    """the VM is not started from the image of a host that it ran on before"""
    done = subprocess.run([tool(), "run", str(pair.description), "--disk", str(pair.image("primary"))], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=pair.environment, check=False, timeout=300)
    assert done.returncode == 1 and "may have gone on with newer disks" in done.stdout, f"{done.returncode}: {done.stdout}"
    assert "could not be compared" in done.stdout, done.stdout
