# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests with real programs share: reading their output."""
import re
import subprocess

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain(text):
    return ESCAPES.sub("", text)


def on_host(command, seconds=600):
    """Output of the same program natively on the host; None when it is not installed here."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=seconds, check=False)
    except FileNotFoundError:
        return None
    return done.stdout


def clinfo_devices(text):
    """`clinfo --raw` → for each device a dict of its CL_DEVICE_… facts."""
    devices = {}
    for line in text.splitlines():
        found = re.match(r"\s*\[([^\]]+)/([^\]]+)\]\s+(CL_DEVICE_\w+)\s*(.*)$", line)
        if found and found.group(2) != "*":
            devices.setdefault((found.group(1), found.group(2)), {})[found.group(3)] = found.group(4).strip()
    return list(devices.values())


def clblast_results(text):
    """Output of a clblast_test_* → for each routine ('SAXPY' …) its counts (passed, skipped, failed), added up."""
    results, routine = {}, None
    for line in plain(text).splitlines():
        start = re.search(r"Starting tests for the '(\w+)' routine", line)
        if start:
            routine = start.group(1)
        elif "All tests skipped" in line:
            results[routine] = "skipped: " + line.split(":", 1)[1].strip()
        else:
            count = re.search(r"^\s+(\d+) test\(s\) (passed|skipped|failed)", line)
            if count:
                results.setdefault(routine, {})[count.group(2)] = int(count.group(1))
    return results


def failed(results):
    return {routine: counts for routine, counts in results.items()
            if isinstance(counts, dict) and counts.get("failed", 0)}
