"""The one view of times that all rules share."""

from __future__ import annotations

import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_ratio,
    a_recommendation,
    a_trial,
    kernels,
)

from layoutdoctor.diagnosis.records import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Equivalence, Ratio, Trial
from layoutdoctor.rules.times import Times, alternative_words, ratio_words

LAST, OFF, EAGER = "inductor-channels-last", "inductor-layout-opt-off", "eager"
SAME = Trial(configuration=a_configuration(LAST), status="same_as", same_as="inductor")


def times_of(*ratios: Ratio, **changes: object) -> Times:
    trials = (a_trial(), *(a_trial(ratio.name) for ratio in ratios))
    return Times(a_diagnosis(*trials, comparison=a_comparison(*ratios), **changes))


def test_the_baseline_and_what_was_measured_as_it_have_the_ratio_1() -> None:
    times = Times(a_diagnosis(a_trial(), SAME, comparison=a_comparison()))
    for name in ("inductor", LAST):
        ratio = times.ratio(name)
        assert ratio is not None
        assert (ratio.low, ratio.median, ratio.high, ratio.verdict) == (1.0, 1.0, 1.0, EQUAL)
        assert times.is_baseline(name)
    assert times.ratio(OFF) is None
    assert not Times(a_diagnosis(a_trial())).is_baseline("inductor")  # nothing was compared


def test_any_two_configurations_are_compared_by_their_ratios() -> None:
    times = times_of(a_ratio(LAST, 1.3), a_ratio(OFF, 0.9), a_ratio(EAGER, 1.25, 0.1))
    for name, than, verdict in (
        (LAST, OFF, FASTER),
        (OFF, LAST, SLOWER),
        (LAST, EAGER, INCONCLUSIVE),
        ("inductor", LAST, SLOWER),
        ("inductor", "inductor", EQUAL),
    ):
        ratio = times.over(name, than)
        assert ratio is not None
        assert ratio.verdict == verdict
    assert times.over(LAST, "inductor-freezing") is None


@pytest.mark.parametrize(
    ("median", "width", "is_advisable"),
    [(1.3, 0.03, True), (1.05, 0.2, True), (0.98, 0.2, False), (1.0, 0.02, False), (0.9, 0.03, False)],
    ids=["faster", "may be faster", "may be slower", "equal", "slower"],
)
def test_nothing_is_advised_that_was_measured_as_no_faster(median: float, width: float, is_advisable: bool) -> None:
    times = times_of(a_ratio(LAST, median, width))
    assert times.is_advisable(LAST, "inductor") is is_advisable
    found = times.clean_alternative(times.diagnosis.trials[0], lambda trial: True)
    assert (found is not None) is is_advisable


def test_nothing_is_advised_that_is_slower_than_the_baseline_or_computes_something_else() -> None:
    slower = times_of(a_ratio(EAGER, 0.5), a_ratio(LAST, 0.8))
    assert not slower.is_advisable(LAST, EAGER)
    assert slower.is_advisable("inductor", EAGER)
    equal = times_of(a_ratio(EAGER, 0.5), a_ratio(LAST, 0.99, 0.015))
    assert equal.is_advisable(LAST, EAGER)  # as fast as the default
    trials = a_trial(), a_trial(LAST, equivalence=Equivalence(status="different"))
    wrong = Times(a_diagnosis(*trials, comparison=a_comparison(a_ratio(LAST, 1.3))))
    assert not wrong.is_advisable(LAST, "inductor")
    assert wrong.fastest((LAST,)) is None


def test_of_several_the_recommended_one_is_named_else_the_fastest() -> None:
    ratios = a_ratio(LAST, 1.4), a_ratio(OFF, 1.2)
    for recommended, best in ((None, LAST), (OFF, OFF)):
        times = times_of(*ratios, recommendation=a_recommendation(recommended))
        found, other = times.fastest((LAST, OFF)), times.clean_alternative(times.diagnosis.trials[0], lambda _: True)
        assert found is not None
        assert other is not None
        assert found.name == other.name == best


@pytest.mark.parametrize(
    "other",
    [
        a_trial(LAST, kernels=None),
        a_trial(LAST, kernels=kernels(count=0, seconds=0.0)),
        a_trial(LAST, kernels=kernels(lacks=("oneDNN's log",), sources=("torch.profiler",))),
        a_trial(LAST, graphs=(a_graph(hook_failure="the graph could not be read"),)),
        a_failed_trial(LAST),
        SAME,
    ],
    ids=["no kernels", "empty list", "no log", "no graph", "failed", "the same"],
)
def test_a_trial_that_was_recorded_in_part_is_no_alternative(other: Trial) -> None:
    times = Times(a_diagnosis(a_trial(), other, comparison=a_comparison(a_ratio(LAST, 1.4))))
    assert times.clean_alternative(times.diagnosis.trials[0], lambda trial: True) is None


def test_a_trouble_pays_if_nothing_without_it_is_faster() -> None:
    times = times_of(a_ratio(LAST, 0.5))
    assert times.is_worth_it(times.diagnosis.trials[0], lambda trial: True)
    assert not times.is_worth_it(times.diagnosis.trials[0], lambda trial: False)
    assert not times.is_worth_it(times.diagnosis.trials[1], lambda trial: True)
    untimed = Times(a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison()))
    assert not untimed.is_worth_it(untimed.diagnosis.trials[0], lambda trial: True)


def test_ratios_in_words() -> None:
    times = times_of(a_ratio(LAST, 1.15, low=0.98, high=1.31), a_ratio(OFF, 0.9))
    default, last, off = times.diagnosis.trials
    assert ratio_words(a_ratio(LAST, 1.15, low=0.98, high=1.31)) == "1.15x, 0.98x to 1.31x"
    assert alternative_words(times, default, last) == "measured 1.15x, 0.98x to 1.31x"
    assert (
        alternative_words(times, off, last) == "measured 1.15x, 0.98x to 1.31x; compiled, layout optimization off 0.90x"
    )
    assert alternative_words(times, off, default) == (
        "compiled, layout optimization off runs at 0.90x the speed of the default (0.87 to 0.93)"
    )
