# SPDX-License-Identifier: GPL-2.0-or-later
"""
Connections through this process, which a test can cut as a network is cut: nobody is told, bytes and new connections just do
not arrive. What was on its way arrives when the network is mended.
"""
import os
import selectors
import socket
import threading
import time


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

    def mend(self):
        self.works, self.swallows = True, None

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
                for key in list(self.ready.get_map().values()):
                    if key.fileobj is not self.listener:
                        self.ready.unregister(key.fileobj)
                        key.fileobj.close()
            moved = False
            for key, _ in self.ready.select(0.05):
                if self.swallows and self.way_of(key.fileobj) == self.swallows:
                    continue
                moved = True
                if key.fileobj is self.listener:
                    self.accept()
                else:
                    self.forward(key.fileobj, key.data)
            if not moved and self.swallows:
                time.sleep(0.02)
        for key in list(self.ready.get_map().values()):
            key.fileobj.close()

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

    def forward(self, source, target):
        try:
            data = source.recv(1 << 18)
            if data:
                if self.heard is not None and source in self.nears:
                    self.heard += data
                target.sendall(data)
                return
        except OSError:
            pass
        for end in (source, target):
            try:
                self.ready.unregister(end)
            except (KeyError, ValueError):
                pass
            self.nears.discard(end)
            end.close()

    def close(self):
        self.open = False
        self.thread.join()
        if not isinstance(self.near, int):
            os.unlink(self.near)
