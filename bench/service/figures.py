# SPDX-License-Identifier: GPL-2.0-or-later
"""
What wrk and redis-benchmark say, as figures, and the table of a run. Pure.

A figure: requests per second, and the latency's percentiles in ms. Ratios are made round by round, protected : VM, then the
median is taken.
"""
import csv
import re
import statistics

MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60000.0}


class Failure(Exception):
    """A client saw errors, or said something unknown: no figure."""


def of_wrk(text):
    """Of `wrk --latency`."""
    errors = [line.strip() for line in text.splitlines() if "Socket errors" in line or "Non-2xx" in line]
    if errors:
        raise Failure(f"wrk: {'; '.join(errors)}")
    rate = re.search(r"Requests/sec:\s*([0-9.]+)", text)
    shares = {int(share): float(number) * MS[unit]
              for share, number, unit in re.findall(r"^\s*(50|75|90|99)%\s+([0-9.]+)(us|ms|s|m)$", text, re.MULTILINE)}
    if not rate or not {50, 99} <= set(shares):
        raise Failure(f"wrk said: {text[-300:]}")
    return {"per_s": float(rate[1]), "p50_ms": shares[50], "p99_ms": shares[99]}


def of_redis_benchmark(text, test="GET"):
    """Of `redis-benchmark --csv`."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row.get("test", "").startswith(test):
            return {"per_s": float(row["rps"]), "p50_ms": float(row["p50_latency_ms"]), "p99_ms": float(row["p99_latency_ms"])}
    raise Failure(f"redis-benchmark said: {text[-300:]}")


def medians(cells, client, connections, column, figure):
    found = [c[figure] for c in cells if (c["client"], c["connections"], c["column"]) == (client, connections, column)]
    return statistics.median(found) if found else None


def ratios(cells, client, connections):
    """Of requests per second, protected : VM, one for each round that has both."""
    rounds = {}
    for c in cells:
        if (c["client"], c["connections"]) == (client, connections):
            rounds.setdefault(c["round"], {})[c["column"]] = c["per_s"]
    return [r["protected"] / r["vm"] for r in rounds.values() if {"protected", "vm"} <= set(r) and r["vm"] > 0]


def table(cells):
    """Markdown: one row for each client and number of connections."""
    rows = ["| client | connections | VM, /s | protected, /s | ratio | VM p50, p99, ms | protected p50, p99, ms |",
            "|---|---|---|---|---|---|---|"]
    for client, connections in dict.fromkeys((c["client"], c["connections"]) for c in cells):
        found = ratios(cells, client, connections)
        ratio = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else ""

        def text(column, figure, digits, client=client, connections=connections):
            value = medians(cells, client, connections, column, figure)
            return "" if value is None else f"{value:.{digits}f}"
        latency = {column: f"{text(column, 'p50_ms', 1)}, {text(column, 'p99_ms', 1)}" for column in ("vm", "protected")}
        rows.append(f"| {client} | {connections} | {text('vm', 'per_s', 0)} | {text('protected', 'per_s', 0)} | {ratio} | "
                    f"{latency['vm']} | {latency['protected']} |")
    return "\n".join(rows)
