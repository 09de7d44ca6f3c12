# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two results side by side, for developers. Pure. Ratios are compared, not seconds: each was made within one run, so a
machine that was busier the second time does not look like a slower program.
"""
import math

from price import figures, table, text

WORDS = {1: "DEARER", 0: "", -1: "cheaper"}
# Results of these can't be compared.
MUST_BE_EQUAL = {"scale": None, "scales": {}}  # setting → what older results, which do not have it, had
# Different ones are told.
SHOULD_BE_EQUAL = ("cpu", "cores", "accelerator", "gpu", "qemu", "kernel", "guest_kernel")


def refusal(old, new):
    """Why they can't be compared, or ""."""
    for results, name in ((old, "old"), (new, "new")):
        if results.get("format") != 1:
            return f"the {name} file has no results of this format"
    for key, default in MUST_BE_EQUAL.items():
        was, now = (results["settings"].get(key, default) for results in (old, new))
        if was != now:
            return f"'{key}' was {was}, and is {now}: run both with the same"
    if not {p["name"] for p in old["programs"]} & {p["name"] for p in new["programs"]}:
        return "they have no program in common"
    return ""


def notes(old, new):
    return [f"{key.replace('_', ' ')}: was {old['machine'].get(key)}, is {new['machine'].get(key)}"
            for key in SHOULD_BE_EQUAL if old["machine"].get(key) != new["machine"].get(key)]


class Pair:
    """One ratio in both results. `what`: (program or None for all of them, first, second)."""

    def __init__(self, what, old, new):
        self.what, self.old, self.new = what, old, new
        self.verdict = figures.changed(old, new)

    def name(self):
        program, *ratio = self.what
        return f"{program or 'mean of all'}, {text.name_of(*ratio)}"


def pairs(old, new):
    """All ratios that both have: of each program, and the means where the programs are the same."""
    shown = [pair for pair in table.ratios_of(old) if pair in table.ratios_of(new)]
    before, after = ({row.name: row for row in table.rows(results)} for results in (old, new))
    out = [Pair((name, *pair), before[name].ratios[pair], after[name].ratios[pair]) for name in before if name in after for pair in shown]
    if set(before) == set(after):
        one, other = table.means(old), table.means(new)
        out += [Pair((None, *pair), one[pair], other[pair]) for pair in shown]
    return out


def by_chance(rounds, others):
    """How often two runs of the same thing differ: all rounds of one lie beyond all of the other. An interval of a few rounds
    is about their range."""
    return 2 * math.factorial(rounds) * math.factorial(others) / math.factorial(rounds + others)


def verdict(old, new):
    """In words: whether the new one says what the old one said."""
    found = pairs(old, new)
    known = [one for one in found if one.old is not None and one.new is not None]
    again = [one for one in known if one.verdict == 0]
    said = f"{len(again)} of {len(known)} ratios are reproduced: their intervals overlap."
    if len(again) == len(known) > 0:
        said = f"The new run reproduces the old one within their spread: the intervals of all {len(known)} ratios overlap."
    lines = [said] if known else ["Nothing can be compared: no ratio has two rounds in both."]
    for value, words in ((1, "Dearer by more than both intervals"), (-1, "Cheaper by more than both intervals")):
        names = [one.name() for one in known if one.verdict == value]
        if names:
            lines.append(f"{words}: {'; '.join(names)}.")
    if len(again) < len(known):
        rounds = [min(one.old.rounds for one in known), min(one.new.rounds for one in known)]
        expected = by_chance(*rounds) * len(known)
        if expected >= 0.5:
            lines.append(f"With {rounds[0]} and {rounds[1]} rounds about {expected:.0f} of {len(known)} differ by chance alone: more rounds say more.")
    if len(known) < len(found) and known:
        lines.append(f"{len(found) - len(known)} can't be compared: they have fewer than two rounds on one side.")
    return lines


def comparison(old, new):
    """The table, as lines."""
    lines = [["program", "ratio", "old", "new", ""]]
    for one in pairs(old, new):
        program, *ratio = one.what
        lines.append([program or "mean of all", text.name_of(*ratio), text.ratio(one.old), text.ratio(one.new), WORDS[one.verdict]])
    return text.lines_up(lines)


def report(old, new):
    head = [f"old: {old['machine']['commit']}, {old['machine']['date']}", f"new: {new['machine']['commit']}, {new['machine']['date']}"]
    only = sorted({p["name"] for p in old["programs"]} ^ {p["name"] for p in new["programs"]})
    tail = [f"in one of them only: {', '.join(only)}"] if only else []
    return "\n".join([*head, *notes(old, new), "", *comparison(old, new), "", *tail, *verdict(old, new)])


def again(old, new):
    """What a report says of the run before it in the same directory, as lines; nothing when there is none to compare with."""
    if old is None or refusal(old, new):
        return []
    return [f"The run before: {old['machine']['commit']}, {old['machine']['date']} (previous.json, beside this).", *notes(old, new),
            *verdict(old, new), "", *comparison(old, new)]
