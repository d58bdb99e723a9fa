"""Intervals between two runs: they cover what they promise, whatever the noise, and exchange with the runs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutdoctor.diagnosis.comparison import RatioBounds
from layoutdoctor.examination.changes.times import (
    effective_count,
    mean_of_bounds,
    ratio_of_medians,
    rounds_needed_between_runs,
)
from layoutdoctor.examination.ratios import judge, median_interval

TIMES = st.lists(st.floats(1e-4, 1e2), min_size=1, max_size=60)


def bounds(low: float, high: float, coverage: float | None = 0.99) -> RatioBounds:
    return RatioBounds(low=low, median=math.sqrt(low * high), high=high, coverage=coverage)


def chained(generator: random.Random, count: int, memory: float) -> list[float]:
    """Times of which each remembers the one before."""
    value, times = generator.gauss(0, 1), []
    for _ in range(count):
        value = memory * value + math.sqrt(1 - memory**2) * generator.gauss(0, 1)
        times.append(math.exp(0.05 * value))
    return times


def test_the_ends_are_those_of_both_order_statistic_intervals() -> None:
    old = random.Random(1).sample(range(101, 121), 20)
    new = random.Random(2).sample(range(1, 21), 20)
    before, after = median_interval(old, 0.995), median_interval(new, 0.995)
    ratio = ratio_of_medians(old, new, interval_count=1)

    assert (before.low, before.high) == (104, 117)  # 20 rounds: three left out on each side, 0.26 % each at most
    assert ratio.low == before.low / after.high
    assert ratio.high == before.high / after.low


def test_with_few_rounds_the_promise_is_lowered_and_then_withdrawn() -> None:
    assert [
        ratio_of_medians([1.0] * count, [1.0] * count, interval_count=1).coverage for count in (6, 7, 8, 9, 10)
    ] == [
        None,
        0.95,
        0.95,
        0.99,
        0.99,
    ]
    assert rounds_needed_between_runs(1) == 7


@pytest.mark.parametrize("interval_count", [1, 3, 36])
def test_below_the_rounds_needed_there_is_no_interval(interval_count: int) -> None:
    needed = rounds_needed_between_runs(interval_count)
    steady = [1.0] * needed

    assert ratio_of_medians(steady, steady, interval_count=interval_count).coverage is not None
    assert ratio_of_medians(steady[1:], steady, interval_count=interval_count).coverage is None


@given(TIMES, TIMES)
def test_exchanging_the_runs_gives_the_reciprocal(old: list[float], new: list[float]) -> None:
    there, back = (ratio_of_medians(*runs, interval_count=3) for runs in ((old, new), (new, old)))

    assert there.low == pytest.approx(1 / back.high)
    assert there.median == pytest.approx(1 / back.median)
    assert there.coverage == back.coverage
    assert there.low <= there.median * (1 + 1e-12)
    assert there.median <= there.high * (1 + 1e-12)


def test_strangers_count_in_full_and_neighbours_for_less() -> None:
    generator = random.Random(3)
    independent = [effective_count([generator.random() for _ in range(60)]) for _ in range(200)]
    dependent = [effective_count(chained(generator, 60, 0.9)) for _ in range(200)]

    assert sum(independent) / len(independent) > 45
    assert sum(dependent) / len(dependent) < 20
    assert effective_count([1.0] * 30) == 30
    assert effective_count([1.0, 2.0] * 15) == 30
    assert effective_count([1.0]) == 1


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_intervals_cover_the_true_ratio_as_often_as_they_say(memory: float) -> None:
    generator = random.Random(4)
    missed = 0
    for _ in range(600):
        ratio = ratio_of_medians(chained(generator, 40, memory), chained(generator, 30, memory), interval_count=1)
        missed += ratio.coverage is not None and not ratio.low <= 1 <= ratio.high

    assert missed <= 12  # 1 % of 600 is 6; twice that happens in 2 % of such tests


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.06, 1.2, "faster"),
        (1.04, 1.2, "no measurable difference"),
        (0.8, 1 / 1.06, "slower"),
        (0.8, 1 / 1.04, "no measurable difference"),
        (0.5, 2.0, "no measurable difference"),
    ],
)
def test_a_verdict_needs_the_interval_clear_of_one_by_the_resolution(low: float, high: float, verdict: str) -> None:
    assert judge(bounds(low, high), 0.05) == verdict
    assert judge(bounds(low, high, coverage=None), 0.05) is None


def test_the_mean_lies_between_the_means_of_the_ends() -> None:
    mean = mean_of_bounds([bounds(1.0, 4.0), bounds(4.0, 16.0, coverage=0.95)])

    assert (mean.low, mean.median, mean.high) == pytest.approx((2.0, 4.0, 8.0))
    assert mean.coverage == 0.95
    assert mean_of_bounds([bounds(1.0, 2.0), bounds(1.0, 2.0, coverage=None)]).coverage is None
