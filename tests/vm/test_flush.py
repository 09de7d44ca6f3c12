#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a program was told of a part of a flush stays true when its host dies in the middle of that flush: guest/flush_job.cpp, twice
in one protected VM, whose primary is killed again and again. The programs check every word that they were told; the peer outside
counts the same again from what they tell it (soak/ledger.py), and everything else that a soak checks is checked, too.

    tests/vm/test_flush.py [--kills 5] [--minutes M] [--kills-per-vm 50] [--failures 1] [--seed N] [--results FILE [--resume]]
                           [--chain N] [--only KIND,…]

The options are those of test_soak.py, and `--programs` and `--arbiter` are not drawn.
"""
import re
import sys
from pathlib import Path

from soak import run, summary
from soak.chain import Chain
from soak.ledger import COUNT

KILLS = ("kill-qemu", "kill-supervisor", "kill-both")


class Flushes(Chain):
    """A VM whose programs are in a flush most of the time."""

    def __init__(self, seed, number, only=None, *_):
        super().__init__(seed, number, only or KILLS, ("flush", "flush"), "lock", disk=False)
        self.in_flush = 0
        self.cpus = 2  # each program has one

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
    results, right = run.run(run.parse(__doc__, KILLS, faults=5, faults_per_vm=50), Flushes)
    print(text(results), flush=True)
    return not right


if __name__ == "__main__":
    sys.exit(main())
