# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: as test_cuda.py, with programs that nobody changed: ffmpeg's CUDA filter, and OpenMP regions that GCC compiled for GPUs of
NVIDIA. First in one guest, then in a VM whose host is killed while they run.
"""
import tempfile

import pytest

import cuda_programs
import killed_vm
from cuda_programs import FFMPEG, MOUNT, OPENMP, filtered, in_guest, native_sums, sums, with_disk
from fixtures import made
from guest_vm import Guest

pytestmark = [pytest.mark.story, pytest.mark.skipif(not FFMPEG, reason="this machine has no ffmpeg")]

OPTIONS = ("--driver", cuda_programs.DRIVER)
needs_openmp = pytest.mark.skipif(not OPENMP, reason="this machine's GCC does not offload to NVIDIA's GPUs")


@pytest.fixture(scope="module", name="disk")
def fixture_disk():
    with tempfile.TemporaryDirectory(prefix="kagemusha-programs-") as folder:
        yield cuda_programs.make_disk(folder)


@pytest.fixture(scope="module", name="guest")
def fixture_guest(request, disk):
    yield from made(request, lambda: Guest("cuda-programs", backend="cuda", memory=512, extra=(*OPTIONS, *with_disk(disk))))


@pytest.fixture(scope="module", name="vm")
def fixture_vm(disk):
    kind = killed_vm.Kind("cuda-programs", (), backend="cuda", extra=(*OPTIONS, *with_disk(disk)))
    for vm in killed_vm.killed_again_and_again(kind):
        vm.guest.must(MOUNT)
        yield vm


def ffmpeg(frames, out):
    return " ".join([in_guest(FFMPEG), *(f"'{word}'" for word in filtered(frames)), "-y", out])


def check_ffmpeg(guest):
    """ffmpeg scales pictures on the GPU: each frame's checksum is that of the same without a guest"""
    guest.must(MOUNT)
    guest.must(ffmpeg(40, "/tmp/sums"), 600)
    assert sums(guest.must("cat /tmp/sums")) == native_sums(40)


@needs_openmp
def check_openmp(guest):
    """target regions of OpenMP check themselves"""
    print(guest.must(in_guest(OPENMP), 600))


def check_idle(guest):
    """nothing is left in the device"""
    guest.wait_idle()


def check_ffmpeg_goes_on(vm):
    """its host is killed again and again: no frame is lost or wrong"""
    work = vm.guest.start(f"{ffmpeg(None, '/tmp/sums')} & until [ -e /tmp/stop ]; do sleep 0.2; done; kill -INT $!; wait $!; true")
    vm.guest.wait_stats(lambda s: s["launches"] > 0, "launches", 600)
    for _ in range(killed_vm.KILLS):
        killed_vm.survive_a_kill(vm, [work])
    vm.guest.must("touch /tmp/stop")
    result = vm.guest.finish(work)
    assert result.status == 0, result
    found = sums(vm.guest.must("cat /tmp/sums", 300))
    assert len(found) > 40, f"only {len(found)} frames"
    expected = native_sums(len(found))
    wrong = [number for number, (one, other) in enumerate(zip(found, expected)) if one != other]
    assert not wrong and len(expected) == len(found), f"of {len(found)} frames {len(wrong)} are wrong: {wrong[:10]}"
    print(f"       {len(found)} frames over {killed_vm.KILLS} kills")


@needs_openmp
def check_openmp_goes_on(vm):
    """the same with OpenMP's program, again and again: it checks itself"""
    vm.guest.must("rm -f /tmp/stop")
    work = vm.guest.start(f"n=0; until [ -e /tmp/stop ]; do {in_guest(OPENMP)} >/tmp/said 2>&1 || {{ echo FAILED; cat /tmp/said; "
                          f"exit 1; }}; n=$((n + 1)); done; echo $n runs")
    vm.guest.wait_stats(lambda s: s["launches"] > 0, "launches", 600)
    # Its atomics take numbers in any order, and leave them on the device's stacks.
    killed_vm.survive_a_kill(vm, [work], same=False)
    vm.guest.must("touch /tmp/stop")
    result = vm.guest.finish(work)
    assert result.status == 0, result
    print(f"       {result.output.strip().splitlines()[-1]}")
