# SPDX-License-Identifier: GPL-2.0-or-later
"""
The other end of a protected VM's network card: a switch to which the QEMUs of all hosts connect (-netdev stream), and
behind it one machine, to which guest/net_job.cpp speaks. It writes down everything that it was told, and judges it.
"""
import os
import selectors
import socket
import struct
import threading
import time

GUEST_MAC, PEER_MAC = bytes.fromhex("525400000077"), bytes.fromhex("525400000001")
GUEST, PEER, PORT = "10.77.0.2", "10.77.0.1", 7777
RETRY_SECONDS = 0.05

# What the guest does before it runs the program. The peer answers no ARP: it is entered.
SETUP = f"""
ip=/payload/system/busybox
$ip ip link set eth0 up
$ip ip addr add {GUEST}/24 dev eth0
$ip arp -s {PEER} {PEER_MAC.hex(":")}
"""


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def udp_frame(payload, port=PORT):
    """From the peer to the guest, as Ethernet has it."""
    udp = struct.pack(">HHHH", port, port, 8 + len(payload), 0) + payload
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, socket.inet_aton(PEER),
                     socket.inet_aton(GUEST))
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return GUEST_MAC + PEER_MAC + b"\x08\x00" + ip + udp


class Statement:
    """One of the guest's, and from which host (the process of its QEMU) it came when."""

    def __init__(self, payload, host):
        self.number, self.heard, self.before, self.chain = struct.unpack("<QQQQ", payload[8:40])
        self.host, self.at = host, time.monotonic()

    def __repr__(self):
        return f"{self.number} (heard {self.heard}, {self.before:016x} -> {self.chain:016x}) from {self.host}"


class Peer:
    """Use as a context manager. `netdev`: what a VM's description says to be connected to it."""

    def __init__(self, directory):
        path = f"{directory}/switch"
        self.netdev = f"stream,server=off,addr.type=unix,addr.path={path}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        self.listener.setblocking(False)
        self.lock = threading.Lock()
        # Under the lock.
        self.statements, self.announced, self.faults = [], [], []
        self.asked = 0  # the last request that was sent
        self.answered = 0  # the last one that a statement has named
        self.where = None  # the connection behind which the guest is, or was
        self.connections, self.open = {}, True  # socket → host
        self.gap = lambda: RETRY_SECONDS  # how long it waits between an answer and its next request; None: asks nothing
        self.round_trips = []  # seconds from a request, when it was first sent, to its answer
        self.asked_at = 0.0
        self.changed = threading.Condition(self.lock)

    def __enter__(self):
        for job in (self.listen, self.ask):
            threading.Thread(target=job, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.open = False
        with self.lock:
            for end in (self.listener, *self.connections):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def listen(self):
        """One thread hears everybody, who connected first is heard first: so what came over another connection later is
        also judged later."""
        ready = selectors.DefaultSelector()
        ready.register(self.listener, selectors.EVENT_READ)
        heard = []  # [connection, host, what has come of its next packet], in the order in which they connected
        while self.open:
            if not ready.select(0.2):
                continue
            for one in list(heard):
                if not self.read(one):
                    ready.unregister(one[0])
                    heard.remove(one)
                    with self.lock:
                        self.connections.pop(one[0])
                        one[0].close()
            try:
                end, _ = self.listener.accept()
            except BlockingIOError:
                continue
            except OSError:
                return
            end.setblocking(False)
            host = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            with self.lock:
                self.connections[end] = host
            ready.register(end, selectors.EVENT_READ)
            heard.append([end, host, b""])

    def read(self, one):
        """All that is there. → whether the connection is still open."""
        end, host, data = one
        while True:
            try:
                got = end.recv(1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not got:
                return False
            data += got
            while len(data) >= 4:
                size = struct.unpack(">I", data[:4])[0]
                if len(data) < 4 + size:
                    break
                self.frame(data[4:4 + size], end, host)
                data = data[4 + size:]
            one[2] = data

    def frame(self, frame, end, host):
        with self.lock:
            if frame[6:12] == GUEST_MAC:
                self.where = end
            if frame[12:14] == b"\x80\x35":
                self.announced.append(host)
            if frame[12:14] == b"\x08\x00" and frame[42:50] == b"STATED01" and len(frame) >= 82:
                self.told(Statement(frame[42:82], host))

    def told(self, new):
        """Compares it with what was said before."""
        if self.statements:
            last = self.statements[-1]
            if new.number <= last.number:
                self.faults.append(f"{new} was said after {last}")
            elif new.number == last.number + 1 and new.before != last.chain:
                self.faults.append(f"{new} does not go on from {last}")
            if new.heard < self.answered:
                self.faults.append(f"{new} has forgotten request {self.answered}")
        if new.heard > self.asked:
            self.faults.append(f"{new} knows a request that was not made")
        if new.heard > self.answered:
            self.answered = new.heard
            self.round_trips.append(new.at - self.asked_at)
            self.changed.notify_all()
        self.statements.append(new)

    def ask(self):
        """A request after the other, each until a statement names it."""
        payload = b""
        while self.open:
            with self.lock:
                another = self.answered == self.asked
                gap = self.gap() if another else 0
            if gap is None:
                time.sleep(RETRY_SECONDS)
                continue
            time.sleep(gap)
            with self.lock:
                if another:
                    self.asked += 1
                    self.asked_at = time.monotonic()
                    payload = b"REQUEST1" + struct.pack("<Q", self.asked) + os.urandom(8)
                where = self.where
            frame = udp_frame(payload)
            if where:
                try:
                    where.send(struct.pack(">I", len(frame)) + frame, socket.MSG_DONTWAIT)  # whole, or not
                except OSError:
                    pass  # packets get lost
            with self.lock:
                self.changed.wait_for(lambda: self.answered == self.asked, RETRY_SECONDS)

    # What a test asks. `host`: the process number of a QEMU.

    def said(self, host=None):
        with self.lock:
            return [s for s in self.statements if host in (None, s.host)]

    def last(self):
        with self.lock:
            return self.statements[-1].number if self.statements else 0

    def answers(self):
        with self.lock:
            return self.answered

    def announcements(self, host):
        with self.lock:
            return self.announced.count(host)

    def check(self):
        with self.lock:
            assert not self.faults, "; ".join(self.faults[:5])
