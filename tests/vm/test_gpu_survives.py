#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: `kagemusha run VM.toml` and `kagemusha standby VM.toml` on one machine, joined by Unix sockets, with the arbiter
`lock`. The guest computes on its GPU without a pause and checks every result.

Whatever fails on a protected primary's host, QEMU or its GPU, the guest's programs go on in the standby and end as if nothing
had happened; the new primary is given another standby, and fails in turn. One guest lives through all of it.

With `link`: the connection of the GPUs goes through a relay that can be cut while everything else goes on.
"""
import os
import signal
import socket
import sys
import time

from ha_pair import Pair, wait, workers
from guest_vm import environment
from processes import wait_ended
from relay import Relay

# Each line that comes from the console: a program beside the one that runs all the time.
JOB = """#!/bin/bash
/payload/cl_job churn 36000 /tmp/stop &
echo computing
while read -r what; do
    [ "$what" != enough ] || break
    /payload/cl_job $what || echo "FAILED with $?"
done </dev/ttyS0
touch /tmp/stop
wait $!
"""

# The second fill of a program fails. (The program that runs all the time fills once.)
FAULTY = """
hang-timeout-ms = "5000"
options = "backend=opencl,on=fill:2,do={}"
"""


class GpuPair(Pair):
    """A VM with a GPU instead of the counting one. Its hosts may have GPUs of different kinds: description(name)."""

    def __init__(self, hangs):
        super().__init__()
        self.hangs = hangs
        self.environment = dict(environment(), KAGEMUSHA_RUNTIME_DIR=str(self.directory))
        self.turn = 0
        (self.directory / "job.sh").write_text(JOB, encoding="utf-8")
        for name, backend, more in (("good", "opencl", ""), ("lost", "faulty", FAULTY.format("lost")),
                                    ("hang", "faulty", FAULTY.format("hang"))):
            (self.directory / f"{name}.toml").write_text(f"""
name = "computes"
memory = "512M"
cpus = 2
accel = "tcg"
[boot]
guest = "{os.environ.get("KAGE_KERNEL") or "6.12-cloud"}"
job = "job.sh"
files = ["{os.environ["KAGE_CL_JOB"]}:cl_job"]
[gpu]
backend = "{backend}"
[gpu.properties]
window-size = "16M"
{more}
[protection]
standby = "unix:standby"
epoch-ms = 100
heartbeat-ms = 500
heartbeat-budget-ms = 10000
qemu-budget-ms = 60000
[supervision]
gpu-takeover-ms = 0
[arbiter]
kind = "lock"
path = "lease"
lease-ms = 10000
""", encoding="utf-8")

    def start_with(self, gpu, command, name, *more):
        self.description = self.directory / f"{gpu}.toml"
        return self.start(command, name, *more)

    def another(self, primary, gpu):
        """A new standby for the VM that runs, with such a GPU."""
        self.turn += 1
        address = f"unix:{self.directory}/standby{self.turn}"
        standby = self.start_with(gpu, "standby", f"standby{self.turn}", "--listen", address)
        standby.wait_state("listening")
        primary.tell("protect", address)
        protected(primary)
        return standby


def protected(primary):
    primary.wait_state("protecting")
    checkpoints = primary.status()["checkpoints"]
    primary.wait("checkpoints", lambda s: s["checkpoints"] >= checkpoints + 3)


def said(supervisor):
    try:
        return supervisor.console().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def tell(supervisor, line):
    """To the job in its guest."""
    with socket.socket(socket.AF_UNIX) as console:
        console.connect(str(supervisor.pair.directory / f"{supervisor.name}.console"))
        console.sendall(line.encode() + b"\n")
        time.sleep(0.2)  # QEMU reads it before it sees the end


def worker(supervisor):
    """The process number of its GPU worker that has worked most: of the program that runs all the time."""
    found = wait(lambda: workers(supervisor.qemu()), f"{supervisor.name} has a worker")
    return max(found)[1]


def taken_over(primary, standby, why):
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert status["takeovers"] == 1 and why in status["last_takeover"], status
    assert primary.process.wait(60) == 0, primary.said()
    for one in (primary, standby):
        assert "FAILED" not in said(one), f"{one.name}: {said(one)}"


def ends_right(supervisor, text):
    """A program in its guest says so."""
    def look():
        assert "FAILED" not in said(supervisor), said(supervisor)
        return text in said(supervisor)
    wait(look, f"'{text}' from {supervisor.name}")


def check_gpu_lost(pair):
    """the primary's GPU is lost in the middle of a program: the standby's goes on, the guest sees nothing"""
    standby = pair.start_with("good", "standby", "standby")
    primary = pair.start_with("lost", "run", "primary")
    primary.wait("the program", lambda s: "computing" in said(primary))
    protected(primary)
    tell(primary, "fill 5")
    taken_over(primary, standby, "its GPU failed")
    ends_right(standby, "5 fills are right")
    assert "fills are right" not in said(primary), said(primary)
    return standby


def check_worker_killed(pair, primary):
    """kill -9 of the GPU worker of a program: as above"""
    standby = pair.another(primary, "hang" if pair.hangs else "good")
    os.kill(worker(primary), signal.SIGKILL)
    taken_over(primary, standby, "its GPU failed")
    return standby


def check_gpu_hangs(pair, primary):
    """the primary's GPU hangs: as above, when the watchdog has found it"""
    standby = pair.another(primary, "good")
    tell(primary, "fill 4")
    taken_over(primary, standby, "its GPU failed")
    ends_right(standby, "4 fills are right")
    return standby


