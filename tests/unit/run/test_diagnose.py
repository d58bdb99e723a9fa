"""What a diagnosis makes of processes that are lost on the way, with processes that are scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_configuration, a_diagnosis, a_trial, recordings_of
from fake_workers import CRASH

from layoutdoctor.errors import SubjectError
from layoutdoctor.run.diagnose import _lowered
from layoutdoctor.run.watching import Watch
from layoutdoctor.workers.messages import Finished, Lowered, Progress, Request

if TYPE_CHECKING:
    from layoutdoctor.workers.messages import Answer

STATIC = {"measurement": None, "kernels": None, "equivalence": None, "is_static": True}
REQUEST = Request(configurations=tuple(map(a_configuration, ("eager", "inductor", "inductor-layout-opt-off"))))


class Scripted:
    """Stands for a host and for the process that it begins."""

    def __init__(self, *answers: Answer | BaseException) -> None:
        self._answers = list(answers)
        self.is_ended = False

    def begin(self, role: str) -> Scripted:
        assert role == "static"
        return self

    def answer(self, kind: Any) -> Answer:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, kind)
        return answer

    def end(self) -> None:
        self.is_ended = True


def lowered(host: Scripted) -> tuple[list[Any], list[str]]:
    """The trials, and the stages that were told."""
    told: list[str] = []
    watch = Watch(lambda step: told.append(step.stage))
    recordings = _lowered(host, REQUEST, watch)  # type: ignore[arg-type]
    assert host.is_ended
    assert [one.name for one in watch.latest] == [one.name for one in recordings if one.trial.status == "ok"]
    return [recording.trial for recording in recordings], told


def a_lowered(name: str) -> Lowered:
    (recording,) = recordings_of(a_diagnosis(a_trial(name, **STATIC)))
    head = msgspec.structs.replace(recording.head, configurations=tuple(one.name for one in REQUEST.configurations))
    return Lowered(recording=msgspec.structs.replace(recording, head=head))


def test_configurations_are_lowered_one_after_the_other_by_a_process_that_ends() -> None:
    trials, told = lowered(
        Scripted(
            Progress("lowering", 20), a_lowered("eager"), Progress("lowering on", 50), a_lowered("inductor"), Finished()
        )
    )

    assert [trial.name for trial in trials] == ["eager", "inductor"]
    assert told == ["lowering", "lowering on"]


def test_a_process_that_is_lost_while_lowering_costs_what_it_had_not_lowered() -> None:
    trials, _ = lowered(Scripted(a_lowered("eager"), CRASH))

    assert [(trial.name, trial.status, trial.failure) for trial in trials] == [
        ("eager", "ok", None),
        ("inductor", "crashed", CRASH.failure),
        ("inductor-layout-opt-off", "crashed", CRASH.failure),
    ]
    assert all(trial.is_static for trial in trials)


def test_a_process_that_is_lost_before_it_lowered_anything_is_an_error() -> None:
    host = Scripted(CRASH)
    with pytest.raises(SubjectError, match=r"^cannot lower the model: the process died of signal 11$"):
        lowered(host)

    assert host.is_ended
