# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: guests with one GPU each (once two), one after the other; QEMU is driven through QMP.

The device and its driver come and go while programs compute: driver unloaded and loaded, device unplugged and plugged,
VM stopped and continued, guest switched off and reset with work in flight. QEMU ends in order each time.
"""
import os
import time

from fixtures import one_guest, own_guest
from processes import WORKER, alive, processes

JOB = os.environ["KAGE_CL_JOB"]
GUEST = {"name": "lifecycle", "files": [f"{JOB}:cl_job"]}

guest = one_guest(**GUEST)  # which check_power_off ends
fresh = own_guest(**GUEST)


def check_reload(guest):
    """the driver is refused to be unloaded while used, is unloaded and loaded afterwards, and works again"""
    job = guest.start("/payload/cl_job churn 4")
    guest.wait_stats(lambda s: s["files-open"] > 0, "a file is open")
    assert guest.run("rmmod kagemusha_vgpu").status != 0, "unloaded although a program uses it"
    assert guest.finish(job).status == 0
    for _ in range(3):
        guest.must("rmmod kagemusha_vgpu && [ ! -e /dev/kagemusha-vgpu0 ] && insmod /payload/system/kagemusha_vgpu.ko")
        guest.must("/payload/cl_job add 1000")
    guest.wait_idle()


def check_stop(guest):
    """a VM stopped for some seconds goes on with every result right; nothing is done for it meanwhile"""
    job = guest.start("/payload/cl_job churn 6")
    guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    for _ in range(3):
        guest.qmp("stop")
        time.sleep(0.5)  # what was in flight ends
        before = guest.stats()["commands"]
        time.sleep(1)
        assert guest.stats()["commands"] == before, "commands were taken while the VM was stopped"
        guest.qmp("cont")
        time.sleep(0.5)
    result = guest.finish(job)
    assert result.status == 0 and "rounds are right" in result.output, result


def plug(guest, number):
    """Plugs device vgpuNUMBER and waits for its node in the guest."""
    properties = {"driver": "virtio-vgpu-pci", "id": f"vgpu{number}", "iothread": "vgpu-io", "backend": "opencl"}
    if os.environ.get("KAGE_GPU"):
        properties["gpu"] = os.environ["KAGE_GPU"]
    guest.qmp("device_add", **properties)
    guest.must(f"for i in $(seq 300); do [ -e /dev/kagemusha-vgpu{number} ] && exit 0; sleep 0.1; done; dmesg | tail; exit 1")


def check_two(guest):
    """two devices: one platform lists both, each computes at the same time as the other, and one goes without the other"""
    plug(guest, 1)
    listed = guest.must("clinfo --list")
    assert listed.count("Platform #") == 1 and listed.count("Device #") == 2, listed
    before = guest.stats()["launches"]
    guest.must("for node in 0 1; do KAGEMUSHA_VGPU=/dev/kagemusha-vgpu$node /payload/cl_job churn 2 & jobs=\"$jobs $!\"; done;"
               "for job in $jobs; do wait $job || exit 1; done")
    assert guest.stats()["launches"] > before, "nothing was launched on the first device"
    second = guest.qmp("qom-get", path="/machine/peripheral/vgpu1", property="stats")
    assert second["launches"] > 0, "nothing was launched on the second device"
    guest.qmp("device_del", id="vgpu1")
    guest.wait_event("DEVICE_DELETED", device="vgpu1")
    guest.must("/payload/cl_job add 1000")
    assert guest.must("clinfo --list").count("Device #") == 1


def check_unplug(guest):
    """the device is unplugged with work in flight: programs get errors, not a hang; plugged again, it works"""
    job = guest.start("/payload/cl_job in-flight 1")
    guest.wait_output(job, "in flight")
    guest.qmp("device_del", id="vgpu0")
    guest.wait_event("DEVICE_DELETED", device="vgpu0")
    result = guest.finish(job)
    assert "finished with 0" not in result.output, f"the work is said to be done: {result}"
    assert guest.run("ls /dev/kagemusha-vgpu*").status != 0, "the node is still there"
    assert "Number of platforms" in guest.run("clinfo").output
    plug(guest, 0)
    guest.must("/payload/cl_job add 1000")
    guest.wait_idle()


def check_kernel_log(guest):
    """the guest's kernel had nothing to complain about"""
    bad = guest.run("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|refcount|general protection|hung task'")
    assert bad.status == 1, bad.output


def check_power_off(guest):
    """the guest switches itself off with work in flight: QEMU ends in order"""
    job = guest.start("/payload/cl_job in-flight 1000")
    guest.wait_output(job, "in flight")
    guest.end()


def check_quit(fresh):
    """QEMU is told to quit with work in flight: it ends with status 0, and no worker is left"""
    job = fresh.start("/payload/cl_job in-flight 1000")
    fresh.wait_output(job, "in flight")
    assert fresh.stats()["files-open"] > 0
    before = workers(fresh)
    assert before, "no worker process is there"
    fresh.qmp_socket.send('{"execute": "quit"}')
    fresh.process.wait(60)
    deadline = time.monotonic() + 30
    while alive(before):
        assert time.monotonic() < deadline, f"workers are left: {alive(before)}"
        time.sleep(0.1)
    said = (fresh.directory / "console").read_text(errors="replace")
    assert "QEMU ended with" not in said and "without saying how its job went" in said, fresh.tail()


def workers(guest):
    """Process ids of the guest's workers. By name, because they hide what else would tell them from others."""
    known = processes()
    found = {guest.process.pid}
    while more := {pid for pid, one in known.items() if one.parent in found} - found:
        found |= more
    return {pid for pid in found if pid in known and known[pid].name == WORKER}


def check_reset(fresh):
    """a reset of the machine with work in flight closes every file; no worker touches its memory any more"""
    job = fresh.start("/payload/cl_job in-flight 1000")
    fresh.wait_output(job, "in flight")
    fresh.qmp("set-action", reboot="reset")
    fresh.qmp("system_reset")
    fresh.wait_event("RESET")
    fresh.wait_stats(lambda s: s["files-open"] == 0 and s["requests-in-flight"] == 0, "every file closed")
    fresh.kill()
