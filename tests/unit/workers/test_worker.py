"""What a worker takes from its processes into the record of its configuration."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import a_configuration, a_diagnosis, a_graph, a_trial, recordings_of
from fake_workers import CRASH, ScriptedProcess, a_worker
from recorded_builders import a_recording

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Cure, Equivalence, GradientLayout
from layoutdoctor.errors import SubjectError
from layoutdoctor.workers.messages import Checked, Fork, Profile, Profiled, Proposal, Request, Turn
from layoutdoctor.workers.worker import Start, Worker

if TYPE_CHECKING:
    from layoutdoctor.workers.launcher import LostError

HEAD = recordings_of(a_diagnosis(a_trial("inductor")))[0].head
LAYOUT = strided_layout((2, 3), (1, 2))


class Forking(ScriptedProcess):
    """A process that forks others."""

    def __init__(self, *children: ScriptedProcess | LostError) -> None:
        super().__init__(1.0, [], "worker")
        self._children = iter(children)
        self.orders: list[tuple[Any, Path | None]] = []

    def fork(self, order: Any, log: Path | None = None) -> ScriptedProcess:
        self.orders.append((order, log))
        child = next(self._children)
        if isinstance(child, BaseException):
            raise child
        return child


class OfFiles:
    """Stands for the host."""

    def __init__(self, again: ScriptedProcess | None = None) -> None:
        self.again, self.asked = again, []

    def file(self, name: str) -> str:
        return f"/run/{name}"

    def begin(self, role: str, configuration: Any = None, path: str = "") -> ScriptedProcess:
        self.asked.append((role, configuration.name))
        assert self.again is not None
        return self.again


def compiled(process: Any, *, can_fork: bool = True, host: Any = None, **request: Any) -> Worker:
    worker = Worker(host or OfFiles(), a_configuration(), Request(**request), "how")
    worker.is_ready, worker.process, worker._can_fork = True, process, can_fork
    return worker


def test_the_start_that_is_timed_is_a_fork_whose_outputs_are_checked_first() -> None:
    start = ScriptedProcess(1.0, [], "start")
    start.call_seconds = 0.5
    start.checked = Checked(
        equivalence=Equivalence(status="equal", max_abs_error=1e-6),
        gradient_layouts=(GradientLayout(parameter="w", layout=LAYOUT, gradient=LAYOUT),),
        graphs=(a_graph(name="graph 1"),),
        proposals=(Proposal(cure=Cure(name="a")),),
        recompile_count=2,
        recompile_reasons=("why",),
        notes=("a note",),
    )
    process = Forking(start)
    worker = compiled(process)
    worker.observe(graphs=(a_graph(),), recompile_count=1, notes=("prepared",))

    worker.open("/run/reference")

    assert process.orders == [(Fork(log="/run/inductor"), Path("/run/inductor"))]
    assert worker.start is not None
    assert (worker.start.process, worker.start.call_seconds) == (start, 0.5)
    assert worker.trial.equivalence == start.checked.equivalence
    assert worker.trial.gradient_layouts == start.checked.gradient_layouts
    assert [graph.name for graph in worker.trial.graphs] == ["graph 0", "graph 1"]
    assert (worker.trial.recompile_count, worker.trial.recompile_reasons) == (3, ("why",))
    assert worker.trial.notes == ("prepared", "a note")
    assert worker.proposals == start.checked.proposals


def test_where_forking_is_not_safe_the_worker_is_its_own_start_and_a_further_one_another_worker() -> None:
    process, again = Forking(), ScriptedProcess(1.0, [], "again")
    host = OfFiles(again)
    worker = compiled(process, can_fork=False, host=host)

    worker.open(None)

    assert process.seen == [Fork(here=True)]
    assert worker.start is not None
    assert worker.start.process is process  # type: ignore[comparison-overlap]
    assert not worker.forks
    assert worker.further_start().process is again  # type: ignore[comparison-overlap]
    assert host.asked == [("again", "inductor")]


def test_what_is_only_recorded_is_not_warmed_up() -> None:
    worker = compiled(Forking(ScriptedProcess(1.0, [], "start")), is_timed=False)

    worker.open(None)

    assert worker.start is not None
    assert worker.start.call_seconds == 0.0
    assert worker.measurement is None


def test_a_further_start_that_gives_memory_back_says_so() -> None:
    process = Forking(ScriptedProcess(1.0, [], "a"), ScriptedProcess(1.0, [], "b"))
    worker = compiled(process)

    worker.further_start()
    worker.further_start(keeps_memory=False)

    assert [order.keeps_memory for order, _ in process.orders] == [True, False]


def test_a_start_that_cannot_be_forked_is_a_result_of_the_configuration() -> None:
    for error in (CRASH, SubjectError("cannot load it again")):
        process = Forking(error)  # type: ignore[arg-type]
        worker = compiled(process)

        worker.open(None)

        assert worker.trial.status == ("crashed" if error is CRASH else "failed")
        assert worker.trial.failure is not None
        assert worker.trial.failure.message == str(error)
        assert process.is_ended
        assert (worker.start, worker.process) == (None, None)


def test_long_calls_settle_by_themselves() -> None:
    orders: list[Any] = []

    class Kept(ScriptedProcess):
        def ask(self, order: Any, kind: type, timeout_seconds: float | None = None) -> Any:
            orders.append(order)
            return super().ask(order, kind, timeout_seconds)

    start = Start(Kept(1.0, [], "a"), None)  # type: ignore[arg-type]
    for start.call_seconds in (0.2, 0.3):
        assert start.turn(2) == 1.0

    assert orders == [Turn(calls=2, settles=True), Turn(calls=2, settles=False)]
    assert start.cpu_seconds == 2.0


def test_kernels_are_recorded_once_and_without_them_the_times_stand() -> None:
    worker = a_worker()
    iterations, seen = a_recording().iterations, []

    class Profiling(ScriptedProcess):
        def ask(self, order: Any, kind: type, timeout_seconds: float | None = None) -> Any:
            seen.append(order)
            return Profiled(iterations=iterations, peak_memory_bytes=7, notes=("n",))

    class Failing(ScriptedProcess):
        def ask(self, order: Any, kind: type, timeout_seconds: float | None = None) -> Any:
            raise CRASH

    worker.turn(1)
    worker.start = Start(Profiling(1.0, [], "a"), None)  # type: ignore[arg-type]
    worker.profile()
    worker.profile()
    recording = worker.recording(HEAD)
    assert seen == [Profile()]
    assert recording.was_profiled
    assert recording.iterations == iterations
    assert recording.trial.measurement is not None
    assert recording.trial.measurement.peak_memory_bytes == 7
    assert recording.trial.notes == ("n",)

    worker = a_worker()
    worker.turn(1)
    worker.start = Start(Failing(1.0, [], "a"), None)  # type: ignore[arg-type]
    worker.profile()
    assert worker.is_ok
    assert worker.trial.notes == ("the kernel list was not recorded: the process died of signal 11",)
    assert not worker.recording(HEAD).was_profiled
    assert worker.measurement is not None


def test_its_time_is_that_of_further_starts_if_there_are_any() -> None:
    worker = a_worker(script=[3.0, 1.0, 2.0])
    assert worker.measurement is None
    for _ in range(3):
        worker.turn(1)
    assert worker.measurement is not None
    assert worker.measurement.median_seconds == statistics.median([3.0, 1.0, 2.0])

    worker.starts = [(5.0, 6.0, 7.0), (8.0,), (9.0,)]
    worker.note_unkept((4.0, 9.0, 5.0))
    worker.note_unkept((6.0,))

    assert worker.measurement.median_seconds == 8.0
    assert worker.measurement.starts == ((5.0, 6.0, 7.0), (8.0,), (9.0,))
    assert worker.measurement.unkept_seconds == (5.0, 6.0)
    worker.forget_rounds()
    assert worker.measurement is None


def test_a_turn_without_a_process_is_none() -> None:
    worker = a_worker()
    worker.end()

    assert worker.turn(1) is False
    worker.profile()
    assert worker.rounds == []
    assert worker.is_ok


@pytest.mark.parametrize("timeout_seconds", [None, 60.0])
def test_every_order_has_the_time_limit_of_the_configuration(timeout_seconds: float | None) -> None:
    limits: list[float | None] = []

    class Kept(ScriptedProcess):
        def ask(self, order: Any, kind: type, timeout_seconds: float | None = None) -> Any:
            limits.append(timeout_seconds)
            return super().ask(order, kind, timeout_seconds)

    worker = compiled(Forking(Kept(1.0, [], "a")), timeout_seconds=timeout_seconds)
    worker.open(None)
    worker.turn(1)
    worker.profile()

    assert limits == [timeout_seconds] * 4