def check_standby_worker_killed(pair, primary):
    """kill -9 of the worker in the standby: it has no copy any more, begins anew, and protects the VM again"""
    standby = pair.another(primary, "good")
    os.kill(worker(standby), signal.SIGKILL)
    wait(lambda: any(e["event"] == "alone" and "GPU" in e.get("text", "") for e in primary.events()),
         f"the primary gives its standby up; {primary.said()}")
    protected(primary)
    assert "FAILED" not in said(primary), said(primary)
    return primary, standby


def check_qemu_killed(pair, primary, standby):
    """QEMU killed: as above; the program that ran all the time ends, and every result was right"""
    os.kill(primary.qemu(), signal.SIGKILL)
    taken_over(primary, standby, "Killed")
    tell(standby, "enough")
    wait(lambda: "KAGEMUSHA-EXIT" in said(standby), f"the program's end; {standby.said()}", 600)
    assert "rounds are right" in said(standby) and "KAGEMUSHA-EXIT 0" in said(standby), said(standby)
    assert "rounds are right" not in said(primary), said(primary)
    assert standby.process.wait(60) == 0, standby.said()


class RelayedPair(GpuPair):
    """The standbys' GPUs are reached through a relay. The first standby is `far`, and listens where the relay ends."""

    def __init__(self):
        super().__init__(False)
        self.relay = Relay(f"{self.directory}/near.gpu", f"{self.directory}/far.gpu")
        path = self.directory / "good.toml"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('standby = "unix:standby"', 'standby = "unix:far"\ngpu = "unix:near.gpu"'),
                        encoding="utf-8")

    def __exit__(self, *what):
        super().__exit__(*what)
        self.relay.close()

    def begin(self):
        standby = self.start_with("good", "standby", "standby", "--listen", f"unix:{self.directory}/far")
        primary = self.start_with("good", "run", "primary")
        primary.wait("the program", lambda s: "computing" in said(primary))
        protected(primary)
        return primary, standby


def check_link_cut(pair, primary, standby):
    """the connection of the GPUs is cut: nobody says that the VM is protected, and it is again when the network is mended"""
    pair.relay.cut()
    wait(lambda: any(e["event"] == "alone" and "GPU" in e.get("text", "") for e in primary.events()),
         f"the primary gives its standby up; {primary.said()}")
    status = primary.status()
    assert not status["protected"] and "GPU" in status["degraded"], status
    tell(primary, "fill 2")
    ends_right(primary, "2 fills are right")
    standby.wait("it begins anew", lambda s: s["state"] in ("starting", "listening", "greeted"))
    assert primary.status()["state"] != "protecting", primary.status()
    pair.relay.mend()
    protected(primary)


def check_link_cut_unnoticed(pair, primary, standby):
    """the connection ends, another one is tried, and QEMU dies, all before a supervisor has noticed: the copy was kept"""
    os.kill(primary.process.pid, signal.SIGSTOP)
    before = pair.relay.accepted
    pair.relay.reset()
    # The second attempt follows the refusal of the first one.
    wait(lambda: pair.relay.accepted >= before + 2, "the primary's GPU connects again, in vain")
    os.kill(primary.qemu(), signal.SIGKILL)
    os.kill(primary.process.pid, signal.SIGCONT)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary")
    assert status["takeovers"] == 1 and not status["gpu_lost"], status
    tell(standby, "fill 3")
    ends_right(standby, "3 fills are right")


def check_both_gpus_lost(pair, primary, standby):
    """the standby's GPU loses its copy and the primary's QEMU dies, both at once: the VM goes on, and it is said"""
    del pair
    # Frozen: else the primary might hear of the one before it hears of the other, and note that it is alone.
    os.kill(standby.process.pid, signal.SIGSTOP)
    lost = worker(standby)
    os.kill(lost, signal.SIGKILL)
    # It maps all of the guest's memory: its end may be told later than that of a QEMU with a memory-keeper.
    wait_ended(lost)
    os.kill(primary.qemu(), signal.SIGKILL)
    wait(lambda: any(e["event"] == "leaving" for e in primary.events()), f"the standby is told; {primary.said()}")
    os.kill(standby.process.pid, signal.SIGCONT)
    status = standby.wait("it runs the VM", lambda s: s["role"] == "primary" and s["gpu_lost"])
    assert status["takeovers"] == 1 and "worker" in status["gpu_lost"], status
    wait(lambda: "FAILED" in said(standby), f"the program that computed gets an error; {said(standby)}")
    tell(standby, "fill 4")
    wait(lambda: "4 fills are right" in said(standby), f"a new program computes; {said(standby)}")


def main_link():
    for checks in ([check_both_gpus_lost], [check_link_cut, check_link_cut_unnoticed]):
        with RelayedPair() as pair:
            both = pair.begin()
            for check in checks:
                started = time.monotonic()
                check(pair, *both)
                print(f"ok     {check.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


def main(hangs):
    checks = [check_gpu_lost, check_worker_killed, check_standby_worker_killed, check_qemu_killed]
    if hangs:  # takes minutes: what runs beside it piles up meanwhile
        checks.insert(2, check_gpu_hangs)
    with GpuPair(hangs) as pair:
        runs = []
        for check in checks:
            started = time.monotonic()
            result = check(pair, *runs)
            runs = result if isinstance(result, tuple) else (result,)
            print(f"ok     {check.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main_link() if "link" in sys.argv else main("hangs" in sys.argv))
