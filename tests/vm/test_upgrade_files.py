# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: as test_supervisors.py, but each host has an installation and a state of its own, and the guest is ours
(`[boot] guest`), so each release brings other files for it. The second release here is the first one with other bytes
in kernel, initramfs, root image and payload; it takes the place of the first as a package manager does it: a new file
of the same name. What differs between two builds is vm_upgrade's matter.

A guest goes on with the files of its start: a standby of the next release stands by with those that its host has kept.
"""
import json
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

from fixtures import own
from guest_vm import environment
from ha_pair import Hosts, wait

# Counts, and reads all of the payload and a part of the root image anew: both must be what they were at the start.
JOB = """#!/bin/bash
read_all() { find /payload -type f -exec cat {} + | cksum; head -c 2M /usr/bin/bash | cksum; }
at_start=$(read_all)
n=0
while true; do
    n=$((n + 1))
    if [ $((n % 10)) = 0 ]; then
        echo 3 >/proc/sys/vm/drop_caches
        [ "$(read_all)" = "$at_start" ] || echo "BAD: other files after $n"
    fi
    echo "counted $n"
    /payload/system/busybox sleep 0.1
done
"""

DESCRIPTION = """
name = "web"
memory = "256M"
cpus = 1
accel = "tcg"
[boot]
guest = "{guest}"
job = "job.sh"
[protection]
standby = "unix:standby"
epoch-ms = 100
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
"""


class TwoHosts(Hosts):
    """Supervisors whose name begins with a host's run there."""

    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-upgrade-"))
        super().__init__(directory, dict(environment(backend="none"), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        self.parts = json.loads(Path(self.environment["KAGE_ASSETS"]).read_text(encoding="utf-8"))
        (directory / "job.sh").write_text(JOB, encoding="utf-8")
        self.description.write_text(DESCRIPTION.format(guest=self.parts["flavour"]), encoding="utf-8")

    def variables(self, name):
        host = self.directory / name.split("-")[0]
        return dict(self.environment, KAGE_ASSETS=str(host / "assets.json"), KAGEMUSHA_STATE_DIR=str(host / "state"))

    def install(self, host, release):
        """Release 1 or 2."""
        folder = self.directory / host
        folder.mkdir(exist_ok=True)
        parts = dict(self.parts)
        files = {what: Path(parts[what]) for what in ("kernel", "initramfs", "root_image")}
        files["busybox"] = files["initramfs"].parent / "busybox"  # for the payload
        for what, source in files.items():
            shutil.copy(source, folder / "new")
            with open(folder / "new", "r+b") as file:
                if what == "busybox":  # the guest reads it again and again: its first block differs, in ELF's padding
                    file.seek(12)
                    file.write(bytes([release]))
                else:
                    file.seek(0, os.SEEK_END)
                    file.write(bytes(4096 * (release - 1)))
            os.replace(folder / "new", folder / what)
            parts[what] = str(folder / what)
        (folder / "assets.json").write_text(json.dumps(parts), encoding="utf-8")


pair = own(TwoHosts)


def counts(host):
    text = host.console().read_bytes() if host.console().exists() else b""
    assert b"BAD" not in text, text[-400:]
    return [int(n) for n in re.findall(rb"counted (\d+)\r?\n", text)]


def counts_on(host, beyond=0):
    """Until it has read its files anew."""
    wait(lambda: counts(host) and counts(host)[-1] >= max(beyond, counts(host)[0]) + 25, f"{host.name} counts on; {host.said()}")


def goes_on(before, after, committed=None):
    """`after` has the guest that `before` had: no number is missing."""
    last = counts(before)[-1]
    counts_on(after, last)
    numbers = counts(after)
    assert (last if committed is None else committed) <= numbers[0] <= last + 1, (committed, last, numbers[:3])
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def runs(host):
    host.wait("it runs the VM", lambda s: s["role"] == "primary")


def standby_of(pair, primary, name):
    address = f"unix:{pair.directory}/{name}"
    standby = pair.start("standby", name, "--listen", address)
    standby.wait_state("listening")
    primary.tell("protect", address)
    return standby


def protects(primary, standby, files):
    standby.wait_state("synced")
    primary.wait_state("protecting")
    assert standby.status()["guest_files"] == files, standby.said()


def joins_new_host(pair, primary):
    """A host that never had the guest's files is told so; with a copy of those of another host it stands by."""
    pair.install("hostc", 2)
    stranger = standby_of(pair, primary, "hostc-first")
    stranger.wait("it says what to do", lambda s: "copy what the primary's host has kept" in s["waiting_for"])
    assert not primary.status()["protected"]
    stranger.tell("stop")
    wait(lambda: stranger.process.poll() is not None, "the standby ends")
    shutil.copytree(pair.directory / "hosta" / "state" / "kept", pair.directory / "hostc" / "state" / "kept", dirs_exist_ok=True)
    protects(primary, standby_of(pair, primary, "hostc-second"), "kept")
    counts_on(primary, counts(primary)[-1])
    primary.tell("stop")
    assert primary.process.wait(120) == 0, primary.said()


def check_upgrade(pair):
    """upgrade: both hosts, one after the other, and the guest runs on with its files; protected after each"""
    pair.install("hosta", 1)
    pair.install("hostb", 1)
    standby = pair.start("standby", "hostb-before")
    first = pair.start("run", "hosta-before")
    protects(first, standby, "release")
    counts_on(first)
    standby.tell("stop")
    wait(lambda: standby.process.poll() is not None, "the standby ends")

    pair.install("hostb", 2)
    second = standby_of(pair, first, "hostb-after")
    protects(first, second, "kept")
    first.tell("switchover")
    runs(second)
    assert first.process.wait(60) == 0, first.said()
    goes_on(first, second)

    pair.install("hosta", 2)
    third = standby_of(pair, second, "hosta-after")
    protects(second, third, "kept")
    committed = counts(second)[-1]
    second.wait_commit()
    os.kill(second.qemu(), signal.SIGKILL)
    runs(third)
    goes_on(second, third, committed)

    joins_new_host(pair, third)


def check_new_start(pair):
    """stopped and started: the guest gets the release that both hosts have, and what is not wanted any more goes"""
    pair.install("hosta", 1)
    pair.install("hostb", 1)
    standby = pair.start("standby", "hostb-one")
    primary = pair.start("run", "hosta-one")
    protects(primary, standby, "release")
    for one in (standby, primary):
        one.tell("stop")
        wait(lambda one=one: one.process.poll() is not None, f"{one.name} ends")
    for host in ("hosta", "hostb"):
        pair.install(host, 2)
    standby = pair.start("standby", "hostb-one")
    primary = pair.start("run", "hosta-one")
    protects(primary, standby, "release")
    for name in ("hosta", "hostb"):
        folder = pair.directory / name / "state" / "kept" / "web" / f"{name}-one"
        wait(lambda folder=folder: len(list(folder.iterdir())) == 4, f"{folder} has one release's files")
