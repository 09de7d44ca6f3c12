# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two QEMUs on one machine, joined by TCP with TLS and compression through this test, which can cut the cable. A
guest runs in the first; the second is its standby (`kagemusha standby`): its guest does not run, its GPU executes what the
first one's does. Then QEMUs that are refused, because of their keys or their VM's id.

What is checked is what digests of both GPUs' memory say, and what both devices say about each other: to QMP, to
`kagemusha status`, to Prometheus.
"""
import os
import tempfile

import pytest

import mirror
from fixtures import made
from guest_vm import Guest
from places import Place

JOB = os.environ["KAGE_CL_JOB"]
STILL_BYTES = 4 << 20  # of cl_job churn: written once, easy to compress
TRACED_ROUNDS = 250  # in each mode


@pytest.fixture(scope="module")
def keys():
    """Of the cluster. `status` shows the VMs of this test alone."""
    with tempfile.TemporaryDirectory(prefix="kagemusha-test-run-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAGEMUSHA_RUNTIME_DIR", f"{directory}/run")
        yield mirror.make_keys(f"{directory}/keys")


@pytest.fixture(scope="module")
def metrics(keys):
    with mirror.Metrics() as asked:
        yield asked


@pytest.fixture(scope="module")
def standby(request, keys):
    yield from made(request, lambda: mirror.Standby("mirror-standby", keys))


@pytest.fixture(scope="module")
def cable(standby):
    between = mirror.Cable(standby.address)
    yield between
    between.close()


@pytest.fixture(scope="module")
def guest(request, cable, keys):
    yield from made(request, lambda: Guest(
        "mirror", files=[f"{JOB}:cl_job"], extra=mirror.link_options("mirror", keys),
        device_options=(*mirror.OPTIONS, "replicable=on")))


def begin_work(guest):
    """A program that computes until end_work(), however slow this machine is."""
    return start_job(guest, "churn")


def end_work(guest, job):
    result = end_job(guest, job)
    assert "rounds are right" in result.output, result


def start_job(guest, name, environment=""):
    guest.must("rm -f /tmp/stop")
    return guest.start(f"{environment}/payload/cl_job {name} 36000 /tmp/stop")


def end_job(guest, job):
    guest.must("touch /tmp/stop")
    result = guest.finish(job)
    assert result.status == 0, result
    return result


@pytest.mark.story
def check_attach_in_the_middle(guest, standby, cable):
    """a standby attached while a program computes gets everything: all of its live buffers are the same"""
    job = begin_work(guest)
    guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    assert mirror.replication(guest)["state"] == "off"
    guest.qmp("qom-set", path="/machine/peripheral/vgpu0", property="replicate-to", value=cable.address)
    status = mirror.wait_state(guest, "protecting")
    assert status["degraded"] == "" and status["peer-gpu"], status
    assert status["transferred-bytes"] >= STILL_BYTES, status
    assert status["compression-saved-bytes"] >= STILL_BYTES * 3 // 4, status
    mirror.wait_state(standby, "ready")
    chunks = mirror.compare_all(guest, standby)
    end_work(guest, job)
    held_back_ms = mirror.replication(guest)["held-back-ns"] / 1e6
    print(f"       {chunks} chunks compared; the guest's commands were held back {held_back_ms:.1f} ms", flush=True)


@pytest.mark.story
def check_status_and_metrics(guest, standby, metrics):
    """status and metrics tell both VMs apart, and how far the standby is while a program computes"""
    job = begin_work(guest)
    # Bandwidth is what was sent between two readings, so the program has to run at both.
    first, code = mirror.wait_status("mirror", lambda r: r["sent-bytes-per-s"] > 0, "bandwidth")
    assert (code, first["role"], first["state"], first["degraded"]) == (0, "primary", "protecting", ""), first
    assert first["peer-gpu"] and first["connections"] > 0, first
    for name in ("lag-entries", "lag-bytes", "lag-ms", "digests-different"):
        assert isinstance(first[name], int), (name, first)
    mirror.wait_status("mirror", lambda r: all(r[name] > first[name] for name in ("epoch", "committed-epoch", "sent-bytes")),
                       "a later epoch, with commands")
    there, code = mirror.wait_status("mirror-standby", lambda r: True, "")
    assert (code, there["role"], there["state"], there["degraded"]) == (0, "standby", "ready", ""), there
    assert there["standby-address"] == standby.address and there["received-bytes"] > 0, there
    code, text = mirror.tool_status()
    assert code == 0 and ": primary, protecting\n" in text and ": standby, ready\n" in text, text

    page = metrics.read()
    for vm, role, state in (("mirror", "primary", "protecting"), ("mirror-standby", "standby", "ready")):
        labels = f'vm="{vm}",device="vgpu0"'
        assert page[f'kagemusha_vm_up{{vm="{vm}"}}'] == 1, page
        assert page[f'kagemusha_replication_info{{{labels},role="{role}",state="{state}"}}'] == 1, page
        assert page[f'kagemusha_replication_degraded{{{labels},reason=""}}'] == 0, page
    figures = metrics.of("mirror")
    assert figures["epoch"] >= figures["committed_epoch"] > first["committed-epoch"], figures
    assert figures["sent_bytes_total"] > first["sent-bytes"], figures
    assert figures["compression_saved_bytes_total"] >= STILL_BYTES * 3 // 4, figures
    assert {"lag_entries", "lag_bytes", "lag_seconds", "digests_different_total"} <= set(figures), figures
    assert metrics.of("mirror-standby")["received_bytes_total"] >= there["received-bytes"]
    end_work(guest, job)
    # Everything has arrived, and the figures say so too.
    mirror.wait_caught_up(guest)
    done, _ = mirror.wait_status("mirror", lambda r: r["lag-entries"] == 0, "no lag")
    assert done["lag-bytes"] == 0, done


@pytest.mark.story
def check_from_the_start(guest, standby):
    """of programs that begin with the standby attached: all live buffers are the same, and nothing is left after them"""
    # xaxpy may end before a comparison finds a buffer of it, so a program that keeps some runs beside it.
    keeper = begin_work(guest)
    guest.wait_stats(lambda s: s["launches"] > 0, "launches")
    job = guest.start("clblast_test_xaxpy")
    result = guest.finish(job, seconds=600)
    assert result.status == 0, result
    chunks = mirror.compare_all(guest, standby, everything=False)
    end_work(guest, keeper)
    mirror.wait_caught_up(guest)
    guest.wait_idle()
    standby.wait_idle()
    assert standby.stats()["launches"] > 0
    print(f"       {chunks} chunks compared", flush=True)


@pytest.mark.story
def check_cut_and_restored(guest, standby, cable, metrics):
    """the link cut: degraded, with its reason, and the program goes on; restored: everything is the same again"""
    job = begin_work(guest)
    guest.wait_stats(lambda s: s["files-open"] > 0 and s["objects"] > 0, "objects")
    cable.is_cut = True
    mirror.wait_replication(guest, lambda s: s["state"] == "disconnected", "degradation")
    _, code = mirror.wait_status("mirror", lambda r: r["state"] != "protecting" and r["degraded"], "a reason")
    assert code == 1
    assert any(name.startswith('kagemusha_replication_degraded{vm="mirror",device="vgpu0",reason="') and value == 1
               for name, value in metrics.read().items()), metrics.read()
    code, text = mirror.tool_status("mirror")
    assert code == 1 and "    DEGRADED   " in text, text
    launches = guest.stats()["launches"]
    guest.wait_stats(lambda s: s["launches"] > launches, "launches without a standby")
    cable.is_cut = False
    mirror.wait_state(guest, "protecting")
    chunks = mirror.compare_all(guest, standby)
    end_work(guest, job)
    mirror.wait_caught_up(guest)
    print(f"       {chunks} chunks compared", flush=True)


@pytest.mark.story
def check_native_memory_differs(guest, standby, metrics):
    """a kernel that writes its buffer's native address differs on both sides, is detected, and is repaired"""
    job = start_job(guest, "address")
    guest.wait_output(job, "written")
    chunks, different = mirror.compare(guest, once=True)
    assert chunks == 1 and different == 1, f"{different} of {chunks} chunks differ"
    mirror.wait_replication(guest, lambda s: s["digests-repaired"] > 0, "a repair")
    for vm in ("mirror", "mirror-standby"):
        status, _ = mirror.wait_status(vm, lambda r: True, "")
        assert status["digests-different"] == 1, status
        assert metrics.of(vm)["digests_different_total"] == 1, metrics.read()
    mirror.compare_all(guest, standby)
    end_job(guest, job)


