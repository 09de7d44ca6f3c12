#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# qtest.sh PROGRAM LIBRARY_DIR [arguments of the test program, such as -p /x86_64/virtio-vgpu/reset]
#
# Runs a program of QEMU's tests/qtest (virtio-vgpu-test of qemu-device/qtest, checkpoint-test of our patches), or of the
# directory that it names (tests/unit/test-colo-pace), against a QEMU that
# scripts/build-qemu makes, with libkagemusha_device.so from LIBRARY_DIR. The tests with a worker process need $KAGEMUSHA_WORKER.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$1
[[ $program == */* ]] || program=tests/qtest/$program
library_dir=$2
shift 2

build=$("$root/scripts/build-qemu" --target "$program" | tail -n 1)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# Copies: another checkout with the same patches may build in the same tree meanwhile.
cp -- "$build/qemu-system-x86_64" "$directory/qemu"
cp -- "$build/$program" "$directory/test"

# Our QEMU brings no firmware, and libqtest takes no arguments for the machine.
cat >"$directory/qemu-system-x86_64" <<WRAPPER
#!/bin/sh
exec "$directory/qemu" -L /usr/share/seabios -L /usr/share/qemu -nodefaults "\$@"
WRAPPER
chmod +x "$directory/qemu-system-x86_64"

export LD_LIBRARY_PATH=$library_dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export QTEST_QEMU_BINARY=$directory/qemu-system-x86_64
# The command lines of QEMU, at each of its starts, would bury what failed.
"$directory/test" "$@" 2>&1 | grep --line-buffered -v '^# starting QEMU'
