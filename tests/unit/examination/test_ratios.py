"""Ratios, their intervals and the one verdict."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from builders import a_measurement, a_trial
from hypothesis import given
from hypothesis import strategies as st

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Comparison
from layoutdoctor.examination.advice.choice import (
    COVERAGE,
    call_seconds,
    interval_over_rounds,
    interval_over_starts,
    judge,
    ratio_of,
    ratios_of,
    shown_seconds,
    speed_change,
)

Over = Callable[[Sequence[float]], tuple[float, float, float]]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.02, 1.3, FASTER),
        (1.005, 1.3, INCONCLUSIVE),
        (0.98, 1.02, EQUAL),
        (0.7, 1.4, INCONCLUSIVE),
        (0.7, 0.98, SLOWER),
        (0.8, 0.995, INCONCLUSIVE),
        (1.07, 30.58, INCONCLUSIVE),  # a small network beside two busy programs: 5.73x
        (0.08, 0.17, INCONCLUSIVE),
        (3.0, 6.0, FASTER),
    ],
)
def test_a_verdict_is_what_the_interval_says(low: float, high: float, verdict: str) -> None:
    assert judge(low, high) == verdict


SECONDS = st.floats(min_value=1e-5, max_value=10.0)


def test_the_interval_over_rounds_drops_as_many_as_the_binomial_allows() -> None:
    rounds = [1 + number / 100 for number in range(20)]
    low, median, high = interval_over_rounds(rounds)
    assert (low, high) == (rounds[5], rounds[-6])
    assert median == pytest.approx(statistics.median(rounds))
    assert interval_over_rounds(rounds[:6]) == (rounds[0], pytest.approx(1.025), rounds[5])


@pytest.mark.parametrize(
    ("count", "over"),
    [
        (3, interval_over_starts),
        (4, interval_over_starts),
        (5, interval_over_starts),
        (4, interval_over_rounds),
        (7, interval_over_rounds),
        (9, interval_over_rounds),
        (25, interval_over_rounds),
    ],
)
def test_intervals_cover_the_true_ratio_as_often_as_they_say(count: int, over: Over) -> None:
    generator = random.Random(7)
    covered = 0
    for _ in range(6000):
        low, _, high = over([1.2 * generator.lognormvariate(0, 0.05) for _ in range(count)])
        covered += low <= 1.2 <= high
    assert covered / 6000 >= COVERAGE - 0.01


@pytest.mark.parametrize("scatter", [0.002, 0.01, 0.03, 0.1])
def test_of_two_that_are_the_same_one_is_seldom_called_faster(scatter: float) -> None:
    """Over starts that stop as soon as the interval is narrow, and over the rounds of one process."""
    generator = random.Random(11)
    verdicts: list[str] = []
    for _ in range(2000):
        ratios = [generator.lognormvariate(0, scatter) for _ in range(3)]
        low, _, high = interval_over_starts(ratios)
        while len(ratios) < 5 and high / low > 1.06:
            ratios.append(generator.lognormvariate(0, scatter))
            low, _, high = interval_over_starts(ratios)
        verdicts.append(judge(low, high))
        low, _, high = interval_over_rounds([generator.lognormvariate(0, scatter) for _ in range(25)])
        verdicts.append(judge(low, high))

    assert verdicts.count(FASTER) / len(verdicts) < 0.02
    assert verdicts.count(SLOWER) / len(verdicts) < 0.02


def test_a_ratio_is_over_the_further_starts_if_both_have_two() -> None:
    baseline = a_measurement(*[10e-3] * 9, starts=((10e-3,) * 9, (11e-3,) * 9, (9e-3,) * 9))
    both = ratio_of("b", baseline, a_measurement(*[8.1e-3] * 9, starts=((8e-3,) * 9, (8.8e-3,) * 9)))
    three = ratio_of("b", baseline, a_measurement(*[5e-3] * 9, starts=((8e-3,) * 9, (8.8e-3,) * 9, (7.2e-3,) * 9)))
    once = ratio_of("b", baseline, a_measurement(*[5e-3] * 9, starts=((8e-3,) * 9,)))
    assert both is not None
    assert once is not None
    assert both.start_ratios == pytest.approx((1.25, 1.25))
    assert (both.median, both.verdict, both.round_count) == (pytest.approx(1.25), FASTER, 9)
    assert three is not None
    assert three.median == pytest.approx(1.25)  # with three starts the first process has no part in it
    assert (once.start_ratios, once.median) == ((), pytest.approx(2.0))
    assert ratio_of("b", a_measurement(10e-3), a_measurement(5e-3)) is None


def test_of_two_rounds_the_scatter_of_the_other_configurations_counts() -> None:
    """Two rounds alone gave "0.55x (0.06 to 5.38)"."""
    default, slow = a_measurement(*[1.0] * 9), a_measurement(2.0, 2.1)
    others = {f"other {n}": a_measurement(*[1.0 + 0.02 * (round_ % 3) for round_ in range(9)]) for n in range(3)}
    alone = ratio_of("slow", default, slow)
    ratio = ratios_of("", {"": default, "slow": slow, **others})["slow"]
    assert alone is not None
    assert alone.median == ratio.median == pytest.approx(0.488, abs=1e-3)
    assert alone.high / alone.low > 1.5
    assert ratio.high / ratio.low < 1.2
    assert (alone.verdict, ratio.verdict) == (SLOWER, SLOWER)


@pytest.mark.parametrize("luck", [0.01, 0.05])
def test_what_was_not_started_again_has_the_scatter_of_what_was_in_its_interval(luck: float) -> None:
    """The rounds of one start share its luck with memory, which they do not show."""
    generator = random.Random(3)
    covered = alone = 0
    for _ in range(2000):
        default = a_measurement(*[1.0] * 9, starts=((1.0,) * 3,) * 4)
        starts = tuple((1 / generator.lognormvariate(0.3, luck),) * 3 for _ in range(4))
        started = a_measurement(*[1.0] * 9, starts=starts)
        of_one = generator.lognormvariate(0, luck)
        rounds = a_measurement(*[1 / (of_one * generator.lognormvariate(0, 0.01)) for _ in range(9)])
        ratio = ratios_of("", {"": default, "started": started, "other": rounds})["other"]
        bare = ratio_of("other", default, rounds)
        assert bare is not None
        covered += ratio.low <= 1.0 <= ratio.high
        alone += bare.low <= 1.0 <= bare.high
        assert ratio.median == bare.median
    assert covered / 2000 >= COVERAGE - 0.01
    assert alone < covered


@given(SECONDS, st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=9))
def test_the_shown_time_times_the_ratio_is_the_baselines_time(base: float, rounds: list[tuple[float, float]]) -> None:
    measured = a_measurement(*[one for one, _ in rounds], starts=((base,), (base,)))
    trials = a_trial(measurement=measured), a_trial("b", measurement=a_measurement(*[one for _, one in rounds]))
    ratio = ratio_of("b", measured, a_measurement(*[one for _, one in rounds]))
    assert ratio is not None

    shown = shown_seconds(trials, Comparison(baseline="inductor", ratios=(ratio,), fastest=()))

    assert shown["inductor"] == call_seconds(measured)
    assert shown["b"] * ratio.median == pytest.approx(call_seconds(measured))


def test_a_call_takes_what_it_takes_while_the_machine_is_fast() -> None:
    steady = a_measurement(*[10e-3, 10.4e-3, 10.2e-3] * 5)
    changed = a_measurement(*[17e-3] * 15, starts=((10e-3, 10.4e-3, 10.2e-3) * 3,))

    assert (call_seconds(steady), speed_change(steady)) == (10.2e-3, pytest.approx(1.04))
    assert (call_seconds(changed), speed_change(changed)) == (10.2e-3, pytest.approx(17 / 10.4))


@pytest.mark.parametrize(
    ("own", "others", "coverage", "width"),
    [(0.02, 0.02, 0.95, 0.75), (0.01, 0.02, 0.97, 0.9), (0.03, 0.015, 0.9, 0.7)],
)
def test_the_scatter_of_other_configurations_narrows_the_interval(
    own: float, others: float, coverage: float, width: float
) -> None:
    """It covers as often as it says if all scatter alike, and nearly if one scatters twice as much as the others."""
    generator = random.Random(5)
    covered, widths = 0, [0.0, 0.0]
    for _ in range(3000):
        default = [generator.gauss(0, others / 2) for _ in range(3)]
        scatters = [own, others, others, others]
        drawn = [[math.exp(one + generator.gauss(0, scatter)) for one in default] for scatter in scatters]
        low, median, high = interval_over_starts(drawn[0], drawn[1:])
        covered += low <= 1.0 <= high
        assert median == pytest.approx(statistics.median(drawn[0]))
        alone = interval_over_starts(drawn[0])
        widths = [widths[0] + math.log(high / low), widths[1] + math.log(alone[2] / alone[0])]
    assert covered / 3000 >= coverage
    assert widths[0] < width * widths[1]
