#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The daemon and its etcd on a disk that becomes full, which is a file system of this test's own namespace: what was answered as done is
there afterwards, the rest is refused with a sentence, and when there is room again it goes on. $KAGE_TOOL: the control tool.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon_test import Daemon, wait  # noqa: E402

DISK_MIB = 160  # etcd has 64 MiB of log, and prepares the next ones


def names(daemon):
    status, said = daemon.ask("GET", "/v1/clusters")
    return {one["name"] for one in said["clusters"]} if status == 200 else None


def fill(path):
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            assert "No space left" in str(error), error


def check_full_disk(daemon, disk):
    """its disk is full: what is acknowledged is kept, the rest is refused, and with room again all goes on"""
    assert daemon.ask("POST", "/v1/clusters", {"name": "before"})[0] == 201
    fill(disk / "filled")
    done = {"before"}

    def is_refused():
        name = f"full{len(done)}"
        status, said = daemon.ask("POST", "/v1/clusters", {"name": name})
        if status == 201:
            done.add(name)
            return False
        # Of one that was sent before etcd died nobody knows whether it was done; the next round of this test asks for it again.
        assert status in (409, 503), (status, said)
        assert status == 409 or "nothing can be read or changed now; VMs go on" in said["error"], said
        return status == 503
    wait(is_refused, "a change is refused")
    assert daemon.process.poll() is None
    wait(lambda: "No space left on device" in daemon.said(), "etcd's words are in its log")
    (disk / "filled").unlink()
    wait(lambda: daemon.ask("POST", "/v1/clusters", {"name": "after"})[0] == 201, "with room again it goes on")
    found = names(daemon)
    assert done | {"after"} <= found, (done, found)
    for name in found:
        wait(lambda name=name: daemon.ask("DELETE", f"/v1/clusters/{name}")[0] in (202, 404), f"{name} is deleted")
    wait(lambda: names(daemon) == set() and not list((daemon.directory / "state" / "clusters").iterdir()), "nothing is left")


def main():
    if not shutil.which("etcd"):
        print("skipped: no etcd here (package etcd-server)")
        return 77
    with tempfile.TemporaryDirectory(prefix="kage-f-") as disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}M,mode=700", "none", disk], check=True)
        tempfile.tempdir = disk  # the daemon's files
        try:
            with Daemon() as daemon:
                check_full_disk(daemon, Path(disk))
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    print("ok:", check_full_disk.__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
