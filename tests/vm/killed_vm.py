# SPDX-License-Identifier: GPL-2.0-or-later
"""
A guest whose host is killed again and again: two QEMUs on one machine, the GPU mirrored and the VM checkpointed from one to
the other (COLO, passive), without supervisors. What runs in it, and on which GPU, is the test's.
"""
import os
import random
import signal
import time
from pathlib import Path

import guest_vm
import mirror
from places import Place

KILLS = int(os.environ.get("KAGE_KILLS") or 3)
SEED = int(os.environ.get("KAGE_SEED") or random.randrange(1 << 32))
DEVICE = (*mirror.OPTIONS, f"vm-id={mirror.VM_ID}", "window-size=16M")
EPOCH_MS = 100


class Kind:
    """What both ends are: what a checkpoint carries must be the same on them, files for the guest and all. `extra`: more
    words for the control tool. `memory`: MiB."""

    def __init__(self, name, files, *, backend="opencl", extra=(), memory=512, cpus=2):
        self.name, self.files, self.backend, self.extra, self.memory, self.cpus = name, files, backend, extra, memory, cpus


class Machine(guest_vm.Guest):
    def __init__(self, kind, name, *device_options, extra=()):
        super().__init__(name, files=kind.files, backend=kind.backend, memory=kind.memory, cpus=kind.cpus,
                         device_options=(*DEVICE, *device_options), extra=(*kind.extra, *extra))


class Standby(Machine):
    """Its guest does not run before a takeover. `address`: where its GPU's copy comes from."""

    def __init__(self, kind, name):
        super().__init__(kind, name, extra=(
            "--device-option", "standby-listen=unix:{directory}/gpu",
            "--qemu-option=-incoming", "--qemu-option=defer",
            "--qemu-option=-global", "--qemu-option=migration.x-colo-passive=on"))

    def __enter__(self):
        guest_vm.Machine.__enter__(self)
        # The guest's agent finds its port connected before and after.
        self.agent = guest_vm.Socket(self.directory / "agent", self.alive)
        self.address = mirror.replication(self)["standby-address"]
        return self

    def __exit__(self, kind, value, traceback):
        guest_vm.Machine.__exit__(self, kind, value, traceback)


class Vm:
    """The guest, wherever it runs just now."""

    def __init__(self, kind, guest):
        self.kind = kind
        self.guest = guest
        self.kills = 0
        self.ended = []  # those that had it before, dead
        self.places = []
        self.random = random.Random(SEED)

    def watch(self, machine):
        """Its logs are shown and kept when something fails."""
        self.places.append(Place(machine.directory))

    def protect(self, standby):
        """The GPU first, then the VM."""
        self.guest.qmp("qom-set", path="/machine/peripheral/vgpu0", property="replicate-to", value=standby.address)
        mirror.wait_state(self.guest, "protecting", 300)
        where = f"unix:{standby.directory / 'migration'}"
        for each in (self.guest, standby):
            each.qmp("migrate-set-capabilities", capabilities=[{"capability": "x-colo", "state": True}])
        self.guest.qmp("migrate-set-parameters", **{"x-checkpoint-delay": EPOCH_MS, "max-bandwidth": 10 << 30,
                                                    "downtime-limit": 20000})
        standby.qmp("migrate-incoming", uri=where)
        self.guest.qmp("migrate", uri=where)
        deadline = time.monotonic() + 300
        while self.checkpoints().get("committed", 0) < 3:
            status = self.guest.qmp("query-migrate")
            if status.get("status") not in ("setup", "active", "device", "colo"):
                raise AssertionError(f"no checkpoints: {status}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no checkpoints: {status}, {self.checkpoints()}, {mirror.replication(self.guest)}")
            time.sleep(0.1)

    def checkpoints(self):
        return self.guest.qmp("query-colo-status").get("checkpoints", {})

    def take_over(self, standby):
        """Kills QEMU as a crash would, and tells the standby so. Returns how long it took until the guest ran."""
        os.kill(qemu_of(self.guest), signal.SIGKILL)
        killed = time.monotonic()
        standby.qmp("x-colo-lost-heartbeat")
        standby.wait_event("RESUME")
        ran = time.monotonic() - killed
        dead, self.guest = self.guest, standby
        self.guest.number = dead.number
        dead.kill()
        self.ended.append(dead)
        self.kills += 1
        return ran

    def end(self):
        for each in (*self.ended, self.guest):
            guest_vm.Machine.__exit__(each, None, None, None)


def killed_again_and_again(kind):
    """The body of a fixture: the guest, which is looked after until its end."""
    print(f"       {KILLS} kills in a row, seed {SEED}", flush=True)
    guest = Machine(kind, kind.name, "replicable=on")
    found = Vm(kind, guest)
    found.watch(guest)
    try:
        guest.__enter__()
        yield found
    finally:
        found.end()
    # QEMU drops an access of a vCPU to a device that is at work for another one, and says so once.
    dropped = [each.directory for each in (*found.ended, found.guest)
               if "Blocked re-entrant IO" in (each.directory / "log").read_text(encoding="utf-8", errors="replace")]
    for place in found.places:
        place.failed |= bool(dropped)
        place.leave()
    assert not dropped, f"an access to a device was dropped: {dropped}"


def qemu_of(guest):
    """The process id of the QEMU that the control tool has started."""
    for task in Path(f"/proc/{guest.process.pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            if Path(f"/proc/{child}/comm").read_text(encoding="ascii").startswith("qemu-system"):
                return int(child)
    raise AssertionError("the tool has no QEMU")


def survive_a_kill(vm, work, *, same=True):
    """`work`: programs in the guest that compute all the time; they print FAILED if a result is wrong. `same`: what they leave
    in the GPU's memory is the same each time."""
    standby = Standby(vm.kind, f"{vm.kind.name}-standby-{vm.kills + 1}")
    vm.watch(standby)
    try:
        standby.__enter__()
        vm.protect(standby)
        launches = vm.guest.stats()["launches"]
        vm.guest.wait_stats(lambda s: s["launches"] > launches, "launches under protection")
        chunks = mirror.compare_all(vm.guest, standby, everything=False) if same else 0
        time.sleep(vm.random.uniform(0, 2))
        figures = vm.checkpoints()
        ran = vm.take_over(standby)
    except BaseException:
        if vm.guest is not standby:
            standby.__exit__(None, None, None)
        raise
    status = mirror.replication(vm.guest)
    assert status["role"] == "primary" and status["takeovers"] == 1, status
    vm.guest.wait_stats(lambda s: s["launches"] > 0, "launches after the takeover")
    for job in work:
        printed = vm.guest.output(job)
        assert "FAILED" not in printed, printed + vm.guest.must("dmesg | grep -i vgpu | tail -5")
    compared = f"{chunks} chunks of both GPUs' memory were the same; " if same else ""
    print(f"       {compared}after {figures['committed']} checkpoints ({figures['aborted']} taken back, longest pause "
          f"{figures['max-pause-us'] / 1000:.1f} ms) the guest ran {ran * 1000:.0f} ms after the kill, "
          f"{vm.guest.stats()['device-resumed']} requests in flight", flush=True)
