# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: guests whose GPU speaks CUDA, on the host's processor (the PTX device). First one guest; then two QEMUs, of which the
first has the guest and is killed, as in test_takeover.py.

--kills is how many times that happens, --seed repeats the moments of a run (its seed is printed).
"""
import os

import pytest

import killed_vm
from fixtures import one_guest

pytestmark = pytest.mark.story

CHECK, JOB = os.environ["KAGE_CUDA_CHECK"], os.environ["KAGE_CUDA_JOB"]
DRIVER = ("--driver", os.environ.get("KAGE_CUDA_DRIVER") or "ptx")
FILES = (f"{CHECK}:cuda_check", f"{JOB}:cuda_job")
ROUNDS = 60  # of the run whose checksum is compared

guest = one_guest(name="cuda", backend="cuda", files=FILES, memory=512, extra=DRIVER)


@pytest.fixture(scope="module")
def vm():
    yield from killed_vm.killed_again_and_again(killed_vm.Kind("cuda-takeover", FILES, backend="cuda", extra=DRIVER))


def rounds_of(job):
    """What a run of the job ended with: its rounds, and their checksum."""
    number, _, checksum = job.strip().splitlines()[-1].partition(" rounds, ")
    return int(number), checksum


def check_driver(guest):
    """the guest has one CUDA device, and no OpenCL driver of ours beside it; what programs look for before they load it is there"""
    guest.must("[ -c /dev/nvidiactl ] && ls -l /usr/lib/x86_64-linux-gnu/libcuda.so.1 && [ -z \"$(ls /etc/OpenCL/vendors)\" ]")


def check_functions(guest):
    """kagemusha_cuda_check: each function of the driver API that it knows does what it must"""
    result = guest.run("/payload/cuda_check", seconds=1500)
    for line in result.output.splitlines():
        print(f"       {line}")
    assert result.status == 0, f"status {result.status}"


def check_undisturbed(guest):
    """a program that computes with two streams, module variables, pointers and modules that come and go"""
    assert rounds_of(guest.must(f"/payload/cuda_job {ROUNDS}"))[0] == ROUNDS


def check_idle(guest):
    """nothing is left in the device"""
    guest.wait_idle()


def check_program_goes_on(vm):
    """it goes on after each kill of its host with right results; before each kill both GPUs' memory is the same; and what a
    run of so many rounds gives is what one without a failure gives"""
    work = [vm.guest.start("/payload/cuda_job 1000000 /tmp/stop")]
    vm.guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    for _ in range(killed_vm.KILLS):
        killed_vm.survive_a_kill(vm, work)
    vm.guest.must("touch /tmp/stop")
    result = vm.guest.finish(work[0])
    assert result.status == 0, result
    number, checksum = rounds_of(result.output)
    again = rounds_of(vm.guest.must(f"/payload/cuda_job {number}", 900))
    assert again == (number, checksum), f"{number} rounds gave {checksum}, and {again} without a failure"
    print(f"       {number} rounds over {killed_vm.KILLS} kills")


def check_survivor_is_whole(vm):
    """what is left after the last takeover is an ordinary VM: the check program runs, and nothing of the job is left"""
    vm.guest.must("/payload/cuda_check", 1500)
    vm.guest.wait_idle()
