#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The job in the guest of a measured VM: each line from the console is a number and the suite's arguments, or a number, `whole`
# and a command of which everything is measured. Marks go to the console at once, because whoever measures looks at the clock
# when they arrive.
stty -echo </dev/ttyS0
echo 1 >/proc/sys/kernel/printk # nothing of the kernel's between the lines
echo 0 >/proc/sys/kernel/watchdog 2>/dev/null || : # a VM that was frozen on purpose has seconds without a tick
echo @ready
while IFS=' ' read -r number words; do
    [ "$number" != bye ] || break
    if [[ $words = "whole "* ]]; then
        echo @begin
        (cd /tmp && bash -c "${words#whole }" >/tmp/said 2>&1)
        status=$?
        echo @end
        tail -n 30 /tmp/said | cut -c1-200
    else
        # shellcheck disable=SC2086 # words
        /payload/suite $words 2>&1
        status=$?
    fi
    echo "@done $number $status"
done </dev/ttyS0
