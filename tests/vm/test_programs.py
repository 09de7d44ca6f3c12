# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest, one GPU (the host's default one, or KAGE_GPU).

Unmodified programs of Debian and our own small jobs compute in the guest, and their results are right: the same facts as
natively on the host, words that were hidden at random, sums that the CPU checks.
"""
import hashlib
import os
import random
import re
import string

import pytest

from fixtures import one_guest
from programs import clblast_results, clinfo_devices, failed, on_host

JOB = os.environ["KAGE_CL_JOB"]
CHECK = os.environ["KAGE_CL_CHECK"]
# All of clpeak maps 512 MiB that it has beside as much of its own: with 1 GiB the guest's kernel kills it.
MEMORY_MIB = 3072 if os.environ.get("KAGE_LONG") else 1024

guest = one_guest(name="programs", files=[f"{JOB}:cl_job", f"{CHECK}:cl_check"], memory=MEMORY_MIB)

# What may differ between guest and host, and why.
DIFFERENT = {
    "CL_DEVICE_EXTENSIONS": "checked by itself",
    "CL_DEVICE_EXTENSIONS_WITH_VERSION": "follows from the extensions",
    "CL_DEVICE_EXECUTION_CAPABILITIES": "native kernels are functions of the guest: no",
    "CL_DEVICE_HOST_UNIFIED_MEMORY": "the guest's memory is not the GPU's",
    "CL_DEVICE_PARTITION_MAX_SUB_DEVICES": "no sub-devices",
    "CL_DEVICE_PARTITION_PROPERTIES": "no sub-devices",
    "CL_DEVICE_PARTITION_AFFINITY_DOMAIN": "no sub-devices",
    "CL_DEVICE_SVM_CAPABILITIES": "no shared virtual memory",
    "CL_DEVICE_PRINTF_BUFFER_SIZE": "the guest's buffer is ours",
    "CL_DEVICE_VENDOR_ID": "PoCL takes that of the first device on the PCI bus, which its sandbox does not show",
    "CL_DEVICE_GLOBAL_MEM_SIZE": "may be limited by the device",
    "CL_DEVICE_MAX_MEM_ALLOC_SIZE": "may be limited by the device",
    "CL_DEVICE_SPIR_VERSIONS": "of the extension cl_khr_spir, which is not passed on; clinfo asks where it is",
}
# No guest gets variables at program scope (replicator/gpu/program_variables.hpp); PoCL has them since 6.
VARIABLES = "__opencl_c_program_scope_global_variables"
NEVER_EXTENSIONS = {"cl_khr_command_buffer"}  # would need a part of the protocol that does not exist


def check_clinfo(guest):
    """clinfo finds one platform with one device, and its facts are those of the host's"""
    devices = clinfo_devices(guest.must("clinfo --raw"))
    assert len(devices) == 1, f"{len(devices)} devices"
    ours = devices[0]
    native = on_host(["clinfo", "--raw"])
    if native is None:
        pytest.skip("clinfo is not installed on the host")
    same = [device for device in clinfo_devices(native) if device["CL_DEVICE_NAME"] == ours["CL_DEVICE_NAME"]]
    assert same, f"the host has no device named {ours['CL_DEVICE_NAME']}"
    host = same[0]
    for name in ("CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE", "CL_DEVICE_GLOBAL_VARIABLE_PREFERRED_TOTAL_SIZE"):
        host[name] = "0"
    features = host.get("CL_DEVICE_OPENCL_C_FEATURES", "").split()
    host["CL_DEVICE_OPENCL_C_FEATURES"] = " ".join(each for each in features if not each.startswith(VARIABLES))
    standard = {name for name in host if not re.search(r"_(KHR|NV|AMD|INTEL|EXT|POCL|ARM|QCOM)$", name)}
    different = {name: (ours.get(name), host[name]) for name in sorted((standard | host.keys() & ours.keys()) - set(DIFFERENT))
                 if ours.get(name) != host[name]}
    assert not different, f"guest and host differ: {different}"
    guest_extensions = set(ours["CL_DEVICE_EXTENSIONS"].split())
    host_extensions = set(host["CL_DEVICE_EXTENSIONS"].split())
    assert not guest_extensions & NEVER_EXTENSIONS, guest_extensions
    invented = guest_extensions - host_extensions - {"cl_khr_icd", "cl_khr_create_command_queue"}
    assert not invented, f"the host does not have {invented}"


