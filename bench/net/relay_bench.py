#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
What the relays of two confined QEMUs cost (control/relay): bytes from a Unix socket over a relay, TCP on this machine and
another relay to a Unix socket, beside the same over TCP alone, in turns.

    KAGE_TOOL=build/default/control/kagemusha bench/net/relay_bench.py [MIB_PER_ROUND [ROUNDS]]
"""
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CHUNK = 1 << 20
TURNS = 2000


def relay(here, to, owner):
    return subprocess.Popen([os.environ["KAGE_TOOL"], "--relay", json.dumps([[here.fileno(), to, owner]])],
                            pass_fds=[here.fileno()])


def connect(where):
    end = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    end.connect(where)
    if not isinstance(where, str):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def bulk_mib_s(near, far, mib):
    place = bytearray(CHUNK)

    def receive():
        left = mib * CHUNK
        while left:
            left -= far.recv_into(place, min(CHUNK, left))
    data = bytes(CHUNK)
    receiver = threading.Thread(target=receive)
    begin = time.monotonic()
    receiver.start()
    for _ in range(mib):
        near.sendall(data)
    receiver.join()
    return mib / (time.monotonic() - begin)


def turn_us(near, far):
    """There and back, 100 bytes"""
    def answer():
        for _ in range(TURNS):
            far.sendall(far.recv(100))
    other = threading.Thread(target=answer)
    other.start()
    begin = time.monotonic()
    for _ in range(TURNS):
        near.sendall(bytes(100))
        near.recv(100)
    other.join()
    return (time.monotonic() - begin) / TURNS * 1e6


def main(mib=512, rounds=7):
    with tempfile.TemporaryDirectory(prefix="kagemusha-relay-") as directory:
        tcp, between = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
        ends = {}
        for name in ("near", "far"):
            ends[name] = socket.socket(socket.AF_UNIX)
            ends[name].bind(f"{directory}/{name}")
            ends[name].listen()
        relays = [relay(ends["near"], f"127.0.0.1:{between.getsockname()[1]}", None),
                  relay(between, f"unix:{directory}/far", os.geteuid())]
        try:
            pairs = {"TCP": (connect(tcp.getsockname()), tcp.accept()[0]),
                     "relays": (connect(f"{directory}/near"), ends["far"].accept()[0])}
            speed, turn = {name: [] for name in pairs}, {name: [] for name in pairs}
            for _ in range(rounds):
                for name, (near, far) in pairs.items():
                    speed[name].append(bulk_mib_s(near, far, mib))
                    turn[name].append(turn_us(near, far))
            for what, unit, found in (("bulk", "MiB/s", speed), ("turn", "us", turn)):
                medians = {name: statistics.median(all_) for name, all_ in found.items()}
                print(f"{what}: " + ", ".join(f"{name} {value:.0f} {unit}" for name, value in medians.items()) +
                      f"; ratio {medians['relays'] / medians['TCP']:.2f}")
        finally:
            for one in relays:
                one.kill()
                one.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
