# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a program in the guest (guest/soak_job.cpp) has told the peer, and whether it can be true. Pure.

Each statement says: round `number` took `input` and changed what is on the GPU from `before` to `after`. The ledger counts
that again, and demands one history: numbers only grow, each round goes on from the one before, and what was said twice is
the same. A command of the GPU that was lost, done twice or done in a round that was set back breaks one of these.

Packets may get lost, so there are gaps at first. missing() says what the program is to be asked for again; whole() is whether
every round from the first to the last is known and fits.
"""
import struct

FACTOR, MASK = 1664525, 0xffffffff
PORT = 7800  # plus the stream's number
SIZE = 40


def power_and_sum(times):
    """x → power·x + sum·add is `times` times x → FACTOR·x + add."""
    power, total = 1, 0
    for _ in range(times):
        power, total = power * FACTOR & MASK, (total * FACTOR + 1) & MASK
    return power, total


POWER, SUM = power_and_sum(4096)


def compute(first, last, value):
    return ((first * POWER + value * SUM) & MASK, (last * POWER + value * SUM) & MASK)


def transfers(first, last, value):
    return ((first * FACTOR + value) & MASK, (last * FACTOR + value + COUNT["transfers"] - 1) & MASK)


def commands(first, last, value):
    for i in range(64):
        first, last = (first * FACTOR + value + i) & MASK, (last * FACTOR + value + i) & MASK
    return first, last


def flush(first, last, value):
    return (first * FACTOR + value) & MASK, (last * FACTOR + value + COUNT["flush"] - 1) & MASK


def mapped(first, last, value):
    return (first * FACTOR + value) & MASK, (last * FACTOR + (value >> 32)) & MASK


# How many numbers a program has on the GPU; at first each is its index. A statement has the first and the last one.
COUNT = {"compute": 256, "transfers": 128 * 1024, "commands": 64, "mapped": 16 * 1024, "flush": 16 * 1024}
PROGRAMS = {"compute": compute, "transfers": transfers, "commands": commands, "mapped": mapped, "flush": flush}


def begins_with(program):
    return COUNT[program] - 1


def after(program, before, value):
    first, last = PROGRAMS[program](before >> 32, before & MASK, value)
    return first << 32 | last


class Ledger:
    """Of one program."""

    def __init__(self, program):
        self.program = program
        self.known = {}  # number → (before, after, input)
        self.last = 0  # the highest number that was said
        self.checked = 0  # all up to here are known and go on from each other
        self.faults = []

    def hear(self, payload, host):
        """A packet of the program; `host`: who sent it."""
        if len(payload) < SIZE or payload[:8] not in (b"SOAKED01", b"AGAIN_01"):
            return
        number, *said = struct.unpack("<QQQQ", payload[8:SIZE])
        said, again = tuple(said), payload[:8] == b"AGAIN_01"
        name = f"{self.program}: round {number}"
        if number in self.known and self.known[number] != said:
            self.faults.append(f"{name} was {self.show(self.known[number])}, and is {self.show(said)} from {host}")
        elif not again and number <= self.last:
            self.faults.append(f"{name} was said by {host} after round {self.last}")
        elif again and number > self.last:
            self.faults.append(f"{name} was said again by {host}, and was never said")
        elif self.after(said[0], said[2]) not in (said[1], None):
            self.faults.append(f"{name} is wrong: {self.show(said)} from {host}")
        self.known.setdefault(number, said)
        self.last = max(self.last, number)
        self.follow()

    def follow(self):
        while self.checked + 1 in self.known:
            expected = self.known[self.checked][1] if self.checked else self.begin()
            self.checked += 1
            before = self.known[self.checked][0]
            if before != expected:
                self.faults.append(f"{self.program}: round {self.checked} goes on from {before:016x}, "
                                   f"and the one before ended with {expected:016x}")
            self.known.pop(self.checked - KEPT, None)

    def begin(self):
        return begins_with(self.program)

    def after(self, before, value):
        """None: nobody can count it again."""
        return after(self.program, before, value)

    @staticmethod
    def show(said):
        return f"{said[0]:016x} -> {said[1]:016x} with {said[2]:016x}"

    def missing(self, most=16):
        """The first rounds of which nothing is known."""
        return [n for n in range(self.checked + 1, self.last) if n not in self.known][:most]

    def whole(self):
        return self.checked == self.last


KEPT = 1 << 14  # as many as the program can be asked for
