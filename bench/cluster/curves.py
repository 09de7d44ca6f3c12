# SPDX-License-Identifier: GPL-2.0-or-later
"""
From the runs of MPI programs on clusters to speed-ups, what a physical network of that bandwidth would give, a table and a
picture. Pure.
"""
import html
from statistics import median

PAYLOAD = 1448 / 1514  # of a frame of TCP, as it is on the wire
COLOURS = ("#1a202c", "#2b6cb0", "#2f855a", "#c05621", "#805ad5")


def seconds(runs, program, limit, nodes):
    """The median of what this program took; None: no run of it was right."""
    fitting = [run["seconds"] for run in runs if (run["program"], run["limit"], run["nodes"]) == (program, limit, nodes) and run["seconds"]]
    return median(fitting) if fitting else None


def wire_seconds(columns, steps, mbit, nodes):
    """What the borders of halo take on links of this bandwidth: each process sends two rows and gets two, both ways at once, and
    each row passes two links, frame after frame. One process sends nothing."""
    if not mbit or nodes < 2:
        return 0.0
    row = columns * 4 / PAYLOAD
    return steps * (2 * row + 1514) * 8 / (mbit * 1e6)


def model(runs, program, limit, nodes, halo):
    """Seconds with this limit, from those without one and the wire's."""
    free = seconds(runs, program, None, nodes)
    if free is None:
        return None
    return free + (wire_seconds(halo["columns"], halo["steps"], limit, nodes) if program == "halo" else 0)


def limits(runs):
    return sorted({run["limit"] for run in runs}, key=lambda limit: -(limit or 1e9))


def node_counts(runs):
    return sorted({run["nodes"] for run in runs})


def speedup(runs, program, limit, nodes):
    one, many = (seconds(runs, program, limit, count) for count in (1, nodes))
    return one / many if one and many else None


def named(limit):
    return f"{limit} Mbit/s" if limit else "none"


def shown(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def table(runs, program, halo):
    lines = ["| limit | nodes | seconds | speed-up | physical model, s | off by |", "|---|---|---|---|---|---|"]
    for limit in limits(runs):
        for nodes in node_counts(runs):
            took, expected = seconds(runs, program, limit, nodes), model(runs, program, limit, nodes, halo)
            off = None if took is None or not expected else 100 * (took / expected - 1)
            lines.append(f"| {named(limit)} | {nodes} | {shown(took)} | {shown(speedup(runs, program, limit, nodes))} | {shown(expected)} | "
                         f"{'–' if off is None or limit is None else f'{off:+.0f} %'} |")
    return lines


def picture(runs, program):
    """Speed-ups over the number of nodes, a line for each limit, and what would be ideal."""
    counts = node_counts(runs)
    width, height, left, bottom = 460, 320, 50, 280
    most = max(counts)

    def x(nodes):
        return left + (nodes - 1) / max(1, most - 1) * (width - left - 20)

    def y(value):
        return bottom - value / most * (bottom - 40)

    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height + 20 * len(limits(runs))}' role='img' "
           f"aria-label='speed-up of {html.escape(program)}' font-family='sans-serif' font-size='12'>"
           f"<text x='{left}' y='20'>{html.escape(program)}: speed-up over nodes (dashed: ideal)</text>"]
    for nodes in counts:
        out.append(f"<line x1='{x(nodes):.1f}' x2='{x(nodes):.1f}' y1='40' y2='{bottom}' stroke='#e2e8f0'/>"
                   f"<text x='{x(nodes):.1f}' y='{bottom + 16}' text-anchor='middle'>{nodes}</text>"
                   f"<text x='{left - 8}' y='{y(nodes) + 4:.1f}' text-anchor='end'>{nodes}</text>")
    out.append(f"<line x1='{x(1):.1f}' y1='{y(1):.1f}' x2='{x(most):.1f}' y2='{y(most):.1f}' stroke='#a0aec0' stroke-dasharray='4 4'/>")
    for number, limit in enumerate(limits(runs)):
        points = [(x(nodes), y(value)) for nodes in counts if (value := speedup(runs, program, limit, nodes)) is not None]
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2'/>")
        out.extend(f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3' fill='{colour}'/>" for a, b in points)
        out.append(f"<rect x='{left}' y='{height + 20 * number - 10}' width='10' height='10' fill='{colour}'/>"
                   f"<text x='{left + 16}' y='{height + 20 * number}'>limit: {named(limit)}</text>")
    return "".join(out) + "</svg>\n"
