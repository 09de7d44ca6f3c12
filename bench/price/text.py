# SPDX-License-Identifier: GPL-2.0-or-later
"""The report as plain text. Pure."""
from price import crowd, table


def seconds(figure):
    return "-" if figure is None else f"{figure.value:.3f} ({figure.low:.3f}-{figure.high:.3f})"


def ratio(figure):
    return "-" if figure is None else f"{figure.value:.2f} ({figure.low:.2f}-{figure.high:.2f})"


def name_of(first, second):
    return f"{table.COLUMNS[first][0]} : {table.COLUMNS[second][0]}"


def lines_up(lines):
    """A table whose columns are as wide as they have to be; the first is to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in
                      enumerate(zip(line, widths))).rstrip() for line in lines]


def machine(results):
    known = results["machine"]
    own = [f"{name} {scale}" for name, scale in results["settings"].get("scales", {}).items()]
    return [f"{key.replace('_', ' ')}: {value}" for key, value in known.items()] + [
        f"{len(results['programs'])} programs, {results['settings']['rounds']} rounds, scale "
        f"{', '.join([str(results['settings']['scale']), *own])}"]


def times_table(results, rows):
    columns = table.columns_of(results)
    lines = [["program", "kind", "passes", *(table.COLUMNS[column][0] for column in columns)]]
    for row in rows:
        cells = [str(row.repeats or "-")]
        for column in columns:
            failed = len(row.errors[column])
            cells.append(seconds(row.times[column]) + (f" {failed} FAILED" if failed else ""))
        lines.append([row.name, row.kind, *cells])
    return lines_up(lines)


def ratio_table(results, rows):
    shown = table.ratios_of(results)
    if not shown:
        return []
    lines = [["program", "kind", *(name_of(*pair) for pair in shown)]]
    lines += [[row.name, row.kind, *(ratio(row.ratios[pair]) for pair in shown)] for row in rows]
    for kind in table.kinds(results):
        means = table.means(results, kind)
        lines.append([f"mean of {kind}", "", *(ratio(means[pair]) for pair in shown)])
    means = table.means(results)
    lines.append(["mean of all", "", *(ratio(means[pair]) for pair in shown)])
    return lines_up(lines)


def processor_table(results, rows):
    """Of the ratios whose two sides are both VMs."""
    shown = [pair for pair in table.ratios_of(results) if pair[1] == "vm"]
    if not shown:
        return []
    lines = [["program", "kind", *(name_of(*pair) for pair in shown)]]
    lines += [[row.name, row.kind, *(ratio(row.processor_ratios[pair]) for pair in shown)] for row in rows]
    means = table.means(results, of=table.primary_processor_seconds)
    return lines_up(lines + [["mean of all", "", *(ratio(means[pair]) for pair in shown)]])


def where_table(results):
    lines = [["program, column", *(name for name, _ in table.CPU), "sent MB", "held back s", "pauses s", "then behind s"]]
    for program in results["programs"]:
        for column in table.columns_of(results):
            spent = table.processor_seconds(results, program["name"], column)
            if not spent:
                continue
            more = []
            for name, unit in (("sent-bytes", 1e6), ("held-back-s", 1), ("paused-s", 1), ("caught-up-s", 1)):
                figure = table.counter(results, program["name"], column, name)
                more.append("-" if figure is None else f"{figure.value / unit:.2f}")
            lines.append([f"{program['name']}, {table.COLUMNS[column][0]}", *(f"{value:.2f}" for _, value in spent), *more])
    return lines_up(lines) if len(lines) > 1 else []


def errors(results):
    return [f"{cell['program']}, {cell['column']}, round {cell['round'] + 1}: {cell['error']}"
            for cell in results["cells"] if not table.good(cell)]


def failed(results):
    """Whether anything went wrong."""
    return bool(errors(results) or any(one["error"] for one in results.get("crowd", []))
                or any(one["status"] for one in results.get("mechanisms", [])))


def crowd_table(results):
    return lines_up(crowd.lines(results["crowd"])) if results.get("crowd") else []


def crowd_errors(results):
    return [f"{one['vms']} VMs, {one['column']}, round {one['round'] + 1}: {one['error']}"
            for one in results.get("crowd", []) if one["error"]]


def mechanism_parts(results):
    """[(title, what its words mean, lines)]"""
    return [(one["title"] + (f": FAILED with status {one['status']}" if one["status"] else ""), one.get("about", []), one["said"])
            for one in results.get("mechanisms", [])]


def goals(results):
    said = {None: "not to be said from these runs", True: "reached", False: "NOT REACHED"}
    return [f"{what}: {ratio(figure)}, goal {goal:.2f}: {said[reached]}" for what, figure, goal, reached in
            table.goals(results)] + table.reasons(results)


def report(results, again=()):
    """`again`: lines about the run before (compare.again)."""
    rows = table.rows(results)
    parts = [("The price of protection", table.problems(results)),
             ("Seconds of so many passes (each `kage bench` has its own number), median and quartiles", times_table(results, rows)),
             ("Ratios, median and 95 % interval", ratio_table(results, rows)),
             ("Goals", goals(results)),
             ("A second time", again),
             ("Ratios of processor time on the primary's side (with start and check)", processor_table(results, rows)),
             ("Where processor time goes: seconds of a run (with start and check), medians", where_table(results)),
             (f"Several VMs at once: {crowd.program(results)} in each; seconds, and 'unprotected / logged'", crowd_table(results)),
             *((title, [*about, *([""] if about else []), *lines]) for title, about, lines in mechanism_parts(results)),
             ("What went wrong", errors(results) + crowd_errors(results)),
             ("Columns", [f"{table.COLUMNS[name][0]}: {table.COLUMNS[name][1]}" for name in table.columns_of(results)]),
             ("Machine", machine(results))]
    out = []
    for title, lines in parts:
        if lines:
            out += [f"== {title}", "", *lines, ""]
    return "\n".join(out)