def check_cl_check(guest):
    """kagemusha_cl_check: every feature of OpenCL that the device has works in the guest"""
    result = guest.run("/payload/cl_check", seconds=900)
    guest.note(result.output)
    assert result.status == 0, result.output[-3000:]


def check_add(guest):
    """a million sums, compared with the CPU's"""
    assert "1000000 sums are right" in guest.must("/payload/cl_job add 1000000")


def check_await_store(guest):
    """a kernel that runs sees a store into mapped memory, without a call of its program, when stores are flushed by time"""
    assert "the kernel saw the store" in guest.must("KAGEMUSHA_FLUSH_MS=5 /payload/cl_job await-store", seconds=300)


def check_printf(guest):
    """what a kernel prints appears on the program's stdout"""
    number = random.randrange(1, 1 << 30)
    lines = sorted(guest.must(f"/payload/cl_job printf {number}").splitlines())
    assert lines == [f"work item {i} says {number}" for i in range(3)], lines


def check_build_failure(guest):
    """a kernel with a mistake: CL_BUILD_PROGRAM_FAILURE and a log that names it"""
    assert "this_is_nowhere_declared" in guest.must("/payload/cl_job nonsense")


def check_threads(guest):
    """four programs at once, each with right results"""
    guest.must("for i in 1 2 3 4; do /payload/cl_job churn 2 & jobs=\"$jobs $!\"; done;"
               "for job in $jobs; do wait $job || exit 1; done")


def right_results(guest, name):
    results = clblast_results(guest.must(f"clblast_test_{name}", seconds=3600))  # PoCL compiles most of the time
    assert results, "no results in its output"
    assert not failed(results), f"failed: {failed(results)}"
    assert any(isinstance(counts, dict) and counts["passed"] for counts in results.values()), results


def check_xaxpy(guest):
    """clblast_test_xaxpy: every result is right"""
    right_results(guest, "xaxpy")


def check_hashcat(guest):
    """hashcat finds a word that was chosen at random, from its MD5"""
    word = "".join(random.choice(string.ascii_lowercase) for _ in range(5))
    digest = hashlib.md5(word.encode()).hexdigest()
    before = guest.stats()
    output = guest.must(f"hashcat -m 0 -a 3 -D 1,2 --potfile-disable --quiet {digest} '?l?l?l?l?l'", seconds=900)
    assert f"{digest}:{word}" in output, output
    assert guest.stats()["launches"] > before["launches"], "the device saw no launch"


def check_clpeak(guest):
    """clpeak's kernel latency test runs and gives a figure"""
    output = guest.must("clpeak --kernel-latency", seconds=600)
    assert re.search(r"latency\s+: [0-9.]+ us", output), output


def check_idle(guest):
    """nothing of all these programs is left in the device"""
    stats = guest.wait_idle()
    assert stats["workers-lost"] == 0 and stats["workers-killed-hung"] == 0, stats


def check_memory_limit(guest):
    """taking ever more memory ends with an OpenCL error, and the next program works"""
    guest.must("/payload/cl_job too-much-memory", seconds=200)
    guest.must("/payload/cl_job add 100")
    guest.wait_idle()


@pytest.mark.long
def check_xgemm(guest):
    """clblast_test_xgemm: every result is right"""
    right_results(guest, "xgemm")


@pytest.mark.long
def check_clpeak_whole(guest):
    """all of clpeak runs and gives a figure for every test that its first lines on the host show, too"""
    output = guest.must("clpeak", seconds=3600)
    native = on_host(["clpeak"], seconds=3600)
    if native is None:
        pytest.skip("clpeak is not installed on the host")
    names = [re.findall(r"^\s+([\w ]+?)\s+: [0-9.]+", text, re.MULTILINE) for text in (output, native)]
    # Each of the two has its own name for the platform and lists of facts; the tests and their order are the same.
    assert names[0] == names[1] and names[0], f"guest: {names[0]}, host: {names[1]}"
