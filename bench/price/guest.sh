#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The job in the guest of a measured VM: each line from the console is a number and the suite's arguments. What the suite
# prints goes to the console at once, because whoever measures looks at the clock when it arrives.
stty -echo </dev/ttyS0
echo 1 >/proc/sys/kernel/printk # nothing of the kernel's between the lines
echo 0 >/proc/sys/kernel/watchdog 2>/dev/null || : # a VM that was frozen on purpose has seconds without a tick
echo @ready
while read -r number words; do
    [ "$number" != bye ] || break
    # shellcheck disable=SC2086 # words
    /payload/suite $words 2>&1
    echo "@done $number $?"
done </dev/ttyS0
