# SPDX-License-Identifier: GPL-2.0-or-later
"""
What a soak judges where each host may give the other one up at any moment (suspicious.py): who lost whom, because of which fault
or of none, and how long the VM was unprotected. Pure: the events of supervisors in, as their logs have them.
"""
import statistics

from soak.summary import faults_of, percentile, totals

# How often compared with the others. `rest`: nothing is done for a while.
WEIGHTS = {"rest": 8, "kill-qemu": 2, "kill-both": 2, "freeze": 3, "freeze-standby": 2, "switchover": 2}
KILLS = ("kill-qemu", "kill-both")

# States of a primary in which its standby may have the right to take over, and those of a standby that has no such right.
PAIRED = ("protecting", "unpairing", "handing-over", "reclaiming")
HAS_NOTHING = ("starting", "listening", "greeted", "proving", "outdated")

# Of the word in the file of the arbiter `lock`.
PAIRED_BIT = 41


def is_paired(word):
    """Whether the arbiter's record says that a standby may take over."""
    return bool(word >> PAIRED_BIT & 1)


def alone(events, first=0):
    """Of a primary: when it gave up a standby that could have taken over, and went on without it; and how many standbys it gave
    up before they had all of its state. Counted from the event of this number on. → [{what, at_ns}], number"""
    losses, given_up, since, filling = [], 0, None, False
    for number, event in enumerate(events):
        name = event["event"]
        if name in PAIRED:
            # A pair is lost when it was left, which is before that is recorded.
            since = None if name == "protecting" else since or event["boot_ns"]
            filling = False
        elif name in ("replicating", "announcing", "recording"):
            filling = True
        elif name == "alone":
            if since is not None and number >= first:
                losses.append({"what": "alone", "at_ns": since})
            given_up += filling and number >= first
            since, filling = None, False
    return losses, given_up


def attributed(losses, fault, begin_ns):
    """In their order; `of` says which fault each of them has followed. A fault makes one: what comes after that one, or before
    the fault, came of nothing but a suspicion."""
    found, open_fault = [], fault != "rest"
    for loss in sorted(losses, key=lambda loss: loss["at_ns"]):
        follows = open_fault and loss["at_ns"] >= begin_ns
        open_fault = open_fault and not follows
        found.append({**loss, "of": fault if follows else "suspicion"})
    return found


def protected_again(losses, protecting_ns):
    """Each loss with `protected_ms`, the time until the VM was protected again; without it where another loss came first."""
    ordered = sorted(losses, key=lambda loss: loss["at_ns"])
    ends = [loss["at_ns"] for loss in ordered[1:]] + [None]
    found = []
    for loss, end in zip(ordered, ends):
        at = next((ns for ns in sorted(protecting_ns) if ns > loss["at_ns"] and (end is None or ns < end)), None)
        found.append(dict(loss) if at is None else {**loss, "protected_ms": round((at - loss["at_ns"]) / 1e6)})
    return found


def lost(fault, state, recorded):
    """Of a VM whose primary has ended: None while its standby (in this state) may still go on with it. Else why nobody does.
    `recorded`: whether the arbiter's record says that a standby may. → (whether that is right, a sentence)"""
    if state not in HAS_NOTHING or recorded:
        return None
    if fault in KILLS:
        return True, f"the record said that it had no standby when it was hit ({fault})"
    return False, f"it ended after '{fault}', and nobody goes on with it"


def brief(losses):
    """Of a turn."""
    def one(loss):
        more = [loss["of"]]
        more += [f"the guest runs after {loss['runs_ms']:,.0f} ms"] if "runs_ms" in loss else []
        more += [f"protected after {loss['protected_ms']:,} ms"] if "protected_ms" in loss else []
        who = {"taken-over": "the standby took over", "alone": "the primary went on alone"}[loss["what"]]
        return f"{who} ({', '.join(more)})"
    return ", ".join(map(one, losses)) or "nobody gave anybody up"


def text(results):
    """For people, and for docs/results."""
    turns = faults_of(results)
    losses = [loss for turn in turns for loss in turn.get("losses", ())]
    rounds, operations, statements, looks = totals(results)
    lines = [f"{len(turns)} turns: " + ", ".join(f"{kind} {sum(turn['fault'] == kind for turn in turns)}" for kind in WEIGHTS),
             f"claims that a standby made: {sum(turn.get('claims', 0) for turn in turns)}; standbys given up before they protected: "
             f"{sum(turn.get('given_up', 0) for turn in turns)}; state transfers that a person began sooner: "
             f"{sum(turn.get('asked', 0) for turn in turns)}",
             "", "| who went on | after | times | guest runs, ms: median | longest | protected again, ms: median | 90 % | longest |",
             "|---|---|---|---|---|---|---|---|"]
    for what in ("taken-over", "alone"):
        for of in ("suspicion", *WEIGHTS):
            these = [loss for loss in losses if (loss["what"], loss["of"]) == (what, of)]
            if these:
                runs = [loss["runs_ms"] for loss in these if "runs_ms" in loss]
                again = [loss["protected_ms"] for loss in these if "protected_ms" in loss]
                who = {"taken-over": "the standby", "alone": "the primary"}[what]
                lines.append(f"| {who} | {of} | {len(these)} | " + (f"{statistics.median(runs):,.0f} | {max(runs):,.0f}" if runs else
                                                                    "- | -") + " | " +
                             (f"{statistics.median(again):,.0f} | {percentile(again, 90):,.0f} | {max(again):,.0f}" if again else
                              "- | - | -") + " |")
    lines += ["", f"rounds that were made on both hosts, with different bits: {sum(t.get('made_twice', 0) for t in turns):,}, in "
              f"{sum(t.get('made_twice', 0) > 0 for t in turns)} turns",
              f"rounds {rounds:,}, register operations {operations:,}, statements {statements:,}, looks at all gates {looks:,}; "
              f"failures {sum(r['what'] == 'failure' for r in results)}; VMs lost while they had no standby "
              f"{sum(r['what'] == 'unprotected' for r in results)}; VMs that came to their end "
              f"{sum(r['what'] == 'end' for r in results)}"]
    return "\n".join(lines)
