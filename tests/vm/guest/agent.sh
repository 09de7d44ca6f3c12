# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# The job that whole-VM tests start in a guest: runs what the test sends, one script at a time, and answers. One line in:
# a script in base64. One line out: its exit status and what it wrote (stdout and stderr), in base64.
port=
for entry in /sys/class/virtio-ports/*; do
    if [ "$(cat "$entry/name")" = org.kagemusha.agent ]; then
        port=/dev/$(basename "$entry")
    fi
done
[ -n "$port" ] || exit 125
exec 3<>"$port"
echo ready >&3
while :; do
    if ! IFS= read -r line <&3; then # nobody is connected
        sleep 0.1
        continue
    fi
    if [ "$line" = bye ]; then
        exit 0
    fi
    base64 -d <<<"$line" >/tmp/agent-script
    bash /tmp/agent-script </dev/null >/tmp/agent-output 2>&1
    printf '%d %s\n' $? "$(base64 -w 0 /tmp/agent-output)" >&3
done
