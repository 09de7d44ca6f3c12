# SPDX-License-Identifier: GPL-2.0-or-later
"""
The statistics of a report. Pure; random numbers come from a seed, so the same results give the same report.

A ratio is made round by round, because within a round both sides saw the same machine: the median of the rounds' ratios.
Its interval is a bootstrap over the rounds (percentiles, 95 %): of so few rounds it is about the range that was seen, and
promises nothing about a machine with other work. From one round there is no ratio at all.
"""
import math
import random
import statistics

LEAST_ROUNDS = 2
RESAMPLED = 1000
CONFIDENCE = 0.95


class Figure:
    """A value with the interval in which it is, and of how many rounds it was made."""

    def __init__(self, value, low, high, rounds):
        self.value, self.low, self.high, self.rounds = value, low, high, rounds

    def __eq__(self, other):
        return isinstance(other, Figure) and vars(self) == vars(other)

    def __repr__(self):
        return f"Figure({self.value}, {self.low}, {self.high}, {self.rounds})"


def quantile(values, share):
    """Between the two neighbours, as most programs do it."""
    values = sorted(values)
    at = share * (len(values) - 1)
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def median(values):
    """With its quartiles; None of nothing."""
    if not values:
        return None
    return Figure(statistics.median(values), quantile(values, 0.25), quantile(values, 0.75), len(values))


def rounds_of_both(first, second):
    """Rounds in which both sides have seconds. `first`, `second`: round → seconds."""
    return sorted(set(first) & set(second))


def interval(samples):
    tail = (1 - CONFIDENCE) / 2
    return quantile(samples, tail), quantile(samples, 1 - tail)


def ratio(first, second, seed=0):
    """first : second, or None when there are not enough rounds. Both: round → seconds."""
    ratios = [first[number] / second[number] for number in rounds_of_both(first, second)]
    if len(ratios) < LEAST_ROUNDS:
        return None
    drawn = random.Random(seed)
    low, high = interval([statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED)])
    return Figure(statistics.median(ratios), low, high, len(ratios))


def mean_ratio(pairs, seed=0):
    """The geometric mean of several programs' ratios. `pairs`: (first, second) of each program, as for ratio(). A program
    without enough rounds makes it None: a mean over those that went well would be a better figure than the truth."""
    all_ratios = [[first[number] / second[number] for number in rounds_of_both(first, second)] for first, second in pairs]
    if not all_ratios or any(len(ratios) < LEAST_ROUNDS for ratios in all_ratios):
        return None

    def mean(choose):
        return statistics.geometric_mean([statistics.median(choose(ratios)) for ratios in all_ratios])

    drawn = random.Random(seed)
    low, high = interval([mean(lambda ratios: drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED)])
    return Figure(mean(lambda ratios: ratios), low, high, min(map(len, all_ratios)))


def changed(old, new):
    """Whether two figures differ by more than they are uncertain: -1 less, 0 can't be said, 1 more."""
    if old is None or new is None:
        return 0
    if new.low > old.high:
        return 1
    return -1 if new.high < old.low else 0
