"""What a rule may suggest: nothing measured as no faster or seen to fail, nothing against the recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_trial,
)

from layoutdoctor.diagnosis.records import Account, Equivalence, Trial
from layoutdoctor.rules.advice import advised, is_worth_trying, use_instead, use_or_recommended
from layoutdoctor.rules.formats import LD205
from layoutdoctor.rules.times import Times

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis

OFF, LAST, LAST_OFF = "inductor-layout-opt-off", "inductor-channels-last", "inductor-channels-last-opt-off"
NO_HELP = "no configuration that was tried is faster"
SAID_LAST, SAID_OFF = "compiled + channels_last", "compiled, layout optimization off"
SAME = Trial(configuration=a_configuration(LAST), status="same_as", same_as="inductor")


def said(diagnosis: Diagnosis, *ways: str, of: int = 0) -> str:
    return advised(Times(diagnosis), diagnosis.trials[of], ways, "do it")


@pytest.mark.parametrize(
    ("trials", "ratios", "words"),
    [
        ((), (), "do it"),
        ((a_trial(LAST),), (a_ratio(LAST, 1.2),), "do it"),
        ((a_trial(LAST),), (a_ratio(LAST, 1.05, 0.2),), "do it"),
        (
            (a_trial(LAST),),
            (a_ratio(LAST, 0.99, 0.2),),
            f"{NO_HELP}: {SAID_LAST} runs at 0.99x the speed of the default (0.79 to 1.19)",
        ),
        (
            (a_trial(LAST),),
            (a_ratio(LAST, 1.01, 0.015),),
            f"{NO_HELP}: {SAID_LAST} runs at 1.01x the speed of the default (0.99 to 1.02)",
        ),
        (
            (a_trial(LAST),),
            (a_ratio(LAST, 0.9),),
            f"{NO_HELP}: {SAID_LAST} runs at 0.90x the speed of the default (0.87 to 0.93)",
        ),
        (
            (a_failed_trial(LAST),),
            (),
            f"{NO_HELP}: {SAID_LAST} failed, or computed something else",
        ),
        (
            (a_trial(LAST, equivalence=Equivalence(status="different")),),
            (a_ratio(LAST, 1.2),),
            f"{NO_HELP}: {SAID_LAST} failed, or computed something else",
        ),
        ((SAME,), (), f"{NO_HELP}: {SAID_LAST} runs the same code as the default"),
    ],
    ids=[
        "not tried",
        "faster",
        "may be faster",
        "may be slower",
        "equal",
        "slower",
        "failed",
        "other outputs",
        "the same",
    ],
)
def test_what_was_measured_speaks_against_it(trials: tuple[Trial, ...], ratios: tuple[object, ...], words: str) -> None:
    diagnosis = a_diagnosis(a_trial(), *trials, comparison=a_comparison(*ratios))  # type: ignore[arg-type]

    assert said(diagnosis, LAST) == words


def test_one_way_of_several_is_enough_and_the_trial_itself_is_none() -> None:
    trials, ratios = (a_trial(), a_trial(LAST), a_trial(LAST_OFF)), (a_ratio(LAST, 0.9), a_ratio(LAST_OFF, 1.1))
    diagnosis = a_diagnosis(*trials, comparison=a_comparison(*ratios))

    assert said(diagnosis, LAST, LAST_OFF) == "do it"
    assert is_worth_trying(Times(diagnosis), trials[1], ("inductor", LAST))  # from the slower one to the baseline
    assert not is_worth_trying(Times(diagnosis), trials[2], ("inductor", LAST))
    assert said(diagnosis, "inductor") == "do it"


def test_a_cure_that_goes_against_the_recommended_one_gives_way_to_it() -> None:
    trials, ratios = (a_trial(), a_trial(LAST), a_trial(OFF)), (a_ratio(LAST, 1.3), a_ratio(OFF, 1.2))
    advice = a_recommendation(LAST, speedup=a_speedup(1.3))
    diagnosis = a_diagnosis(*trials, comparison=a_comparison(*ratios), recommendation=advice)

    assert said(diagnosis, OFF) == "use compiled + channels_last: measured 1.30x, 1.27x to 1.33x"
    assert said(diagnosis, LAST) == "do it"
    assert said(diagnosis, "inductor", of=1) == (  # only of the baseline something is recommended
        f"{NO_HELP}: {SAID_LAST} runs at 1.30x the speed of the default (1.27 to 1.33)"
    )


def test_an_error_is_at_least_5_percent_to_gain_by_a_verified_cure_and_a_warning_2_percent_lost() -> None:
    for median, verified, severity in (
        (1.06, True, "error"),
        (1.06, False, "warning"),
        (1.04, True, "warning"),
        (1.015, True, "note"),
    ):
        ratio = a_ratio(LAST, median, 0.003)
        advice = a_recommendation(LAST, verified=verified, speedup=a_speedup(median, 0.003))
        diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(ratio), recommendation=advice)

        assert [finding.severity for finding in LD205.check(diagnosis)] == [severity]


def test_another_trial_is_named_behind_what_is_recommended() -> None:
    trials = a_trial(), a_trial(LAST), a_trial(OFF)
    comparison = a_comparison(a_ratio(OFF, 1.5), a_ratio(LAST, 1.3), fastest=(OFF,))
    measured = "measured 1.30x, 1.27x to 1.33x"
    account = Account(slower="inductor", faster=LAST, slower_seconds=2e-3, faster_seconds=1e-3, rows=())
    best = f"use {SAID_OFF}: measured 1.50x, 1.47x to 1.53x"
    for advice, words, of_account in (
        (a_recommendation(LAST), f"use {SAID_LAST}: it has none; {measured}", f"use {SAID_LAST}"),
        (a_recommendation(OFF, speedup=a_speedup(1.5)), f"{best}; {SAID_LAST} has none, {measured}", best),
    ):
        diagnosis = a_diagnosis(*trials, comparison=comparison, recommendation=advice)
        assert use_instead(Times(diagnosis), trials[0], trials[1], "has none") == words
        assert use_or_recommended(diagnosis, account) == of_account
