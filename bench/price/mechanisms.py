# SPDX-License-Identifier: GPL-2.0-or-later
"""
What `--full` measures of each mechanism alone, and of what others have for the same, with the benches that are there for that. Their
tables are put into the report as they print them, `about` before them; their samples lie beside the results.
"""
import os
import shlex
import signal
import subprocess
import time

LINES = 80  # of what one prints

TAKEOVER = "{root}/bench/takeover/run {what} --times {times} --build {build} --json {out}/takeover-{what}{more}.json"
ALL = [
    {"name": "kill", "title": "Takeover: kill -9 of the primary's QEMU, 20 times, 64 MiB on the GPU",
     "command": TAKEOVER.replace("{what}", "kill").replace("{times}", "20").replace("{more}", "")},
    {"name": "kill-1g", "title": "Takeover: the same 5 times, 1 GiB on the GPU",
     "command": TAKEOVER.replace("{what}", "kill").replace("{times}", "5").replace("{more}", "-1g") + " --vram 1024"},
    {"name": "frozen", "title": "Takeover: the primary's host frozen, 10 times, a budget of 100 ms",
     "command": TAKEOVER.replace("{what}", "frozen").replace("{times}", "10").replace("{more}", "")},
    {"name": "cut", "title": "Takeover: the link between both hosts cut, 10 times, a budget of 100 ms",
     "command": TAKEOVER.replace("{what}", "cut").replace("{times}", "10").replace("{more}", "")},
    {"name": "switchover", "title": "Switchover, 10 times",
     "command": TAKEOVER.replace("{what}", "switchover").replace("{times}", "10").replace("{more}", "")},
    {"name": "checkpoints", "title": "Checkpoints: the pause against dirty pages and interval",
     "command": "{root}/bench/checkpoint/run --checkpoints 100 --qemu {qemu} --json {out}/checkpoints.json"},
    {"name": "pauses", "title": "Checkpoints: what the pause of a real guest consists of",
     "command": "{root}/bench/checkpoint/parts --build {build} --json {out}/pauses.json"},
    {"name": "tracer", "title": "Tracer: stores into mapped memory, in every mode",
     "command": "{tool} run --quiet --timeout 3600 --file {build}/guest-driver/kernel/test/kagemusha_trace_bench -- "
                "sh -c 'mount -t debugfs none /sys/kernel/debug; /payload/kagemusha_trace_bench 6' "
                "| tee {out}/tracer.jsonl | {root}/bench/vm/trace_table"},
    {"name": "colo", "title": "A peer: QEMU's own checkpoints (COLO) beside ours, a guest that keeps 64 and 1,024 pages dirty",
     "about": ["pause: the primary's VM stands still for one checkpoint, by QMP's STOP and RESUME. killed: from kill -9 of the primary's QEMU, of which the "
               "other is told at once, until that one is in charge and runs.",
               "COLO's secondary runs the same program between checkpoints; ours stands still, which is why its QEMU has half a processor more here."],
     "command": "{root}/bench/peers/colo --json {out}/colo.json"},
    {"name": "state", "title": "A peer: NVIDIA's checkpoint of a CUDA process, beside our state transfer of as much memory",
     "about": ["cuda-checkpoint (the driver's cuCheckpointProcess…): a process stops, its GPU memory goes into this host's memory and comes back onto a "
               "GPU of this host. It does not survive the host.",
               "State transfer: the memory goes to a standby's GPU while the guest goes on launching kernels; afterwards the standby follows. Not the same "
               "thing, so no ratio is made."],
     "command": "{root}/bench/peers/state --build {build} --gpu {gpu} --standby-gpu {standby_gpu} --json {out}/state.json"},
]


def left_over(done, wanted=None):
    """Those that are still to run. `done`: what results have of them."""
    names = {one["name"] for one in done}
    return [one for one in ALL if one["name"] not in names and (wanted is None or one["name"] in wanted)]


def measure(mechanism, places, seconds=3 * 3600):
    """→ what results have of it. `places`: root, build, out, qemu, tool, gpu, standby_gpu."""
    begin = time.monotonic()
    places = {name: shlex.quote(str(place)) for name, place in places.items()}
    with subprocess.Popen(["bash", "-o", "pipefail", "-c", mechanism["command"].format(**places)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except BaseException as error:  # ours to end, whatever ends us
            end_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = f"not within {seconds} s\n"
            process.returncode = -1
    return {"name": mechanism["name"], "title": mechanism["title"], "about": mechanism.get("about", []), "status": process.returncode,
            "seconds": round(time.monotonic() - begin, 1), "said": said.splitlines()[-LINES:]}


def end_group(process):
    """As Ctrl-C would: then they end their VMs."""
    for number, wait in ((signal.SIGINT, 30), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=wait)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
