#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: as in test_network.py, two supervisors on one machine and a peer that both cards reach. The guest has an ext4 file
system on a writable disk, of which each host has an image of its own. Each statement is in a file, and fsync has returned,
before the peer is told.

Whatever happens to the primary: what the peer was told is on the disk of whoever goes on, intact; the file is one history,
without a gap or a second version; and the file system, whose memory and disk come from the same checkpoint, is clean.

With `qcow2` the images have that format, and the guest has a GPU, too, which computes all the time beside it.
"""
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import images
import records
from ha_pair import Pair, wait
from guest_vm import environment, tool
from net_peer import PEER, SETUP, udp_frame
from test_network import NetPair, taken_over

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


def check_kills(pair, primary, standby):
    """QEMU killed at random moments: each record that the peer was told of is on the standby's disk, intact"""
    for turn in range(KILLS):
        status = primary.status()
        assert status["disk_missing_bytes"] == 0, status
        time.sleep(random.uniform(0, 0.5))
        os.kill(primary.qemu(), signal.SIGKILL)
        taken_over(standby)
        told = pair.peer.said()
        pair.check_disk(standby, told)
        pair.goes_on(standby)
        assert primary.process.wait(60) == 0, primary.said()
        if turn < KILLS - 1:
            primary, standby = standby, pair.another(standby)
    return standby


def check_standby_lost(pair, primary, standby):
    """the standby dies: the guest goes on writing; the same image is a standby's again, and gets what it missed"""
    standby.process.kill()
    status = primary.wait("it is alone", lambda s: s["state"] == "alone")
    assert status["degraded"] and not status["protected"], status
    pair.goes_on(primary)
    standby.process.wait()
    pair.image(standby.name).rename(pair.image(f"standby{pair.turn + 1}"))
    standby = pair.another(primary)
    os.kill(primary.qemu(), signal.SIGKILL)
    taken_over(standby)
    pair.check_disk(standby, pair.peer.said())
    pair.goes_on(standby)
    assert primary.process.wait(60) == 0, primary.said()
    return standby


def check_switchover(pair, primary, standby):
    """switchover: the disk goes with the VM"""
    primary.tell("switchover")
    taken_over(standby)
    assert primary.process.wait(60) == 0, primary.said()
    pair.check_disk(standby, pair.peer.said())
    pair.goes_on(standby)
    return standby


def mark(image):
    """The state that the mark beside an image says: that of its newer slot."""
    text = Path(f"{image}.kagemusha").read_text(encoding="utf-8")
    return max((int(words[1]), words[3]) for words in map(str.split, text.splitlines()) if words)[1]


def check_history(pair, host):
    """the guest unmounts the disk and ends: the file system is clean, the file is all that was said, once and in order"""
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


def check_old(pair):
    """the VM is not started from the image of a host that it ran on before"""
    done = subprocess.run([tool(), "run", str(pair.description), "--disk", str(pair.image("primary"))], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=pair.environment, check=False, timeout=300)
    assert done.returncode == 1 and "may have gone on with newer disks" in done.stdout, f"{done.returncode}: {done.stdout}"
    assert "could not be compared" in done.stdout, done.stdout


def check_missing(pair):
    """no image for a writable disk: the standby is not started, and a sentence says why"""
    done = subprocess.run([tool(), "standby", str(pair.description), "--name", "missing"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, env=pair.environment, check=False, timeout=300)
    assert done.returncode == 125 and "Each host has one of its own" in done.stdout, f"{done.returncode}: {done.stdout}"


def check_unreadable():
    """a disk that can't be read: the VM goes on alone and says why, it is never called protected"""
    with Pair() as pair:
        path = pair.directory / "bad.img"
        path.write_bytes(os.urandom(1 << 20))
        bad = ("if=none,id=bad-drive,node-name=bad,driver=checkpoint-disk,file.driver=blkdebug,file.inject-error.0.event=none,"
               "file.inject-error.0.iotype=read,file.inject-error.0.sector=1024,"
               f"file.image.driver=file,file.image.locking=off,file.image.filename={path}")
        text = pair.description.read_text(encoding="utf-8")
        pair.description.write_text(f'qemu-options = ["-drive", "{bad}", "-device", "virtio-blk-pci,drive=bad-drive"]\n{text}',
                                    encoding="utf-8")
        pair.start("standby", "standby").wait_state("listening")
        primary = pair.start("run", "primary")
        status = primary.wait("it is alone", lambda s: s["degraded"])
        assert not status["protected"], status
        wait(lambda: any("can't be read" in e.get("text", "") for e in primary.events()), f"the reason; {primary.said()}")
        count = wait(primary.counts, "the guest counts")[-1]
        wait(lambda: primary.counts()[-1] > count + 50, "it counts on")
        assert not any(e["event"] == "protecting" for e in primary.events()), primary.said()


def main(names):
    qcow2 = "qcow2" in names
    names = [name for name in names if name != "qcow2"]
    if not names and not qcow2 or "check_unreadable" in names:
        started = time.monotonic()
        check_unreadable()
        print(f"ok     {check_unreadable.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
    if names == ["check_unreadable"]:
        return 0
    pair = QcowGpuPair() if qcow2 else DiskPair()

    def step(check, *hosts):
        started = time.monotonic()
        result = check(pair, *hosts)
        pair.peer.check()
        print(f"ok     {check.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
        return result

    with pair:
        step(check_missing)
        runs, standby = pair.begin()
        if not names or "check_kills" in names:
            runs = step(check_kills, runs, standby)
            standby = None
        for check in (check_standby_lost, check_switchover):
            if not names or check.__name__ in names:
                runs = step(check, runs, standby or pair.another(runs))
                standby = None
        step(check_history, runs)
        step(check_old)
    shutil.rmtree(pair.directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
