"""The baseline, contenders and the choice of measured trials; and the lines that apply a configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_measurement,
    a_ratio,
    a_trial,
    an_environment,
)
from hypothesis import given
from hypothesis import strategies as st

from layoutdoctor.diagnosis.answer import FASTER, Comparison, Recommendation
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.examination.advice.applying import ModelCall, how_to_apply
from layoutdoctor.examination.advice.choice import (
    compare_trials,
    contenders,
    demands,
    eligible_names,
    is_crowded,
    left_standing,
    recommend,
    undecided,
    wrong_baseline,
)

DIFFERENT = Equivalence(status="different", max_abs_error=1.0, tolerance=1e-4, reference="float64")
TWIN = "inductor-channels-last"
FROZEN = "inductor-freezing"
BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
HOW = {TWIN: "model.to(memory_format=torch.channels_last)", FROZEN: "freezing"}


def timed(name: str, factor: float, *starts: float, rounds: int = 9, **changes: Any) -> Trial:
    """A trial whose call takes 10 ms over the factor in the rounds, and over each further factor in that start."""
    again = tuple(tuple(10e-3 / start for _ in range(rounds)) for start in starts)
    measurement = a_measurement(*[10e-3 / factor] * rounds, starts=again)
    configuration = next((one for one in BUILTIN_CONFIGURATIONS if one.name == name), a_configuration(name))
    return a_trial(name, **{"configuration": configuration, "measurement": measurement, **changes})


def concluded(*trials: Trial) -> tuple[Comparison, Recommendation]:
    comparison = compare_trials(trials)
    assert comparison is not None
    recommendation = recommend(trials, comparison, HOW)
    assert recommendation is not None
    return comparison, recommendation


DEFAULT = timed("inductor", 1.0, 1.0, 1.0, 1.0)


FACTORS = st.sampled_from([0.5, 0.9, 0.99, 1.0, 1.005, 1.02, 1.04, 1.2, 1.21, 1.24, 1.9])
A_TRIAL = st.builds(
    lambda name, factor, spread, again, wrong: timed(
        name,
        factor,
        *([factor, factor * spread, factor / spread] if again else []),
        **({"equivalence": DIFFERENT} if wrong else {}),
    ),
    st.sampled_from([name for name in BY_NAME if name != "inductor"]),
    st.one_of(FACTORS, st.floats(0.5, 2.0)),
    st.sampled_from([1.0, 1.001, 1.05, 1.2]),
    st.booleans(),
    st.booleans(),
)
TRIALS = st.lists(A_TRIAL, min_size=1, max_size=8, unique_by=lambda trial: trial.name)


def stand_above(chosen: str, medians: dict[str, float]) -> list[str]:
    """Configurations that a reader of the table would rather use: as fast and asking less, or faster and not more."""
    own = demands(BY_NAME[chosen])
    top = max(medians.values())
    found = []
    for name, median in medians.items():
        asked = demands(BY_NAME[name])
        is_faster = asked <= own and (median > medians[chosen] or (median == medians[chosen] and asked < own))
        is_near = asked < own and median * 1.03 >= max(top, medians[chosen])
        found += [name] if name != chosen and (is_faster or is_near) else []
    return found


@given(TRIALS, st.booleans())
def test_no_row_with_right_outputs_is_as_fast_as_the_recommended_one_and_demands_no_more(
    others: list[Trial], is_default_wrong: bool
) -> None:
    default = msgspec.structs.replace(DEFAULT, equivalence=DIFFERENT) if is_default_wrong else DEFAULT
    comparison, chosen = concluded(default, *others)
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    right = eligible_names([default, *others])
    medians = {name: ratios[name].median if name in ratios else 1.0 for name in right}

    if not right:
        assert chosen == Recommendation(configuration=None)
        return
    assert chosen.configuration in right
    assert comparison.fastest[0] == chosen.configuration
    assert right.issuperset(comparison.fastest)
    if chosen.configuration != "inductor":
        assert stand_above(chosen.configuration, medians) == []
        assert is_default_wrong or ratios[chosen.configuration].verdict == FASTER
    is_started = chosen.configuration in ratios and bool(ratios[chosen.configuration].start_ratios)
    assert (
        is_started
        or chosen.configuration == "inductor"
        or is_default_wrong
        or not any(ratio.start_ratios for ratio in comparison.ratios)
    )
    assert not chosen.verified or is_started
    beside = chosen.without_freezing
    assert (beside is None) == (not BY_NAME[chosen.configuration].freezes or all(BY_NAME[n].freezes for n in right))
    if beside is not None:
        unfrozen = {name: median for name, median in medians.items() if not BY_NAME[name].freezes}
        assert beside.configuration in unfrozen
        # One that is certainly faster is named before one that demands less and is not.
        certain = {name for name, ratio in ratios.items() if ratio.verdict == FASTER} | {"inductor"}
        above = stand_above(beside.configuration, unfrozen)
        assert [name for name in above if name in certain or beside.configuration not in certain] == []


@given(TRIALS)
def test_whatever_stands_in_the_way_of_the_advice_is_started_until_nothing_does(others: list[Trial]) -> None:
    trials = {trial.name: trial for trial in (DEFAULT, *others)}
    for _ in range(len(trials)):
        standing = left_standing([*trials.values()])
        if not standing:
            break
        for name in standing:
            measurement = trials[name].measurement
            assert measurement is not None
            assert not measurement.starts
            again = msgspec.structs.replace(measurement, starts=(measurement.round_seconds,) * 3)
            trials[name] = msgspec.structs.replace(trials[name], measurement=again)
    assert left_standing([*trials.values()]) == ()
    comparison, _ = concluded(*trials.values())
    started = {ratio.name for ratio in comparison.ratios if ratio.start_ratios}
    right = {ratio.name: ratio.median for ratio in comparison.ratios if ratio.name in eligible_names(trials.values())}
    best = max(right, key=lambda name: right[name], default=None)
    assert best is None or right[best] <= 1.03 or any(right[name] * 1.03 >= right[best] for name in started & {*right})


def test_what_demands_less_and_is_not_certain_leaves_the_advice_open_beside_what_is_certain() -> None:
    default = timed("inductor", 1.0, *[1.0] * 8)
    frozen = timed(FROZEN, 1.06, *([0.95, 1.06, 1.17, 1.06] * 2))
    both = timed("inductor-channels-last-freezing", 1.09, *([1.085, 1.09] * 4))
    comparison, chosen = concluded(default, frozen, both)

    assert [ratio.verdict for ratio in comparison.ratios] == ["inconclusive", FASTER]
    assert chosen.configuration == "inductor"
    assert undecided([default, frozen, both], comparison) == (frozen.name, both.name)

    certain = timed(FROZEN, 1.07, *([1.065, 1.07] * 4))
    comparison, chosen = concluded(default, certain, both)
    assert chosen.configuration == FROZEN
    assert undecided([default, certain, both], comparison) == ()


def test_without_frozen_weights_what_is_certain_is_named_before_what_demands_less() -> None:
    """BiFPN: "looks 1.04x faster, not certain" stood beside a row with 1.06x (1.01 to 1.11)."""
    default = timed("inductor", 1.0, *[1.0] * 8)
    frozen = timed(FROZEN, 1.2, *([1.19, 1.2] * 4))
    last = timed(TWIN, 1.04, *([0.95, 1.04, 1.13, 1.04] * 2))
    off = timed("inductor-channels-last-opt-off", 1.06, *([1.055, 1.06] * 4))
    for certain, named in ((off, off.name), (timed(off.name, 1.06, *([0.95, 1.06, 1.15, 1.06] * 2)), TWIN)):
        _, chosen = concluded(default, frozen, last, certain)
        assert chosen.configuration == FROZEN
        assert chosen.without_freezing is not None
        assert chosen.without_freezing.configuration == named


@pytest.mark.parametrize(
    ("other_cores", "threads", "device", "crowded"),
    [(1.1, 2, "cpu", True), (1.0, 2, "cpu", False), (1.4, 1, "cpu", False), (1.4, 2, "cuda", False)],
)
def test_a_machine_is_crowded_if_other_programs_leave_too_few_cores_for_the_threads(
    other_cores: float, threads: int, device: str, crowded: bool
) -> None:
    assert is_crowded(device, an_environment(thread_count=threads, cpu_count=2), other_cores) is crowded
    assert not is_crowded(device, an_environment(thread_count=threads, cpu_count=2), None)


def test_on_a_crowded_machine_nothing_is_certain() -> None:
    """One configuration of a small network was 5.73x faster in one diagnosis, and 7.31x slower in the next."""
    trials = [timed("inductor", 1.0, *[1.0] * 8), timed(FROZEN, 1.5, *([1.49, 1.51] * 4))]

    comparison = compare_trials(trials, 1.4, crowded=True)

    assert comparison is not None
    assert [ratio.verdict for ratio in comparison.ratios] == ["inconclusive"]
    assert recommend(trials, comparison, {}) == Recommendation(configuration="inductor")


def test_the_contenders_are_near_the_best_and_those_that_demand_least_come_first() -> None:
    off = "inductor-channels-last-opt-off"
    medians = {FROZEN: 1.5, "inductor-channels-last-freezing": 1.45, TWIN: 1.2, off: 1.21, "eager": 0.7}

    assert contenders(medians, BY_NAME) == (FROZEN, "inductor-channels-last-freezing", off)
    assert contenders({TWIN: 1.01, "eager": 0.98}, BY_NAME) == (TWIN,)  # its one start may have been slow
    assert contenders({TWIN: 0.53, "eager": 0.5}, BY_NAME) == (TWIN,)  # equal models have differed by this much
    assert contenders({TWIN: 0.39, "eager": 0.3}, BY_NAME) == ()
    many = {f"c{n}": 1.3 for n in range(9)} | {FROZEN: 1.31, TWIN: 1.26}
    configurations = {**BY_NAME, **{f"c{n}": BY_NAME["inductor-channels-last-freezing"] for n in range(9)}}
    assert set(contenders(many, configurations)) == {FROZEN, TWIN, "c0", "c1", "c2", "c3"}
    assert contenders(many, configurations)[0] == FROZEN


def test_the_default_is_wrong_if_eager_mode_is_right() -> None:
    trials = [a_trial(equivalence=DIFFERENT), a_trial("eager"), a_trial(TWIN)]
    comparison = a_comparison(a_ratio(TWIN, 1.1), a_ratio("eager", 0.7), fastest=(TWIN,))
    diagnosis = a_diagnosis(*trials, comparison=comparison)
    assert wrong_baseline(diagnosis) is trials[0]
    random = msgspec.structs.replace(diagnosis, trials=(trials[0], a_trial("eager", equivalence=DIFFERENT)))
    assert wrong_baseline(random) is None  # the model is, not torch.compile
    assert wrong_baseline(a_diagnosis(a_trial(), a_trial("eager"))) is None
    for reference, known in (("float64", True), ("eager float32", False)):  # what is allowed knows eager's own error
        without = a_trial(equivalence=Equivalence(status="different", reference=reference))
        assert (wrong_baseline(a_diagnosis(without, a_trial(TWIN))) is without) is known


@pytest.mark.parametrize(
    ("name", "ranks", "lines"),
    [
        ("eager", {4}, ["# nothing to change: call the model as it is, without torch.compile", "y = model(x)"]),
        ("inductor", {4}, ["model = torch.compile(model)", "y = model(x)"]),
        (
            "inductor-layout-opt-off",
            {4},
            ['model = torch.compile(model, options={"layout_optimization": False})', "y = model(x)"],
        ),
        (
            "inductor-channels-last",
            {1, 4},
            [
                "model = model.to(memory_format=torch.channels_last)",
                "model = torch.compile(model)",
                "x = x.to(memory_format=torch.channels_last)",
                "y = model(x)",
            ],
        ),
        (
            "eager-channels-last",
            {5},
            [
                "model = model.to(memory_format=torch.channels_last_3d)",
                "x = x.to(memory_format=torch.channels_last_3d)",
                "y = model(x)",
            ],
        ),
        (
            "inductor-freezing",
            {4},
            [
                "import torch._inductor.config",
                "model.eval()",
                "model = torch.compile(model)",
                "with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # where it compiles",
                "    y = model(x)",
            ],
        ),
    ],
)
def test_the_lines_are_the_shortest_that_do_it(name: str, ranks: set[int], lines: list[str]) -> None:
    assert how_to_apply(BY_NAME[name], frozenset(ranks), ModelCall("model(x)", {"x": max(ranks)})).splitlines() == lines
