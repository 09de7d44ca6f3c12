#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a program was told of a part of a flush stays true when its host dies in the middle of that flush: guest/flush_job.cpp, twice
in one protected VM, whose primary is killed again and again. The programs check every word that they were told; the peer outside
counts the same again from what they tell it (soak/ledger.py), and everything else that a soak checks is checked, too.

    tests/vm/test_flush.py [--kills 5] [--minutes M] [--kills-per-vm 50] [--failures 1] [--seed N] [--results FILE [--resume]]
                           [--chain N] [--only KIND,…]

The options are those of test_soak.py, which also reads the results (`--summary FILE`).
"""
import argparse
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

from soak import summary
from soak.chain import Chain
from soak.ledger import COUNT
from test_soak import Results, live

KILLS = ("kill-qemu", "kill-supervisor", "kill-both")


class Flushes(Chain):
    """A VM whose programs are in a flush most of the time."""

    def __init__(self, seed, number, only=None, *_):
        super().__init__(seed, number, only or KILLS, ("flush", "flush"), "lock")
        self.in_flush = 0

    def draw(self):
        super().draw()
        self.rest = self.random.uniform(0, 0.7)  # about two flushes

    def hit(self):
        # An odd number: the peer was told of the first part of a flush, and not of the rest.
        self.in_flush = sum(said % 2 for said in self.peer.rounds())
        return super().hit()

    def lose(self):
        return {**super().lose(), "in_flush": self.in_flush}

    def finish(self):
        found = super().finish()
        return {**found, "rounds": {f"flush {stream}": said for stream, said in enumerate(self.peer.rounds(), 1)}}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, dest="faults")
    parser.add_argument("--minutes", type=float, default=1e9, help="no new kill after so many minutes")
    parser.add_argument("--kills-per-vm", type=int, default=50, dest="faults_per_vm")
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("KAGE_SEED") or random.randrange(1 << 32)))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--chain", type=int)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(KILLS)}")
    options = parser.parse_args()
    if set(options.only or ()) - set(KILLS):
        parser.error(f"kills are {', '.join(KILLS)}")
    if options.results and options.results.exists() and not options.resume:
        parser.error(f"{options.results} is there: name another file, or say --resume")
    options.programs = options.arbiter = None
    return options


def wrong_words(failure):
    """What the programs of a VM that failed have found, as they say it on the console of any of its hosts."""
    said = set()
    for console in Path(failure["logs"]).glob("*.d/console.log"):
        said.update(re.findall(r"(WRONG \d+ of .*)", console.read_text(encoding="utf-8", errors="replace")))
    return sum(int(line.split()[1]) for line in said)


def text(results):
    kills, failures = summary.faults_of(results), [r for r in results if r["what"] == "failure"]
    rounds = sum(sum(r["rounds"].values()) for r in results if r["what"] == "end")
    return (f"{len(kills)} kills survived; at {sum(k['in_flush'] > 0 for k in kills)} of them the peer had been told of a part of a "
            f"flush; {rounds * COUNT['flush']} words told, {sum(map(wrong_words, failures))} wrong words, {len(failures)} failures")


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the VMs end with us
    results = Results(options.results, options.resume)
    until = time.monotonic() + options.minutes * 60
    number = results.next_chain() if options.chain is None else options.chain
    failures = 0
    while results.faults() < options.faults and time.monotonic() < until and failures < options.failures:
        failures += not live(options, number, results, until, Flushes)
        number += 1
    print(summary.text(results.all), flush=True)
    print(text(results.all), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
