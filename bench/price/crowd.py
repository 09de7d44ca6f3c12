# SPDX-License-Identifier: GPL-2.0-or-later
"""
Several VMs at once on this host, protected or not: what each of them still does. `logged` is the primary's cost alone, the
standbys only log, because a real one is another machine; it has no checkpoints of the VM. `checkpointed` has them, and standbys
that log the GPU's commands and load the checkpoints; `protected` has standbys that execute, too. These two have a second QEMU for
each VM on this machine: for one with processors (and a GPU) to spare.

All VMs are started once; of each kind the first 1, 2, 4, 8 have their turn, and run the same program at the same time. The
others are paused.
"""
import ctypes
import statistics
import threading
from pathlib import Path

from price import figures, hosts

COUNTS = (1, 2, 4, 8)
COLUMNS = {"vm": "VM", "logged": "logged", "checkpointed": "checkpointed", "protected": "protected"}  # → its heading
USUAL = ("vm", "logged")
GOAL_VMS, GOAL = 8, 1.10  # each of so many, logged or checkpointed : unprotected
PROGRAM = "gemm"
MEMORY_MIB = 512
SYS_KCMP, KCMP_VM = 312, 1  # x86-64


def program(results):
    return results["settings"].get("crowd_program", PROGRAM)


def share_memory(first, second):
    """Whether they are one address space: QEMU and its memory-keeper are."""
    return ctypes.CDLL(None, use_errno=True).syscall(SYS_KCMP, first, second, KCMP_VM, 0, 0) == 0


def memory_mib(pids):
    """What these processes have for themselves, and their share of what they share. Who has the same memory counts once."""
    total, counted = 0, []
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        if any(share_memory(pid, other) for other in counted):
            continue
        counted.append(pid)
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def together(machines, words, seconds):
    """Each runs the same at the same time. → their runs, or what went wrong with them"""
    runs = [None] * len(machines)

    def one(place):
        try:
            runs[place] = machines[place].run(words, seconds)
        except (hosts.Lost, AssertionError, OSError) as error:
            runs[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(machines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def sample(machines, column, number, work, seconds):
    """One turn of so many VMs of one column. `work`: program, repeats, scale. → what results have of it"""
    entered = []
    out = {"vms": len(machines), "column": column, "round": number, "seconds": [], "error": None}
    try:
        for machine in machines:
            machine.enter()
            entered.append(machine)
        before = [machine.counters() for machine in machines]
        runs = together(machines, ["run", *map(str, work)], seconds)
        after = [machine.counters() for machine in machines]
        wrong = [str(run) if isinstance(run, Exception) else f"status {run.status}: {run.said[-2:]}" for run in runs
                 if isinstance(run, Exception) or run.status != 0 or run.seconds is None]
        if wrong:
            out["error"] = hosts.one_line(wrong[0])
            return out
        out["seconds"] = [round(run.seconds, 6) for run in runs]
        keys = ("cpu-guest", "cpu-device", "cpu-gpu")
        out["processor_seconds"] = round(statistics.mean(
            sum(new[key] - old[key] for key in keys) for old, new in zip(before, after)), 3)
        out["memory_mib"] = round(statistics.mean(
            memory_mib([machine.primary.qemu(), *hosts.processes_below(machine.primary.qemu())]) for machine in machines), 1)
    except (hosts.Lost, AssertionError, OSError) as error:
        out["error"] = hosts.one_line(error)
    finally:
        for machine in entered:
            try:
                machine.leave()
            except (hosts.Lost, AssertionError, OSError) as error:
                out["error"] = out["error"] or hosts.one_line(error)
    return out


def todo(rounds, counts, done, columns=USUAL):
    """(round, count, column) still to run; the columns in turns, the first of them changing."""
    columns = list(columns)
    have = {(one["round"], one["vms"], one["column"]) for one in done}
    return [(number, count, column) for number in range(rounds) for count in counts
            for column in (columns if number % 2 == 0 else columns[::-1]) if (number, count, column) not in have]


def columns_of(samples):
    """Those that were measured, in the order of the table."""
    measured = {one["column"] for one in samples}
    return [column for column in COLUMNS if column in measured]


def seconds_of(samples, count, column):
    """round → what each of so many took (their median)"""
    return {one["round"]: statistics.median(one["seconds"]) for one in samples
            if one["vms"] == count and one["column"] == column and not one["error"]}


def ratio(samples, count, column):
    """column : unprotected, with so many at once"""
    return figures.ratio(seconds_of(samples, count, column), seconds_of(samples, count, "vm"))


def lines(samples):
    """The table: a line for each count, as texts."""
    columns = columns_of(samples)
    names = ["unprotected", *columns[1:]]
    out = [["VMs", *(f"{name} s" for name in names), *(f"{name} : unprotected" for name in names[1:]), "processor s each", "MiB each", ""]]
    for count in sorted({one["vms"] for one in samples}):
        mine, cells = [one for one in samples if one["vms"] == count], []
        for column in columns:
            found = figures.median(list(seconds_of(samples, count, column).values()))
            cells.append("-" if found is None else f"{found.value:.3f} ({found.low:.3f}-{found.high:.3f})")
        for column in columns[1:]:
            found = ratio(samples, count, column)
            cells.append("-" if found is None else f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})")
        for key in ("processor_seconds", "memory_mib"):
            each = [figures.median([one[key] for one in mine if one["column"] == column and not one["error"]])
                    for column in columns]
            cells.append(" / ".join("-" if one is None else f"{one.value:.1f}" for one in each))
        failed = sum(1 for one in mine if one["error"])
        out.append([str(count), *cells, f"{failed} FAILED" if failed else ""])
    return out
