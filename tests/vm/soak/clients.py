# SPDX-License-Identifier: GPL-2.0-or-later
"""
Clients of the registers that a guest keeps on its GPU (guest/register_job.cpp), and their history. Pure: time and random
numbers are arguments; peer.py carries packets.

Each client has one operation under way. It sends it again until it is answered; the guest answers each operation once and
repeats that answer. So every operation ends, and each return is held against the register's whole history
(linearizable.py). A result that was told and taken back, an operation that was lost or done twice, a read of memory as it
was before: none of them can be explained by any order of the operations.
"""
import struct

from soak.linearizable import CAS, READ, WRITE, Register

CLIENTS, KEYS, VALUES = 6, 3, 5  # few values, so that an exchange often meets the one that it expects
RETRY_NS = 100_000_000
REQUEST, ANSWER = b"REGISTR1", b"REGANSW1"


class Clients:
    """What soak/ledger.py's Ledger is to the other programs: hears the guest, and says what is wrong."""

    def __init__(self, draw):
        self.draw = draw
        self.registers = [Register() for _ in range(KEYS)]
        self.numbers = [0] * CLIENTS  # of the last operation of each
        self.waiting = [None] * CLIENTS  # (key, request as bytes) of the one under way
        self.sent_ns = [0] * CLIENTS
        self.last = 0  # operations that have returned
        self.faults = []

    @property
    def checked(self):
        return self.last

    def whole(self):
        return True

    def missing(self, _most=0):
        return []

    def due(self, now_ns):
        """What is to be sent now: new operations of clients that have none, and what was not answered for long."""
        payloads = []
        for client in range(CLIENTS):
            if self.waiting[client] is None:
                self.begin(client)
            elif now_ns < self.sent_ns[client] + RETRY_NS:
                continue
            self.sent_ns[client] = now_ns
            payloads.append(self.waiting[client][1])
        return payloads

    def begin(self, client):
        self.numbers[client] += 1
        key = self.draw.randrange(KEYS)
        kind = self.draw.choice((READ, WRITE, CAS, CAS))
        first, second = self.draw.randrange(VALUES), self.draw.randrange(VALUES)
        operation = (kind, 0, 0) if kind == READ else (kind, first, second if kind == CAS else 0)
        self.registers[key].invoke((client, self.numbers[client]), operation)
        self.waiting[client] = (key, REQUEST + struct.pack("<QQIIQQ", client, self.numbers[client], key, *operation))

    def hear(self, payload, host):
        """A packet of the guest; `host`: who sent it."""
        if len(payload) < 40 or payload[:8] != ANSWER:
            return
        client, number, taken, value = struct.unpack("<QQQQ", payload[8:40])
        if client >= CLIENTS or number > self.numbers[client]:
            self.faults.append(f"register: {host} answered operation {number} of client {client}, which was never asked")
        elif number == self.numbers[client] and self.waiting[client] is not None:
            register = self.registers[self.waiting[client][0]]
            self.waiting[client] = None
            self.last += 1
            if not register.complete((client, number), (taken, value)) and len(self.faults) < 8:
                self.faults.append(f"register: {register.broken}, from {host}")
