# SPDX-License-Identifier: GPL-2.0-or-later
"""What is written for a VM of a soak: its description, and the job that its guest runs."""
from net_peer import PEER, SETUP


DESCRIPTION = """
name = "soak"
qemu-options = {options}
memory = "{memory}"
cpus = {cpus}
accel = "{accel}"
[boot]
guest = "{guest}"
job = "job.sh"
files = [{files}]
{disk}
[[network]]
netdev = "{netdev}"
mac = "{mac}"
{gpu}
[protection]
standby = "unix:{directory}/{near}"
epoch-ms = 50
heartbeat-ms = {heartbeat}
heartbeat-budget-ms = {budget}
qemu-budget-ms = {qemu_budget}
[supervision]
checkpoint-ms = {checkpoint}
main-loop-ms = {main_loop}
gpu-takeover-ms = 0
[arbiter]
{arbiter}
"""
GPU = """
[gpu]
backend = "opencl"
{gpu}
{keys}
[gpu.properties]
window-size = "16M"
{properties}
"""


def command(program):
    """What the guest starts for it."""
    name, *words = program.split("-")  # "differ-counts": differ_job counts
    return " ".join([f"{name}_job", *words]) if name in ("register", "flush", "differ") else f"soak_job {program}"


def job(programs, disk):
    """The script: `programs` and net_job, until a line comes on the console; a writable `disk` gets net_job's records."""
    mount = ("mkdir -p /tmp/disk && mount -t ext4 /dev/vdc /tmp/disk || exit 1\n"
             "rm -f /tmp/disk/records  # of a life before" if disk else "")
    speaks = "keep /tmp/disk/records >/dev/null" if disk else "quiet"
    jobs = "".join(f"/payload/{command(program)} {stream} {PEER} /tmp/stop &\nall+=($!)\n"
                   for stream, program in enumerate(programs, 1))
    return f"""#!/bin/bash
{SETUP}
{mount}
dmesg --follow --level err,warn | grep --line-buffered vgpu &  # what the driver finds wrong
/payload/net_job {PEER} {speaks} &
net=$!
all=()
{jobs}
echo computing
read -r _ </dev/ttyS0
touch /tmp/stop
status=0
for each in "${{all[@]}}"; do
    wait "$each" || status=1
done
kill $net
wait $net
{"umount /tmp/disk || status=1" if disk else ""}
exit $status
"""
