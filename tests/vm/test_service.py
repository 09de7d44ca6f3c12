# SPDX-License-Identifier: GPL-2.0-or-later
"""
A service whose answers come from the GPU (bench/service), in a protected VM with a tap; its clients are unmodified programs
outside. Hosts die while all of them are served: no connection breaks, no answer is missing, wrong, or told twice.
"""
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fixtures import namespace, shared
from ha_pair import wait
from service_pair import GUEST, HTTP, RESP, Bridge, ServicePair, serves

KEYS = 4096
KILLS = int(os.environ.get("KAGE_KILLS") or 3)
PROTECTION = """
[protection]
standby = "unix:standby"
heartbeat-ms = 100
heartbeat-budget-ms = 5000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 5000
"""


class Served(ServicePair):
    def __init__(self):
        if not os.path.exists("/dev/net/tun"):
            pytest.skip("no /dev/net/tun here: the guest's network card would have no tap")
        super().__init__(tempfile.mkdtemp(prefix="kagemusha-service-"), Bridge(), PROTECTION, keys=KEYS)
        self.runs = self.waits = None

    def protected(self):
        """→ primary, standby; another standby if the last one was used up"""
        if not self.runs:
            self.waits = self.standby()
            self.runs = self.primary()
            serves(self.runs)
            self.runs.wait_state("protecting")
        elif not self.waits:
            self.waits = self.another(self.runs)
        return self.runs, self.waits


class Counter(threading.Thread):
    """A client of RESP that counts by INCR on one connection; each answer must be one more than the last."""

    def __init__(self):
        super().__init__(daemon=True)
        self.told, self.error, self.ends = 0, None, threading.Event()

    def run(self):
        try:
            with socket.create_connection((GUEST, RESP), 60) as link, link.makefile("rb") as answers:
                link.settimeout(300)
                while not self.ends.is_set():
                    link.sendall(b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n")
                    line = answers.readline()
                    assert line == b":%d\r\n" % (self.told + 1), f"{line} after {self.told}"
                    self.told += 1
        except (AssertionError, OSError) as error:
            self.error = error

    def goes_on(self, by=30):
        last = self.told
        wait(lambda: self.error or self.told >= last + by, f"{by} more answers after {last}")
        assert not self.error, self.error


in_net, pair = namespace("net"), shared(Served)
pytestmark = [pytest.mark.story, pytest.mark.usefixtures("in_net")]


def check_answers(pair):
    """HTTP and RESP tell what the GPU has"""
    pair.protected()
    link = http.client.HTTPConnection(GUEST, HTTP, timeout=60)
    for key in (0, 1, KEYS - 1):
        link.request("GET", f"/key:{key:012d}")
        answer = link.getresponse()
        assert (answer.status, answer.read()) == (200, f"value of {key:012d}".encode())
    link.request("GET", f"/key:{KEYS:012d}")
    answer = link.getresponse()
    assert (answer.status, answer.read()) == (404, b"")
    link.request("PUT", "/mine", "new")
    assert link.getresponse().read() == b"new"
    with socket.create_connection((GUEST, RESP), 60) as resp, resp.makefile("rb") as said:
        resp.sendall(b"*2\r\n$3\r\nGET\r\n$4\r\nmine\r\n*1\r\n$4\r\nQUIT\r\n")
        assert [said.readline() for _ in range(2)] == [b"$3\r\n", b"new\r\n"]
        assert said.readline().startswith(b"-ERR ")
        resp.sendall(b"nonsense\r\n")
        assert said.readline().startswith(b"-ERR Protocol error") and said.readline() == b""


def check_kills(pair):
    """QEMU killed while clients count: each answer is one more than the last, on the connection that was there before"""
    counter = Counter()
    counter.start()
    for _ in range(KILLS):
        primary, standby = pair.protected()
        counter.goes_on()
        time.sleep(random.uniform(0, 0.3))
        os.kill(primary.qemu(), signal.SIGKILL)
        standby.wait("it runs the VM", lambda s: s["role"] == "primary")
        counter.goes_on()
        assert primary.process.wait(60) == 0, primary.said()
        pair.runs, pair.waits = standby, None
    counter.ends.set()
    counter.join(300)
    assert not counter.error, counter.error
    print(f"       {KILLS} kills, {counter.told} answers", flush=True)


def check_programs(pair):
    """wrk and redis-benchmark, unmodified, while QEMU is killed: they see no error"""
    missing = [name for name in ("wrk", "redis-benchmark") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)}: not installed (scripts/packages/test.list)")
    primary, standby = pair.protected()
    keys = Path(__file__).resolve().parent.parent.parent / "bench" / "service" / "keys.lua"
    clients = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for words in (
        ["wrk", "-t1", "-c8", "-d20s", "--timeout", "120s", "-s", str(keys), f"http://{GUEST}:{HTTP}/", "--", str(KEYS)],
        ["redis-benchmark", "-h", GUEST, "-p", str(RESP), "-c", "8", "-n", "2000", "-r", str(KEYS), "-t", "get,incr", "--csv"])]
    time.sleep(3)
    os.kill(primary.qemu(), signal.SIGKILL)
    standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    said = [one.communicate(timeout=600)[0] for one in clients]
    assert [one.returncode for one in clients] == [0, 0], said
    assert "requests in" in said[0] and "Socket errors" not in said[0] and "Non-2xx" not in said[0], said[0]
    assert '"GET"' in said[1] and '"INCR"' in said[1] and "rror" not in said[1].replace("Could not fetch server CONFIG", ""), said[1]
    assert primary.process.wait(60) == 0, primary.said()
    pair.runs, pair.waits = standby, None
