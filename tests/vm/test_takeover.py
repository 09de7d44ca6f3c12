# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two QEMUs on one machine. A guest computes in the first; its GPU is mirrored to the second, and its memory and
devices are checkpointed there (COLO, passive). At a random moment the first QEMU is killed, and the guest goes on in the
second: the same programs, in the middle of what they did. Then that one gets a standby of its own, and is killed, too.

--kills is how many times that happens, --seed repeats the moments of a run (its seed is printed).
"""
import os

import pytest

import killed_vm

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def vm():
    yield from killed_vm.killed_again_and_again(killed_vm.Kind("takeover", (f"{os.environ['KAGE_CL_JOB']}:cl_job",)))


def check_programs_go_on(vm):
    """programs that compute on the GPU, two of them with buffers that stay mapped and are stored into between and during
    launches (traced, and found in the hypervisor's log), go on after each kill of their host, and every result is right;
    before each kill both GPUs' memory is the same"""
    work = [vm.guest.start(f"{mode}/payload/cl_job {job} 36000 /tmp/stop")
            for mode, job in (("", "churn"), ("", "traced"), ("KAGEMUSHA_TRACE=host ", "traced"))]
    vm.guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    for _ in range(killed_vm.KILLS):
        killed_vm.survive_a_kill(vm, work)
    vm.guest.must("touch /tmp/stop")
    for job in work:
        result = vm.guest.finish(job)
        assert result.status == 0 and "rounds are right" in result.output, result


def check_survivor_is_whole(vm):
    """what is left after the last takeover is an ordinary VM: new programs run, and nothing of the old ones is left"""
    vm.guest.must("/payload/cl_job add 1000")
    vm.guest.wait_idle()
