from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutdoctor.diagnosis.comparison import RatioBounds
from layoutdoctor.diagnosis.records import RatioInterval
from layoutdoctor.examination.changes.times import (
    mean_of_bounds,
    ratio_of_medians,
    rounds_needed_between_runs,
)
from layoutdoctor.examination.ratios import (
    COVERAGE,
    cautious_count,
    compare,
    effective_count,
    median_interval,
    open_questions,
    paired_ratio,
    rounds_needed,
    rounds_to_decide,
    word_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Comparison


SECONDS = st.floats(min_value=1e-6, max_value=100.0)
ROUNDS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=60)
NO_DIFFERENCE = "no measurable difference"


def compared(times: dict[str, Sequence[float]], baseline: str = "inductor", **options: object) -> Comparison:
    comparison = compare(times, baseline, **options)  # type: ignore[arg-type]
    assert comparison is not None
    return comparison


def noisy(seconds: float, generator: random.Random, count: int = 40) -> list[float]:
    return [seconds * (1 + generator.expovariate(20)) for _ in range(count)]


def test_few_rounds_give_all_they_saw_and_those_of_a_dropped_configuration_those_it_shares() -> None:
    ratio = paired_ratio("candidate", [2.0, 2.2, 2.1], [1.0, 1.0, 1.0])

    assert (ratio.low, ratio.median, ratio.high) == (2.0, pytest.approx(2.1), 2.2)
    assert (ratio.coverage, ratio.verdict, ratio.round_count, ratio.decided) == (None, NO_DIFFERENCE, 3, False)

    ratio = paired_ratio("candidate", [1.0] * 12 + [9.0] * 28, [2.0] * 12)

    assert (ratio.median, ratio.round_count, ratio.verdict, ratio.decided) == (0.5, 12, "slower", True)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_cannot_be_one_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"expected positive, finite seconds"):
        paired_ratio("candidate", [1.0, 1.0], [1.0, seconds])


@given(ROUNDS)
def test_exchanging_both_sides_gives_the_reciprocal(rounds: list[tuple[float, float]]) -> None:
    baseline, candidate = zip(*rounds, strict=True)
    there = paired_ratio("a", baseline, candidate)
    back = paired_ratio("a", candidate, baseline)
    edge = 1 + 0.01
    assume(all(abs(end / edge - 1) > 1e-9 and abs(end * edge - 1) > 1e-9 for end in (there.low, there.high)))

    assert back.low == pytest.approx(1 / there.high)
    assert back.median == pytest.approx(1 / there.median)
    assert back.high == pytest.approx(1 / there.low)
    assert back.coverage == there.coverage
    assert {"faster": "slower", "slower": "faster"}.get(there.verdict, NO_DIFFERENCE) == back.verdict


@given(ROUNDS, st.floats(min_value=0.0, max_value=0.2))
def test_a_verdict_is_what_the_interval_and_the_resolution_say(
    rounds: list[tuple[float, float]], resolution: float
) -> None:
    ratio = paired_ratio("a", *zip(*rounds, strict=True), resolution=resolution)

    if ratio.high > 2 * ratio.low:  # nothing is claimed of such noise
        assert ratio.verdict == NO_DIFFERENCE
    elif ratio.verdict == "faster":
        assert ratio.low > 1 + resolution
    elif ratio.verdict == "slower":
        assert ratio.high < 1
        assert 1 / ratio.high > 1 + resolution
    else:
        assert ratio.coverage is None or (ratio.low <= 1 + resolution and 1 / ratio.high <= 1 + resolution)
    equal = ratio.coverage is not None and ratio.low >= 1 / 1.03 and ratio.high <= 1.03
    assert ratio.decided == (ratio.verdict != NO_DIFFERENCE or equal)
    assert word_of(ratio) == (ratio.verdict if ratio.verdict != NO_DIFFERENCE else "equal" if equal else "undecided")
    if len(rounds) < 8:  # 2 / 2**8 is the first below 1 %
        assert ratio.coverage is None


def test_intervals_of_skewed_noise_cover_the_true_median_as_often_as_they_say() -> None:
    generator = random.Random(20)
    repeats = 2000
    missed = 0
    for _ in range(repeats):
        ratio = paired_ratio("a", noisy(1.0, generator), noisy(1.0, generator), coverage=0.95)
        missed += not ratio.low <= 1.0 <= ratio.high

    # 0.95 promised; 40 rounds in fact give 96.2 %: 1.5 % to 5 % missed allows four standard errors on either side.
    assert 0.015 * repeats <= missed <= 0.05 * repeats


def test_seven_equal_configurations_seldom_have_a_winner() -> None:
    generator = random.Random(7)
    names = ["inductor", *"abcdef"]
    wrong = 0
    for _ in range(300):
        comparison = compared({name: noisy(1.0, generator, 30) for name in names}, resolution=0.0)
        wrong += len(comparison.fastest) < 7 or any(ratio.verdict != NO_DIFFERENCE for ratio in comparison.ratios)

    assert wrong <= 8  # 1 % of 300, and three standard errors of that


