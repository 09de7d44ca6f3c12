# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: one guest with the `null` backend.

The kernel driver's user interface, by its own test program (guest-driver/kernel/test): accepted and rejected calls,
limits, waits, records, the window. Without a GPU's own errors and speed in the way.
"""
import os

from fixtures import one_guest

guest = one_guest(name="uapi", backend="null", files=[f"{os.environ['KAGE_UAPI_TEST']}:uapi_test"])


def check_uapi(guest):
    """every test of kagemusha_vgpu_uapi_test passes"""
    result = guest.run("/payload/uapi_test", seconds=1500)
    for line in result.output.splitlines():
        print(f"       {line}")
    assert result.status == 0, f"status {result.status}"


def check_idle(guest):
    """nothing is left in the device"""
    guest.wait_idle()


def check_kernel_log(guest):
    """the guest's kernel had nothing to complain about"""
    bad = guest.run("dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|refcount|general protection|hung task'")
    assert bad.status == 1, bad.output