@pytest.mark.story
def check_stores_into_mapped_memory(guest, standby):
    """stores into mapped buffers, between launches and during them, in each mode: kernels of both sides see the same"""
    for mode in ("page", "emulate", "adaptive", "host"):
        before = guest.stats()["launches"]
        # Until it is told to stop: how long a comparison takes is no matter of the clock.
        job = start_job(guest, "traced", f"KAGEMUSHA_TRACE={mode} ")
        guest.wait_stats(lambda s, before=before: s["launches"] > before, "launches")
        chunks = mirror.compare_all(guest, standby)
        guest.wait_stats(lambda s, before=before: s["launches"] > before + TRACED_ROUNDS, "more launches")
        result = end_job(guest, job)
        assert "rounds are right" in result.output, result
        print(f"       {mode}: {chunks} chunks compared, {result.output.strip()}", flush=True)
    mirror.wait_caught_up(guest)


@pytest.mark.story
def check_standby_dies(guest, standby, cable):
    """the standby killed: degraded, and the guest computes as if nothing had happened"""
    standby.process.kill()
    cable.is_cut = True
    status = mirror.wait_replication(guest, lambda s: s["state"] == "disconnected", "degradation")
    assert status["degraded"] and status["lag-bytes"] == 0, status
    guest.must("/payload/cl_job add 1000")
    guest.wait_idle()


def check_of_another_cluster(keys):
    """a primary with another cluster's keys: refused, and both say why"""
    refused(keys, "stranger", {"keys": mirror.make_keys(f"{keys}-of-others")}, "is not signed by 'kagemusha cluster ",
            "the peer does not accept this host's certificate")


def check_of_another_vm(keys):
    """a primary of another VM: refused, and both say why"""
    refused(keys, "another", {"keys": keys, "vm": "another-vm"}, f"the peer's certificate ('standby of {mirror.VM_ID} (QEMU) at here'",
            "its name or purpose is not the one expected")


def refused(keys, name, options, primary_says, standby_says):
    refusing = mirror.Standby("refusing", keys)
    places = [Place(refusing.directory)]
    with refusing, mirror.Primary(name, refusing.address, **options) as primary:
        places.append(Place(primary.directory))
        for vm, part in ((name, primary_says), ("refusing", standby_says)):
            _, code = mirror.wait_status(vm, lambda r, part=part: part in r["degraded"], f"'{part}' of {vm}")
            assert code == 1
        assert mirror.replication(refusing)["received"] == 0
    for place in places:
        place.leave()
