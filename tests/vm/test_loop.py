# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, joined by Unix sockets, with the arbiter `lock`; a guest whose GPU serves clients by
kagemusha-loop: echo, a key-value store, grep (loop/examples). Their clients are here, in a network namespace, over TCP. The VM
shares PoCL with another one, is switched over and killed while clients ask: every answer is right, and no connection breaks.
"""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from fixtures import namespace, shared
from guest_vm import HERE, environment
from ha_pair import Hosts, tool, wait
from wire import GUEST, GUEST_MAC, SETUP, Wire

sys.path.insert(0, str(HERE.parents[1] / "loop" / "examples"))
from clients import Kv, Lines, ask_grep, matching_lines  # noqa: E402

in_net = namespace("net")
pytestmark = [pytest.mark.story, pytest.mark.usefixtures("in_net")]

SECONDS = 300  # for one answer: TCP sends again after pauses that grow
PORTS = {"echo": 7001, "kv": 7002, "grep": 7003}

SERVES = f"""#!/bin/bash
{SETUP}
cd /payload
./loop_server echo --port {PORTS["echo"]} &
./loop_server kv --port {PORTS["kv"]} --lanes 3 &
./loop_server grep --port {PORTS["grep"]} --root /payload --lanes 1 || echo "FAILED with $?"
"""
COMPUTES = """#!/bin/bash
/payload/cl_job busy 36000 /tmp/stop 2 || echo "FAILED with $?"
"""


class Served(Hosts):
    """The protected VM with the servers, and one that computes beside it."""

    def __init__(self):
        directory = Path(tempfile.mkdtemp(prefix="kagemusha-loop-"))
        super().__init__(directory, dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(directory)))
        self.wire = Wire(directory)
        self.clients, self.turn = [], 0
        words = ["needle", "hay", "straw", "stack"]
        self.text = "\n".join(" ".join(random.choice(words) for _ in range(random.randrange(12))) for _ in range(150))
        (directory / "text").write_text(self.text, encoding="utf-8")
        (directory / "serves.sh").write_text(SERVES, encoding="utf-8")
        (directory / "computes.sh").write_text(COMPUTES, encoding="utf-8")
        self.serves = self.describe("serves", [os.environ["KAGE_LOOP_SERVER"] + ":loop_server", f"{directory}/text:text"], f"""
[[network]]
netdev = "{self.wire.netdev}"
mac = "{GUEST_MAC}"
[protection]
standby = "unix:standby"
epoch-ms = 50
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
""")
        self.computes = self.describe("computes", [os.environ["KAGE_CL_JOB"] + ":cl_job"], "")

    def describe(self, name, files, more):
        path = self.directory / f"{name}.toml"
        path.write_text(f"""
name = "{name}"
memory = "512M"
cpus = 1
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "{name}.sh"
files = {json.dumps(files)}
[gpu]
backend = "opencl"
share = 30
[gpu.properties]
window-size = "16M"
{more}
""", encoding="utf-8")
        return path

    def start_from(self, description, command, name, *more):
        self.description = description
        return self.start(command, name, *more)

    def another(self, primary):
        """A standby for the VM that runs."""
        self.turn += 1
        address = f"unix:{self.directory}/standby{self.turn}"
        standby = self.start_from(self.serves, "standby", f"standby{self.turn}", "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        primary.wait_state("protecting")
        primary.wait_commit()
        return standby

    def tasks(self):
        """Of each VM, as the share arbiter has counted them."""
        said = subprocess.run([tool(), "top", "--json", "--once"], stdout=subprocess.PIPE, text=True, env=self.environment,
                              check=True).stdout
        return {vm["vm"]: vm["tasks"] for gpu in json.loads(said) for vm in gpu["vms"]}

    def digests(self, name):
        """Of the device of this host's QEMU."""
        said = subprocess.run([tool(), "status", name, "--json"], stdout=subprocess.PIPE, text=True, env=self.environment, check=True)
        return json.loads(said.stdout)[0]["devices"][0]["replication"]

    def go_on(self, answers):
        """Each client gets so many more answers, all of them right."""
        before = [one.answers for one in self.clients]

        def look():
            assert any(one.alive() for one in self.started), self.started[0].said()
            for one in self.clients:
                assert not one.error, f"{one.name}: {one.error}"
            return all(one.answers >= had + answers for one, had in zip(self.clients, before))
        wait(look, f"answers of {', '.join(f'{one.name} ({one.answers})' for one in self.clients)}; {self.started[0].said()}", SECONDS)

    def __enter__(self):
        self.wire.__enter__()
        return super().__enter__()

    def __exit__(self, *what):
        for one in self.clients:
            one.stop = True
        super().__exit__(*what)
        self.wire.__exit__()


