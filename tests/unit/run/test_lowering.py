"""What a diagnosis makes of processes that lower for a target, with processes that are scripts."""

from __future__ import annotations

from typing import Any

import msgspec
from builders import a_configuration, a_graph, a_subject, a_trial, an_environment
from fake_workers import CRASH

from layoutdoctor.examination.applying import Call
from layoutdoctor.run.diagnose import _head_of
from layoutdoctor.run.lowering import lowered
from layoutdoctor.run.watching import Watch
from layoutdoctor.workers.messages import Compiled, Loaded, Prepared, Request

NAMES = ("eager", "inductor", "inductor-layout-opt-on", "inductor-layout-opt-off", "inductor-channels-last")
REQUEST = Request(configurations=tuple(map(a_configuration, NAMES)), lower_for="cuda:90")


class Scripted:
    """Stands for a host and for the processes that it begins."""

    def __init__(self, *answers: object) -> None:
        environment = an_environment(thread_count=4)
        self.loaded = Loaded(
            subject=a_subject(), environment=environment, parameter_ranks=(), call=Call("model(x)", {})
        )
        self._answers = list(answers)
        self.begun: list[str] = []
        self.ended = 0

    def begin(self, role: str, configuration: Any) -> Scripted:
        assert role == "static"
        self.begun.append(configuration.name)
        return self

    def answer(self, kind: Any, timeout_seconds: float | None = None) -> object:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, kind)
        return answer

    def ask(self, order: object, kind: Any, timeout_seconds: float | None = None) -> object:
        return self.answer(kind)

    def end(self) -> None:
        self.ended += 1


def a_compiled(name: str, code: str) -> Compiled:
    trial = a_trial(name, measurement=None, kernels=None, equivalence=None, is_static=True, graphs=(a_graph(),))
    return Compiled(trial=trial, code=code)


def test_each_configuration_is_lowered_once_and_one_that_is_lost_costs_only_itself() -> None:
    host = Scripted(
        *(Prepared(key="a"), a_compiled("inductor", "code")),
        Prepared(key="a"),
        *(Prepared(key="b"), CRASH),
        *(Prepared(key="c"), a_compiled("inductor-channels-last", "code")),
    )
    told: list[str] = []

    found = lowered(host, _head_of(host.loaded), REQUEST, Watch(lambda step: told.append(step.stage)))  # type: ignore[arg-type]

    assert [(one.name, one.trial.status, one.trial.same_as, one.was_profiled) for one in found] == [
        ("eager", "skipped", None, False),
        ("inductor", "ok", None, True),
        ("inductor-layout-opt-on", "same_as", "inductor", False),
        ("inductor-layout-opt-off", "crashed", None, False),
        ("inductor-channels-last", "same_as", "inductor", False),
    ]
    assert [one.trial.notes for one in found if one.trial.same_as] == [
        ("the same options and formats as inductor",),
        ("the same generated code as inductor",),
    ]
    assert found[3].trial.failure == CRASH.failure
    assert all(one.trial.is_static for one in found)
    assert told == [f"{name}: lowering for cuda:90" for name in NAMES]
    assert (host.begun, host.ended) == (list(NAMES[1:]), 4)
    subject, environment = found[0].head.subject, found[0].head.environment
    assert (subject.device, subject.target, len(subject.notes)) == ("cuda", "cuda:90", 1)
    assert environment == msgspec.structs.replace(host.loaded.environment, device_name=None, thread_count=None)
