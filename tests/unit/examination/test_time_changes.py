"""What became of ratios to the baseline between two diagnoses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_measurement,
    a_ratio,
    a_recommendation,
    a_trial,
    an_environment,
)
from loops import for_each

from layoutdoctor.diagnosis.records import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Equivalence
from layoutdoctor.examination.changes.models import compare_models
from layoutdoctor.examination.changes.times import environment_changes, time_change

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import ComparedTrial, TimeChange
    from layoutdoctor.diagnosis.records import Diagnosis

LAST, SAID = "inductor-channels-last", "compiled + channels_last"


def a_run(median: float = 1.3, width: float = 0.01, *, machine: float = 1.0, **changes: Any) -> Diagnosis:
    """A diagnosis in which channels_last is so many times faster than the default, which takes 10 ms."""
    trials = [
        a_trial(name, measurement=a_measurement(10e-3 * machine / factor))
        for name, factor in (("inductor", 1.0), (LAST, median))
    ]
    fields: dict[str, Any] = {
        "comparison": a_comparison(a_ratio(LAST, median, width), fastest=(LAST,)),
        "recommendation": a_recommendation(LAST),
    }
    return a_diagnosis(*trials, **{**fields, **changes})


def change_of(old: Diagnosis, new: Diagnosis, name: str = LAST) -> TimeChange:
    change = time_change(name, old, new, None)
    assert change is not None
    return change


@for_each(
    ("old", "new", "verdict"),
    [
        (a_run(1.3), a_run(1.3), EQUAL),
        (a_run(1.3), a_run(1.34), EQUAL),
        (a_run(1.3), a_run(1.38), INCONCLUSIVE),
        (a_run(1.3), a_run(1.1), SLOWER),
        (a_run(1.1), a_run(1.3), FASTER),
        (a_run(1.3), a_run(1.1, 0.3), INCONCLUSIVE),
        (a_run(1.3), a_run(1.3, machine=3.3), EQUAL),
    ],
)
def test_a_change_is_that_of_the_ratio_to_the_baseline(old: Diagnosis, new: Diagnosis, verdict: str) -> None:
    change = change_of(old, new)
    assert change.change is not None
    assert change.change.verdict == verdict
    assert change.change.low <= change.change.median <= change.change.high


def test_the_baseline_has_no_change_of_its_own() -> None:
    change = change_of(a_run(), a_run(), "inductor")
    assert (change.old_ratio, change.new_ratio, change.change, change.not_judged) == (None, None, None, None)


@for_each(
    ("new", "why"),
    [
        (a_run(comparison=None), "the two have no common baseline"),
        (a_run(comparison=a_comparison()), "it has no ratio to the baseline in one of both"),
        (
            msgspec.structs.replace(
                a_run(), trials=(a_run().trials[0], a_trial(LAST, equivalence=Equivalence(status="different")))
            ),
            f"the outputs of {LAST} are wrong in the new one",
        ),
        (
            msgspec.structs.replace(
                a_run(),
                trials=(
                    a_run().trials[0],
                    a_trial(LAST, configuration=a_configuration(LAST, inductor_options={"a": 1})),
                ),
            ),
            "the configuration has other options",
        ),
    ],
)
def test_why_a_change_is_not_judged(new: Diagnosis, why: str) -> None:
    assert change_of(a_run(), new).not_judged == why


def test_a_configuration_that_only_one_has_has_no_change() -> None:
    assert time_change("eager", a_run(), a_run(), None) is None
    assert change_of(a_run(), a_run()).not_judged is None
    judged = time_change(LAST, a_run(), a_run(), "not comparable: inputs differ in shape")
    assert judged is not None
    assert judged.not_judged == "not comparable: inputs differ in shape"


def compared(old: Diagnosis, new: Diagnosis) -> dict[str, ComparedTrial]:
    return {trial.name: trial for trial in compare_models(old, new).trials}


def test_times_are_set_beside_one_another_only_on_one_machine_with_the_same_versions() -> None:
    assert compared(a_run(), a_run(machine=2))["inductor"].median_ratio == pytest.approx(0.5)
    for environment in (an_environment(torch="9.9"), an_environment(thread_count=64)):
        other = a_run(machine=2, environment=environment)
        assert compared(a_run(), other)["inductor"].median_ratio is None


@for_each(
    ("old", "new", "losses", "not_judged"),
    [
        (a_run(), a_run(), (), None),
        (
            a_run(),
            a_run(1.1),
            ("compiled + channels_last: runs at 1.10x the speed of the default instead of 1.30x",),
            None,
        ),
        (a_run(), a_run(1.1, machine=0.7), (), None),  # the default became faster
        (
            a_run(),
            a_run(1.95, machine=1.5),
            ("the default: takes 1.50x as long, and most other configurations do not",),
            None,
        ),
        (a_run(), a_run(machine=2), (), None),  # all are slower: that may be the machine
        (
            a_run(),
            a_run(comparison=None, recommendation=None),
            (),
            "the time of the default was not judged: the two have no common baseline",
        ),
    ],
)
def test_which_changes_are_regressions(
    old: Diagnosis, new: Diagnosis, losses: tuple[str, ...], not_judged: str | None
) -> None:
    regression = compare_models(old, new).regression
    assert (regression.losses, regression.not_judged) == (losses, not_judged)


def test_what_is_not_the_same_is_listed_with_both_values() -> None:
    old = a_diagnosis(environment=an_environment(torch="2.12.0", settings={"a": "1"}))
    new = a_diagnosis(environment=an_environment(torch="2.13.0", settings={"b": "2"}))
    assert [(one.name, one.old, one.new) for one in environment_changes(old, new)] == [
        ("torch", "2.12.0", "2.13.0"),
        ("setting a", "1", None),
        ("setting b", None, "2"),
    ]
