# SPDX-License-Identifier: GPL-2.0-or-later
"""
The processes of this machine, as far as every user may see them. By name: what its sandbox leaves of a GPU worker in /proc
belongs to root.
"""
import os
import signal
import time
from collections import namedtuple
from pathlib import Path

WORKER = "kagemusha-worke"  # as much of it as the kernel keeps

Process = namedtuple("Process", "name state parent ticks")  # ticks: of processor time


def processes():
    """Process id -> Process"""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                head, _, tail = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            fields = tail.split()
            found[int(entry)] = Process(head.partition("(")[2], fields[0], int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def below(everybody, roots):
    """Those that came from these, without them. `everybody`: of processes()"""
    found, new = set(), set(roots)
    while new:
        new = {pid for pid, one in everybody.items() if one.parent in new} - found
        found |= new
    return found - set(roots)


def alive(pids):
    return {pid for pid, one in processes().items() if pid in pids and one.state not in "ZX"}


def freeze(pid, seconds=5):
    """SIGSTOP, and until none of its threads runs: on a busy machine they go on for some ms. A thread that the kernel holds
    never stops, so nobody waits for ever."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}"):
        try:
            states = [(entry / "stat").read_text().rpartition(")")[2].split()[0] for entry in Path(f"/proc/{pid}/task").iterdir()]
            if all(state in "TtZX" for state in states):
                return
        except OSError:
            pass  # a thread has just ended
        time.sleep(0.001)


def wait_ended(pid):
    """Until its end has been told; looks often, because others hear of it at the same moment."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.001)
