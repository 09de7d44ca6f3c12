#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# run_program.sh MIRROR_STANDBY LOOPBACK_LIBRARY PROGRAM [arguments]
#
# Runs an OpenCL program, or one of CUDA that gets the library as an argument, on the loopback (the guest's driver
# and the host's device in one process), replicated to a standby in another process. Both must succeed: the program,
# which is protected to its end, and the standby, which has executed everything without a fault and whose memory was
# the same at every comparison.
set -uo pipefail
standby=$1 library=$2
shift 2
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkfifo "$directory/stop"
"$standby" "unix:$directory/link" loopback <"$directory/stop" >"$directory/out" &
process=$!
exec 9>"$directory/stop"
until [ -s "$directory/out" ]; do
    kill -0 "$process" 2>/dev/null || exit 1
    sleep 0.1
done
OCL_ICD_VENDORS=$library KAGEMUSHA_LOOPBACK_REPLICATE_TO=unix:$directory/link "$@" 9>&-
program=$?
exec 9>&-
wait "$process"
mirrored=$?
cat "$directory/out"
echo "program: $program, standby: $mirrored"
[ "$program" = 0 ] && [ "$mirrored" = 0 ]
