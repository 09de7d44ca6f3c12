# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a process of this machine has in memory, as the kernel says it: files of memory (RAM of guests, windows, arenas) by name,
and what is its own.
"""
import os
from pathlib import Path

MIB = 1 << 20


def own_bytes(pid):
    """Memory of no file: heaps, stacks, what was allocated."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no smaps_rollup")


def memory_files(pid):
    """Name of a memfd that the process holds → (bytes that are allocated, its size)"""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            path = os.readlink(entry)
            about = os.stat(entry)
        except OSError:
            continue  # closed meanwhile
        if path.startswith("/memfd:"):
            found[path[len("/memfd:"):].split()[0]] = (about.st_blocks * 512, about.st_size)
    return found


def guest_ram(pid):
    """→ (bytes that are allocated, its size) of the RAM of a QEMU's guest"""
    return memory_files(pid)["memory-backend-memfd"]
