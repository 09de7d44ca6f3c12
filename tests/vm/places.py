# SPDX-License-Identifier: GPL-2.0-or-later
"""
Directories with logs, of what fixtures have made: kept when a check fails, and shown then (conftest.py).
"""
import os
import shutil
from pathlib import Path

known = {}  # directory → Place: of what is there just now
LINES, SHOWN_BYTES = 25, 1 << 16
LOGS = ("console", "log", "*.log", "*.d/console.log", "*.d/qemu.log")


class Place:
    """`thing` was made by the fixture `name` of the module `path`; its logs are in `directory`."""

    def __init__(self, directory, thing=None, name=None, path=None):
        self.directory, self.thing, self.name, self.path, self.failed = Path(directory), thing, name, path, False
        known[self.directory] = self

    def ends_of_logs(self):
        files = sorted({file for pattern in LOGS for file in self.directory.glob(pattern) if file.is_file()})
        return "\n".join(f"{file.relative_to(self.directory)} ends with\n" + end(file) for file in files if file.stat().st_size)

    def leave(self):
        """Nobody uses it any more."""
        known.pop(self.directory, None)
        if not self.failed and not os.environ.get("KAGE_KEEP_LOGS"):
            shutil.rmtree(self.directory, ignore_errors=True)


def end(file):
    with open(file, "rb") as log:
        log.seek(max(0, file.stat().st_size - SHOWN_BYTES))
        lines = log.read().decode("utf-8", "replace").splitlines()
    return "\n".join("    | " + line for line in lines[-LINES:])