def test_every_other_configuration_gets_a_ratio_and_ties_are_judged_against_the_best() -> None:
    comparison = compared({"eager": [2.0] * 16, "inductor": [1.0] * 16, "inductor-channels-last": [0.8] * 16})

    assert [(r.name, r.median, r.verdict) for r in comparison.ratios] == [
        ("eager", 0.5, "slower"),
        ("inductor-channels-last", 1.25, "faster"),
    ]
    assert (comparison.baseline, comparison.fastest) == ("inductor", ("inductor-channels-last",))
    assert (comparison.resolution, comparison.round_count) == (0.01, 16)

    times = {"inductor": [1.0] * 16, "a": [0.801] * 16, "b": [0.8] * 16, "c": [0.9] * 16, "d": [0.802] * 16}

    assert compared(times).fastest == ("b", "a", "d")

    # Against the baseline both intervals reach from 1.1 to 1.6; round by round one is always 20 % faster.
    baseline = [1.1, 1.4, 1.2, 1.5, 1.3, 1.6] * 4
    comparison = compared({"inductor": baseline, "a": [1.0] * 24, "b": [1.2] * 24}, resolution=0.0)

    assert comparison.ratios[0].low < comparison.ratios[1].high
    assert comparison.fastest == ("a",)


def test_a_comparison_needs_a_measured_baseline_and_only_the_eligible_are_fastest() -> None:
    times = {"inductor": [1.0] * 16, "wrong": [0.5] * 16, "right": [0.8] * 16}
    comparison = compared(times, eligible={"inductor", "right"})

    assert comparison.fastest == ("right",)
    assert [ratio.name for ratio in comparison.ratios] == ["wrong", "right"]
    assert compared(times, eligible=()).fastest == ()
    assert compared(times, eligible=("wrong",)).fastest == ("wrong",)

    assert compare({"inductor": [1.0] * 16}, "inductor") is None
    assert compare({"inductor": [1.0] * 16, "eager": []}, "inductor") is None
    assert compare({"inductor": [], "eager": [1.0] * 16, "a": [1.0] * 16}, "inductor") is None
    assert compare({"eager": [1.0] * 16, "a": [1.0] * 16}, "inductor") is None


def test_the_interval_drops_what_the_binomial_allows_and_too_few_rounds_have_none() -> None:
    # 95.9 % of the time the true median is between the 6th smallest and the 6th largest of 20; 99.7 % for the 4th.
    ratios = [float(number) for number in range(1, 21)]

    assert median_interval(ratios, 0.95)[:3] == (6.0, pytest.approx(math.sqrt(110)), 15.0)
    assert median_interval(ratios, 0.96).low == 5.0
    assert median_interval(ratios, 0.99).low == 4.0

    def judged(rounds: int) -> tuple[float | None, bool | None]:
        times = {"inductor": [1.0] * rounds, "eager": [2.0] * rounds, "a": [1.0] * rounds}
        ratio = compared(times).ratios[0]
        return ratio.coverage, ratio.decided

    # Three pairs, eight looks: 2 / 2**n must be below 1 % / 24.
    assert [judged(rounds) for rounds in (6, 12, 13)] == [(None, False), (None, False), (COVERAGE, True)]
    assert rounds_needed(COVERAGE, 3) == 13
    assert rounds_needed(COVERAGE, 9) == 16


def test_equal_and_undecided_are_different_words_and_a_busy_machine_decides_nothing() -> None:
    generator = random.Random(3)
    wide = [generator.uniform(0.7, 1.4) for _ in range(24)]
    times = {"inductor": [1.0] * 24, "same": [1.01] * 24, "noise": wide, "slow": [1.5] * 24}
    comparison = compared(times)

    assert {ratio.name: word_of(ratio) for ratio in comparison.ratios} == {
        "same": "equal",
        "noise": "undecided",
        "slow": "slower",
    }
    assert (set(comparison.fastest), comparison.undecided) == ({"inductor", "same", "noise"}, ("noise",))
    assert [ratio.name for ratio in open_questions(times, "inductor")] == ["noise"]
    assert open_questions(times, "inductor", [{"same", "slow"}]) == ()
    busy = compared(times, is_too_busy=True)
    assert {(ratio.verdict, ratio.decided, ratio.coverage) for ratio in busy.ratios} == {(NO_DIFFERENCE, False, None)}
    assert set(busy.fastest) == set(times)


