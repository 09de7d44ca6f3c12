#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two QEMUs on one machine, joined by TCP through this test, which can cut the cable. A guest runs in the first;
the second is its standby (-incoming defer): its guest does not run, its GPU executes what the first one's does.

What is checked is what digests of both GPUs' memory say, and what both devices say about each other.
"""
import os
import sys

import checks
import mirror

JOB = os.environ["KAGE_CL_JOB"]
GUEST = {"name": "mirror", "files": [f"{JOB}:cl_job"], "device_options": (*mirror.OPTIONS, "replicable=on")}

standby = None
cable = None


def check_attach_in_the_middle(guest):
    """a standby attached while a program computes gets everything: all of its live buffers are the same"""
    job = guest.start("/payload/cl_job churn 20")
    guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    assert mirror.replication(guest)["state"] == "off"
    guest.qmp("qom-set", path="/machine/peripheral/vgpu0", property="replicate-to", value=cable.address)
    status = mirror.wait_state(guest, "protecting")
    assert status["degraded"] == "" and status["peer-gpu"], status
    mirror.wait_state(standby, "ready")
    chunks = mirror.compare_all(guest, standby)
    result = guest.finish(job)
    assert result.status == 0 and "rounds are right" in result.output, result
    held_back_ms = mirror.replication(guest)["held-back-ns"] / 1e6
    print(f"       {chunks} chunks compared; the guest's commands were held back {held_back_ms:.1f} ms", flush=True)


def check_from_the_start(guest):
    """of programs that begin with the standby attached: all live buffers are the same, and nothing is left after them"""
    # xaxpy may end before a comparison finds a buffer of it, so a program that keeps some runs beside it.
    keeper = guest.start("/payload/cl_job churn 20")
    guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    job = guest.start("clblast_test_xaxpy")
    result = guest.finish(job, seconds=600)
    assert result.status == 0, result
    chunks = mirror.compare_all(guest, standby, everything=False)
    result = guest.finish(keeper)
    assert result.status == 0 and "rounds are right" in result.output, result
    mirror.wait_caught_up(guest)
    guest.wait_idle()
    standby.wait_idle()
    assert standby.stats()["launches"] > 0
    print(f"       {chunks} chunks compared", flush=True)


def check_cut_and_restored(guest):
    """the link cut: degraded, with its reason, and the program goes on; restored: everything is the same again"""
    job = guest.start("/payload/cl_job churn 20")
    guest.wait_stats(lambda s: s["files-open"] > 0 and s["objects"] > 0, "objects")
    cable.is_cut = True
    status = mirror.wait_replication(guest, lambda s: s["state"] != "protecting", "degradation")
    assert status["degraded"], status
    launches = guest.stats()["launches"]
    guest.wait_stats(lambda s: s["launches"] > launches, "launches without a standby")
    cable.is_cut = False
    mirror.wait_state(guest, "protecting")
    chunks = mirror.compare_all(guest, standby)
    result = guest.finish(job)
    assert result.status == 0 and "rounds are right" in result.output, result
    mirror.wait_caught_up(guest)
    print(f"       {chunks} chunks compared", flush=True)


def check_native_memory_differs(guest):
    """a kernel that writes its buffer's native address differs on both sides, is detected, and is repaired"""
    job = guest.start("/payload/cl_job address 30")
    guest.wait_output(job, "written")
    chunks, different = mirror.compare(guest)
    assert chunks == 1 and different == 1, f"{different} of {chunks} chunks differ"
    mirror.wait_replication(guest, lambda s: s["digests-repaired"] > 0, "a repair")
    mirror.compare_all(guest, standby)
    assert guest.finish(job).status == 0


def check_standby_dies(guest):
    """the standby killed: degraded within the heartbeat budget, and the guest computes as if nothing had happened"""
    standby.process.kill()
    cable.is_cut = True
    status = mirror.wait_replication(guest, lambda s: s["state"] == "disconnected", "degradation")
    assert status["degraded"] and status["lag-bytes"] == 0, status
    guest.must("/payload/cl_job add 1000")
    guest.wait_idle()


if __name__ == "__main__":
    with mirror.Standby("mirror-standby") as standby:
        cable = mirror.Cable(standby.address)
        failures = checks.run("two QEMUs", GUEST, [check_attach_in_the_middle, check_from_the_start,
                                                   check_cut_and_restored, check_native_memory_differs,
                                                   check_standby_dies])
        cable.close()
    checks.report(standby, failures)
    sys.exit(1 if failures else 0)
