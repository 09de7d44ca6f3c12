# SPDX-License-Identifier: GPL-2.0-or-later
"""
What every soak does: options of the command line, one VM after the other until there are enough faults, and a line of JSON
for each fault as it happens.
"""
import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from soak import summary
from soak.chain import ARBITERS, Unprotected


def parse(doc, kinds, faults, faults_per_vm):
    """The command line. `kinds`: of faults; the rest are defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", "--kills", type=int, default=faults, dest="faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="no new fault after so many minutes")
    parser.add_argument("--faults-per-vm", "--kills-per-vm", type=int, default=faults_per_vm, dest="faults_per_vm")
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("KAGE_SEED") or random.randrange(1 << 32)))
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(kinds)}")
    parser.add_argument("--programs", type=lambda text: [name for name in text.split(",") if name])
    parser.add_argument("--arbiter", choices=ARBITERS)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--chain", type=int)
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    for kind in options.only or ():
        if kind not in kinds:
            parser.error(f"no such fault: {kind}; there are {', '.join(kinds)}")
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


def live(options, number, results, until, make):
    """One VM. `make`: of which class. → whether all was right."""
    chain = make(options.seed, number, options.only, options.programs, options.arbiter)
    results.add("chain", chain=number, seed=options.seed, programs=["network", *chain.programs], arbiter=chain.arbiter,
                disk=chain.disk)
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
                print(f"ok     {results.faults():4} {found['fault']:18} {took}, {found.get('made_twice', 0)} rounds made twice "
                      f"({time.monotonic() - started:.1f} s)", flush=True)
            results.add("end", chain=number, faults=chain.turn, **chain.finish())
        if not os.environ.get("KAGE_KEEP_LOGS"):
            shutil.rmtree(chain.directory, ignore_errors=True)
        return True
    except Unprotected as error:
        results.add("unprotected", chain=number, turn=chain.turn, fault=chain.fault, why=str(error))
        print(f"void   the VM was lost while it had no standby: {error}", flush=True)
        return True
    except Exception as error:  # pylint: disable=broad-except
        (chain.directory / "why").write_text(traceback.format_exc(), encoding="utf-8")
        results.add("failure", chain=number, turn=chain.turn, fault=chain.fault, why=str(error), logs=str(chain.directory))
        print(f"FAIL   {chain.fault}: {error}\n   logs kept: {chain.directory}\n"
              f"   again: {sys.argv[0]} --seed {options.seed} --chain {number} --faults {chain.turn}", flush=True)
        return False


def run(options, make):
    """As the options say, with VMs of class `make`. → the results, and whether all was right"""
    if options.summary:
        lines = [line for path in options.summary for line in path.read_text(encoding="utf-8").splitlines()]
        print(summary.text(summary.read(lines)))
        return summary.read(lines), True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the VMs end with us
    results = Results(options.results, options.resume)
    until = time.monotonic() + options.minutes * 60
    number = results.next_chain() if options.chain is None else options.chain
    failures = 0
    while results.faults() < options.faults and time.monotonic() < until and failures < options.failures:
        failures += not live(options, number, results, until, make)
        number += 1
    print(summary.text(results.all), flush=True)
    return results.all, failures == 0