def test_rounds_that_hang_together_tell_only_what_is_clear() -> None:
    def word(start: float) -> str:
        drift = [start * (1 + 0.005 * number) for number in range(24)]
        return word_of(compared({"inductor": drift, "a": [1.0] * 24}).ratios[0])

    assert word(1.5) == "faster"  # 1.50 to 1.67
    assert word(1.02) == word(0.99) == "undecided"


def test_what_old_files_call_no_difference_is_told_from_noise_by_its_interval() -> None:
    def word(low: float, high: float, **fields: object) -> str:
        known = {"name": "a", "median": 1.0, "verdict": NO_DIFFERENCE, "coverage": 0.99, "round_count": 9, **fields}
        return word_of(RatioInterval(low=low, high=high, **known))  # type: ignore[arg-type]

    assert word(0.99, 1.02) == word(0.99, 1.02, coverage=None, round_count=None) == "equal"
    assert word(0.20, 3.22) == word(0.99, 1.02, coverage=None) == word(0.99, 1.02, decided=False) == "undecided"
    assert word(1.2, 1.3, verdict="faster") == "faster"


def test_the_rounds_that_would_decide_follow_from_the_width_and_the_room_there_is() -> None:
    def rounds(low: float, high: float, **fields: object) -> int:
        known = {"name": "a", "median": math.sqrt(low * high), "verdict": NO_DIFFERENCE, "coverage": 0.99, **fields}
        return rounds_to_decide(RatioInterval(low=low, high=high, round_count=24, **known), 3)  # type: ignore[arg-type]

    # Around 1 the ends have to come from 6 % to 3 %: half as wide, four times the rounds.
    assert rounds(0.97**2, 0.97**-2) == pytest.approx(96, abs=1)
    assert rounds(0.98, 1.21) < rounds(0.95, 1.1)  # the middle is farther away from 1
    assert rounds(0.999, 1.03, coverage=None) == 13  # too few to be sure


@given(st.lists(st.lists(SECONDS, min_size=20, max_size=24), min_size=2, max_size=6))
def test_the_best_median_is_among_the_fastest_unless_it_is_the_baseline_that_ties(times: list[list[float]]) -> None:
    named = {f"c{index}": seconds for index, seconds in enumerate(times)}
    comparison = compared(named, "c0")

    medians = {"c0": 1.0, **{ratio.name: ratio.median for ratio in comparison.ratios}}
    best = max(medians.values())
    assert any(medians[name] == best for name in comparison.fastest)
    assert len(set(comparison.fastest)) == len(comparison.fastest)
    assert comparison.fastest.index("c0") == 0 if "c0" in comparison.fastest else True


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


def test_ends_between_runs_are_those_of_both_intervals_and_few_rounds_promise_less() -> None:
    old = random.Random(1).sample(range(101, 121), 20)
    new = random.Random(2).sample(range(1, 21), 20)
    before, after = median_interval(old, 0.995), median_interval(new, 0.995)
    ratio = ratio_of_medians(old, new, interval_count=1)

    assert (before.low, before.high) == (104, 117)  # 20 rounds: three left out on each side, 0.26 % each at most
    assert ratio.low == before.low / after.high
    assert ratio.high == before.high / after.low

    assert [
        ratio_of_medians([1.0] * count, [1.0] * count, interval_count=1).coverage for count in (6, 7, 8, 9, 10)
    ] == [None, 0.95, 0.95, 0.99, 0.99]
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


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_intervals_cover_the_true_ratio_as_often_as_they_say(memory: float) -> None:
    generator = random.Random(4)
    missed = 0
    for _ in range(600):
        ratio = ratio_of_medians(chained(generator, 40, memory), chained(generator, 30, memory), interval_count=1)
        missed += ratio.coverage is not None and not ratio.low <= 1 <= ratio.high

    assert missed <= 12  # 1 % of 600 is 6; twice that happens in 2 % of such tests


def test_neighbours_count_for_less_and_means_lie_between_the_means_of_the_ends() -> None:
    generator = random.Random(3)
    independent = [effective_count([generator.random() for _ in range(60)]) for _ in range(200)]
    dependent = [effective_count(chained(generator, 60, 0.9)) for _ in range(200)]

    assert sum(independent) / len(independent) > 45
    assert sum(dependent) / len(dependent) < 20
    assert effective_count([1.0] * 30) == 30
    assert effective_count([1.0, 2.0] * 15) == 30
    assert effective_count([1.0]) == 1
    short = [chained(generator, 24, 0.8) for _ in range(200)]
    assert sum(map(cautious_count, short)) < 0.6 * sum(map(effective_count, short))

    mean = mean_of_bounds([bounds(1.0, 4.0), bounds(4.0, 16.0, coverage=0.95)])

    assert (mean.low, mean.median, mean.high) == pytest.approx((2.0, 4.0, 8.0))
    assert mean.coverage == 0.95
    assert mean_of_bounds([bounds(1.0, 2.0), bounds(1.0, 2.0, coverage=None)]).coverage is None
