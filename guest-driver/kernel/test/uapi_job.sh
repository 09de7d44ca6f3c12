# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=sh
#
# Runs in the guest, as root: the tests of the driver's user interface, then what the kernel itself has to say, then the
# module must go. `uapi_options` may have come along with options of the test program.
status=0
# shellcheck disable=SC2046 # one word per option
/payload/kagemusha_vgpu_uapi_test $(cat /payload/uapi_options 2>/dev/null) || status=1

if dmesg | grep -E '\bBUG\b|WARNING:|Oops|Call Trace|blocked for more than|refcount_t|list_(add|del) corruption'; then
    echo "not ok - the kernel complained:"
    dmesg | tail -n 60
    status=1
fi
if ! rmmod kagemusha_vgpu; then
    echo "not ok - the module is still in use"
    status=1
fi
exit $status
