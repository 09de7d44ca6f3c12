# SPDX-License-Identifier: GPL-2.0-or-later
"""
From results (README.md has their format) to the rows of the report. Pure: text.py and page.py only lay out what is here.
"""
from price import crowd, figures

# Column → its heading, and what is in it. The order of the report.
COLUMNS = {
    "native": ("native", "on the host, no VM"),
    "loopback": ("loopback", "on the host, no VM, through the guest's driver, the device library and a worker: the API path alone"),
    "vm": ("VM", "in a VM without a standby"),
    "logged": ("logged", "in a VM whose GPU is mirrored to a standby that executes nothing: the cost on the primary alone"),
    "mirrored": ("mirrored", "in a VM whose GPU is mirrored to a standby on this machine"),
    "protected": ("protected", "GPU mirrored and VM checkpointed to a standby on this machine"),
}
RATIOS = (("loopback", "native"), ("vm", "native"), ("logged", "vm"), ("mirrored", "vm"), ("protected", "vm"))  # which are shown
GPU_BOUND = 1.05  # VM : native, up to which a program is bound by the GPU there

# Sums of counters that tell where processor time went.
CPU = (("guest's processors", ("cpu-guest",)), ("device, encoding, link", ("cpu-device",)), ("GPU", ("cpu-gpu", "cpu-native")),
       ("standby's GPU", ("cpu-standby-gpu",)), ("standby, the rest", ("cpu-standby-guest", "cpu-standby-device")))


def good(cell):
    return cell.get("error") is None and cell.get("seconds") is not None


def seconds_of(results, program, column):
    """round → seconds, of the runs that went well."""
    return {cell["round"]: cell["seconds"] for cell in results["cells"]
            if cell["program"] == program and cell["column"] == column and good(cell)}


def primary_processor_seconds(results, program, column):
    """round → processor time of the primary's side: guest, device, GPU. Other work on the machine hardly changes it."""
    keys = ("cpu-guest", "cpu-device", "cpu-gpu", "cpu-native")
    return {cell["round"]: sum(cell["counters"].get(key, 0) for key in keys) for cell in results["cells"]
            if cell["program"] == program and cell["column"] == column and good(cell) and cell.get("counters")}


def errors_of(results, program, column):
    return [cell["error"] for cell in results["cells"]
            if cell["program"] == program and cell["column"] == column and not good(cell)]


def columns_of(results):
    return [name for name in COLUMNS if name in results["settings"]["columns"]]


def ratios_of(results):
    present = columns_of(results)
    return [pair for pair in RATIOS if set(pair) <= set(present)]


class Row:
    """One program: `times` column → Figure or None; `ratios` and `processor_ratios` (first, second) → Figure or
    None; `errors` column → texts."""

    def __init__(self, results, program):
        self.name, self.kind, self.what = program["name"], program["kind"], program["what"]
        self.repeats = results["settings"]["repeats"].get(self.name)
        self.times, self.ratios, self.processor_ratios, self.errors = {}, {}, {}, {}
        for column in columns_of(results):
            self.times[column] = figures.median(list(seconds_of(results, self.name, column).values()))
            self.errors[column] = errors_of(results, self.name, column)
        for first, second in ratios_of(results):
            self.ratios[first, second] = figures.ratio(seconds_of(results, self.name, first),
                                                       seconds_of(results, self.name, second))
            self.processor_ratios[first, second] = figures.ratio(primary_processor_seconds(results, self.name, first),
                                                                 primary_processor_seconds(results, self.name, second))


def rows(results):
    return [Row(results, program) for program in results["programs"]]


def means(results, kind=None, of=seconds_of, names=None):
    """Geometric means over all programs, those of one kind, or those with these names: (first, second) → Figure or None. Of
    those that can run in both columns."""
    def both(pair):
        return [program["name"] for program in results["programs"] if kind in (None, program["kind"])
                and (names is None or program["name"] in names) and not set(pair) & set(program.get("not_in", ()))]
    return {pair: figures.mean_ratio([tuple(of(results, name, column) for column in pair) for name in both(pair)])
            for pair in ratios_of(results)}


def kinds(results):
    return list(dict.fromkeys(program["kind"] for program in results["programs"]))


def processor_seconds(results, program, column):
    """What a run takes of all processors, by who took it (medians): [(name, seconds)]. Start and check of the program are
    in it. Empty when nothing is known."""
    runs = [cell["counters"] for cell in results["cells"] if cell["program"] == program and cell["column"] == column
            and good(cell) and cell.get("counters")]
    if not runs:
        return []
    return [(name, figures.median([sum(run.get(key, 0) for key in keys) for run in runs]).value) for name, keys in CPU]


