"""Workers of the product whose processes are scripts: what each turn takes is written down, and nothing is started."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
from builders import a_configuration, a_trial, as_observed

from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.workers.launcher import LostError
from layoutdoctor.workers.messages import (
    Check,
    Checked,
    Copied,
    MeasuredMemory,
    MeasureMemory,
    Ready,
    Request,
    Turn,
    Turned,
    WarmUp,
)
from layoutdoctor.workers.worker import Start, Worker

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Configuration

CRASH = LostError(Failure(kind="run", message="the process died of signal 11"), "crashed")

NO_HOST: Any = SimpleNamespace(loaded=SimpleNamespace(environment=SimpleNamespace(settings={})))

Script = float | Iterable[float | BaseException]
"""Seconds of every turn, or of each turn in order; an exception is raised instead of an answer."""


class Clock:
    """A clock that a test moves, in place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class ScriptedProcess:
    """A start whose turns take what the script says; the clock moves on by that, the least of a turn's calls counts."""

    def __init__(self, script: Script, seen: list[Any], name: str, clock: Clock | None = None) -> None:
        turns: Iterator[float | BaseException]
        turns = itertools.repeat(script) if isinstance(script, (int, float)) else iter(script)
        self.turns, self.seen, self.name, self.clock = turns, seen, name, clock
        self.is_ended = False
        self.call_seconds = 1.0
        self.checked = Checked(trial=as_observed(a_trial(measurement=None)))

    def ask(self, order: Any, kind: type) -> Any:
        answer: Any
        match order:
            case Turn():
                self.seen.append(self.name)
                seconds = next(self.turns)
                if isinstance(seconds, BaseException):
                    raise seconds
                if self.clock is not None:
                    self.clock.now += seconds
                answer = Turned(seconds=(2 * seconds, seconds), cpu_seconds=seconds)
            case WarmUp():
                answer = Ready(call_seconds=self.call_seconds)
            case Check():
                answer = self.checked
            case MeasureMemory():
                answer = MeasuredMemory(peak_memory_bytes=7)
            case _:
                answer = Copied(bytes_per_second=None)
        assert isinstance(answer, kind)
        return answer

    def answer(self, kind: type) -> Any:
        return self.ask(WarmUp(), kind)

    def tell(self, order: Any) -> None:
        if not isinstance(order, WarmUp):
            self.seen.append(order)

    def end(self) -> None:
        self.is_ended = True


def a_worker(
    name: str | Configuration = "inductor",
    script: Script = 1.0,
    *,
    again: Iterable[Script | BaseException] = (),
    seen: list[Any] | None = None,
    clock: Clock | None = None,
    call_seconds: float = 1.0,
    **facts: Any,
) -> Worker:
    """
    A worker that has compiled, with a start that the rounds time.

    Args:
        again: The scripts of its further starts, in order; an exception if one cannot be started.
        facts: Fields of its trial.
    """
    seen = [] if seen is None else seen
    configuration = a_configuration(name) if isinstance(name, str) else name
    worker = Worker(NO_HOST, configuration, Request(), "model = torch.compile(model)")
    worker.is_ready = True
    worker.trial = msgspec.structs.replace(worker.trial, **facts)
    worker.start = Start(ScriptedProcess(script, seen, worker.name, clock))  # type: ignore[arg-type]
    worker.start.call_seconds = call_seconds
    scripts = iter(again)

    def further_start() -> Start:
        script = next(scripts)
        if isinstance(script, BaseException):
            raise script
        return Start(ScriptedProcess(script, seen, worker.name, clock))  # type: ignore[arg-type]

    worker.further_start = further_start  # type: ignore[method-assign]
    return worker
