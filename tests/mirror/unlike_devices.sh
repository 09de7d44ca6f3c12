#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# unlike_devices.sh KAGEMUSHA_GPUS COMMAND [arguments]
#
# Runs a command with a pair of PoCL's two unlike devices: the primary on the one with threads, the standby on the one
# without (which has one compute unit, and runs a command on the thread that enqueues it). They are chosen by what they
# are called, because PoCL lists them in an order of its own.
set -uo pipefail
gpus=$1
shift
# PoCL 3 calls them pthread and basic, PoCL 4 and later cpu and cpu-minimal.
export POCL_DEVICES="pthread basic"
list=$("$gpus" --json) || exit 1
number_of() {
    grep -o '{"index": [^}]*}' <<<"$list" | grep '"platform": "Portable Computing Language"' |
        grep -E "\"name\": \"$1" | grep -v -E "\"name\": \"${2:-none}" | grep -o '"index": [0-9]*' | grep -o '[0-9]*' | sed -n 1p
}
primary=$(number_of '(pthread|cpu)-' cpu-minimal)
standby=$(number_of '(basic|cpu-minimal)-')
if [ -z "$primary" ] || [ -z "$standby" ]; then
    echo "no two unlike PoCL devices: $list"
    exit 77
fi
echo "primary on GPU $primary, standby on GPU $standby of $list"
export KAGEMUSHA_TEST_GPU=$primary KAGEMUSHA_LOOPBACK_GPU=$primary KAGEMUSHA_TEST_STANDBY_GPU=$standby
# PoCL 6 fails a command now and then (CL_OUT_OF_RESOURCES, 2 of 61 runs on a busy machine, 0 of 50 with this) while another
# process builds the same kernel into the same cache, as the tests beside this one do.
POCL_CACHE_DIR=$(mktemp -d)
export POCL_CACHE_DIR
trap 'rm -rf "$POCL_CACHE_DIR"' EXIT
"$@"
