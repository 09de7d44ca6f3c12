# SPDX-License-Identifier: GPL-2.0-or-later
"""
The results of a soak as a person reads them. Pure: lines of the results file in, text out. A line is a JSON object with `what`:

  chain    a VM begins: chain, seed, programs, arbiter, disk (whether there is a writable one)
  fault    chain, turn, fault, takeover_ms (from the fault to the running guest), computing_ms (to the first command on the new
           GPU), output_ms (to the open gate); none of them where nobody took over
  end      a VM has ended and all was right: chain, faults, rounds (of each program), statements
  failure  chain, turn, fault, why, logs
"""
import json
import statistics
from collections import Counter

TIMES = ("takeover_ms", "output_ms", "computing_ms")


def read(lines):
    """A line that was cut off when the machine stopped is the last one, and left out."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def percentile(values, share):
    """The smallest value that so many percent of them do not exceed."""
    values = sorted(values)
    return values[max(0, -(-len(values) * share // 100) - 1)]


def row(name, values):
    return (f"| {name} | {len(values)} | {statistics.median(values):.0f} | {percentile(values, 90):.0f} | "
            f"{percentile(values, 99):.0f} | {max(values):.0f} |")


def faults_of(results):
    """Those that the VM has survived, with all that was checked after them."""
    return [r for r in results if r["what"] == "fault"]


def text(results):
    faults, failures = faults_of(results), [r for r in results if r["what"] == "failure"]
    chains = [r for r in results if r["what"] == "chain"]
    ends = [r for r in results if r["what"] == "end"]
    rounds = sum(sum(r["rounds"].values()) for r in ends)
    lines = [f"{len(faults)} faults survived in {len(chains)} VMs, {len(failures)} failures; {len(ends)} VMs ended in order: "
             f"{rounds} rounds and {sum(r['statements'] for r in ends)} statements, each right, none lost, none twice"]
    for name in TIMES:
        kinds = sorted({f["fault"] for f in faults if f.get(name) is not None})
        if not kinds:
            continue
        lines += ["", f"| {name} | times | median | 90 % | 99 % | longest |", "|---|---|---|---|---|---|"]
        lines += [row(kind, [f[name] for f in faults if f["fault"] == kind and f.get(name) is not None]) for kind in kinds]
    without = sorted({f["fault"] for f in faults if f.get("takeover_ms") is None})
    for kind in without:
        lines += ["", f"{kind}, nobody takes over: {sum(f['fault'] == kind for f in faults)}"]
    programs = {}
    numbers = {c["chain"]: c for c in chains}
    for fault in faults:
        for program in numbers.get(fault["chain"], {}).get("programs", []):
            programs[program] = programs.get(program, 0) + 1
    if programs:
        lines += ["", "faults while it ran: " + ", ".join(f"{name} {count}" for name, count in sorted(programs.items()))]
    for what, name in (("arbiter", str), ("disk", {True: "with", False: "without"}.get)):
        counts = Counter(name(numbers[f["chain"]][what]) for f in faults if what in numbers.get(f["chain"], {}))
        if counts:
            lines += ["", f"faults by {what}: " + ", ".join(f"{each} {count}" for each, count in sorted(counts.items()))]
    for r in failures:
        lines += ["", f"FAILED in VM {r['chain']}, fault {r['turn']} ({r['fault']}): {r['why']}", f"   logs: {r['logs']}"]
    return "\n".join(lines)
