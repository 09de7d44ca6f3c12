# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of this folder's programs share. $KAGE_TOOL: the control tool."""
import os
import socket
import time

TOOL = os.environ["KAGE_TOOL"]
SECONDS = 120  # nothing is timed here; what hangs is found


def wait(condition, what):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {SECONDS} s")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