class Client(threading.Thread):
    """Asks without a pause, over one connection, and compares."""

    def __init__(self, name, ask):
        super().__init__(daemon=True)
        self.name, self.ask = name, ask
        self.answers, self.error, self.stop = 0, None, False
        self.end = None
        self.start()

    def run(self):
        try:
            self.end = wait(self.connect, f"a connection with {self.name}")
            lines = Lines(self.end)
            while not self.stop:
                self.ask(lines)
                self.answers += 1
        except (AssertionError, OSError, ValueError) as error:
            if not self.stop:
                self.error = repr(error)

    def connect(self):
        try:
            end = socket.create_connection((GUEST, PORTS[self.name]), SECONDS)
        except OSError:
            return None  # its server does not listen yet
        end.settimeout(SECONDS)
        return end


def ask_echo(lines):
    data = "".join(random.choice("abcdefgh") for _ in range(random.randrange(1, 6000)))
    lines.say(data)
    got = lines.hear()
    assert got == data, f"{len(got)} characters came back for {len(data)}, or others"


def asker_of_grep(text):
    right = {word: matching_lines(text, word) for word in ("needle", "stack", "no")}

    def ask(lines):
        word = random.choice(list(right))
        assert ask_grep(lines, word, "text") == right[word], word
    return ask


served = shared(Served)


def check_plain(served):
    """three servers in an unprotected VM: each answers its clients right"""
    served.primary = served.start_from(served.serves, "run", "primary")
    served.beside = served.start_from(served.computes, "run", "beside")  # both boot at once
    kv = [Kv(random.Random(n), prefix=f"c{n}-") for n in range(2)]
    served.clients = [Client("echo", ask_echo), Client("kv", kv[0].ask), Client("kv", kv[1].ask),
                      Client("grep", asker_of_grep(served.text))]
    served.go_on(5)


def check_shared(served):
    """another VM computes on the same GPU: both have their turns"""
    wait(lambda: served.tasks().get("beside", 0) > 20, "the other VM computes")
    before = served.tasks()
    served.go_on(5)
    wait(lambda: all(served.tasks()[vm] > before[vm] for vm in ("primary", "beside")), "both go on")
    served.beside.tell("stop")
    assert served.beside.process.wait(60) == 0, served.beside.said()


def check_switchover(served):
    """protected while clients ask, and switched over: they get their answers over the same connections"""
    old, new = served.primary, served.another(served.primary)
    served.go_on(3)
    old.tell("switchover")
    new.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert old.process.wait(60) == 0, old.said()
    served.go_on(3)
    served.primary = new


def check_killed(served):
    """its QEMU is killed while clients ask: the same"""
    old, new = served.primary, served.another(served.primary)
    served.go_on(3)
    # What the standby's GPU has computed of the same launches is the same.
    before = served.digests(old.name)
    wait(lambda: served.digests(old.name)["digests-compared"] > before["digests-compared"], "digests are compared")
    assert served.digests(old.name)["digests-different"] == 0, served.digests(old.name)
    os.kill(old.qemu(), signal.SIGKILL)
    new.wait("it runs the VM", lambda s: s["role"] == "primary")
    served.go_on(3)
    console = new.console().read_text(encoding="utf-8", errors="replace")
    assert "FAILED" not in console, console
    print(f"       right answers: {', '.join(f'{one.name} {one.answers}' for one in served.clients)}", flush=True)
