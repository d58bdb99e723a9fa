"""The baseline, contenders and the choice of measured trials; and the lines that apply a configuration."""

from __future__ import annotations

from typing import Any

import msgspec
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_measurement,
    a_ratio,
    a_trial,
)
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each

from layoutdoctor.diagnosis.answer import FASTER, Comparison, Recommendation
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.examination.applying import Call, how_to_apply
from layoutdoctor.examination.choice import (
    compare,
    contenders,
    demands,
    eligible_names,
    recommend,
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
    comparison = compare(trials)
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
    FACTORS,
    st.sampled_from([1.0, 1.001, 1.05]),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(A_TRIAL, min_size=1, max_size=8, unique_by=lambda trial: trial.name), st.booleans())
def test_whatever_was_measured_the_choice_is_right_faster_and_demands_least_of_its_equals(
    others: list[Trial], is_default_wrong: bool
) -> None:
    default = msgspec.structs.replace(DEFAULT, equivalence=DIFFERENT) if is_default_wrong else DEFAULT
    comparison, chosen = concluded(default, *others)
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    right = eligible_names([default, *others])
    faster = {name for name in right if name in ratios and ratios[name].verdict == FASTER}
    again = {name for name in faster if ratios[name].start_ratios} or faster

    if not right:
        assert chosen == Recommendation(configuration=None)
        return
    assert chosen.configuration in right
    assert comparison.fastest[0] == chosen.configuration
    assert right.issuperset(comparison.fastest)
    if faster:
        best = max(ratios[name].median for name in again)
        near = [name for name in again if ratios[name].median * 1.03 >= best]
        assert chosen.configuration in near
        assert demands(BY_NAME[chosen.configuration]) == min(demands(BY_NAME[name]) for name in near)
        assert not chosen.verified or chosen.configuration in again
    elif not is_default_wrong:
        assert chosen.configuration == "inductor"
    beside = chosen.without_freezing
    assert (beside is None) == (not BY_NAME[chosen.configuration].freezes)
    if beside is not None:
        assert not BY_NAME[beside.configuration].freezes


def test_the_contenders_are_near_the_best_and_one_of_them_freezes_nothing() -> None:
    medians = {
        FROZEN: 1.5,
        "inductor-channels-last-freezing": 1.45,
        TWIN: 1.2,
        "eager": 0.7,
        "eager-channels-last": 1.01,
    }

    assert contenders(medians, {FROZEN, "inductor-channels-last-freezing"}) == (
        FROZEN,
        "inductor-channels-last-freezing",
        TWIN,
    )
    assert contenders({TWIN: 1.01, "eager": 0.9}, ()) == ()
    assert len(contenders({f"c{n}": 1.3 for n in range(6)}, ())) == 3


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


@for_each(
    ("name", "ranks", "lines"),
    [
        ("eager", {4}, ["# nothing to change: call the model as it is, without torch.compile"]),
        ("inductor", {4}, ["model = torch.compile(model)"]),
        ("inductor-layout-opt-off", {4}, ['model = torch.compile(model, options={"layout_optimization": False})']),
        (
            "inductor-channels-last",
            {1, 4},
            [
                "model = model.to(memory_format=torch.channels_last)",
                "model = torch.compile(model)",
                "x = x.to(memory_format=torch.channels_last)",
            ],
        ),
        (
            "eager-channels-last",
            {5},
            [
                "model = model.to(memory_format=torch.channels_last_3d)",
                "x = x.to(memory_format=torch.channels_last_3d)",
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
    assert how_to_apply(BY_NAME[name], frozenset(ranks), Call("model(x)", {"x": max(ranks)})).splitlines() == lines