def counter(results, program, column, name):
    """The median of one counter, or None."""
    found = [cell["counters"][name] for cell in results["cells"] if cell["program"] == program
             and cell["column"] == column and good(cell) and name in (cell.get("counters") or {})]
    return figures.median(found)


def gpu_bound(results):
    """The programs whose time is the GPU's: in a VM they take hardly longer than natively."""
    ratios = {row.name: row.ratios.get(("vm", "native")) for row in rows(results)}
    return [name for name, figure in ratios.items() if figure is not None and figure.value <= GPU_BOUND]


def judged(what, figure, goal):
    reached = None
    if figure is not None and (figure.high <= goal or figure.low > goal):
        reached = figure.high <= goal
    return what, figure, goal, reached


def goals(results):
    """[(what, Figure or None, goal, reached)]; reached: True, False, or None when the interval does not say. What full
    protection may cost is said for a standby with a GPU of its own."""
    out, all_means = [], means(results)
    if ("logged", "vm") in all_means:
        out.append(judged("logged : VM, geometric mean of all programs", all_means["logged", "vm"], 1.10))
    for column in ("logged", "checkpointed"):
        if any(one["vms"] == crowd.GOAL_VMS and one["column"] == column for one in results.get("crowd", [])):
            out.append(judged(f"{column} : VM, each of {crowd.GOAL_VMS} at once ({crowd.program(results)})",
                              crowd.ratio(results["crowd"], crowd.GOAL_VMS, column), crowd.GOAL))
    settings, pair = results["settings"], ("protected", "vm")
    if pair not in all_means or settings.get("standby_gpu", settings["gpu"]) == settings["gpu"]:
        return out
    bound = gpu_bound(results)
    if bound:
        out.append(judged(f"protected : VM, geometric mean of what the GPU bounds ({', '.join(bound)})",
                          means(results, names=bound)[pair], 1.02))
    out.append(judged("protected : VM, geometric mean of all programs", all_means[pair], 1.05))
    every = [row for row in rows(results) if row.ratios[pair] is not None]
    if every:
        dearest = max(every, key=lambda row: row.ratios[pair].value)
        out.append(judged(f"protected : VM, the dearest program ({dearest.name})", dearest.ratios[pair], 1.20))
    return out


def reasons(results):
    """Sentences about goals for programs that were not reached, or that the intervals do not say it of: which program is the
    dearest, and where its time goes."""
    missed = [column for what, figure, _, reached in goals(results) for column in ("logged", "protected")
              if what.startswith(f"{column} : VM, ") and "at once" not in what and figure is not None and not reached]
    out = [sentence for column in dict.fromkeys(missed) for sentence in reasons_of(results, column)]
    return out + ["docs/results/price.md and docs/results/price-h200.md have profiles, and what the limits are."] if out else []


def reasons_of(results, column):
    every = [row for row in rows(results) if row.ratios[column, "vm"] is not None]
    if len(every) < 2:
        return []
    dearest = max(every, key=lambda row: row.ratios[column, "vm"].value)
    others = means(results, names=[row.name for row in every if row is not dearest])[column, "vm"]
    out = [f"{column} : VM: the dearest program is {dearest.name}, {dearest.ratios[column, 'vm'].value:.2f}; "
           f"without it the geometric mean is {others.value:.2f}."]
    before, after = (dict(processor_seconds(results, dearest.name, one)) for one in ("vm", column))
    more = [f"{name} {after[name] - before[name]:.2f}" for name in after if name in before]
    if more:
        sent, paused = (counter(results, dearest.name, column, name) for name in ("sent-bytes", "paused-s"))
        out.append(f"{dearest.name}, {column}: {dearest.times[column].value - dearest.times['vm'].value:.2f} s more; the processors took more by, "
                   f"in s with start and check: {', '.join(more)}"
                   + (f"; {sent.value / 1e9:.2f} GB were sent" if sent else "")
                   + (f"; paused for {paused.value:.2f} s" if paused else "") + ".")
    return out


def problems(results):
    """Sentences that whoever reads the figures has to know."""
    out = []
    if not results["finished"]:
        out.append("The run was interrupted: this is what there is.")
    load = results["machine"]["load_begin"]
    if load > 1.5:
        out.append(f"The machine was busy when the run began (load {load:.1f}): the intervals say how much that matters.")
    if results["settings"]["rounds"] < figures.LEAST_ROUNDS:
        out.append("There is one round only, so no ratio is shown.")
    return out
