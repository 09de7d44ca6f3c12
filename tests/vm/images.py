# SPDX-License-Identifier: GPL-2.0-or-later
"""
Disk images in other formats than raw: made and read by the QEMU under test itself, which is asked through QMP.
"""
import json
import os
import subprocess
from pathlib import Path

from guest_vm import environment


class ImageQemu:
    """A QEMU without a VM. Use as a context manager."""

    def __init__(self):
        self.environment = environment(backend="none")
        assets = json.loads(Path(self.environment["KAGE_ASSETS"]).read_text(encoding="utf-8"))
        self.process = subprocess.Popen(
            [assets["qemu"], "-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=self.environment)
        self.process.stdout.readline()  # greeting
        self.tell("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.tell("quit")  # writes what it still has of the images
        else:
            self.process.kill()
        self.process.communicate()

    def message(self):
        line = self.process.stdout.readline()
        assert line, f"QEMU has ended with {self.process.wait()}"
        return json.loads(line)

    def wait_job(self, name):
        """Until the job has ended; its error is one of ours."""
        while True:
            found = self.message()
            if found.get("event") == "JOB_STATUS_CHANGE" and found["data"] == {"id": name, "status": "concluded"}:
                break
        job, = (one for one in self.tell("query-jobs") if one["id"] == name)
        assert "error" not in job, f"{name}: {job['error']}"
        self.tell("job-dismiss", id=name)

    def tell(self, command, **arguments):
        self.process.stdin.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        while True:
            answer = self.message()
            assert "error" not in answer, f"{command}: {answer['error']['desc']}"
            if "return" in answer:
                return answer["return"]

    def open(self, node, path, image_format, **more):
        self.tell("blockdev-add", **{"node-name": node, "driver": image_format, **more,
                                     "file": {"driver": "file", "filename": str(path)}})

    def make(self, path, image_format, size_bytes):
        """An empty image."""
        Path(path).touch()
        self.tell("blockdev-add", **{"node-name": "new", "driver": "file", "filename": str(path)})
        self.tell("blockdev-create", **{"job-id": "make", "options": {"driver": image_format, "file": "new", "size": size_bytes}})
        self.wait_job("make")
        self.tell("blockdev-del", **{"node-name": "new"})

    def copy(self, source, target):
        """Everything of one open image into another."""
        self.tell("blockdev-backup", **{"job-id": "copy", "device": source, "target": target, "sync": "full",
                                        "auto-dismiss": False})
        self.wait_job("copy")


def to_qcow2(raw, path):
    with ImageQemu() as qemu:
        qemu.make(path, "qcow2", os.stat(raw).st_size)
        qemu.open("from", raw, "raw", **{"read-only": True})
        qemu.open("to", path, "qcow2")
        qemu.copy("from", "to")


def to_raw(qcow2, path, size_bytes):
    """Also of an image that a VM has open: what its QEMU has written so far."""
    Path(path).write_bytes(b"")
    os.truncate(path, size_bytes)
    with ImageQemu() as qemu:
        qemu.open("from", qcow2, "qcow2", **{"read-only": True, "force-share": True})
        qemu.open("to", path, "raw")
        qemu.copy("from", "to")
