from __future__ import annotations

import pytest
from builders import a_comparison, a_configuration, a_failed_trial, a_ratio, a_trial

from layoutdoctor.diagnosis.records import Equivalence
from layoutdoctor.examination.choice import choose_baseline, eligible_names, recommend

RANKS = frozenset({4}), frozenset({4})
DIFFERENT = Equivalence(status="different", max_abs_error=1.0, tolerance=1e-4, reference="float64")
UNCHECKED = Equivalence(status="not_checked", detail="no float64 reference")
TWIN = "inductor-channels-last"


def test_torch_compiles_default_is_the_baseline_where_it_ran() -> None:
    configurations = [a_configuration(name) for name in ("eager", "inductor", TWIN)]

    assert choose_baseline(configurations, {"eager", "inductor"}) == "inductor"
    assert choose_baseline(configurations, {TWIN, "eager"}) == "eager"


def test_a_trial_whose_outputs_differ_or_that_failed_may_not_win() -> None:
    trials = [a_trial("eager"), a_trial(TWIN, equivalence=DIFFERENT), a_failed_trial(), a_trial(equivalence=None)]

    assert eligible_names(trials) == {"eager", "inductor"}


def test_a_gain_that_is_there_again_is_recommended_with_its_speedup() -> None:
    trials = [a_trial(), a_trial(TWIN)]
    chosen = recommend(trials, a_comparison(fastest=(TWIN,)), a_comparison(a_ratio(TWIN, 1.28)), RANKS)

    assert (chosen.configuration, chosen.verified) == (TWIN, True)
    assert chosen.speedup is not None
    assert chosen.speedup.median == pytest.approx(1.28)
    assert "channels_last" in str(chosen.how)
    assert chosen.reason == "it is the fastest measured"


def test_ties_and_unchecked_outputs_are_said() -> None:
    trials = [a_trial(), a_trial(TWIN, equivalence=UNCHECKED), a_trial("eager")]
    chosen = recommend(trials, a_comparison(fastest=(TWIN, "eager")), a_comparison(a_ratio(TWIN, 1.28)), RANKS)

    assert not chosen.verified
    assert "together with eager, which cannot be told from it" in str(chosen.reason)
    assert "not checked against the reference" in str(chosen.reason)


def test_a_gain_that_is_not_there_again_is_not_recommended() -> None:
    trials = [a_trial(), a_trial(TWIN)]
    gone = recommend(trials, a_comparison(fastest=(TWIN,)), a_comparison(a_ratio(TWIN, 1.0)), RANKS)
    unmeasured = recommend(trials, a_comparison(fastest=(TWIN,)), None, RANKS)

    assert (gone.configuration, unmeasured.configuration) == (None, None)
    assert "measured again no gain was sure" in str(gone.reason)
    assert "could not be measured again" in str(unmeasured.reason)


def test_where_nothing_beats_the_default_it_is_kept() -> None:
    alone = recommend([a_trial()], a_comparison(), None, RANKS)
    tie = recommend([a_trial(), a_trial(TWIN)], a_comparison(fastest=("inductor", TWIN)), None, RANKS)

    assert (alone.configuration, alone.reason) == (None, "nothing is measurably faster than torch.compile's default")
    assert f"{TWIN} cannot be told from it" in str(tie.reason)


def test_rounds_too_few_for_a_verdict_are_not_called_a_tie() -> None:
    names = ("inductor", TWIN, "eager")
    few = [a_ratio(name, 1.0, coverage=None, round_count=3) for name in (TWIN, "eager")]
    trials = [a_trial(name) for name in names]
    nothing = recommend(trials, a_comparison(*few, fastest=names), None, RANKS)
    one = recommend(trials, a_comparison(few[0], a_ratio("eager", 1.0), fastest=names), None, RANKS)

    assert nothing.reason == (
        f"the rounds are too few to compare torch.compile's default with eager, {TWIN}; give a larger --budget"
    )
    assert one.reason == "nothing is measurably faster than torch.compile's default; eager cannot be told from it"


def test_why_there_is_nothing_to_recommend_is_said() -> None:
    same = [a_trial(), a_trial(TWIN, status="same_as", same_as="inductor", measurement=None)]

    assert "the same as inductor" in str(recommend(same, None, None, RANKS).reason)
    assert "only inductor was measured" in str(recommend([a_trial()], None, None, RANKS).reason)
    assert "nothing was measured" in str(recommend([a_failed_trial()], None, None, RANKS).reason)
    nothing = recommend([a_trial(equivalence=DIFFERENT)], a_comparison(fastest=()), None, RANKS)
    assert "no configuration whose outputs are right" in str(nothing.reason)
