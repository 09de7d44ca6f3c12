# SPDX-License-Identifier: GPL-2.0-or-later
"""What a figure depends on: the machine and the versions of everything that takes part."""
import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path


def said(*command, first_line=True):
    """What a program prints, or "unknown"."""
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    text = done.stdout.strip()
    if done.returncode != 0 or not text:
        return "unknown"
    return text.splitlines()[0] if first_line else text


def from_file(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return "unknown"
    return found.group(1).strip() if found else "unknown"


def commit(root):
    """Of the clone, or of the one that a bundle was made from; "+" behind it: with changes."""
    if (Path(root) / "COMMIT").exists():
        return from_file(Path(root) / "COMMIT", r"^(\S+)$")
    name = said("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    if name == "unknown":
        return name
    return name + ("+" if said("git", "-C", root, "status", "--porcelain", "--untracked-files=no") != "unknown" else "")


def collect(root, build, suite, assets, guest_kernel):
    """All of it but the accelerator, which a running VM tells, and the load at the end."""
    compiler = from_file(Path(build) / "CMakeCache.txt", r"^CMAKE_CXX_COMPILER:[A-Z]+=(.*)$")
    try:
        device = json.loads(said(suite, "device"))
    except ValueError:
        device = {}
    kib = from_file("/proc/meminfo", r"^MemTotal:\s*(\d+) kB")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(root),
        "cpu": from_file("/proc/cpuinfo", r"^model name\s*:(.*)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(kib) / 2**20, 1) if kib != "unknown" else "unknown",
        "system": from_file("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
        "kernel": platform.release(),
        "guest_kernel": guest_kernel,
        "qemu": said(assets["qemu"], "--version"),
        "compiler": said(compiler, "--version"),
        "accelerator": "unknown",
        "gpu": device.get("device", "unknown"),
        "opencl": f"{device.get('platform', 'unknown')}, driver {device.get('driver', 'unknown')}",
        "load_begin": round(os.getloadavg()[0], 2),
        "load_end": None,
    }
