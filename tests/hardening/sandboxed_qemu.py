#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What QEMU's sandbox denies, asked of QEMU itself: to start a program.

    sandboxed_qemu.py SCRIPT

SCRIPT: its last line of output is the path of QEMU's binary. QEMU is asked for a network card for which it has to start a
helper. Without the sandbox it does, so the question is a right one.
"""
import json
import pathlib
import select
import subprocess
import sys
import tempfile

RULES = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"  # as control/qemu/qemu_command.cpp has it


def tell(qemu, command, **arguments):
    qemu.stdin.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    qemu.stdin.flush()


def answer(qemu, command, **arguments):
    tell(qemu, command, **arguments)
    for line in qemu.stdout:
        said = json.loads(line)
        if "return" in said or "error" in said:
            return said
    raise AssertionError(f"QEMU ended with {qemu.wait()}: {qemu.stderr.read()}")


def filters(pid):
    """The mode of each thread's filters (proc(5), Seccomp)"""
    return {line.split()[1] for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for line in (task / "status").read_text().splitlines() if line.startswith("Seccomp:")}


def helper_runs(binary, *more):
    """Whether QEMU starts a helper, and the modes of its threads' filters"""
    with tempfile.TemporaryDirectory() as directory:
        seen = pathlib.Path(directory, "seen")
        helper = pathlib.Path(directory, "helper")
        helper.write_text(f"#!/bin/sh\n: >{seen}\n")
        helper.chmod(0o755)
        with subprocess.Popen([binary, "-machine", "none", "-nodefaults", "-display", "none", "-qmp", "stdio", *more],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as qemu:
            try:
                answer(qemu, "qmp_capabilities")
                modes = filters(qemu.pid)
                tell(qemu, "netdev_add", type="bridge", id="card", br="none", helper=str(helper))
                # QEMU waits for a card of the helper's; one that can't start it says so.
                while not seen.exists() and not select.select([qemu.stdout], [], [], 0.01)[0]:
                    pass
            finally:
                qemu.kill()
        return seen.exists(), modes


def main():
    printed = subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE, text=True).stdout
    binary = printed.splitlines()[-1]
    assert helper_runs(binary) == (True, {"0"}), "without the sandbox it can be started"
    assert helper_runs(binary, "-sandbox", RULES) == (False, {"2"}), "with the sandbox it can't"


if __name__ == "__main__":
    main()
