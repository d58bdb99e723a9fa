"""Which configurations are made of those that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import a_comparison

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS, base_name, is_a_group
from layoutdoctor.diagnosis.records import Configuration, Cure, Equivalence, Failure, Trial
from layoutdoctor.examination.choice import least_demanding_first
from layoutdoctor.isolation.messages import Listener, Proposal, TrialMemo
from layoutdoctor.run.deriving import (
    cures_together,
    in_both_directions,
    single_cures,
    under_switches,
    with_cures,
    with_switch,
)
from layoutdoctor.run.trial import LiveTrial
from layoutdoctor.state.switches import switched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}


def a_proposal(name: str, bytes_moved: int = 1) -> Proposal:
    return Proposal(cure=Cure(name=name), bytes_moved=bytes_moved)


def a_trial(configuration: str | Configuration, *proposals: Proposal, **facts: Any) -> LiveTrial:
    known = BY_NAME[configuration] if isinstance(configuration, str) else configuration
    record = Trial(configuration=known, **{"status": "ok", **facts})
    step: Any = object() if record.status == "ok" else None
    return LiveTrial(record, TrialMemo(proposals=proposals), Listener(), was_done=False, step=step)


def quick(**seconds: float) -> Callable[[Sequence[LiveTrial]], dict[str, float]]:
    """Times by name, dashes as underscores; asked only for what could run."""

    def measure(trials: Sequence[LiveTrial]) -> dict[str, float]:
        assert all(trial.step is not None for trial in trials)
        by_name = {name.replace("_", "-"): value for name, value in seconds.items()}
        return {trial.name: by_name[trial.name.replace("+", "-")] for trial in trials}

    return measure


def names(configurations: Sequence[Configuration]) -> list[str]:
    return [configuration.name for configuration in configurations]


def test_layout_optimization_is_forced_where_the_default_has_it_in_the_forward_alone() -> None:
    def chosen(name: str, *others: str, is_left_out: bool = True) -> list[str]:
        left_out = a_trial(name)
        left_out.remember(leaves_out_backward=is_left_out)
        return names(in_both_directions([a_trial("eager"), left_out, *map(a_trial, others)], quick()))

    forced = "inductor-layout-opt-forced"
    assert chosen("inductor") == [forced]
    assert chosen("inductor", forced) == chosen("inductor", is_left_out=False) == []
    assert chosen("inductor-channels-last") == []


def test_the_fastest_gets_each_cure_that_was_proposed_for_it_the_dearest_first() -> None:
    proposals = [a_proposal("a", 1), a_proposal("b", 9), a_proposal("c", 5), a_proposal("d", 7)]
    trials = [a_trial("eager", a_proposal("z")), a_trial("inductor", *proposals), a_trial("inductor-freezing")]

    chosen = single_cures(trials, quick(eager=2.0, inductor=1.0, inductor_freezing=1.5))

    assert names(chosen) == ["inductor+b", "inductor+d", "inductor+c"]
    assert [configuration.cures[0].name for configuration in chosen] == ["b", "d", "c"]
    assert {configuration.backend for configuration in chosen} == {"inductor"}


def test_what_is_wrong_or_did_not_run_is_no_base() -> None:
    different = Equivalence(status="different")
    trials = [
        a_trial("eager", a_proposal("a")),
        a_trial("inductor", a_proposal("a"), equivalence=different),
        a_trial("inductor-layout-opt-off", a_proposal("a"), status="same_as", same_as="inductor"),
    ]

    assert names(single_cures(trials, quick(eager=2.0))) == ["eager+a"]


def test_without_a_proposal_nothing_is_timed() -> None:
    def refuse(trials: Sequence[LiveTrial]) -> dict[str, float]:
        raise AssertionError(trials)

    assert single_cures([a_trial("eager"), a_trial("inductor")], refuse) == ()
    assert single_cures([], refuse) == ()


def test_what_failed_is_tried_with_what_mends_it_compiled_as_the_best_is() -> None:
    broken = {"status": "failed", "failure": Failure(kind="run", message="view")}
    trials = [
        a_trial("eager"),
        a_trial("eager-channels-last", a_proposal("mend"), **broken),
        a_trial("inductor", a_proposal("a")),
        a_trial("inductor-channels-last", a_proposal("mend"), **broken),
        a_trial("inductor-layout-opt-off", **broken),
    ]

    assert names(single_cures(trials, quick(eager=2.0, inductor=1.0))) == ["inductor+a", "inductor-channels-last+mend"]
    assert names(single_cures(trials, quick(eager=1.0, inductor=2.0))) == ["eager-channels-last+mend"]


@pytest.mark.parametrize(
    ("seconds", "together"),
    [
        ({"inductor_a": 0.9, "inductor_b": 0.8}, ["inductor+a+b"]),
        ({"inductor_a": 0.9, "inductor_b": 1.1}, []),
        ({"inductor_a": 1.0, "inductor_b": 1.0}, []),
    ],
)
def test_all_that_help_are_tried_together(seconds: dict[str, float], together: list[str]) -> None:
    cures = [Cure(name="a"), Cure(name="b")]
    trials = [a_trial("inductor"), *(a_trial(with_cures(BY_NAME["inductor"], (cure,))) for cure in cures)]

    chosen = cures_together(trials, quick(inductor=1.0, **seconds))

    assert names(chosen) == together
    assert single_cures(trials, quick(inductor=1.0, **seconds)) == ()  # each was tried
    if chosen:
        assert base_name(chosen[0]) == "inductor"
        assert cures_together([*trials, a_trial(chosen[0])], quick(inductor=1.0, **seconds)) == ()


def test_a_cure_alone_is_not_tried_together() -> None:
    trials = [a_trial("inductor"), a_trial(with_cures(BY_NAME["inductor"], (Cure(name="a"),)))]

    assert cures_together(trials, quick()) == ()


def test_on_a_gpu_the_best_two_are_tried_under_cudnns_own_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    trials = [a_trial("eager"), a_trial("inductor"), a_trial("inductor-channels-last")]
    times = quick(eager=1.0, inductor=3.0, inductor_channels_last=2.0)

    chosen = under_switches(trials, times, "cuda")

    assert names(chosen) == ["eager+cudnn-benchmark", "inductor-channels-last+cudnn-benchmark"]
    assert [configuration.library_switches for configuration in chosen] == [{"cudnn.benchmark": True}] * 2
    assert under_switches(trials, times, "cpu") == ()
    assert under_switches([*trials, a_trial(chosen[0])], times, "cuda") == ()
    with switched({"cudnn.benchmark": True}):
        assert under_switches(trials, times, "cuda") == ()


def test_only_a_group_of_configurations_is_added_to() -> None:
    assert is_a_group("default")
    assert is_a_group("all")
    assert not any(map(is_a_group, ("eager", "inductor,eager", BY_NAME["eager"], ("default",))))


def test_of_tied_configurations_the_one_that_changes_least_is_first() -> None:
    base = BY_NAME["inductor-channels-last"]
    cured, switched_ = with_cures(base, (Cure(name="a"),)), with_switch(base)
    both = with_switch(cured)
    known = [BY_NAME["inductor"], base, cured, switched_, both]
    fastest = (both.name, cured.name, switched_.name, base.name)

    ordered = least_demanding_first(a_comparison(fastest=fastest), known)

    assert ordered is not None
    assert ordered.fastest == (base.name, cured.name, switched_.name, both.name)
    ordered = least_demanding_first(a_comparison(fastest=(cured.name, "inductor")), known)
    assert ordered is not None
    assert ordered.fastest == ("inductor", cured.name)
    assert least_demanding_first(None, known) is None


def test_a_name_says_what_it_was_made_of() -> None:
    cured = with_cures(BY_NAME["inductor"], (Cure(name="a"), Cure(name="b")))

    assert cured.name == "inductor+a+b"
    assert base_name(cured) == "inductor"
    assert with_switch(cured).name == "inductor+a+b+cudnn-benchmark"
