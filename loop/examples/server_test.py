#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The three example servers on this machine's OpenCL: server_test.py SERVER-PROGRAM; or on a CUDA driver, from images:
server_test.py SERVER-PROGRAM --images DIRECTORY --driver LIBRARY. Clients ask at random, and every answer is
compared with what Python makes of it: with a lane of one work-item and of eight, with tokens of one callback and as they come.
"""
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from clients import Kv, Lines, ask_grep, matching_lines

SECONDS = 240

IMAGES = sys.argv[3] if sys.argv[2:3] == ["--images"] else ""


class Server:
    def __init__(self, what, *options):
        if IMAGES:
            # An emulated GPU: two work-items where a real one has 64.
            options = ("--image", f"{IMAGES}/{what}.ptx", "--driver", sys.argv[5], "--items", "2", *options)
        self.process = subprocess.Popen([sys.argv[1], what, "--port", "0", *options], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[-1])
        ready = self.process.stdout.readline()
        assert ready == f"serving {what}\n", ready

    def connect(self):
        end = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return end

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.last = self.process.communicate(timeout=SECONDS)[0]
        assert self.process.returncode == 0, self.last

    def figures(self):
        """After its end: what it printed."""
        words = self.last.replace(",", "").split()
        return {name: int(words[words.index(name) + 1]) for name in ("launches", "callbacks", "yields")}


VARIANTS = [(), ("--callbacks", "1"), ("--items", "8", "--lanes", "3"), ("--items", "8", "--callbacks", "1", "--lanes", "1")]


def exchange(end, data):
    """Sends all of it and reads as much, both as they go. → what came back"""
    back, at = b"", 0
    end.setblocking(False)
    while len(back) < len(data):
        readable, writable, _ = select.select([end], [end] if at < len(data) else [], [], SECONDS)
        if not readable and not writable:
            raise AssertionError(f"nothing comes after {len(back)} of {len(data)} bytes")
        if writable:
            at += end.send(data[at:at + random.randrange(1, 9000)])
        if readable:
            back += end.recv(65536)
    return back


class Servers(unittest.TestCase):
    def test_echo(self):
        for options in VARIANTS:
            with self.subTest(options=options), Server("echo", *options) as server:
                data = os.urandom(200_000)
                with server.connect() as one, server.connect() as other:
                    self.assertEqual(exchange(one, data), data)
                    self.assertEqual(exchange(other, data[:999]), data[:999])

    def test_echo_closes_behind_what_was_asked(self):
        with Server("echo") as server, server.connect() as end:
            end.sendall(b"last words")
            end.shutdown(socket.SHUT_WR)
            back = b""
            while more := end.recv(100):
                back += more
            self.assertEqual(back, b"last words")

    def test_kv(self):
        for options in VARIANTS:
            with self.subTest(options=options), Server("kv", *options) as server:
                with server.connect() as a, server.connect() as b, server.connect() as c:
                    model = Kv(random.Random(1))
                    for _ in range(300):
                        model.ask(Lines(random.choice([a, b, c])))

    def test_kv_refuses(self):
        with Server("kv", "--lanes", "1") as server, server.connect() as end:
            lines = Lines(end)
            for bad in ("", "GET", "GET ", "FOO x", "SET x", "GET x y", f"GET {'k' * 41}", f"SET k {'v' * 81}", "x" * 9000):
                lines.say(bad)
                for _ in range(max(1, -(-len(bad) // 4096))):
                    self.assertEqual(lines.hear(), "BAD", bad)
            full = 0
            for i in range(4200):
                lines.say(f"SET key{i} {i}")
            for _ in range(4200):
                full += lines.hear() == "FULL"
            self.assertEqual(full, 4200 - 4096)

    def test_grep(self):
        with tempfile.TemporaryDirectory() as directory:
            text = "\n".join(random.choice(["needle in it", "hay", "more hay " * 30, "a nee", ""]) for _ in range(3000))
            (Path(directory) / "text").write_text(text, encoding="utf-8")
            (Path(directory) / "empty").write_text("", encoding="utf-8")
            (Path(directory) / "out").symlink_to("/etc/passwd")
            for options in VARIANTS:
                with self.subTest(options=options), Server("grep", "--root", directory, *options) as server:
                    with server.connect() as a, server.connect() as b:
                        for end, pattern in ((a, "needle"), (b, "more"), (a, "nowhere"), (b, "n")):
                            self.assertEqual(ask_grep(Lines(end), pattern, "text"), matching_lines(text, pattern))
                        self.assertEqual(ask_grep(Lines(a), "x", "empty"), [])
                        for path in ("none", "out", "../text", "/etc/passwd", "."):
                            self.assertIsNone(ask_grep(Lines(a), "x", path), path)
                self.assertGreater(server.figures()["callbacks"], 100)
                if "--callbacks" in options:
                    self.assertGreater(server.figures()["yields"], 100)

    def test_clients_that_go_in_the_middle(self):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "text").write_text("needle\n" * 100_000, encoding="utf-8")
            with Server("grep", "--root", directory, "--lanes", "1") as server:
                for _ in range(40):  # more than a lane has jobs
                    with server.connect() as end:
                        end.sendall(b"needle text\n")
                        self.assertTrue(end.recv(10))
                # Until their jobs are over, the lane has no room for another one and says so.
                deadline = time.monotonic() + SECONDS
                found = None
                while found is None and time.monotonic() < deadline:
                    with server.connect() as end:
                        found = ask_grep(Lines(end), "needle", "text")
                self.assertEqual(len(found or []), 100_000)

    @unittest.skipUnless(IMAGES, "for CUDA")
    def test_bad_images(self):
        for image, driver, word in ((__file__, sys.argv[5], "cuModuleLoadData"), (f"{IMAGES}/none", sys.argv[5], "can't read"),
                                    (f"{IMAGES}/echo.ptx", "/no/such/library", "no driver here")):
            done = subprocess.run([sys.argv[1], "echo", "--port", "0", "--image", image, "--driver", driver],
                                  capture_output=True, text=True, check=False, timeout=SECONDS)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr)

    def test_bad_options(self):
        for options in ((), ("nothing",), ("echo", "--lanes"), ("echo", "--lanes", "65"), ("echo", "--port", "x"),
                        ("grep", "--root", "/no/such/directory"), ("echo", "--lanes", "0", "--port", "0")):
            done = subprocess.run([sys.argv[1], *options], capture_output=True, text=True, check=False, timeout=SECONDS)
            self.assertIn(done.returncode, (1, 2), options)
            self.assertTrue(done.stderr, options)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[6 if IMAGES else 2:])
