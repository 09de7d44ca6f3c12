# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of replication share: a standby, a link that can be cut, and what both ends say about each other."""
import select
import socket
import threading
import time

import guest_vm

VM_ID = "the-vm"
OPTIONS = (f"vm-id={VM_ID}", "heartbeat-budget-ms=5000", "digest-interval-ms=0")


class Standby(guest_vm.Guest):
    """A QEMU with the same device that waits to take over; its guest does not run. `address`: where it listens."""

    def __init__(self, name, *, device_options=(), **options):
        super().__init__(name, device_options=(*OPTIONS, "standby-listen=127.0.0.1:0", *device_options),
                         extra=("--qemu-option=-incoming", "--qemu-option=defer"), **options)

    def __enter__(self):
        self.connect_qmp()
        self.address = replication(self)["standby-address"]
        return self

    def __exit__(self, kind, value, traceback):
        self.kill()
        super().__exit__(kind, value, traceback)


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


def wait_replication(guest, condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        status = replication(guest)
        if condition(status):
            return status
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: never true; {status}")
        time.sleep(0.1)


def wait_state(guest, state, seconds=120):
    return wait_replication(guest, lambda s: s["state"] == state, f"state {state}", seconds)


def compare_all(guest, standby, everything=True):
    """Compares every live buffer of both sides, which are the same. Returns the number of chunks, which was not 0.
    Without `everything`: all that was written; memory that a program has not written yet holds anything."""
    chunks, different = compare(guest, everything)
    assert different == 0, f"primary and standby differ: {replication(guest)}"
    there = replication(standby)
    assert there["digests-compared"] > 0 and there["faults"] == 0, there
    return chunks


def compare(guest, everything=True):
    """Compares every live buffer of both sides. Returns how many chunks that were, and how many differ."""
    before = replication(guest)
    deadline = time.monotonic() + 60
    while True:
        guest.qmp("qom-set", path="/machine/peripheral/vgpu0", property="replication-digest", value=everything)
        try:
            after = wait_replication(guest, lambda s: s["digests-compared"] > before["digests-compared"],
                                     "a comparison", 10)
            break
        except AssertionError:
            if time.monotonic() > deadline:
                raise
    assert after["state"] == "protecting", after
    return (after["digests-compared"] - before["digests-compared"],
            after["digests-different"] - before["digests-different"])


def wait_caught_up(guest, seconds=120):
    """Everything that was logged has been executed on the standby."""
    return wait_replication(guest, lambda s: s["state"] == "protecting" and s["executed"] == s["appended"],
                            "everything executed on the standby", seconds)
