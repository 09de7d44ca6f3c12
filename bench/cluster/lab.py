# SPDX-License-Identifier: GPL-2.0-or-later
"""
A daemon of its own with its clusters, for benches: everything is below one folder, which goes with it. What is asked of it goes by
command or by the API, as people do.
"""
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Failure(Exception):
    """Something did not do what it was asked; the sentence says what."""


class OverSocket(http.client.HTTPConnection):
    """HTTP at the daemon's Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Lab:
    def __init__(self, tool, extra):
        self.tool = tool
        self.folder = Path(tempfile.mkdtemp(prefix="kage-b-"))
        (self.folder / "run").mkdir(mode=0o700)
        self.environment = dict(os.environ, KAGEMUSHA_STATE_DIR=str(self.folder / "s"), KAGEMUSHA_RUNTIME_DIR=str(self.folder / "run"),
                                KAGEMUSHA_SHARE_DIR=str(self.folder / "share"), **extra)
        self.log = open(self.folder / "daemon.log", "ab")
        self.daemon = None

    def __enter__(self):
        self.daemon = subprocess.Popen([self.tool, "daemon"], stdin=subprocess.DEVNULL, stderr=self.log, env=self.environment)
        self.until(lambda: self.kage("list", check=False).returncode == 0, "the daemon answers", 120)
        return self

    def __exit__(self, *_):
        for one in json.loads(self.kage("list", "--json", check=False).stdout or '{"clusters": []}')["clusters"]:
            self.kage("delete", one["name"], "--wait", check=False)
        self.daemon.terminate()
        self.daemon.wait(60)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, is_so, what, seconds=900):
        end = time.monotonic() + seconds
        while not is_so():
            if self.daemon.poll() is not None:
                raise Failure(f"the daemon has ended: {self.said()}")
            if time.monotonic() > end:
                raise Failure(f"{seconds} s, and still not: {what}; {self.said()}")
            time.sleep(0.1)

    def said(self):
        return (self.folder / "daemon.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def kage(self, *words, check=True, text=None):
        done = subprocess.run([self.tool, "cluster", *words], input=text, stdin=subprocess.DEVNULL if text is None else None,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment, check=False)
        if check and done.returncode != 0:
            raise Failure(f"kage cluster {' '.join(words)}: {done.stderr.decode(errors='replace')[-2000:]}")
        return done

    def declare(self, declared):
        path = self.folder / f"{declared['name']}.json"
        path.write_text(json.dumps(declared), encoding="utf-8")
        return str(path)

    def ask(self, method, target, body=None):
        to = OverSocket(str(self.folder / "run" / "daemon.socket"))
        to.request(method, target, json.dumps(body) if body is not None else None)
        answer = to.getresponse()
        said = json.loads(answer.read() or b"{}")
        to.close()
        if answer.status >= 400 and answer.status != 404:
            raise Failure(f"{method} {target}: {said}")
        return answer.status, said

    def show(self, name):
        return self.ask("GET", f"/v1/clusters/{name}")[1]

    def run(self, name, node, *words, text=None):
        """Output of a command in a node, once its agent answers."""
        return self.kage("exec", "--wait", name, node, "--", *words, text=text).stdout.decode(errors="replace")

    def answer(self, name, nodes):
        """Until each of these has executed something."""
        for node in nodes:
            self.run(name, f"node{node}", "true")


def log(line):
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
