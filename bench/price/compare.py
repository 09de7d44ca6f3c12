# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two results side by side, for developers. Pure. Ratios are compared, not seconds: each was made within one run, so a
machine that was busier the second time does not look like a slower program.
"""
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


def report(old, new):
    shown = [pair for pair in table.ratios_of(old) if pair in table.ratios_of(new)]
    before, after = ({row.name: row for row in table.rows(results)} for results in (old, new))
    lines, dearer = [["program", "ratio", "old", "new", ""]], 0
    for name in before:
        if name not in after:
            continue
        for pair in shown:
            one, other = before[name].ratios[pair], after[name].ratios[pair]
            verdict = figures.changed(one, other)
            dearer += verdict > 0
            lines.append([name, text.name_of(*pair), text.ratio(one), text.ratio(other), WORDS[verdict]])
    if set(before) == set(after):
        one, other = table.means(old), table.means(new)
        for pair in shown:
            lines.append(["mean of all", text.name_of(*pair), text.ratio(one[pair]), text.ratio(other[pair]),
                          WORDS[figures.changed(one[pair], other[pair])]])
    head = [f"old: {old['machine']['commit']}, {old['machine']['date']}", f"new: {new['machine']['commit']}, {new['machine']['date']}"]
    only = sorted(set(before) ^ set(after))
    tail = [f"in one of them only: {', '.join(only)}"] if only else []
    last = (f"{dearer} ratios are dearer by more than both intervals." if dearer else
            "No ratio is dearer by more than both intervals.")
    return "\n".join([*head, *notes(old, new), "", *text.lines_up(lines), "", *tail, last])
