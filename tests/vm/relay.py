# SPDX-License-Identifier: GPL-2.0-or-later
"""
Connections through this process, which a test can cut as a network is cut: nobody is told, bytes and new connections just do
not arrive. What was on its way arrives when the network is mended.
A path may also be a bad one: BadPath.
"""
import os
import random
import selectors
import socket
import threading
import time

PIECE_BYTES = 1 << 18
RETRY_SECONDS = 0.2  # after which what was lost is sent again; twice as long each time


class BadPath:
    """What a connection's one direction is over a path that swallows packets of more than `most_bytes`, carries
    `bytes_per_second`, or loses this share of what is sent. Pure: time is an argument."""

    def __init__(self, most_bytes=None, bytes_per_second=None, lost=0, draw=random.random):
        self.most_bytes, self.bytes_per_second, self.lost, self.draw = most_bytes, bytes_per_second, lost, draw
        self.stuck = False  # what is sent again vanishes again, and what comes behind it waits
        self.until, self.retry_seconds, self.sent_at = 0.0, RETRY_SECONDS, None

    def allows(self, now, size_bytes):
        """How many of the bytes that are to be sent now may go."""
        if self.stuck or now < self.until:
            return 0
        if self.most_bytes and size_bytes > self.most_bytes:
            self.stuck = True
            return 0
        if self.lost and self.draw() < self.lost:
            self.until, self.retry_seconds = now + self.retry_seconds, 2 * self.retry_seconds
            return 0
        self.retry_seconds = RETRY_SECONDS
        if not self.bytes_per_second:
            return size_bytes
        if self.sent_at is None:
            self.sent_at = now
        room = int((now - self.sent_at) * self.bytes_per_second)
        if not room:
            return 0
        self.sent_at = now
        return min(size_bytes, room)


class Relay:
    """
    `near` and `far`: a path of a Unix socket, or a port of this machine. Who connects to `near` gets to `far`. `listens`: it
    keeps what goes from near to far, in `heard`.
    """

    def __init__(self, near, far, listens=False):
        self.near, self.far = near, far
        self.heard = bytearray() if listens else None
        self.nears = set()
        if isinstance(near, int):
            self.listener = socket.create_server(("127.0.0.1", near))
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(near))
            self.listener.listen(16)
        self.port = None if isinstance(near, str) else self.listener.getsockname()[1]
        self.works = True
        self.bad = None  # makes the BadPath of each direction of each connection
        self.paths = {}  # of sockets, whose bytes go over it
        # Of sockets: where the bytes go that were read and did not go yet, and they. One connection that is not read does
        # not hold up another one, as a network does not.
        self.waiting = {}
        self.swallows = None  # "there": what goes from near to far; "back": the other way
        self.open = True
        self.to_reset = False
        self.accepted = 0  # connections, ever
        self.ready = selectors.DefaultSelector()
        self.ready.register(self.listener, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def cut(self, way=None):
        """Both ways, or one of them: "there" is from near to far, "back" the other one. New connections do not come about."""
        if way:
            self.swallows = way
        else:
            self.works = False

    def degrade(self, **how):
        """As BadPath says; from now on."""
        self.bad = lambda: BadPath(**how)

    def mend(self):
        self.works, self.swallows, self.bad = True, None, None

    def reset(self):
        """Ends the connections, and both ends are told."""
        self.to_reset = True

    def carry(self):
        while self.open:
            if not self.works:
                time.sleep(0.02)
                continue
            if self.to_reset:
                self.to_reset = False
                self.drop()
            moved = False
            for source, (target, data) in list(self.waiting.items()):
                if source in self.waiting and not (self.swallows and self.way_of(source) == self.swallows):
                    self.pass_on(source, target, data)
            for key, _ in self.ready.select(0.001 if self.waiting else 0.05):
                if self.swallows and self.way_of(key.fileobj) == self.swallows:
                    continue
                if key.fileobj is self.listener:
                    moved = True
                    self.accept()
                elif room_bytes := self.room(key.fileobj):
                    moved = True
                    self.forward(key.fileobj, key.data, room_bytes)
            if not moved and (self.swallows or self.bad):
                time.sleep(0.02)
        self.drop()
        self.listener.close()

    def drop(self):
        """Ends all connections."""
        for key in list(self.ready.get_map().values()):
            if key.fileobj is not self.listener:
                self.ready.unregister(key.fileobj)
                key.fileobj.close()
        for source in self.waiting:
            source.close()
        self.waiting.clear()

    def way_of(self, source):
        """What comes from this socket; a new connection needs both ways."""
        return self.swallows if source is self.listener else "there" if source in self.nears else "back"

    def accept(self):
        near, _ = self.listener.accept()
        self.accepted += 1
        try:
            if isinstance(self.far, int):
                far = socket.create_connection(("127.0.0.1", self.far))
            else:
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self.far))
        except OSError:
            near.close()
            return
        self.nears.add(near)
        self.ready.register(near, selectors.EVENT_READ, far)
        self.ready.register(far, selectors.EVENT_READ, near)

    def room(self, source):
        """How many bytes may go now of what comes from this socket."""
        bad = self.bad
        if not bad:
            self.paths.clear()
            return PIECE_BYTES
        try:
            size_bytes = len(source.recv(PIECE_BYTES, socket.MSG_PEEK))
        except OSError:
            size_bytes = 0
        if not size_bytes:
            return PIECE_BYTES  # its end
        return self.paths.setdefault(source, bad()).allows(time.monotonic(), size_bytes)

    def forward(self, source, target, most_bytes):
        try:
            data = source.recv(most_bytes)
        except OSError:
            data = b""
        if not data:
            self.end(source, target)
            return
        if self.heard is not None and source in self.nears:
            self.heard += data
        self.ready.unregister(source)
        self.waiting[source] = target, data
        self.pass_on(source, target, data)

    def pass_on(self, source, target, data):
        """What has room there. Nothing more is read before all of it has gone."""
        try:
            data = data[target.send(data, socket.MSG_DONTWAIT):]
        except BlockingIOError:
            return
        except OSError:
            self.end(source, target)
            return
        if data:
            self.waiting[source] = target, data
        else:
            del self.waiting[source]
            self.ready.register(source, selectors.EVENT_READ, target)

    def end(self, source, target):
        """Ends one connection."""
        for each in (source, target):
            self.waiting.pop(each, None)
            try:
                self.ready.unregister(each)
            except (KeyError, ValueError):
                pass
            self.nears.discard(each)
            self.paths.pop(each, None)
            each.close()

    def close(self):
        self.open = False
        self.thread.join()
        if not isinstance(self.near, int):
            os.unlink(self.near)
