#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The process between a confined QEMU and its peers (relay.hpp): it carries every byte, holds a sender up whose receiver is slow,
connects to nothing but what it should, and no crowd of strangers ends a connection that is in use. $KAGE_TOOL: the control tool.
"""
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading

TOOL = os.environ["KAGE_TOOL"]
SECONDS = 60
MOST = 32  # relay.hpp


def unix_listener(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    listener.settimeout(SECONDS)
    return listener


def tcp_listener():
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.settimeout(SECONDS)
    return listener


class Relay:
    """Who is connected to `here` gets to `to`"""

    def __init__(self, here, to, owner=None):
        self.here = here
        self.process = subprocess.Popen([TOOL, "--relay", json.dumps([[here.fileno(), to, owner]])],
                                        pass_fds=[here.fileno()], stderr=subprocess.PIPE)

    def connect(self):
        end = socket.socket(self.here.family)
        end.settimeout(SECONDS)
        end.connect(self.here.getsockname())
        return end

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.here.close()


def read_all(end):
    found = bytearray()
    while True:
        got = end.recv(1 << 16)
        if not got:
            return bytes(found)
        found += got


def is_ended(end):
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True


def both_ways(directory):
    """every byte arrives, in both directions, and who has closed half of his end hears the answer"""
    data = random.Random(1).randbytes(24 << 20)
    for here, there, to in ((unix_listener(f"{directory}/a"), tcp := tcp_listener(), f"127.0.0.1:{tcp.getsockname()[1]}"),
                            (tcp_listener(), unix_listener(f"{directory}/b"), f"unix:{directory}/b")):
        with Relay(here, to, os.geteuid() if to.startswith("unix:") else None) as relay, there, relay.connect() as near:
            far, _ = there.accept()
            with far:
                far.settimeout(SECONDS)
                for one, other in ((near, far), (far, near)):
                    def send(one=one):
                        one.sendall(data)
                        one.shutdown(socket.SHUT_WR)
                    sender = threading.Thread(target=send)
                    sender.start()
                    assert read_all(other) == data
                    sender.join()


def slow_receiver(directory):
    """who sends to somebody that does not read is held up: nothing grows"""
    with unix_listener(f"{directory}/slow") as there, Relay(tcp_listener(), f"unix:{directory}/slow", os.geteuid()) as relay:
        near = relay.connect()
        far, _ = there.accept()
        with near, far:
            near.settimeout(2)
            sent = 0
            try:
                while sent < 256 << 20:
                    sent += near.send(bytes(1 << 20))
            except TimeoutError:
                pass
            assert 0 < sent < 64 << 20, f"{sent} bytes are under way"


def the_end(directory):
    """when one side is gone the other one hears it; where nobody listens a connection ends"""
    with unix_listener(f"{directory}/end") as there, Relay(tcp_listener(), f"unix:{directory}/end", os.geteuid()) as relay:
        for gone_is_near in (True, False):
            near = relay.connect()
            far, _ = there.accept()
            far.settimeout(SECONDS)
            gone, left = (near, far) if gone_is_near else (far, near)
            gone.close()
            assert is_ended(left)
            left.close()
        there.close()
        with relay.connect() as near:
            assert is_ended(near)


def what_is_qemus(directory):
    """in QEMU's folder a link is not followed, and another user's socket is not used"""
    with unix_listener(f"{directory}/others") as others:
        os.symlink(f"{directory}/others", f"{directory}/link")
        cases = [("link", os.geteuid())]
        if os.geteuid() == 0:
            cases.append(("others", 0x70000000))
        for name, owner in cases:
            with Relay(tcp_listener(), f"unix:{directory}/{name}", owner) as relay, relay.connect() as near:
                assert is_ended(near), name
        others.settimeout(0)
        try:
            others.accept()
            raise AssertionError("somebody was connected to another's socket")
        except BlockingIOError:
            pass


def crowd(directory):
    """a crowd that says nothing ends no connection that is in use, and there are never more than some"""
    there = unix_listener(f"{directory}/crowd")
    with there, Relay(unix_listener(f"{directory}/door"), f"unix:{directory}/crowd", os.geteuid()) as relay:
        used = relay.connect()
        far, _ = there.accept()
        far.settimeout(SECONDS)
        kept, strangers = [], []
        for _ in range(3 * MOST):
            strangers.append(relay.connect())
            kept.append(there.accept()[0])
            used.sendall(b"a")
            assert far.recv(1) == b"a"
        for one in strangers[:2 * MOST]:
            assert is_ended(one), "a connection too many"
        used.sendall(b"b")
        assert far.recv(1) == b"b"
        for one in (used, far, *kept, *strangers):
            one.close()


def main():
    for check in (both_ways, slow_receiver, the_end, what_is_qemus, crowd):
        with tempfile.TemporaryDirectory(prefix="kagemusha-relay-") as directory:
            check(directory)
        print(f"ok     {check.__doc__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
