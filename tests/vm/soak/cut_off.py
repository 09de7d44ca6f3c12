#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The command of the arbiter `fence` in a soak: kills the supervisors of a VM's other hosts with all that they started, as a power
switch would, and ends when none of it lives.

    cut_off.py DIRECTORY HOST     of the VM; everybody but this host
"""
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import alive, below, processes  # pylint: disable=wrong-import-position


def supervisor(directory, name):
    """The process of this host's supervisor; None: it has ended, and its number may be another's."""
    try:
        pid = int((directory / f"{name}.pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(directory / f"{name}.toml").encode() in words else None


def main(directory, mine):
    found = {supervisor(directory, path.stem) for path in directory.glob("*.pid") if path.stem != mine} - {None}
    found |= below(processes(), found)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # with its parent
    while alive(found):
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
