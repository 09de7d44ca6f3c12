# SPDX-License-Identifier: GPL-2.0-or-later
"""
What the tests of replication share: keys, a standby, a link that can be cut, what both ends say about each other, and what
the control tool says about them.
"""
import json
import select
import socket
import subprocess
import threading
import time
import urllib.request

import guest_vm
from ha_pair import SECONDS, wait

VM_ID = "the-vm"
# A busy machine is not to be taken for a dead one: whoever dies here closes its connections, which is heard at once.
OPTIONS = ("heartbeat-budget-ms=120000", "digest-interval-ms=0")


def make_keys(directory):
    """A cluster with one host, which this machine is, and two VMs. Returns the host's directory."""
    subprocess.run([guest_vm.tool(), "keys", str(directory), "--host", "here", "--vm", VM_ID, "--vm", "another-vm"],
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return f"{directory}/here"


def link_options(name, keys="", vm=VM_ID):
    """The control tool's options for a VM that `status` is to show under this name."""
    return ("--name", name, "--vm-id", vm, *(("--tls", keys, "--compress") if keys else ()))


class Standby(guest_vm.Machine):
    """A QEMU with the same device that waits to take over; its guest does not run. `address`: where it listens."""

    def __init__(self, name, keys="", **options):
        super().__init__(name, "standby", device_options=OPTIONS,
                         extra=(*link_options(name, keys), "--listen", "127.0.0.1:0" if keys else "unix:{directory}/gpu"), **options)

    def __enter__(self):
        super().__enter__()
        self.address = replication(self)["standby-address"]
        return self


class Primary(guest_vm.Machine):
    """A QEMU that wants a standby at once. Its guest does not run either: for what is decided before there is anything to
    mirror."""

    def __init__(self, name, to, keys="", vm=VM_ID):
        super().__init__(name, "run", device_options=OPTIONS,
                         extra=(*link_options(name, keys, vm), "--replicate-to", to, "--qemu-option=-S", "--", "true"))


class Cable:
    """A TCP connection's way through this process, which can be cut and mended. `address`: its near end."""

    def __init__(self, to):
        host, port = to.rsplit(":", 1)
        self.to = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.is_cut = False
        self.ends = {}  # socket → the one at the other end
        self.open = True
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def carry(self):
        while self.open:
            if self.is_cut:
                for end in list(self.ends):
                    self.drop(end)
            for ready in select.select([self.listener, *self.ends], [], [], 0.05)[0]:
                if ready is self.listener:
                    self.accept()
                elif ready in self.ends:
                    self.forward(ready)
        for end in list(self.ends):
            self.drop(end)
        self.listener.close()

    def accept(self):
        near, _ = self.listener.accept()
        try:
            if self.is_cut:
                raise OSError("the link is cut")
            far = socket.create_connection(self.to)
        except OSError:
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ends[end] = other

    def forward(self, end):
        try:
            data = end.recv(1 << 16)
            if data:
                self.ends[end].sendall(data)
                return
        except OSError:
            pass
        self.drop(end)

    def drop(self, end):
        other = self.ends.pop(end, None)
        if other:
            self.ends.pop(other, None)
            other.close()
        end.close()

    def close(self):
        self.open = False
        self.thread.join()


def replication(guest):
    return guest.qmp("qom-get", path="/machine/peripheral/vgpu0", property="replication")


def wait_replication(guest, condition, what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while True:
        status = replication(guest)
        if condition(status):
            return status
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: never true; {status}")
        time.sleep(0.1)


def wait_state(guest, state, seconds=SECONDS):
    return wait_replication(guest, lambda s: s["state"] == state, f"state {state}", seconds)


def compare_all(guest, standby, everything=True):
    """Compares every live buffer of both sides, which are the same. Returns the number of chunks, which was not 0.
    Without `everything`: all that was written; memory that a program has not written yet holds anything."""
    chunks, different = compare(guest, everything)
    assert different == 0, f"primary and standby differ: {replication(guest)}"
    there = replication(standby)
    assert there["digests-compared"] > 0 and there["faults"] == 0, there
    return chunks


def compare(guest, everything=True, once=False):
    """Compares every live buffer of both sides. Returns how many chunks that were, and how many differ. A program may have no
    buffer just when it is asked for, so it is asked for again, unless `once`: then nothing is counted twice."""
    before = replication(guest)
    deadline = time.monotonic() + SECONDS
    while True:
        guest.qmp("qom-set", path="/machine/peripheral/vgpu0", property="replication-digest", value=everything)
        try:
            after = wait_replication(guest, lambda s: s["digests-compared"] > before["digests-compared"],
                                     "a comparison", SECONDS if once else 10)
            break
        except AssertionError:
            if time.monotonic() > deadline:
                raise
    assert after["state"] == "protecting", after
    return (after["digests-compared"] - before["digests-compared"],
            after["digests-different"] - before["digests-different"])


def wait_caught_up(guest, seconds=SECONDS):
    """Everything that was logged has been executed on the standby."""
    return wait_replication(guest, lambda s: s["state"] == "protecting" and s["executed"] == s["appended"],
                            "everything executed on the standby", seconds)


# ---- what the control tool says ----

def tool_status(*arguments):
    """`kagemusha status` → (exit status, what it prints)."""
    done = subprocess.run([guest_vm.tool(), "status", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=False)
    return done.returncode, done.stdout


def wait_status(name, condition, what, seconds=SECONDS):
    """Asks `kagemusha status NAME --json` until the condition holds for its replication. Returns that and the exit
    status."""
    def look():
        code, text = tool_status(name, "--json")
        vm, = json.loads(text)
        assert vm["name"] == name and vm["problem"] == "", vm
        device, = vm["devices"]
        return (device["replication"], code) if condition(device["replication"]) else None
    try:
        return wait(look, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; {tool_status(name, '--json')}") from error


class Metrics:
    """`kagemusha metrics`, asked as Prometheus would."""

    def __init__(self, environment=None):
        self.process = subprocess.Popen([guest_vm.tool(), "metrics", "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env=environment)
        self.address = self.process.stderr.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.address

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()

    def read(self):
        """Each series with its value: 'name{label="value",…}' → number."""
        with urllib.request.urlopen(self.address, timeout=60) as page:
            lines = page.read().decode().splitlines()
        series = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    def of(self, vm):
        """The figures of one VM's replication, without labels and prefix."""
        marker = f'{{vm="{vm}",device="vgpu0"}}'
        prefix = "kagemusha_replication_"
        return {name[len(prefix):-len(marker)]: value for name, value in self.read().items()
                if name.startswith(prefix) and name.endswith(marker)}
