# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest with one GPU and a short hang time-out; several programs in it.

Programs that are killed, crash the GPU's worker or hang it: each gets the errors of the standard or nothing at all, what
it had is freed, QEMU lives on, and the others do not notice.
"""
import os

import pytest

from fixtures import one_guest

JOB = os.environ["KAGE_CL_JOB"]
HANG_MS = 20000  # longer than any honest launch of the jobs here, also on a busy machine

guest = one_guest(name="isolation", files=[f"{JOB}:cl_job"], device_options=[f"hang-timeout-ms={HANG_MS}"])


def beside_honest_program(guest, script):
    """Runs a script while another program computes; that one must not notice. Returns the script's Result."""
    other = guest.start("/payload/cl_job churn 1; while [ ! -e /tmp/enough ]; do /payload/cl_job churn 1 || exit 1; done")
    guest.wait_output(other, "rounds are right")
    result = guest.run(script, seconds=300)
    guest.must("touch /tmp/enough")
    honest = guest.finish(other)
    guest.must("rm -f /tmp/enough")
    assert honest.status == 0, f"the other program noticed: {honest}"
    return result


def check_kill(guest):
    """kill -9 of a program with transfers and launches in flight frees everything it had"""
    job = guest.start("exec /payload/cl_job in-flight 1000")
    guest.wait_output(job, "in flight")
    guest.wait_stats(lambda s: s["memory-bytes"] > 0, "the program has memory")
    guest.must("pkill -9 cl_job || kill -9 $(pidof cl_job)")
    guest.finish(job)
    guest.wait_idle()
    guest.must("/payload/cl_job add 1000")


def check_kill_mapped(guest):
    """kill -9 of a program that waits in clFinish with a buffer mapped frees everything it had"""
    job = guest.start("exec /payload/cl_job mapped 0")
    guest.wait_output(job, "in flight")
    guest.must("pkill -9 cl_job || kill -9 $(pidof cl_job)")
    guest.finish(job)
    guest.wait_idle()


def check_many_kills(guest):
    """ten programs killed at random moments leave nothing"""
    guest.must("for i in 1 2 3 4 5 6 7 8 9 10; do /payload/cl_job churn 100 >/dev/null & sleep 0.$((RANDOM % 9))$((RANDOM % 9));"
               "kill -9 $!; wait $!; done; true", seconds=200)
    guest.wait_idle()
    guest.must("/payload/cl_job add 1000")


@pytest.mark.parametrize("how,counter,what", [
    ("trap", "workers-lost", "a kernel that traps: OpenCL errors for its program, the other one goes on"),
    ("wild-write", "workers-lost", "a kernel that writes where nothing is: its worker dies, the other program goes on"),
    ("wild-read", "workers-lost", "a kernel that reads where nothing is: its worker dies, the other program goes on"),
    ("endless", "workers-killed-hung", "a kernel that never ends: its worker is killed after the hang time-out"),
], ids=["trap", "wild-write", "wild-read", "endless"])
def check_hostile(guest, how, counter, what):
    """{what}"""
    del what
    before = guest.stats()
    result = beside_honest_program(guest, f"/payload/cl_job {how}")
    assert result.status == 0, f"the program saw no error of OpenCL: {result}"
    after = guest.wait_idle()
    assert after[counter] > before[counter], f"{counter} did not grow: {after}"
    guest.must("/payload/cl_job add 1000")
    assert guest.qmp("query-status")["status"] == "running"


def check_kernel_log(guest):
    """the guest's kernel had nothing to complain about"""
    bad = guest.run("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|refcount|general protection|hung task'")
    assert bad.status == 1, bad.output
