"""What a worker takes from its processes into the record of its configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
from builders import a_configuration, a_diagnosis, a_trial, recordings_of
from fake_workers import CRASH, ScriptedProcess, a_worker
from recorded_builders import a_recording

from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.errors import SubjectError
from layoutdoctor.workers.messages import (
    Check,
    Checked,
    Fork,
    MeasureMemory,
    Profiled,
    ProfileIteration,
    Proposal,
    Request,
    Turn,
    Turned,
    WarmUp,
)
from layoutdoctor.workers.turns import take_profiles
from layoutdoctor.workers.worker import Start, Worker

if TYPE_CHECKING:
    from layoutdoctor.workers.launcher import LostError

HEAD = recordings_of(a_diagnosis(a_trial("inductor")))[0].head


def test_the_time_of_a_turn_is_a_median_that_was_measured_itself() -> None:
    process = SimpleNamespace(ask=lambda order, answer: Turned(seconds=(9.0, 1.0, 3.0, 2.0), cpu_seconds=0.5))
    start = Start(process)  # type: ignore[arg-type]

    assert start.turn(4) == 2.0
    assert start.cpu_seconds == 0.5


class Forking(ScriptedProcess):
    """A process that forks others, or cannot."""

    def __init__(self, *children: ScriptedProcess | LostError | SubjectError) -> None:
        super().__init__(1.0, [], "worker")
        self._children = iter(children)
        self.orders: list[Any] = []

    def fork(self, order: Any) -> ScriptedProcess:
        self.orders.append(order)
        child = next(self._children)
        if isinstance(child, BaseException):
            raise child
        return child


class Asked(ScriptedProcess):
    """A start that notes its orders; it answers ``profiled``, or raises it."""

    def __init__(self, profiled: Profiled | LostError = Profiled()) -> None:  # noqa: B008 - a frozen value
        super().__init__(1.0, [], "start")
        self.orders: list[Any] = []
        self._profiled = profiled

    def ask(self, order: Any, kind: type) -> Any:
        self.orders.append(order)
        if not isinstance(order, ProfileIteration):
            return super().ask(order, kind)
        if isinstance(self._profiled, BaseException):
            raise self._profiled
        return self._profiled


class OfFiles:
    """Stands for the host."""

    def __init__(self, again: ScriptedProcess | None = None) -> None:
        self.again, self.asked = again, []

    def file(self, name: str) -> str:
        return f"/run/{name}"

    def begin(self, configuration: Any, *, is_again: bool = False) -> ScriptedProcess:
        self.asked.append((configuration.name, is_again))
        assert self.again is not None
        return self.again


def compiled(process: Any, *, forks: bool = True, host: Any = None, **request: Any) -> Worker:
    worker = Worker(host or OfFiles(), a_configuration(), Request(**request), "how")
    worker.is_ready, worker.process, worker.forks = True, process, forks
    return worker


def test_the_start_that_is_timed_is_a_fork_whose_outputs_are_checked_first() -> None:
    start = ScriptedProcess(1.0, [], "start")
    start.call_seconds = 0.5
    start.checked = Checked(trial=a_trial(notes=("a note",)), proposals=(Proposal(cure=Cure(name="a")),))
    process = Forking(start, start, start)
    worker = compiled(process)

    worker.open("/run/reference")
    worker.further_start()

    log = "/run/inductor"
    assert process.orders == [Fork(log=log), Fork(log=log)]
    assert worker.start is not None
    assert (worker.start.process, worker.start.call_seconds) == (start, 0.5)
    assert (worker.trial, worker.proposals) == (start.checked.trial, start.checked.proposals)


def test_if_forking_is_not_safe_the_worker_is_its_own_start_and_a_further_one_another_worker() -> None:
    process, again = Forking(), ScriptedProcess(1.0, [], "again")
    host = OfFiles(again)
    worker = compiled(process, forks=False, host=host)

    worker.open(None)

    assert process.orders == []
    assert worker.start is not None
    assert worker.start.process is process  # type: ignore[comparison-overlap]
    assert worker.further_start().process is again  # type: ignore[comparison-overlap]
    assert host.asked == [("inductor", True)]


def test_a_start_that_cannot_be_forked_is_a_result_of_the_configuration() -> None:
    for error in (CRASH, SubjectError("cannot load it again")):
        process = Forking(error)
        worker = compiled(process)

        worker.open(None)

        assert worker.trial.status == ("crashed" if error is CRASH else "failed")
        assert worker.trial.failure is not None
        assert worker.trial.failure.message == str(error)
        assert process.is_ended
        assert (worker.start, worker.process) == (None, None)


def test_three_iterations_are_profiled_once_and_five_of_what_was_started_again() -> None:
    iteration = a_recording().iterations[0]
    process = Asked(Profiled(iterations=(iteration,)))
    worker = compiled(Forking(process), trace_directory="/t")
    worker.open(None)
    worker.turn()

    take_profiles([worker])
    take_profiles([worker])

    recording = worker.recording(HEAD)
    profile = ProfileIteration(calls=1, trace_file="/t/inductor.json.gz")
    assert process.orders == [Check(path=None), WarmUp(), Turn(calls=1), *[profile] * 3, MeasureMemory()]
    assert recording.was_profiled
    assert recording.iterations == (iteration,) * 3
    worker.starts, worker.was_profiled, worker.iterations = [(1.0,)], False, ()
    take_profiles([worker])
    assert worker.iterations == (iteration,) * 5
    assert recording.trial.measurement is not None
    assert recording.trial.measurement.peak_memory_bytes == 7


def test_without_kernels_the_times_stay() -> None:
    worker = compiled(Forking(Asked(CRASH)), is_timed=False)
    worker.open(None)
    assert worker.start is not None
    assert worker.start.call_seconds == 0.0  # what is only recorded is not warmed up
    worker.turn()

    take_profiles([worker])

    assert worker.is_ok
    reason = "the kernel list was not recorded: the process died of signal 11"
    assert worker.trial.lacks == (Lack(part="kernels", reason=reason),)
    assert not worker.recording(HEAD).was_profiled
    assert worker.measurement is not None
    worker.end()
    worker.turn()
    assert len(worker.rounds) == 1


def test_what_times_kernels_to_choose_one_says_so() -> None:
    plain = a_configuration("inductor")
    tuned = msgspec.structs.replace(plain, inductor_options={"max_autotune": True})
    by_mode = msgspec.structs.replace(plain, compile_arguments={"mode": "max-autotune-no-cudagraphs"})
    switched = msgspec.structs.replace(plain, library_switches={"cudnn.benchmark": True})
    everywhere = a_worker(plain)
    everywhere._host = SimpleNamespace(  # type: ignore[assignment]
        loaded=SimpleNamespace(environment=SimpleNamespace(settings={"torch.backends.cudnn.benchmark": "True"}))
    )

    assert [a_worker(one).chooses_by_time for one in (plain, tuned, by_mode, switched)] == [False, True, True, True]
    assert everywhere.chooses_by_time
