# SPDX-License-Identifier: GPL-2.0-or-later
"""
The report as one HTML page that needs nothing else: no script, nothing from elsewhere; pictures are SVG inside. Pure. What
is written here says the same as text.py, and takes its figures from the same rows.
"""
import html
import math

from price import table, text

COLOURS = {"vm": "#718096", "logged": "#2f855a", "mirrored": "#2b6cb0", "protected": "#c05621"}
CPU_COLOURS = ("#718096", "#2b6cb0", "#2f855a", "#c05621", "#d69e2e")
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1a202c; max-width: 68em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #e2e8f0 }
th:first-child, td:first-child { text-align: left }
.note { background: #fffbeb; border-left: 4px solid #d69e2e; padding: .5em 1em }
.bad { color: #c53030 } .good { color: #276749 } small { color: #4a5568 }
svg text { font: 12px system-ui, sans-serif; fill: #1a202c }
"""
WIDTH, LEFT, RIGHT = 900, 110, 870


def escaped(value):
    return html.escape(str(value))


def grid(head, lines, marked=()):
    out = ["<table><tr>", *(f"<th>{escaped(name)}</th>" for name in head), "</tr>"]
    for number, line in enumerate(lines):
        opened = "<tr style='font-weight:600'>" if number in marked else "<tr>"
        out.append(opened + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>")
    return "".join(out) + "</table>"


def value_with(figure, digits, unit=""):
    if figure is None:
        return "–"
    return f"{figure.value:.{digits}f}{unit} <small>{figure.low:.{digits}f}–{figure.high:.{digits}f}</small>"


def times(results, rows):
    columns = table.columns_of(results)
    lines = []
    for row in rows:
        line = [f"{escaped(row.name)} <small>{escaped(row.what)}</small>", escaped(row.kind), str(row.repeats or "-")]
        for column in columns:
            failed = len(row.errors[column])
            line.append(value_with(row.times[column], 3) + (f" <span class='bad'>{failed} failed</span>" if failed else ""))
        lines.append(line)
    return grid(["program", "kind", "passes", *(table.COLUMNS[column][0] for column in columns)], lines)


def ratios(results, rows):
    shown = table.ratios_of(results)
    if not shown:
        return "<p>One column only: there is no ratio.</p>"
    lines = [[escaped(row.name), escaped(row.kind), *(value_with(row.ratios[pair], 2) for pair in shown)] for row in rows]
    marked = len(lines)
    for kind in (*table.kinds(results), None):
        means = table.means(results, kind)
        lines.append([f"mean of {escaped(kind or 'all')}", "", *(value_with(means[pair], 2) for pair in shown)])
    return grid(["program", "kind", *(text.name_of(*pair) for pair in shown)], lines, range(marked, len(lines)))


def printed(lines):
    """What a bench has printed: its tables as tables, the rest as it is. A line with too few cells fills its table."""
    out, table_lines, others = [], [], []

    def cells(line):
        return [cell.strip() for cell in line.strip("|").split("|")]

    def done():
        if others:
            out.append(f"<pre>{escaped(chr(10).join(others))}</pre>")
            others.clear()
        if table_lines:
            head, *rows = [cells(line) for line in table_lines if set(line) - set("|-: ")]
            out.append("<table><tr>" + "".join(f"<th>{escaped(cell)}</th>" for cell in head) + "</tr>" + "".join(
                "<tr>" + "".join(f"<td{f' colspan={len(head) - len(row) + 1}' if place == len(row) - 1 and len(row) < len(head) else ''}>"
                                 f"{escaped(cell)}</td>" for place, cell in enumerate(row)) + "</tr>" for row in rows) + "</table>")
            table_lines.clear()

    for line in lines:
        if line.startswith("|"):
            if others:
                done()
            table_lines.append(line)
        else:
            if table_lines:
                done()
            others.append(line)
    done()
    return "".join(out)


class Scale:
    """Ratios on a logarithmic axis, with round marks."""

    def __init__(self, values):
        low, high = min([*values, 0.9]), max([*values, 1.25])
        self.low, self.high = math.log(low) - 0.05, math.log(high) + 0.05

    def at(self, value):
        share = (math.log(value) - self.low) / (self.high - self.low)
        return LEFT + min(max(share, 0), 1) * (RIGHT - LEFT)

    def marks(self):
        steps = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100)
        return [step for step in steps if self.low <= math.log(step) <= self.high]


def ratio_picture(results, rows):
    """A dot and its interval for each program and each column, in relation to the VM without a standby."""
    columns = [first for first, second in table.ratios_of(results) if second == "vm"]
    points = [(row, column, row.ratios[column, "vm"]) for row in rows for column in columns
              if row.ratios.get((column, "vm"))]
    if not points:
        return ""
    scale = Scale([value for _, _, figure in points for value in (figure.low, figure.high)])
    lane, top = 14 * max(len(columns), 1) + 10, 40
    bottom = top + lane * len(rows)
    out = [f"<svg viewBox='0 0 {WIDTH} {bottom + 30}' role='img' aria-label='ratios to a VM without a standby'>"]
    for mark in scale.marks():
        x = scale.at(mark)
        out.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='{'#1a202c' if mark == 1 else '#e2e8f0'}'/>"
                   f"<text x='{x:.1f}' y='{bottom + 18}' text-anchor='middle'>{mark:g}</text>")
    for number, column in enumerate(columns):
        out.append(f"<circle cx='{LEFT + number * 150}' cy='16' r='5' fill='{COLOURS[column]}'/>"
                   f"<text x='{LEFT + 10 + number * 150}' y='20'>{escaped(table.COLUMNS[column][0])}</text>")
    for place, row in enumerate(rows):
        out.append(f"<text x='{LEFT - 10}' y='{top + lane * place + lane / 2 + 4:.1f}' text-anchor='end'>{escaped(row.name)}</text>")
    places = {row.name: place for place, row in enumerate(rows)}
    for row, column, figure in points:
        y = top + lane * places[row.name] + 12 + 14 * columns.index(column)
        out.append(f"<line x1='{scale.at(figure.low):.1f}' x2='{scale.at(figure.high):.1f}' y1='{y}' y2='{y}' "
                   f"stroke='{COLOURS[column]}' stroke-width='2'/>"
                   f"<circle cx='{scale.at(figure.value):.1f}' cy='{y}' r='4' fill='{COLOURS[column]}'>"
                   f"<title>{escaped(row.name)}, {escaped(column)}: {text.ratio(figure)}</title></circle>")
    return "".join(out) + "</svg>"


def where_pictures(results):
    """One for the suite, and one for whole programs, which take so much longer that they would leave no room for it."""
    def of_suite(program):
        return "command" not in program
    return "".join(where_picture(results, [program for program in results["programs"] if of_suite(program) == suite]) for suite in (True, False))


def where_picture(results, programs):
    """Processor seconds of a run, stacked, for each of these programs and each column."""
    bars = [(program["name"], column, table.processor_seconds(results, program["name"], column))
            for program in programs for column in table.columns_of(results)]
    bars = [bar for bar in bars if bar[2]]
    longest = max((sum(value for _, value in spent) for _, _, spent in bars), default=0)
    if longest <= 0:
        return ""
    top, height, left = 40, 15, 160
    out = [f"<svg viewBox='0 0 {WIDTH} {top + height * len(bars) + 30}' role='img' aria-label='processor seconds'>"]
    for number, (name, _) in enumerate(table.CPU):
        out.append(f"<rect x='{LEFT + number * 160}' y='8' width='10' height='10' fill='{CPU_COLOURS[number]}'/>"
                   f"<text x='{LEFT + 14 + number * 160}' y='18'>{escaped(name)}</text>")
    for place, (program, column, spent) in enumerate(bars):
        y, x = top + height * place, float(left)
        out.append(f"<text x='{left - 8}' y='{y + 10}' text-anchor='end'>{escaped(program)}, {escaped(table.COLUMNS[column][0])}</text>")
        for number, (name, value) in enumerate(spent):
            width = value / longest * (RIGHT - left - 45)  # room for the sum
            out.append(f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{height - 4}' fill='{CPU_COLOURS[number]}'>"
                       f"<title>{escaped(name)}: {value:.2f} s</title></rect>")
            x += width
        out.append(f"<text x='{x + 4:.1f}' y='{y + 10}'>{sum(value for _, value in spent):.1f} s</text>")
    return "".join(out) + "</svg>"


def goals(results):
    words = {None: "not to be said from these runs", True: "<span class='good'>reached</span>", False: "<span class='bad'>not reached</span>"}
    return "".join(f"<li>{escaped(what)}: {value_with(figure, 2)}, goal {goal:.2f}: {words[reached]}</li>"
                   for what, figure, goal, reached in table.goals(results))


def page(results, again=()):
    """`again`: lines about the run before (compare.again): its sentences, an empty line, its table."""
    rows = table.rows(results)
    parts = ["<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>The price of protection</title>",
             f"<style>{STYLE}</style><h1>The price of protection</h1>"]
    parts += [f"<p class='note'>{escaped(line)}</p>" for line in table.problems(results)]
    parts += ["<h2>Ratios</h2><p>The same program, unmodified, in turns. Median of the rounds' ratios, and its 95 % interval; 1 is no price at all.</p>",
              ratio_picture(results, rows), ratios(results, rows)]
    if table.goals(results):
        parts.append(f"<h2>Goals</h2><ul>{goals(results)}</ul>" + "".join(f"<p>{escaped(line)}</p>" for line in table.reasons(results)))
    if again:
        sentences = again[:again.index("")]
        parts += ["<h2>A second time</h2>", *(f"<p>{escaped(line)}</p>" for line in sentences),
                  "<p><a href='previous.json'>previous.json</a> and <a href='results.json'>results.json</a> have every run; "
                  "<code>kage bench compare previous.json results.json</code> says this again.</p>",
                  f"<details><summary>ratio by ratio</summary><pre>{escaped(chr(10).join(again[len(sentences) + 1:]))}</pre></details>"]
    parts += ["<h2>Seconds</h2><p>Of so many passes, of which each <code>kage bench</code> has its own number. Median and quartiles, by the "
              "host's clock.</p>", times(results, rows)]
    processor = text.processor_table(results, rows)
    if processor:
        parts += ["<h2>Ratios of processor time on the primary's side</h2><p>Guest, device and GPU, with the program's start and check. Other work on the "
                  "machine hardly changes it.</p>", f"<pre>{escaped(chr(10).join(processor))}</pre>"]
    picture = where_pictures(results)
    if picture:
        where = text.where_table(results)
        parts += ["<h2>Where processor time goes</h2><p>Seconds of all processors for one run, with the program's start and check.</p>",
                  picture, f"<details><summary>the figures</summary><pre>{escaped(chr(10).join(where))}</pre></details>"]
    for title, about, lines in [("Several VMs at once", [], text.crowd_table(results)), *text.mechanism_parts(results)]:
        if lines:
            parts += [f"<h2>{escaped(title)}</h2>", *(f"<p>{escaped(line)}</p>" for line in about), printed(lines)]
    wrong = text.errors(results) + text.crowd_errors(results)
    if wrong:
        parts.append("<h2>What went wrong</h2><ul>" + "".join(f"<li class='bad'>{escaped(line)}</li>" for line in wrong) + "</ul>")
    parts += ["<h2>Columns</h2><ul>", *(f"<li>{escaped(table.COLUMNS[name][0])}: {escaped(table.COLUMNS[name][1])}</li>"
                                       for name in table.columns_of(results)), "</ul>",
              "<h2>Machine</h2>", grid(["", ""], [[escaped(key.replace("_", " ")), escaped(value)]
                                                  for key, value in results["machine"].items()])]
    return "\n".join(parts) + "\n"
