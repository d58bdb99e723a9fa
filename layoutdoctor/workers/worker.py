"""The parent's side of a configuration: its orders to the worker process and to starts, and their results."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis import Configuration, Failure, Lack, Observed, Rounds, TrialStatus
from layoutdoctor.diagnosis.configurations import CUDNN_BENCHMARK
from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.files.writing import TRACE_SUFFIX, file_name_of
from layoutdoctor.recording.recording import Recording
from layoutdoctor.workers.launcher import LostError
from layoutdoctor.workers.messages import (
    Check,
    Checked,
    Compile,
    Compiled,
    Fork,
    MeasuredMemory,
    MeasureMemory,
    Prepared,
    Profiled,
    ProfileIteration,
    Ready,
    Turn,
    Turned,
    WarmUp,
)

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Head, Iteration
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.launcher import Host, Process
    from layoutdoctor.workers.messages import Proposal, Request

EAGER_REASON = "eager runs no compiler: nothing to lower for a GPU that is not there"
FREEZING_REASON = (
    "freezing folds the weights into the CPU's own convolutions before a graph is lowered; "
    "diagnose it on a machine with the GPU"
)
OPTIONS_ARE_THE_SAME = "the same options and formats are in effect"
CODE_IS_THE_SAME = "the generated code is the same"


class Start:
    """
    A start: a process of a configuration that can be timed.

    Attributes:
        call_seconds: Approximate time of a call; 0 until the process is warm.
        cpu_seconds: Processor time of all turns so far.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.cpu_seconds = 0.0
        self.call_seconds = 0.0

    def begin_to_warm_up(self) -> None:
        """Orders the process to warm up, and does not wait. The process may have to load and compile first."""
        self.process.tell(WarmUp())

    def wait_until_warm(self) -> None:
        """Waits until the process is warm, if it is not warm yet; raises as ``Process.ask`` does."""
        if not self.call_seconds:
            self.call_seconds = self.process.answer(Ready).call_seconds

    def turn(self, calls: int) -> Seconds:
        """
        Times some calls and returns the median time, or the lower of the two middle times for an even number of calls.

        Raises:
            LostError: The process has ended, or does not answer.
        """
        turned = self.process.ask(Turn(calls=calls), Turned)
        self.cpu_seconds += turned.cpu_seconds
        return statistics.median_low(turned.seconds)


