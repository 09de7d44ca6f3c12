# SPDX-License-Identifier: GPL-2.0-or-later
"""
What runs in which order, and how long it will take. Pure.

A cell is one run of one program in one column. All columns have their turn with a program before the next program has
its; who begins changes from round to round, so that nobody always follows the same neighbour.
"""
import statistics

FIRST_GUESS_SECONDS = 6.0


def scale_of(settings, program):
    return settings.get("scales", {}).get(program, settings["scale"])


def cells(rounds, programs, columns, not_in=None):
    """→ (round, program, column), in order. `not_in`: program → columns in which it can't run."""
    for number in range(rounds):
        for place, program in enumerate(programs):
            first = (number + place) % len(columns)
            for column in columns[first:] + columns[:first]:
                if column not in (not_in or {}).get(program, ()):
                    yield number, program, column


def left_over(rounds, programs, columns, done, not_in=None):
    """The cells that are still to run. `done`: those of an earlier run, (round, program, column)."""
    done = set(done)
    return [cell for cell in cells(rounds, programs, columns, not_in) if cell not in done]


def remaining_seconds(todo, took):
    """How long these cells will take. `took`: (program, column) → what its runs have taken."""
    by_column = {}
    for (_, column), seconds in took.items():
        by_column.setdefault(column, []).extend(seconds)

    def guess(program, column):
        for known in (took.get((program, column)), by_column.get(column)):
            if known:
                return statistics.median(known)
        return FIRST_GUESS_SECONDS

    return sum(guess(program, column) for _, program, column in todo)


def duration(seconds):
    """For people: '45 s', '3 min', '2 h 05 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
