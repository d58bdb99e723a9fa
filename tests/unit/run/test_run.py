"""The stages of a run, with workers whose processes are scripts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from builders import a_diagnosis, a_trial, recordings_of
from fake_workers import NO_HOST, a_worker

from layoutdoctor.run.run import Run
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
