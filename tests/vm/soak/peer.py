# SPDX-License-Identifier: GPL-2.0-or-later
"""
The other end of the guest's network card in a soak: what net_peer.Peer does, and a ledger for each program that computes. It
also looks, many times a second, at the gates of all hosts.
"""
import random
import struct
import threading
import time

import net_peer
from ha_pair import wait
from soak.clients import Clients
from soak.ledger import PORT, Ledger
from soak.speakers import Speakers

LOOK_SECONDS = 0.01


class Peer(net_peer.Peer):
    """`programs`: names, of streams 1, 2, …; `seed`: of what clients ask"""

    def __init__(self, directory, programs, seed=0):
        super().__init__(directory)
        self.programs = programs
        # Under the lock.
        self.ledgers = ledgers(programs, seed)
        self.speakers = Speakers()
        self.gates = {}  # name of a host → (path of its gate, process of its QEMU)
        self.looks = 0

    def __enter__(self):
        super().__enter__()
        threading.Thread(target=self.watch, daemon=True).start()
        return self

    def frame(self, frame, end, host):
        super().frame(frame, end, host)
        if frame[6:12] != net_peer.GUEST_MAC or frame[12:14] != b"\x08\x00" or len(frame) < 42 or frame[23] != 17:
            return
        stream = struct.unpack(">H", frame[36:38])[0] - PORT
        with self.lock:
            self.speakers.heard(host)
            if 1 <= stream <= len(self.ledgers):
                self.ledgers[stream - 1].hear(frame[42:], host)

    # A second thread.

    def watch(self):
        while self.open:
            with self.lock:
                gates = dict(self.gates)
            self_looks = [(time.clock_gettime_ns(time.CLOCK_BOOTTIME), {name: look(*where) for name, where in gates.items()})
                          for _ in range(2)]
            with self.lock:
                self.speakers.looked(*self_looks)
                self.looks += 1
                where = self.where
                words = self.words() if where else []
            for payload, port in words:
                frame = net_peer.udp_frame(payload, port)
                try:
                    where.send(struct.pack(">I", len(frame)) + frame)
                except OSError:
                    pass  # packets get lost
            time.sleep(LOOK_SECONDS)

    def words(self):
        """What is to be sent to the guest now, as pairs: payload, port. Under the lock."""
        words = []
        for stream, one in enumerate(self.ledgers, 1):
            if isinstance(one, Clients):
                words += [(payload, PORT + stream) for payload in one.due(time.monotonic_ns())]
            elif self.looks % 10 == 0:
                words += [(b"SAYAGAIN" + struct.pack("<Q", number), PORT + stream) for number in one.missing(4)]
        return words

    # What the soak asks.

    def silent(self, hosts):
        """Waits until all is heard that these have said, which have ended."""
        def look():
            with self.lock:
                return not set(self.connections.values()) & set(hosts)
        wait(look, "the last packets of hosts that have ended")

    def anew(self, seed):
        """The guest begins anew, and so does the history that it has to fit into. What was wrong stays so."""
        with self.lock:
            self.statements, self.announced, self.round_trips = [], [], []
            self.asked = self.answered = 0
            self.speakers, faults = Speakers(), self.speakers.faults + [fault for one in self.ledgers for fault in one.faults]
            self.speakers.faults = faults
            self.ledgers = ledgers(self.programs, seed)

    def knows(self, name, gate, qemu):
        with self.lock:
            self.gates[name] = (gate, qemu)

    def forget(self, name):
        with self.lock:
            self.gates.pop(name, None)

    def rounds(self):
        with self.lock:
            return [ledger.last for ledger in self.ledgers]

    def whole(self, upto):
        with self.lock:
            return all(ledger.checked >= number for ledger, number in zip(self.ledgers, upto))

    def speaker(self):
        with self.lock:
            return self.speakers.order[-1] if self.speakers.order else None

    def check(self):
        super().check()
        with self.lock:
            faults = self.speakers.faults + [fault for ledger in self.ledgers for fault in ledger.faults]
        assert not faults, "; ".join(faults[:5])


def ledgers(programs, seed):
    """Of each program, in the order of their streams."""
    return [Clients(random.Random(f"{seed}:{stream}")) if program == "register" else Ledger(program)
            for stream, program in enumerate(programs, 1)]


def look(gate, qemu):
    """Whether this QEMU lives (a stopped one may go on at any moment), and until when its packets may leave."""
    try:
        with open(gate, "rb") as page:
            until = int.from_bytes(page.read(16)[8:], "little")
        with open(f"/proc/{qemu}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX", until
    except OSError:
        return False, 0
