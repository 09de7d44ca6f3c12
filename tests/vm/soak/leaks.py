# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a takeover has left over. look() counts what belongs to a VM's hosts on this machine: processes, their open files by kind,
shared memory, files of the directory. more() says what there is more of than there was. more() is pure.
"""
import os
import re
from collections import Counter
from pathlib import Path

from processes import below, processes

OURS = ("near", "switch")  # sockets of the soak itself: relays, and the peer's
SHARED_MEMORY = Path("/dev/shm")


def kind(target):
    """Of an open file, from its link in /proc/PID/fd: no numbers, so that the same thing has the same name."""
    target = re.sub(r"\d+", "N", target)
    for prefix in ("socket:", "pipe:", "anon_inode:", "/memfd:"):
        if target.startswith(prefix):
            return target.split(" ")[0].replace("[N]", "")
    return "device" if target.startswith("/dev/") else "file"


def owned(directory):
    """The processes that were started for a VM under this directory: pid → Process. They inherit its environment; workers have
    none, and are children of one that has."""
    mark = f"KAGEMUSHA_RUNTIME_DIR={directory}".encode()
    alive = {pid: one for pid, one in processes().items() if one.state not in "ZX"}
    found = set()
    for pid in alive:
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
        except OSError:
            pass  # it has ended
    return {pid: alive[pid] for pid in found | below(alive, found)}


def open_files(pid):
    """How many of each kind a process has."""
    counts = Counter()
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            try:
                counts[kind(os.readlink(each))] += 1
            except OSError:
                pass
    except OSError:
        pass
    return counts


def look(directory, roles):
    """`roles`: name of a role → pid of its supervisor. → what is counted, as {what: number}."""
    counts = Counter()
    mine = owned(directory)
    nobodys = dict(mine)
    for role, pid in roles.items():
        for one in {pid} | below(mine, {pid}):
            if nobodys.pop(one, None) is None:
                continue
            name = mine[one].name
            counts[f"{role}: {name} processes"] += 1
            for what, number in open_files(one).items():
                counts[f"{role}: {name} {what}"] += number
    for one in nobodys.values():
        counts[f"nobody's: {one.name} processes"] += 1
    for entry in SHARED_MEMORY.iterdir():
        if "kagemusha" in entry.name or "vgpu" in entry.name:
            counts["files in /dev/shm"] += 1
    for entry in Path(directory).iterdir():
        if entry.name.startswith(OURS):
            continue
        if entry.suffix in (".json", ".gate", ".control", ".qmp", ".console") or entry.is_socket():
            counts[f"{entry.suffix or 'other'} in the directory"] += 1
    return dict(counts)


def most(looks):
    """Of each thing the most that was seen in any look."""
    counts = Counter()
    for seen in looks:
        counts |= Counter(seen)
    return dict(counts)


def level(counts, process):
    """What these processes have, as if each role had as much as the one that has most: a standby's GPU worker opens its GPU
    when it has something to do."""
    levelled = dict(counts)
    for what, number in counts.items():
        _, colon, thing = what.partition(": ")
        if colon and thing.startswith(process) and not thing.endswith(" processes"):
            for other in ("primary", "standby"):
                if f"{other}: {process} processes" in counts:
                    levelled[f"{other}: {thing}"] = max(levelled.get(f"{other}: {thing}", 0), number)
    return levelled


def more(before, now, allowed=()):
    """What there is more of now than there was. `allowed`: (part of a name, how many more are no leak)."""
    found = []
    for what in sorted(now):
        spare = max((number for part, number in allowed if part in what), default=0)
        if now[what] > before.get(what, 0) + spare:
            found.append(f"{what}: {before.get(what, 0)} before, {now[what]} now")
    return found
