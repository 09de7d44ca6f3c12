# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest without a GPU, started by the control tool.

What every other test here rests on: a job's exit status and files come out, the time limit and a kill of the tool leave
no QEMU behind, QMP and the agent work.
"""
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from fixtures import one_guest
from guest_vm import environment, tool
from ha_pair import wait
from processes import freeze

guest = one_guest(name="tool", backend="none")


def run_tool(*arguments, **options):
    return subprocess.run([tool(), "run", "--backend", "none", "--quiet", *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env=environment(backend="none"), **options)


def children(pid):
    """Processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if entry.name.isdigit() and fields[1] == str(pid):
            found.append(int(entry.name))
    return found


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def qemu_of(process):
    """The QEMU that the tool has started (waits until it has)."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for pid in children(process.pid):
            try:
                if "qemu-system" in os.readlink(f"/proc/{pid}/exe"):
                    return pid
            except OSError:
                pass
        time.sleep(0.05)
    raise AssertionError("the tool started no QEMU")


def check_agent(guest):
    """commands run in the guest one after the other and in the background; QEMU answers on QMP"""
    assert guest.must("echo one; echo two >&2").split() == ["one", "two"]
    assert guest.run("exit 9").status == 9
    assert guest.run("sleep 100", seconds=2).status in (124, 137)
    job = guest.start("echo begun; read -r -t 2 <> <(:); echo 'it'\"'\"'s over'; exit 4")
    guest.wait_output(job, "begun")
    result = guest.finish(job)
    assert result.status == 4 and "it's over" in result.output, result
    assert guest.qmp("query-status")["status"] == "running"


def check_clock(guest):
    """a guest whose processors did not run for seconds has its time, and its programs go on, also when its TSC is no clock"""
    clocks = Path("/sys/devices/system/clocksource/clocksource0")
    if "kvm-clock" in guest.must(f"cat {clocks}/available_clocksource"):
        return
    # Without an HPET its clock may be ACPI's timer, and it stands still for ever after one of these.
    guest.must(f"echo hpet >{clocks}/current_clocksource && grep hpet {clocks}/current_clocksource")
    qemu = qemu_of(guest.process)

    def behind():
        """Of the host's clock, in s: at least, and at most."""
        begin = time.time()
        now = float(guest.must("date +%s.%N"))
        return begin - now, time.time() - now

    def ticks():
        return (guest.directory / "console").read_bytes().count(b"tick of the clock")

    at_most = behind()[1]
    guest.start("until [ -e /tmp/enough ]; do sleep 1; echo 'tick of the clock' >/dev/ttyS0; done")
    wait(lambda: ticks() > 0, "a tick")
    for _ in range(3):
        freeze(qemu)
        time.sleep(3.6)  # between a half and the whole of what ACPI's timer counts
        os.kill(qemu, signal.SIGCONT)
        before = ticks()
        # By the console: nobody talks to the guest, which would wake it.
        wait(lambda before=before: ticks() > before + 3, "more ticks")
    guest.must("touch /tmp/enough")
    lost = behind()[0] - at_most
    assert lost < 2, f"the guest lost {lost:.1f} s"


def check_status_and_files():
    """a job's output, exit status and files come out of the guest; files go in"""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source"
        source.write_bytes(os.urandom(300000))
        done = run_tool("--file", f"{source}:deep/inside", "--out", f"{directory}/out", "--",
                        "bash", "-c", "cp /payload/deep/inside /out/copy; echo it\\'s done; exit 7")
        assert done.returncode == 7, f"status {done.returncode}: {done.stderr}"
        assert done.stdout.strip() == "it's done", f"printed {done.stdout!r}"
        assert (Path(directory) / "out/copy").read_bytes() == source.read_bytes(), "the file changed on its way"


def check_time_limit():
    """a guest that never ends is ended at its time limit, with status 124"""
    done = run_tool("--timeout", "20", "--", "sleep", "1000")
    assert done.returncode == 124, f"status {done.returncode}: {done.stderr}"


def check_panic():
    """a guest kernel that panics is reported, with status 125 and the end of its console"""
    done = run_tool("--", "bash", "-c", "echo c >/proc/sysrq-trigger; sleep 100")
    assert done.returncode == 125, f"status {done.returncode}: {done.stderr}"
    assert "RIP:" in done.stderr, f"nothing of the console in: {done.stderr}"


def ended_with_tool(sent, status):
    with tempfile.TemporaryDirectory() as directory:  # a killed tool can't remove its files
        process = subprocess.Popen([tool(), "run", "--backend", "none", "--", "sleep", "1000"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=dict(environment(backend="none"), TMPDIR=directory))
        try:
            qemu = qemu_of(process)
            process.send_signal(sent)
            assert process.wait(60) == status, f"the tool ended with {process.returncode}"
            deadline = time.monotonic() + 30
            while not gone(qemu):
                assert time.monotonic() < deadline, f"QEMU {qemu} is still there"
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()


def check_terminated():
    """SIGTERM to the tool ends its guest"""
    ended_with_tool(signal.SIGTERM, 128 + signal.SIGTERM)


def check_killed():
    """kill -9 of the tool ends its guest"""
    ended_with_tool(signal.SIGKILL, -signal.SIGKILL)
