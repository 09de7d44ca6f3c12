# SPDX-License-Identifier: GPL-2.0-or-later
"""
What every soak does: options of the command line, one VM after the other until there are enough faults, and a line of JSON
for each fault as it happens. Started by root it does that in namespaces of its own, where it may mount file systems, and where
nothing that it started outlives it.
"""
import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from pathlib import Path

from soak import pairs, summary, suspicion
from soak.chain import ARBITERS
from soak.courses import Unprotected


NO_END = 10 ** 9


def parse(doc, kinds, faults, faults_per_vm):
    """The command line. `kinds`: of faults; the rest are defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", "--kills", type=int, dest="faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="no new fault after so many minutes")
    parser.add_argument("--faults-per-vm", "--kills-per-vm", type=int, default=faults_per_vm, dest="faults_per_vm")
    parser.add_argument("--failures", type=int, help="end after so many")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("KAGE_SEED") or random.randrange(1 << 32)))
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(kinds)}")
    parser.add_argument("--programs", type=lambda text: [name for name in text.split(",") if name])
    parser.add_argument("--arbiter", choices=ARBITERS)
    parser.add_argument("--budget-ms", type=int, metavar="MS", help="of heartbeats: who goes on is found out, and not expected")
    parser.add_argument("--gpu-budget-ms", type=int, metavar="MS", help="of the GPU's heartbeats (at least 500 without it)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="of --budget-ms: so many processes compute beside the VM")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--chain", type=int)
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--pairs", type=int, metavar="N", help="so many soaks at once, each with VMs of its own")
    parser.add_argument("--seconds", type=int, default=3600, help="of --pairs: all of it ends within this time")
    parser.add_argument("--directory", type=Path, help="of --pairs: for the summary, the results and the logs of failures")
    parser.add_argument("--end-after", type=float, metavar="SECONDS", help=argparse.SUPPRESS)  # pairs.py says it
    options = parser.parse_args()
    # Of many at once none ends for another one's failure.
    options.faults = options.faults or (NO_END if options.pairs else faults)
    options.failures = options.failures or (NO_END if options.pairs else 1)
    if options.budget_ms:
        kinds = suspicion.WEIGHTS
        if options.budget_ms < 20 or options.arbiter not in (None, "lock"):
            parser.error("--budget-ms: at least 20, and with the arbiter lock, whose lease is as long")
    elif options.busy or options.gpu_budget_ms:
        parser.error("--busy and --gpu-budget-ms need --budget-ms")
    for kind in options.only or ():
        if kind not in kinds:
            parser.error(f"no such fault: {kind}; there are {', '.join(kinds)}")
    if options.pairs and (not options.directory or options.results):
        parser.error("--pairs needs --directory, where its results go")
    if options.results and options.results.exists() and not options.resume:
        parser.error(f"{options.results} is there: name another file, or say --resume")
    return options


class Results:
    """In memory, and in the file."""

    def __init__(self, path, resume):
        self.path = path
        text = path.read_text(encoding="utf-8") if path and resume and path.exists() else ""
        self.all = summary.read(text.splitlines())
        self.end_line = "\n" if text and not text.endswith("\n") else ""  # one that was cut off

    def add(self, what, **more):
        self.all.append({"what": what, "date": time.strftime("%FT%TZ", time.gmtime()), **more})
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(self.end_line + json.dumps(self.all[-1]) + "\n")
                self.end_line = ""

    def faults(self):
        return len(summary.faults_of(self.all))

    def next_chain(self):
        return max((r["chain"] for r in self.all), default=-1) + 1


NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
INSIDE = "KAGE_SOAK_NAMESPACES"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def enter_namespaces():
    """Begins this program again in them. Whoever may not, goes on without."""
    if os.environ.get(INSIDE) == "1":
        subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # a new network's own address is down
            flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0))[:18])[1]
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))
    elif os.geteuid() == 0 and subprocess.run([*NAMESPACES, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                              stderr=subprocess.DEVNULL, check=False).returncode == 0:
        os.environ[INSIDE] = "1"
        os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, "-B", "-u", *sys.argv])


def again(options, number, turn):
    """The command line that draws the same."""
    given = [(name, getattr(options, name)) for name in ("only", "programs", "arbiter") if getattr(options, name) is not None]
    if options.budget_ms:
        given += [("budget-ms", str(options.budget_ms)), ("busy", str(options.busy))]
    if options.gpu_budget_ms:
        given.append(("gpu-budget-ms", str(options.gpu_budget_ms)))
    return " ".join([sys.argv[0], "--seed", str(options.seed), "--chain", str(number), "--faults", str(turn),
                     "--faults-per-vm", str(turn),
                     *(f"--{name} {value if isinstance(value, str) else ','.join(value)}" for name, value in given)])


def live(options, number, results, until, make):
    """One VM. `make`: of which class. → whether all was right."""
    chain = make(options.seed, number, options.only, options.programs, options.arbiter)
    results.add("chain", chain=number, seed=options.seed, programs=["network", *chain.programs], arbiter=chain.arbiter,
                servers=chain.servers, disk=chain.disk)
    print(f"== VM {number} of seed {options.seed}: {', '.join(('network', *chain.programs))}; arbiter {chain.arbiter}"
          f"{', a writable disk' if chain.disk else ''}", flush=True)
    try:
        with chain:
            started = time.monotonic()
            chain.begin()
            print(f"   protected after {time.monotonic() - started:.1f} s", flush=True)
            while chain.turn < options.faults_per_vm and results.faults() < options.faults and time.monotonic() < until:
                started = time.monotonic()
                found = chain.lose()
                results.add("fault", chain=number, **found)
                took = f"the guest runs after {found['takeover_ms']:.0f} ms" if "takeover_ms" in found else "nobody took over"
                course = suspicion.brief(found["losses"]) if "losses" in found else \
                    f"{took}, {found.get('made_twice', 0)} rounds made twice"
                print(f"ok     {results.faults():4} {found['fault']:18} {course} "
                      f"({time.monotonic() - started:.1f} s)", flush=True)
            results.add("end", chain=number, faults=chain.turn, **chain.finish())
        if not os.environ.get("KAGE_KEEP_LOGS"):
            shutil.rmtree(chain.directory, ignore_errors=True)
        return True
    except Unprotected as error:
        results.add("unprotected", chain=number, turn=chain.turn, fault=chain.last_fault, why=str(error))
        print(f"void   the VM was lost while it had no standby: {error}", flush=True)
        return True
    except Exception as error:  # pylint: disable=broad-except
        (chain.directory / "why").write_text(traceback.format_exc(), encoding="utf-8")
        results.add("failure", chain=number, turn=chain.turn, fault=chain.last_fault, why=str(error), logs=str(chain.directory))
        print(f"FAIL   {chain.last_fault}: {error}\n   logs kept: {chain.directory}\n"
              f"   again: {again(options, number, chain.turn)}", flush=True)
        return False


def run(options, make):
    """As the options say, with VMs of class `make`. → the results, and whether all was right"""
    if options.summary:
        lines = [line for path in options.summary for line in path.read_text(encoding="utf-8").splitlines()]
        print(summary.text(summary.read(lines)))
        return summary.read(lines), True
    if options.pairs:
        return [], pairs.run(options, sys.argv[0])
    enter_namespaces()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit(143))  # the VMs end with us
    if options.end_after:
        signal.setitimer(signal.ITIMER_REAL, max(1, options.end_after))
    results = Results(options.results, options.resume)
    until = time.monotonic() + options.minutes * 60
    number = results.next_chain() if options.chain is None else options.chain
    failures = 0
    while results.faults() < options.faults and time.monotonic() < until and failures < options.failures:
        failures += not live(options, number, results, until, make)
        number += 1
    print(summary.text(results.all), flush=True)
    return results.all, failures == 0
