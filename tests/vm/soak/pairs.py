# SPDX-License-Identifier: GPL-2.0-or-later
"""
Many soaks at once on one machine, each a process with its own VMs, random numbers and judge, and, as root, its own process,
mount and network namespaces: it sees nobody else's processes, ports and shared memory. All of them end within a time limit.
DIRECTORY then has

  summary.md         what was done, as tables; written anew every 30 s
  results.jsonl      the lines of all (summary.py)
  log                what all of them printed
  failures.tar.xz    the kept directories of VMs that failed, without images; only if there are any

The time limit has two parts. Before the end no new fault is begun, so that those under way come to theirs. Whoever is still
at work then, is ended: what it was at counts neither as survived nor as failed, and is named in the summary.
"""
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from soak import summary

NUMBERS_EACH = 1000  # VMs of one soak: its first VM has the number of the soak times this
GRACE_SECONDS = 60  # for faults that are under way, and for the programs of the VMs to end
LAST_SECONDS = 10  # of these, for the summary
FILE_BYTES = 4 << 20  # of a log that is kept; the end of a longer one
KEPT_BYTES = 80 << 20  # of all logs, before they are compressed


def words(options, script, pair, directory, seconds):
    """The command line of one of them."""
    found = [sys.executable, "-B", "-u", script, "--seed", str(options.seed), "--chain", str(pair * NUMBERS_EACH),
             "--results", str(directory / "results.jsonl"), "--faults", str(options.faults),
             "--faults-per-vm", str(options.faults_per_vm), "--failures", str(options.failures),
             "--minutes", str(max(0, seconds - GRACE_SECONDS) / 60), "--end-after", str(seconds - LAST_SECONDS)]
    for name in ("only", "programs"):
        if getattr(options, name) is not None:
            found += [f"--{name}", ",".join(getattr(options, name))]
    if options.arbiter:
        found += ["--arbiter", options.arbiter]
    if options.budget_ms:
        found += ["--budget-ms", str(options.budget_ms), "--busy", str(options.busy)]
    if options.gpu_budget_ms:
        found += ["--gpu-budget-ms", str(options.gpu_budget_ms)]
    return found


def run(options, script):
    """→ whether all was right"""
    began = time.monotonic()
    out = options.directory
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="kagemusha-soaks-"))
    print(f"{options.pairs} soaks of seed {options.seed} at once for {options.seconds} s", flush=True)
    running = []
    for pair in range(options.pairs):
        directory = work / str(pair)
        directory.mkdir()
        with open(directory / "log", "wb") as log:
            running.append(subprocess.Popen(
                words(options, script, pair, directory, options.seconds - (time.monotonic() - began)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ, TMPDIR=str(directory))))
    told = 0
    while any(one.poll() is None for one in running) and time.monotonic() - began < options.seconds:
        time.sleep(0.5)
        if time.monotonic() - began > told + 30:
            told = time.monotonic() - began
            found = write(options, work, told)
            print(f"{told:5.0f} s: {len(summary.faults_of(found))} faults survived, "
                  f"{sum(one['what'] == 'failure' for one in found)} failures; load {os.getloadavg()[0]:.0f}", flush=True)
    for one in running:
        one.kill()  # what a soak has started, ends with it
        one.wait()
    # One that could not even begin has said why, and has no line in the results.
    broken = [number for number, one in enumerate(running)
              if one.returncode not in (0, -9, 137, 143) and not failed(work / str(number))]
    found = write(options, work, time.monotonic() - began, {"soaks that broke off (log)": len(broken)})
    (out / "log").write_text(logs(work), encoding="utf-8")
    print((out / "summary.md").read_text(encoding="utf-8"), flush=True)
    failures = [one for one in found if one["what"] == "failure"]
    if failures:
        keep([Path(one["logs"]) for one in failures], out / "failures.tar.xz")
    shutil.rmtree(work, ignore_errors=True)
    return not failures and not broken and bool(summary.faults_of(found))


def failed(directory):
    path = directory / "results.jsonl"
    return path.exists() and any(one["what"] == "failure" for one in summary.read(path.read_text(encoding="utf-8").splitlines()))


def write(options, work, seconds, more=()):
    """What is known up to now, also for whoever is ended before his time. → the results"""
    lines = [line for path in sorted(work.glob("*/results.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    found = summary.read(lines)
    text = summary.tables(found, {"seed": options.seed, "at once": options.pairs, "seconds": f"{seconds:.0f}",
                                  **dict(more)})
    (options.directory / "results.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (options.directory / "summary.md").write_text(text + "\n", encoding="utf-8")
    return found


def logs(work):
    parts = []
    for directory in sorted(work.iterdir(), key=lambda path: int(path.name)):
        with open(directory / "log", encoding="utf-8", errors="replace") as log:
            parts.append(f"==== soak {directory.name}\n{log.read(FILE_BYTES)}")
    return "\n".join(parts)


def keep(directories, path):
    """What tells of a failure, in one file. Sizes are bounded: a machine may not take large files back."""
    left = KEPT_BYTES
    with tarfile.open(path, "w:xz", preset=1) as archive:
        for directory in directories:
            for one in sorted(directory.rglob("*")):
                if not one.is_file() or one.is_symlink() or one.suffix == ".img" or "etcd-" in str(one.relative_to(directory)):
                    continue
                if one.stat().st_size > FILE_BYTES:
                    text = one.read_bytes()[-FILE_BYTES:]
                    one = one.with_name(one.name + ".end")
                    one.write_bytes(text)
                left -= one.stat().st_size
                if left < 0:
                    return
                archive.add(one, arcname=f"{directory.parent.name}/{directory.name}/{one.relative_to(directory)}")
