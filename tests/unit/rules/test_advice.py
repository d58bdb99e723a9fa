"""What all rules share: the view of times, what may be suggested, cures that were tried, and which trial is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_lack,
    a_measurement,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_total,
    a_trial,
    kernels,
)
from hypothesis import given
from hypothesis import strategies as st
from trace_builders import (
    a_recorded_kernel,
    a_recorded_trial,
    recorded_kernels,
    to_channels_last,
)

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Account, Finding, Ratio
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.subject import Configuration, Cure
from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.examination.advice.choice import demands
from layoutdoctor.rules import Rule, evidence, run_rules
from layoutdoctor.rules.advice import Times, advised, other_cure, severity_of_loss, use_faster, use_instead
from layoutdoctor.rules.ld205_input_format import LD205

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

OFF, LAST, EAGER = "inductor-layout-opt-off", "inductor-channels-last", "eager"
SAID_LAST, SAID_OFF = "compiled + channels_last", "compiled, no layout opt"
SAME = Trial(configuration=a_configuration(LAST), status="same_as", same_as="inductor")
NO_HELP = "no faster"
DIFFERENT = Equivalence(status="different")


# ---------------------------------------------------------------------------------------------------------- times
def times_of(*ratios: Ratio, **changes: object) -> Times:
    trials = (a_trial(), *(a_trial(ratio.name) for ratio in ratios))
    return Times(a_diagnosis(*trials, comparison=a_comparison(*ratios), **changes))


def test_any_two_configurations_are_compared_by_their_ratios() -> None:
    times = times_of(a_ratio(LAST, 1.3), a_ratio(OFF, 0.9), a_ratio(EAGER, 1.25, 0.1))
    for name, than, verdict in (
        (LAST, OFF, FASTER),
        (OFF, LAST, SLOWER),
        (LAST, EAGER, INCONCLUSIVE),
        ("inductor", "inductor", EQUAL),
    ):
        ratio = times.over(name, than)
        assert ratio is not None
        assert ratio.verdict == verdict
    assert times.over(LAST, "inductor-freezing") is None
    same = Times(a_diagnosis(a_trial(), SAME, comparison=a_comparison())).ratio(LAST)
    assert same is not None
    assert (same.low, same.high, same.verdict) == (1.0, 1.0, EQUAL)


@pytest.mark.parametrize(
    ("median", "width", "is_advisable"),
    [(1.3, 0.03, True), (1.05, 0.2, False), (0.98, 0.2, False), (1.0, 0.02, False), (0.9, 0.03, False)],
    ids=["faster", "not certain", "may be slower", "equal", "slower"],
)
def test_nothing_is_advised_that_was_measured_as_no_faster(median: float, width: float, is_advisable: bool) -> None:
    times = times_of(a_ratio(LAST, median, width))
    assert times.is_advisable(LAST, "inductor") is is_advisable
    is_open = is_advisable or (median, width) == (1.05, 0.2)
    assert times.is_worth_it(times.diagnosis.trials[0], lambda trial: True) is not is_open
    assert not times.is_worth_it(times.diagnosis.trials[0], lambda trial: False)


MEDIANS = st.floats(0.7, 1.6)
MEASURED = st.dictionaries(
    st.sampled_from([one.name for one in BUILTIN_CONFIGURATIONS if one.name != "inductor"]),
    st.tuples(MEDIANS, st.floats(0.0, 0.3), st.booleans()),
    min_size=1,
)


@given(measured=MEASURED, recommended=st.one_of(st.none(), st.sampled_from(BUILTIN_CONFIGURATIONS)))
def test_whatever_was_measured_only_what_is_faster_right_and_not_beaten_is_named(
    measured: dict[str, tuple[float, float, bool]], recommended: Configuration | None
) -> None:
    trials = (
        a_trial(),
        *(a_trial(n, **({} if right else {"equivalence": DIFFERENT})) for n, (_, _, right) in measured.items()),
    )
    comparison = a_comparison(*(a_ratio(name, median, width) for name, (median, width, _) in measured.items()))
    advice = None if recommended is None else a_recommendation(recommended.name)
    times = Times(a_diagnosis(*trials, comparison=comparison, recommendation=advice))
    medians = {"inductor": 1.0, **{name: median for name, (median, _, right) in measured.items() if right}}
    needs = {trial.name: demands(trial.configuration) for trial in trials}
    for own in trials:
        named = [
            times.fastest(measured) if own.name == "inductor" else None,
            times.clean_alternative(own, lambda _: True),
        ]
        named += [trial for trial in trials if times.is_advisable(trial.name, own.name)]
        if other_cure(times, own.name, lambda _: False):
            named.append(advice and times.diagnosis.measured_trial(advice.configuration))
        for name in (one.name for one in named if one is not None):
            gain = times.over(name, own.name)
            assert gain is not None
            assert gain.verdict == FASTER
            assert name in medians
            beating = [n for n in medians if needs[n] <= needs[name] and medians[n] > 1.03 * medians[name]]
            assert not beating


def test_nothing_is_advised_that_is_slower_than_the_baseline_or_computes_something_else() -> None:
    assert not times_of(a_ratio(EAGER, 0.5), a_ratio(LAST, 0.8)).is_advisable(LAST, EAGER)
    assert times_of(a_ratio(EAGER, 0.5), a_ratio(LAST, 0.99, 0.015)).is_advisable(LAST, EAGER)  # as fast as the default
    trials = a_trial(), a_trial(LAST, equivalence=DIFFERENT)
    wrong = Times(a_diagnosis(*trials, comparison=a_comparison(a_ratio(LAST, 1.3))))
    assert not wrong.is_advisable(LAST, "inductor")
    assert wrong.fastest((LAST,)) is None


def test_of_several_the_recommended_one_is_named_else_the_fastest() -> None:
    for recommended, best in ((None, LAST), (OFF, OFF)):
        times = times_of(a_ratio(LAST, 1.4), a_ratio(OFF, 1.2), recommendation=a_recommendation(recommended))
        found, other = times.fastest((LAST, OFF)), times.clean_alternative(times.diagnosis.trials[0], lambda _: True)
        assert found is not None
        assert other is not None
        assert found.name == other.name == best


@pytest.mark.parametrize(
    "other",
    [
        a_trial(LAST, kernels=None),
        a_trial(
            LAST,
            kernels=kernels(lacks=(a_lack(),), sources=("profiler",)),
        ),
        a_failed_trial(LAST),
        SAME,
    ],
    ids=["no kernels", "no log", "failed", "the same"],
)
def test_a_trial_that_was_recorded_in_part_is_no_alternative(other: Trial) -> None:
    times = Times(a_diagnosis(a_trial(), other, comparison=a_comparison(a_ratio(LAST, 1.4))))
    assert times.clean_alternative(times.diagnosis.trials[0], lambda trial: True) is None


# --------------------------------------------------------------------------------------------------------- advice
def suggested(diagnosis: Diagnosis, *ways: str, of: int = 0) -> str:
    return advised(Times(diagnosis), diagnosis.trials[of], ways, "do it")


@pytest.mark.parametrize(
    ("trials", "ratios", "words"),
    [
        ((), (), "do it"),
        ((a_trial(LAST),), (a_ratio(LAST, 1.05),), "do it"),
        (
            (a_trial(LAST),),
            (a_ratio(LAST, 1.05, 0.2),),
            f"{SAID_LAST} looks 1.05x faster (0.85 to 1.25), not certain",
        ),
        ((a_trial(LAST),), (a_ratio(LAST, 0.8),), f"{NO_HELP}: {SAID_LAST} is 1.25x slower (1.20 to 1.30)"),
        (
            (a_trial(LAST), a_trial(OFF)),
            (a_ratio(LAST, 1.2), a_ratio(OFF, 1.3)),
            f"{SAID_OFF} is faster than {SAID_LAST}",
        ),
        ((SAME,), (), f"the same code: {SAID_LAST}"),
        ((a_failed_trial(LAST),), (), f"{SAID_LAST} failed"),
        (
            (a_trial(LAST, equivalence=DIFFERENT),),
            (a_ratio(LAST, 1.2),),
            f"{SAID_LAST} gave wrong outputs",
        ),
    ],
    ids=["not tried", "faster", "not certain", "slower", "beaten", "same code", "failed", "other outputs"],
)
def test_what_was_measured_speaks_against_it(trials: tuple[Trial, ...], ratios: Any, words: str) -> None:
    assert suggested(a_diagnosis(a_trial(), *trials, comparison=a_comparison(*ratios)), LAST) == words


def test_of_several_that_are_no_faster_the_best_is_named() -> None:
    trials, ratios = (a_trial(), a_trial(LAST), a_trial(OFF)), (a_ratio(LAST, 0.8), a_ratio(OFF, 1.0, 0.02))
    diagnosis = a_diagnosis(*trials, comparison=a_comparison(*ratios))
    assert suggested(diagnosis, LAST, OFF) == f"{NO_HELP}: {SAID_OFF} is as fast (0.98 to 1.02); 1 other no better"


def test_a_cure_that_goes_against_the_recommended_one_gives_way_to_it() -> None:
    trials, ratios = (a_trial(), a_trial(LAST), a_trial(OFF)), (a_ratio(LAST, 1.3), a_ratio(OFF, 1.2))
    advice = a_recommendation(LAST, speedup=a_speedup(1.3))
    diagnosis = a_diagnosis(*trials, comparison=a_comparison(*ratios), recommendation=advice)
    assert suggested(diagnosis, OFF) == "use compiled + channels_last: 1.30x faster (1.27 to 1.33)"
    assert suggested(diagnosis, LAST) == "do it"
    assert suggested(diagnosis, "inductor", of=1) == (  # only of the baseline something is recommended
        f"{NO_HELP} against {SAID_LAST}: the default is 1.30x slower (1.27 to 1.33)"
    )


@pytest.mark.parametrize(
    ("median", "verified", "severity"),
    [(1.06, True, "error"), (1.06, False, "warning"), (1.04, True, "warning"), (1.015, True, "note")],
)
def test_an_error_is_at_least_5_percent_to_gain_by_a_verified_cure_and_a_warning_2_percent_lost(
    median: float, verified: bool, severity: str
) -> None:
    advice = a_recommendation(LAST, verified=verified, speedup=a_speedup(median, 0.003))
    comparison = a_comparison(a_ratio(LAST, median, 0.003))
    diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=comparison, recommendation=advice)
    assert [finding.severity for finding in LD205.check(diagnosis)] == [severity]


@pytest.mark.parametrize(
    ("share", "changes", "severity"),
    [
        (0.06, {}, "error"),
        (0.04, {}, "warning"),
        (0.017, {}, "note"),
        (None, {}, "note"),
        (0.06, {"verified": False}, "warning"),
        (0.06, {"speedup": a_speedup(1.03)}, "warning"),
    ],
    ids=["5 percent", "2 percent", "less", "not known", "not verified", "hardly faster"],
)
def test_a_finding_is_as_severe_as_its_own_trouble_costs_however_much_the_cure_gains_besides(
    share: float | None, changes: dict[str, Any], severity: str
) -> None:
    advice = a_recommendation(LAST, **{"verified": True, "speedup": a_speedup(1.5), **changes})
    comparison = a_comparison(a_ratio(LAST, 1.5))
    times = Times(a_diagnosis(a_trial(), a_trial(LAST), comparison=comparison, recommendation=advice))
    assert severity_of_loss(times, times.diagnosis.trials[0], share, lambda trial: trial.name == LAST) == severity
    uncured = severity_of_loss(times, times.diagnosis.trials[0], share, lambda trial: False)
    assert uncured == ("warning" if severity == "error" else severity)


def test_another_trial_is_named_behind_what_is_recommended() -> None:
    trials = a_trial(), a_trial(LAST), a_trial(OFF)
    measured = "1.30x faster (1.27 to 1.33)"
    account = Account(slower="inductor", faster=LAST, slower_seconds=2e-3, faster_seconds=1e-3, rows=())
    best = f"use {SAID_OFF}: 1.50x faster (1.47 to 1.53)"
    for of_off, advice, words, of_account in (
        (1.2, a_recommendation(LAST), f"use {SAID_LAST}: it has none; {measured}", f"use {SAID_LAST}"),
        (1.5, a_recommendation(OFF), f"{best}; {SAID_LAST} has none, {measured}", ""),
    ):
        comparison = a_comparison(a_ratio(OFF, of_off), a_ratio(LAST, 1.3), fastest=(OFF,))
        diagnosis = a_diagnosis(*trials, comparison=comparison, recommendation=advice)
        assert use_instead(Times(diagnosis), trials[0], trials[1], "has none") == words
        assert use_faster(diagnosis, account) == of_account


# ---------------------------------------------------------------------------------------------------------- cures
BASE = [10e-3 + index * 1e-6 for index in range(40)]
CURED = "inductor+flat-conv3d"
CURE = Cure(name="flat-conv3d", answers="LD503", modules=("a",))


def a_rule(code: str = "LD503", configuration: str = "inductor", **changes: Any) -> Rule:
    fields: dict[str, Any] = {"rule": "r", "severity": "note", "message": "m", "suggestion": "try something", **changes}
    return Rule(code, "r", lambda _: iter((Finding(code=code, configuration=configuration, **fields),)))


def cured(factor: float | None, **changes: Any) -> Trial:
    """A trial with the cure, so many times as fast as without; None if it was not timed."""
    measurement = None if factor is None else a_measurement(*(seconds / factor for seconds in BASE))
    configuration = a_configuration(CURED, cures=(CURE,))
    return a_trial(CURED, **{"configuration": configuration, "measurement": measurement, **changes})


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (cured(1.25), ": 1.25x faster than the default (1.25 to 1.25)"),
        (cured(0.8), " was tried: 1.25x slower than the default (1.25 to 1.25)"),
        (
            cured(None, measurement=a_measurement(*(s / f for s in BASE[:20] for f in (0.9, 1.3)))),
            " was tried: looks 1.10x faster than the default (0.90 to 1.30), not certain",
        ),
        (cured(1.25, equivalence=DIFFERENT), " was tried: its outputs differ"),
        (
            cured(None, status="same_as", same_as="inductor"),
            " was tried: it compiles to the same code as the default",
        ),
        (
            cured(None, status="failed", failure=a_failed_trial().failure),
            " was tried: it failed (RuntimeError: boom)",
        ),
        (cured(None), " was tried: it was not timed"),
    ],
)
def test_what_a_cure_brought_takes_the_place_of_the_advice(trial: Trial, words: str) -> None:
    base = a_trial("inductor", measurement=a_measurement(*BASE))
    diagnosis = a_diagnosis(base, trial, comparison=a_comparison())
    assert [f.suggestion for f in run_rules(diagnosis, (a_rule(),))] == [f"compiled + flat-conv3d{words}"]
    assert [f.suggestion for f in run_rules(diagnosis, (a_rule("LD501"),))] == ["try something"]
    assert [f.suggestion for f in run_rules(diagnosis, (a_rule(module="b"),))] == ["try something"]


def test_what_eager_mode_loses_is_not_answered_by_a_compiled_attempt() -> None:
    restored = msgspec.structs.replace(CURE, answers="LD104")
    attempt = cured(1.25, configuration=a_configuration(CURED, cures=(restored,)))
    trials = a_trial("inductor", measurement=a_measurement(*BASE)), a_trial("eager-channels-last"), attempt
    diagnosis = a_diagnosis(*trials, comparison=a_comparison())
    found = [run_rules(diagnosis, (a_rule("LD104", name),)) for name in ("inductor", "eager-channels-last")]
    measured = "compiled + flat-conv3d: 1.25x faster than the default (1.25 to 1.25)"
    assert [finding.suggestion for (finding,) in found] == [measured, "try something"]


def test_of_two_attempts_the_recommended_one_is_named_and_else_the_faster_one() -> None:
    frozen = "inductor-freezing+flat-conv3d"
    trials = (
        a_trial("inductor", measurement=a_measurement(*BASE)),
        a_trial("inductor-freezing", measurement=a_measurement(*(s / 1.04 for s in BASE))),
        a_trial(
            frozen,
            configuration=a_configuration(frozen, cures=(CURE,)),
            measurement=a_measurement(*(s / 1.12 for s in BASE)),
        ),
        cured(1.1),
    )
    ratios = a_ratio("inductor-freezing", 1.04), a_ratio(frozen, 1.12), a_ratio(CURED, 1.1)
    for advice, words in (
        (a_recommendation(CURED), "compiled + flat-conv3d: 1.10x faster than the default (1.10 to 1.10)"),
        (a_recommendation(), "compiled + frozen + flat-conv3d: 1.08x faster than compiled + frozen (1.08 to 1.08)"),
    ):
        diagnosis = a_diagnosis(*trials, comparison=a_comparison(*ratios), recommendation=advice)
        assert [finding.suggestion for finding in run_rules(diagnosis, (a_rule(),))] == [words]


def test_a_recommended_cure_that_shares_no_rounds_with_its_base_is_a_warning_with_their_ratio() -> None:
    base = a_trial("inductor", measurement=a_measurement(*BASE[:3]))
    late = cured(None, measurement=a_measurement(*BASE, first_round=3))
    comparison = a_comparison(a_ratio(CURED, 1.25))
    for advice, severity in ((a_recommendation(CURED), "warning"), (a_recommendation(), "note")):
        diagnosis = a_diagnosis(base, late, comparison=comparison, recommendation=advice)
        (finding,) = run_rules(diagnosis, (a_rule(),))
        assert finding.severity == severity
        assert finding.suggestion == "compiled + flat-conv3d: 1.25x faster than the default (1.22 to 1.28)"


def test_an_attempt_that_is_not_recommended_has_its_row_and_no_findings() -> None:
    base = a_trial("inductor", measurement=a_measurement(*BASE))
    attempt = a_diagnosis(base, cured(1.25), comparison=a_comparison())
    recommended = msgspec.structs.replace(attempt, recommendation=a_recommendation(CURED))
    for diagnosis, code, count in ((attempt, "LD209", 0), (attempt, "LD402", 1), (recommended, "LD209", 1)):
        assert len(run_rules(diagnosis, (a_rule(code, CURED),))) == count


# --------------------------------------------------------------------------------------------------- which trial
def test_the_main_trial_is_that_of_the_baseline_or_the_only_one() -> None:
    on = "inductor-layout-opt-on"
    same = Trial(configuration=a_configuration("inductor"), status="same_as", same_as=on)
    for trials, changes, name in (
        ((a_trial("eager"), a_trial()), {}, "inductor"),
        ((a_trial(on), same), {"comparison": a_comparison()}, on),
    ):
        main = evidence.main_trial(a_diagnosis(*trials, **changes))
        assert main is not None
        assert main.name == name
    assert evidence.main_trial(a_diagnosis(a_trial("eager"), a_trial(OFF))) is None


def test_a_trace_with_a_backward_in_it_is_training() -> None:
    for trial, is_training in (
        (a_recorded_trial(to_channels_last("a")), False),
        (a_recorded_trial(to_channels_last("a", tensor="gradient")), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel("sm80_xmma_dgrad_nhwc"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("kernel", "cudnn::bn_bw_1C11_kernel_new"),))), True),
    ):
        assert evidence.has_backward(trial) is is_training
