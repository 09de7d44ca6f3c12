# SPDX-License-Identifier: GPL-2.0-or-later
"""
The results of a soak as a person reads them. Pure: lines of the results file in, text out. A line is a JSON object with `what`:

  chain    a VM begins: chain, seed, programs, arbiter, servers (of etcd), disk (whether there is a writable one)
  fault    chain, turn, fault, takeover_ms (from the fault to the running guest), computing_ms (to the first command on the new
           GPU), output_ms (to the open gate); none of them where nobody took over. protected_ms: from the moment at which nothing
           was wrong any more (a new host is there, the network is whole) to *protecting*. And what was checked until then: life
           (how often the guest was started), rounds (of each program since then), statements, looks
  end      a VM has ended and all was right: chain, faults, and as above
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


def totals(results):
    """What was checked: of each life of each VM the last that is known. → rounds, operations of registers, statements, looks"""
    last = {(r["chain"], r.get("life", 1)): r for r in results if r["what"] in ("fault", "end") and "rounds" in r}
    looks = {}
    for r in results:
        if "looks" in r:
            looks[r["chain"]] = max(looks.get(r["chain"], 0), r["looks"])
    rounds = Counter()
    for r in last.values():
        for program, number in r["rounds"].items():
            rounds["register" if program.startswith("register") else "others"] += number
    return rounds["others"], rounds["register"], sum(r["statements"] for r in last.values()), sum(looks.values())


def arbiter_of(chain):
    return chain["arbiter"] + (f" × {chain['servers']}" if chain.get("servers", 0) > 1 else "")


def tables(results, run=None):
    """For docs/results. `run`: more rows, {name: value}"""
    faults, failures = faults_of(results), [r for r in results if r["what"] == "failure"]
    chains = {r["chain"]: r for r in results if r["what"] == "chain"}
    ended = {r["chain"] for r in results if r["what"] in ("end", "failure", "unprotected")}
    rounds, operations, statements, looks = totals(results)
    protected = [f["protected_ms"] for f in faults if "protected_ms" in f]
    of_chains = [chains[f["chain"]] for f in faults if f["chain"] in chains]

    def count(name, values):
        return f"| {name} | " + ", ".join(f"{each} {number}" for each, number in sorted(Counter(values).items())) + " |"
    rows = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in (run or {}).items()),
            f"| faults that the guest survived with all that was checked after each | {len(faults)} in {len(chains)} VMs |",
            f"| VMs that came to their end | {sum(r['what'] == 'end' for r in results)}; "
            f"{len(chains) - len(ended)} more were ended by the time limit |",
            "| wrong, lost or repeated results, second speakers, told records that were not on a disk, things left over "
            f"| {'none' if not failures else 'see the failures'} |",
            f"| register operations, all linearizable | {operations:,} |",
            f"| rounds of the other programs; statements in the network | {rounds:,}; {statements:,} |",
            f"| looks at all gates | {looks:,} |",
            "| rounds that were made on both hosts, with different bits | "
            f"{sum(f.get('made_twice', 0) for f in faults):,}, after {sum(f.get('made_twice', 0) > 0 for f in faults)} of the faults |",
            count("faults by arbiter", map(arbiter_of, of_chains)),
            count("faults by disk", ("writable" if c.get("disk") else "none" for c in of_chains)),
            count("faults while it ran", (name for c in of_chains for name in c["programs"])),
            f"| slowest return to `protecting`, once nothing was wrong any more | {max(protected, default=0):,} ms |",
            f"| failures; VMs lost while they said that they had no standby | {len(failures)}; "
            f"{sum(r['what'] == 'unprotected' for r in results)} |"]
    arbiters = sorted({arbiter_of(c) for c in of_chains})
    rows += ["", f"| fault | {' | '.join(arbiters)} | all | guest runs, ms: median | longest | protected again, ms: median "
             "| longest |", "|---" * (len(arbiters) + 6) + "|"]
    for kind in sorted({f["fault"] for f in faults}):
        these = [f for f in faults if f["fault"] == kind]
        by = Counter(arbiter_of(chains[f["chain"]]) for f in these if f["chain"] in chains)
        rows.append(f"| `{kind}` | " + " | ".join(str(by[each]) for each in arbiters) + f" | {len(these)} | " +
                    " | ".join(middle_and_longest([f[name] for f in these if f.get(name) is not None])
                               for name in ("takeover_ms", "protected_ms")) + " |")
    for r in failures:
        rows += ["", f"FAILED in VM {r['chain']}, fault {r['turn']} ({r['fault']}): {r['why']}"]
    return "\n".join(rows)


def middle_and_longest(values):
    return f"{statistics.median(values):,.0f} | {max(values):,.0f}" if values else "- | -"


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