class Worker:
    """
    The worker of one configuration, as the parent process sees it.

    Attributes:
        trial: The trial so far. Its status is ``ok`` until the configuration fails, is skipped or equals another one.
        is_static: Whether the configuration is lowered for a GPU that this machine lacks, so that nothing is measured.
        is_ready: Whether the worker has compiled.
        key: Hash of the options and formats in effect, by which equal workers are found; None before preparation.
        code: Hash of the generated code, or of formats and cures in eager mode; None if some of the code is not known.
        proposals: Cures that may help.
        start: The process that is timed in rounds; None before it is made and after it has ended.
        rounds: Time of each round, in seconds.
        first_round: Number of rounds of the baseline before this worker's first round.
        starts: Round times of each further start, in seconds; empty for starts of the baseline without this worker.
        calls: Number of calls in each turn.
        process: The process of the worker; None before it begins and after it has ended.
        iterations: Profiled iterations.
        was_profiled: Whether the profiler was tried and the process still answered.
        start_is_lost: Whether ``start`` ended, failed or did not answer under the profiler.
        forks: Whether starts are forks of this worker; otherwise the worker itself is the first start.
        compile_seconds: Wall time of the first call; None for eager.
    """

    def __init__(self, host: Host, configuration: Configuration, request: Request, how: str | None) -> None:
        self.is_static = request.lower_for is not None
        self.trial = Observed(configuration=configuration, status="ok", is_static=self.is_static)
        if self.is_static and (configuration.backend != "inductor" or configuration.freezes):
            reason = FREEZING_REASON if configuration.freezes else EAGER_REASON
            self.observe(status="skipped", failure=Failure(kind="target", message=reason))
        self.is_ready = False
        self.key: str | None = None
        self.code: str | None = None
        self.proposals: tuple[Proposal, ...] = ()
        self.start: Start | None = None
        self.rounds: list[Seconds] = []
        self.first_round = 0
        self.starts: list[tuple[Seconds, ...]] = []
        self.calls = 1
        self.process: Process | None = None
        self._host, self._request, self._how = host, request, how
        self._deadline: float | None = None
        self.iterations: tuple[Iteration, ...] = ()
        self.was_profiled = self.start_is_lost = self._is_checked = False
        self.forks = False
        self.compile_seconds: Seconds | None = None
        self._peak_memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """Name of the configuration."""
        return self.trial.name

    @property
    def configuration(self) -> Configuration:
        """The configuration of the trial."""
        return self.trial.configuration

    @property
    def chooses_by_time(self) -> bool:
        """Whether a library or Inductor times kernels to choose one, so that nothing may run beside the first call."""
        configuration = self.configuration
        names = [*configuration.inductor_options, str(configuration.compile_arguments.get("mode"))]
        settings = self._host.loaded.environment.settings
        times_algorithms = settings.get(f"torch.backends.{CUDNN_BENCHMARK}") == "True"
        times_algorithms |= configuration.library_switches.get(CUDNN_BENCHMARK, False)
        return times_algorithms or any("max" in name and "autotune" in name for name in names)

    @property
    def is_ok(self) -> bool:
        """Whether the worker has compiled and nothing has failed."""
        return self.is_ready and self.trial.status == "ok"

    # ------------------------------------------------------------------------------------------ compiling
    def begin(self) -> None:
        """Starts the process, unless the configuration is skipped."""
        if self.trial.status == "skipped":
            return
        if self._request.timeout_seconds is not None:
            self._deadline = time.monotonic() + self._request.timeout_seconds
        with self.losing():
            self.process = self._host.begin(self.configuration)

    def postpone(self, seconds: Seconds) -> None:
        """Moves the time limit later, by the time for which the process was stopped."""
        if self._deadline is not None:
            self._deadline += seconds

    @property
    def seconds_left(self) -> Seconds | None:
        """Time until the time limit; None without a limit."""
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 1e-3)

    def hear(self, others: Sequence[Worker]) -> bool:
        """
        Receives the next message of a process that compiles.

        Args:
            others: All workers that have begun, the earliest first, this worker included. The first of several workers
                with the same options and formats represents all of them.

        Returns:
            Whether this was the last message: the worker has compiled, has failed, or is the same as another one.
        """
        assert self.process is not None
        with self.losing():
            if self.key is None:
                self.key = self.process.answer(Prepared, self.seconds_left).key
                same = next((one for one in others if one.key == self.key and one.trial.status != "same_as"), None)
                if same is not None and same is not self and self._yields_to(same, others, OPTIONS_ARE_THE_SAME):
                    return True
                compiling = sum(one.process is not None and not one.is_ready for one in others)
                self.process.tell(Compile(kernels_at_once=max(1, (os.cpu_count() or 1) // compiling)))
                return False
            compiled = self.process.answer(Compiled, self.seconds_left)
            self.trial, self.code, self.proposals = compiled.trial, compiled.code, compiled.proposals
            self.compile_seconds = compiled.compile_seconds
            self.forks = compiled.forks
            self.is_ready = True
            same = next((one for one in others if one is not self and one.is_ok and one.code == self.code), None)
            if self.code is not None and same is not None:
                self._yields_to(same, others, CODE_IS_THE_SAME)
            if self.is_static:
                self.end()
        return True

    def _yields_to(self, same: Worker, others: Sequence[Worker], why: str) -> bool:
        """
        Drops one of two equal workers. Keeps ``same`` if it was begun first, is timed already, or has failed.

        If one of the two configurations is eager and the other is compiled, the eager configuration is kept.

        Returns:
            Whether this worker was dropped.
        """
        is_later = others.index(self) > others.index(same) or same.start is not None or same.trial.status != "ok"
        if self.configuration.backend != same.configuration.backend:
            is_later = same.configuration.backend == "eager"
        kept, dropped = (same, self) if is_later else (self, same)
        dropped.observe(status="same_as", same_as=kept.name, notes=(*dropped.trial.notes, why))
        dropped.rounds = []
        dropped.end()
        for one in others:
            if one.trial.same_as == dropped.name:  # a worker that did not compile gets the graphs of its equal
                one.observe(same_as=kept.name, graphs=one.trial.graphs or dropped.trial.graphs)
        return is_later

    # ------------------------------------------------------------------------------------------ running
    def open(self, reference: str | None) -> None:
        """Makes the first start, and checks its outputs. If the configuration is to be timed, warms the start up."""
        with self.losing():
            process = self._forked() if self.forks else self.process
            assert process is not None
            self.start = Start(process)
            checked = process.ask(Check(path=reference), Checked)
            self.trial, self.proposals = checked.trial, checked.proposals or self.proposals
            self._is_checked = True
            if self._request.is_timed:
                self.start.begin_to_warm_up()
                self.start.wait_until_warm()

    def _forked(self) -> Process:
        assert self.process is not None
        return self.process.fork(Fork(log=self._host.file(self.name)))

    def further_start(self) -> Start:
        """
        Makes one more process of the configuration, which is not warm yet.

        Raises:
            LostError: The process cannot be started. If it then fails to load the subject, ``wait_until_warm`` raises.
        """
        if self.forks:
            return Start(self._forked())
        return Start(self._host.begin(self.configuration, is_again=True))

    def turn(self) -> None:
        """Times one more round, unless the worker has failed."""
        with self.losing():
            if self.start is not None:
                self.rounds.append(self.start.turn(self.calls))

    def profile(self) -> bool:
        """Records the kernels of one more iteration; returns False if this fails. Other results are kept anyway."""
        if self.start is None:
            return False
        folder, file = self._request.trace_directory, None
        if folder is not None:
            file = str(Path(folder) / f"{file_name_of(self.name)}{TRACE_SUFFIX}")
        try:
            seen = self.start.process.ask(ProfileIteration(calls=self.calls, trace_file=file), Profiled)
        except LostError as lost:
            self._note(Lack(part="kernels", reason=f"the kernel list was not recorded: {lost}"))
            self.start_is_lost = True
            return False
        self.was_profiled = True
        self._note(*seen.lacks)
        self.iterations += seen.iterations
        return bool(seen.iterations)

    def _note(self, *lacks: Lack) -> None:
        self.observe(lacks=(*self.trial.lacks, *(lack for lack in lacks if lack not in self.trial.lacks)))

    def measure_memory(self) -> None:
        """Measures the peak memory of an iteration, if the process still answers."""
        if self.start is not None and not self.start_is_lost:
            with contextlib.suppress(LostError):
                seen = self.start.process.ask(MeasureMemory(), MeasuredMemory)
                self._peak_memory_bytes = seen.peak_memory_bytes

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        """A block in which an error of layoutdoctor, such as a lost process, becomes the failure of the trial."""
        try:
            yield
        except LostError as lost:
            failure = lost.failure
            if lost.status == "failed":
                self.proposals = lost.proposals
            else:  # a lost process did not report its stage
                failure = msgspec.structs.replace(failure, kind=self._stage)
            self._lose(failure, lost.status)
        except LayoutDoctorError as error:
            self._lose(Failure(kind="prepare", message=str(error)), "failed")

    @property
    def _stage(self) -> str:
        """The present stage, in the words of ``Failure.kind``."""
        if self.key is None:
            return "prepare"
        if not self.is_ready:
            stage = "target" if self.is_static else "compile"
            return stage if self.configuration.backend == "inductor" else "run"
        return "measure" if self._is_checked else "run"

    def _lose(self, failure: Failure, status: TrialStatus) -> None:
        self.observe(status=status, failure=failure)
        self.rounds, self.starts = [], []
        self.end()

    def observe(self, **facts: Any) -> None:
        """Sets fields of the trial."""
        self.trial = msgspec.structs.replace(self.trial, **facts)

    def end(self) -> None:
        """Ends the processes of the worker."""
        for process in (None if self.start is None else self.start.process, self.process):
            if process is not None:
                process.end()
        self.start = self.process = None

    # ------------------------------------------------------------------------------------------ results
    @property
    def measurement(self) -> Rounds | None:
        """The times so far; None before the first round."""
        if not self.rounds:
            return None
        return Rounds(
            round_seconds=tuple(self.rounds),
            compile_seconds=self.compile_seconds,
            peak_memory_bytes=self._peak_memory_bytes,
            calls_per_round=self.calls,
            first_round=self.first_round,
            starts=tuple(self.starts),
        )

    def recording(self, head: Head) -> Recording:
        """Makes the recording of the configuration."""
        return Recording(
            head=head,
            trial=msgspec.structs.replace(self.trial, measurement=self.measurement),
            iterations=self.iterations,
            was_profiled=self.was_profiled or (self.is_static and self.is_ok),
            how=self._how,
        )
