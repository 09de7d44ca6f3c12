# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, again and again others; a Linux guest with a GPU, and a peer that hears it. The guest
runs guest/differ_job.cpp, whose kernel gives something else each time: a race and an address decide which item gets which slot
of a table. Its host is killed again and again, under each policy for such kernels (docs/vm.md).

--kills (default 3) is of the VM that ships; --seed repeats what was drawn.
"""
import contextlib
import os
import random
import re

import mirror
from fixtures import own
from ha_pair import wait
from soak.chain import Chain
from soak.ledger import Ledger

KILLS = int(os.environ.get("KAGE_KILLS") or 3)
SEED = int(os.environ.get("KAGE_SEED") or random.randrange(1 << 32))
SELDOM, OFTEN = 'digest-interval-ms = "600000"', 'digest-interval-ms = "300"'
ROUNDS = 150  # of the program: some seconds
ENOUGH_KILLS = 8  # at most half of them hit an open round
DIFFERENT_OBJECTS = 3  # of the program: owners, slots and sums


class Told(Ledger):
    """Of a program whose results nobody can count again: each round goes on from the one before."""

    def begin(self):
        return 0

    def after(self, *_):
        return None


class Differences(Chain):
    """`keys`: of [gpu]; `first`, `later`: more properties of the GPU of the host that begins, and of the others."""

    def __init__(self, program, keys, first="", later=""):
        super().__init__(SEED, 0, ("kill-qemu",), (program,), "lock")
        self.peer.ledgers = [Told(program)]
        self.cpus = 2
        self.gpu_keys, self.first, self.later = keys, first, later

    def host(self, command, *more):
        self.gpu_properties = self.first if command == "run" else self.later
        return super().host(command, *more)

    def draw(self):
        super().draw()
        self.rest = self.random.uniform(0, 0.5)

    def survives(self, kills):
        for _ in range(kills):
            self.lose()

    def contradicted(self):
        """What the program has found, on any host. Hosts that went on from one checkpoint may have found the same."""
        return [line for path in self.directory.glob("*.d/console.log")
                for line in re.findall(r"CONTRADICTED .*", path.read_text(encoding="utf-8", errors="replace"))]


repairs = own(lambda: Differences("differ-counts", "", SELDOM, SELDOM))
names = own(lambda: Differences("differ", 'ship-kernels = ["another", "take"]', SELDOM, SELDOM))
ships = own(lambda: Differences("differ", 'differences = "ship"', OFTEN, OFTEN))


@contextlib.contextmanager
def computing(vm):
    """It is protected, and its metrics are asked; then its programs end, and every result was right."""
    print(f"       seed {SEED}", flush=True)
    with metrics_of(vm) as metrics:
        vm.begin()
        yield metrics
        print(f"       {vm.finish()['rounds']} rounds", flush=True)


def figures(metrics, host):
    return metrics.of(host.name)


def metrics_of(vm):
    """`kagemusha metrics` of this VM's hosts. They do not own it, and leaks.py knows its own by the directory's name."""
    return mirror.Metrics({**vm.hosts.environment, "KAGEMUSHA_RUNTIME_DIR": f"{vm.directory}/"})


def answers_after(vm, rounds):
    """The peer hears of so many more rounds."""
    before = vm.peer.rounds()
    wait(lambda: all(now >= then + rounds for now, then in zip(vm.peer.rounds(), before)), "the program computes")


def becomes_ship(vm, metrics):
    """differences that repeat are seen by people, and what differs is shipped from then on without anybody's doing"""
    primary = vm.primary
    wait(lambda: figures(metrics, primary).get("shipped_objects", 0) >= DIFFERENT_OBJECTS,
         f"what differs is shipped; {primary.said()}; {figures(metrics, primary)}")
    found = figures(metrics, primary)
    assert found["digests_different_total"] >= 3 * DIFFERENT_OBJECTS, found
    events = [e for e in primary.events() if e["event"] == "differences"]
    assert events and "differ" in events[0]["text"], primary.said()
    wait(lambda: any("sent after each" in e["text"] for e in primary.events() if e["event"] == "differences"),
         f"people see what is shipped; {primary.said()}")
    before = len(vm.contradicted())
    vm.survives(1)
    assert len(vm.contradicted()) == before, vm.contradicted()


def check_repair(repairs):
    """repair does not promise it: before comparisons, the survivor contradicts what the program was told; then it ships"""
    vm = repairs
    with computing(vm) as metrics:
        # The first comparison comes soon after the program's memory is there, and repairs it; then none for long.
        for kill in range(1, ENOUGH_KILLS + 1):
            answers_after(vm, ROUNDS)
            vm.survives(1)
            answers_after(vm, 3)  # it looks at what it was told with each round
            if vm.contradicted():
                break
            # A kill while a round's request is open makes that round anew on the survivor: it fits what the survivor has.
        # Else the checks of `ship` could not fail.
        assert vm.contradicted(), f"the program finds nothing else than it was told, after {kill} kills"
        print(f"       after {kill} kills: {vm.contradicted()[0]}", flush=True)
        vm.later = OFTEN
        vm.survives(2)  # the first one's standby compares often, and has the VM after the second
        becomes_ship(vm, metrics)


def check_named(names):
    """kernels that the administrator names: what they tell stays true from their first launch on, without a comparison"""
    with computing(names) as metrics:
        names.survives(2)
        assert not names.contradicted(), names.contradicted()
        found = figures(metrics, names.primary)
        assert not found["shipped_objects"], f"it was shipped because it differed: {found}"


def check_ship(ships):
    """ship: whatever the program was told stays true, over and over"""
    with computing(ships) as metrics:
        ships.survives(KILLS)
        assert not ships.contradicted(), ships.contradicted()
        # Else its kernel gave the same everywhere, and nothing was tested.
        wait(lambda: figures(metrics, ships.primary).get("digests_different_total"),
             f"its memory differs; {figures(metrics, ships.primary)}")
