#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# compare_program.sh NATIVE LOOPBACK PROGRAM [RUN_PROGRAM STANDBY]: a self-checking program on the PTX device (the
# library NATIVE) and through the guest's library, the device and a worker (LOOPBACK, as in compare_ffmpeg.sh), then
# mirrored to a standby (tests/mirror/run_program.sh, kagemusha_standby_device). It must find everything right each
# time, and print the same. GCC's run-time library must not go on on the processor without saying so.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/native" "$work/loopback"
ln -s "$1" "$work/native/libcuda.so.1"
ln -s "$2" "$work/loopback/libcuda.so.1"
path=${LD_LIBRARY_PATH:-}
for folder in native loopback; do
    echo "-- $folder"
    LD_LIBRARY_PATH="$work/$folder${path:+:$path}" OMP_TARGET_OFFLOAD=mandatory ACC_DEVICE_TYPE=nvidia \
        "$3" >"$work/$folder.text" || { cat "$work/$folder.text"; exit 1; }
    cat "$work/$folder.text"
done
cmp "$work/native.text" "$work/loopback.text"
if [ $# -gt 3 ]; then
    echo "-- mirrored"
    "$4" "$5" unused env LD_LIBRARY_PATH="$work/loopback${path:+:$path}" OMP_TARGET_OFFLOAD=mandatory \
        ACC_DEVICE_TYPE=nvidia "$3"
fi
