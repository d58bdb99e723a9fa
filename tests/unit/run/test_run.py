"""The stages of a run, with workers whose processes are scripts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from builders import a_diagnosis, a_trial, recordings_of
from fake_workers import CRASH, NO_HOST, a_worker

from layoutdoctor.diagnosis.configurations import BY_NAME
from layoutdoctor.errors import SubjectError
from layoutdoctor.examination.advice.choice import compare_trials, undecided
from layoutdoctor.run.run import Eager, Run
from layoutdoctor.run.watching import Watch
from layoutdoctor.workers import turns
from layoutdoctor.workers.messages import Request

HEAD = recordings_of(a_diagnosis(a_trial("inductor")))[0].head


@pytest.mark.parametrize("times", [[], [1.0] * 7])
def test_times_that_count_are_not_lost_to_the_first_table(times: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = []
    eager: Any = SimpleNamespace(on_gpu=False, wait=lambda: None, head=HEAD, reference=None)
    run = Run(NO_HOST, eager, Request(), Watch(lambda step: None, on_table=tables.append))
    monkeypatch.setattr(turns, "busy_seconds", lambda: None)
    run._watch.begin("compiling")
    run.workers = [a_worker(name) for name in ("inductor", "eager", "inductor-channels-last", "inductor+a")]
    for worker in run.workers:
        worker.rounds = list(times)
    compiling = a_worker("inductor+b")

    run._compiled([compiling])
    run._compiled([compiling])

    assert len(tables) == (0 if times else 1)
    assert [worker.rounds for worker in run.workers] == [times] * 4


@pytest.mark.parametrize(
    ("ranks", "uses", "has_formats"),
    [((1, 3), ("other",), False), ((1, 4), ("other",), True), ((1, 3), ("images",), True), ((5,), (), True)],
)
def test_a_model_has_formats_if_a_parameter_or_an_input_can_be_channels_last(
    ranks: tuple[int, ...], uses: tuple[str, ...], has_formats: bool
) -> None:
    host: Any = SimpleNamespace(loaded=SimpleNamespace(parameter_ranks=ranks))
    eager: Any = SimpleNamespace(on_gpu=False, head=HEAD, reference=None, input_uses=uses)
    assert Run(host, eager, Request(), Watch(lambda step: None))._has_formats() is has_formats


@pytest.mark.parametrize("error", [CRASH, SubjectError("cannot run model.py: boom")])
def test_a_second_eager_run_that_fails_costs_the_comparison_of_outputs(error: Exception) -> None:
    def answer(kind: type) -> Any:
        raise error

    eager = Eager.__new__(Eager)
    eager.host = cast("Any", SimpleNamespace(process=SimpleNamespace(answer=answer), end=lambda: None))
    eager.reference, eager.head, eager._is_waited_for = "reference", HEAD, False
    eager.wait()
    assert eager.reference is None
    assert eager.head.subject.notes[-1] == f"outputs were not compared: computing the reference failed: {error}"


def test_two_configurations_between_which_the_advice_is_open_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    eager: Any = SimpleNamespace(on_gpu=False, head=HEAD, reference=None)
    run = Run(NO_HOST, eager, Request(budget_seconds=1e6), Watch(lambda step: None))
    monkeypatch.setattr(turns, "busy_seconds", lambda: None)
    run._watch.begin("compiling")
    uneven = [1 / 0.95, 1 / 1.06, 1 / 1.17, 1 / 1.06] * 2
    frozen = a_worker(BY_NAME["inductor-freezing"], again=[*uneven, *[1 / 1.065] * 12])
    both = a_worker(BY_NAME["inductor-channels-last-freezing"], again=[1 / 1.09, 1 / 1.085] * 12)
    baseline = a_worker(BY_NAME["inductor"], again=[1.0] * 40)
    run.workers = [baseline, frozen, both]
    for worker, seconds in zip(run.workers, (1.0, 1 / 1.06, 1 / 1.09), strict=True):
        worker.rounds = [seconds] * 7

    run._start_again()

    trials = [one.trial for one in run.recordings()]
    comparison = compare_trials(trials)
    assert comparison is not None
    assert undecided(trials, comparison) == ()
    assert len(frozen.starts) == len(both.starts) > 8
