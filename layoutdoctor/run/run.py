"""Runs the processes of a diagnosis: eager mode, and all configurations from the first compile to the last profile."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis import Configuration
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.diagnosis.subject import InputUse
from layoutdoctor.errors import SubjectError
from layoutdoctor.examination.advice.applying import how_to_apply
from layoutdoctor.examination.advice.choice import compare_trials, left_standing, undecided
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.run.deriving import (
    MATRIX_PRODUCT_RULE,
    cures_together,
    in_both_directions,
    in_eager_mode,
    in_other_sizes,
    on_a_gpu,
    single_cures,
)
from layoutdoctor.run.watching import now
from layoutdoctor.workers.launcher import LostError
from layoutdoctor.workers.messages import Bandwidth, Copied, Ran
from layoutdoctor.workers.turns import (
    LoadMeter,
    baseline_of,
    compile_side_by_side,
    contenders_of,
    medians_of,
    stopped,
    take_profiles,
    take_rounds,
    take_starts,
)
from layoutdoctor.workers.worker import Worker

if TYPE_CHECKING:
    from layoutdoctor.run.watching import Watch
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.launcher import Host, Launcher
    from layoutdoctor.workers.messages import Request

_LEAST_BUDGET_SECONDS = 10.0
_MOST_BUDGET_SECONDS = 60.0
_ROUNDS_SHARE = 0.5
_STANDING_SHARE = 0.15
"""Share of the budget for a second group of starts: of configurations that may beat the one recommended so far."""
_FIRST_TABLE, _FIRST_TABLE_SECONDS = 3, 1.0
_USUAL_ROUNDS, _USUAL_STARTS = 12, 4


class Eager:
    """
    A process that runs the model in eager mode: first to see whether the model runs, then to compute the reference.

    Attributes:
        reference: File of the outputs with which all others are compared; None if they could not be computed.
        may_convolve: Whether the model ran an operation to which layouts may matter, such as a convolution.
        input_uses: Use of each tensor of the example input, such as ``images``.
        room: Number of processes like this one that fit into the GPU's memory at once; 0 on a CPU, or if not known.
        host: Connection to the process.
        head: The facts that all recordings of the diagnosis share.

    Raises:
        LayoutDoctorError: The subject cannot be loaded.
    """

    def __init__(self, launcher: Launcher, request: Request) -> None:
        self.reference: str | None = launcher.file("reference")
        self.may_convolve, self.room = True, 0
        self.input_uses: tuple[InputUse, ...] = ()
        self.host = launcher.load(request, self.reference)
        self._is_waited_for = False
        loaded = self.host.loaded
        self.head = Head(
            layoutdoctor_version=__version__,
            created_at=now(),
            environment=loaded.environment,
            subject=loaded.subject,
            configurations=(),
        )

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on a device of type ``cuda``."""
        subject = self.head.subject
        return subject.target is None and (subject.device or "cpu").startswith("cuda")

    def run_first(self) -> None:
        """
        Waits for the result of the first eager run.

        Raises:
            SubjectError: The model does not run.
        """
        try:
            ran = self.host.process.answer(Ran)
        except LostError as lost:
            raise SubjectError(f"cannot run {self.head.subject.name} in eager mode: {lost}") from lost
        self.may_convolve, self.room, self.input_uses = ran.may_convolve, ran.room, ran.input_uses
        self._note(ran.notes)

    def wait(self) -> None:
        """Waits for the reference. If the process ends early or the model fails in it, ``reference`` becomes None."""
        if self._is_waited_for:
            return
        self._is_waited_for = True
        try:
            self._note(self.host.process.answer(Ran).notes)
        except (LostError, SubjectError) as lost:
            self.reference = None
            self._note((f"outputs were not compared: computing the reference failed: {lost}",))
        finally:
            self.host.end()

    def _note(self, notes: Sequence[str]) -> None:
        subject = self.head.subject
        notes = tuple(dict.fromkeys((*subject.notes, *notes)))
        self.head = msgspec.structs.replace(self.head, subject=msgspec.structs.replace(subject, notes=notes))


class Run:
    """
    The main part of a diagnosis, after the first eager run: compiling, timing and profiling all configurations.

    Attributes:
        workers: One worker for each configuration, in the order of the report.
    """

    def __init__(self, host: Host, eager: Eager, request: Request, watch: Watch) -> None:
        self.workers: list[Worker] = []
        self._host, self._eager, self._request, self._watch = host, eager, request, watch
        self._meter = LoadMeter()
        self._is_static = request.lower_for is not None
        self._is_timed = request.is_timed and not self._is_static
        self._on_gpu = eager.on_gpu
        self._has_table = False
        self._compile_seconds = 0.0
        self._bandwidth: float | None = None

    def go(self) -> None:
        """Compiles, times and profiles the configurations. For a GPU that this machine lacks, only lowers them."""
        self._try(self._request.configurations)
        if self._is_static:
            self._try_more(in_other_sizes(self.workers, self._host.loaded.subject.inputs))
            return
        if self._request.derives != "nothing":
            self._derive()
        if self._is_timed:
            self._start_again()
        self._profile()

    def end(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.end()

    # ------------------------------------------------------------------------------------------ configurations
    def _try(self, configurations: Sequence[Configuration]) -> None:
        """Compiles configurations, and times them beside the baseline and the fastest configuration so far."""
        new = [self._worker(one) for one in configurations]
        self.workers += new
        left = list(new)
        while left:
            batch = self._batch(left)
            left = [worker for worker in left if worker not in batch]
            done = [worker for worker in self.workers if worker.is_ready and worker not in batch]
            begin = time.monotonic()
            self._watch.begin("compiling")
            is_disturbed = self._on_gpu and any(worker.chooses_by_time for worker in batch)
            most = 1 if is_disturbed else None
            compile_side_by_side(batch, done, self._compiled, most=most, has_formats=self._has_formats())
            uncompiled = [self._worker(one) for one in in_eager_mode(self.workers)]
            self.workers += uncompiled
            compile_side_by_side(uncompiled, [*done, *batch], self._compiled)
            batch += uncompiled
            self._compile_seconds += time.monotonic() - begin
            if self._is_static:
                return
            self._eager.wait()
            self._watch.begin("checking outputs")
            self._open(batch)
            if self._is_timed:
                self._time(batch)
            if self._on_gpu and len(batch) > 1:
                left = [*self._short_of_memory(batch), *left]
            if left:
                self._release(batch)

    def _has_formats(self) -> bool:
        """Whether a parameter or an input of the model can have a channels-last format."""
        of_parameters = CHANNELS_LAST_BY_RANK.keys() & self._host.loaded.parameter_ranks
        return bool(of_parameters) or not {"images", "frames"}.isdisjoint(self._eager.input_uses)

    def _worker(self, configuration: Configuration) -> Worker:
        """Makes the worker of a configuration, with the lines of code by which a user applies the configuration."""
        loaded, how = self._host.loaded, None
        if not self._is_static:
            how = how_to_apply(configuration, frozenset(loaded.parameter_ranks), loaded.call)
        return Worker(self._host, configuration, self._request, how)

    def _batch(self, left: Sequence[Worker]) -> list[Worker]:
        """
        Selects the workers that run next: on a CPU, all workers.

        On a GPU, it selects as many as fit into memory beside the baseline. The baseline itself is selected first.
        """
        if not self._on_gpu:
            return list(left)
        room = self._eager.room - (baseline_of(self.workers) is not None)
        first_the_baseline = sorted(left, key=lambda worker: worker.name != BASELINE)
        return first_the_baseline[: max(1, room)]

    def _short_of_memory(self, batch: Sequence[Worker]) -> list[Worker]:
        """
        Replaces the workers that ran out of memory beside other workers, and returns the new workers.

        If the baseline ran out of memory, the whole batch is replaced. From then on, workers run one at a time.
        """
        failures = {worker: worker.trial.failure for worker in batch}
        short = [
            worker for worker, failure in failures.items() if failure is not None and failure.cause == "out_of_memory"
        ]
        if any(worker.name == BASELINE for worker in short):  # then no worker was timed beside the baseline
            short = list(batch)
        if short:
            self._eager.room = 1
        again = {worker: self._worker(worker.configuration) for worker in short}
        self.workers = [again.get(worker, worker) for worker in self.workers]
        return list(again.values())

    def _release(self, workers: Sequence[Worker]) -> None:
        """Profiles and ends workers, because the next workers need their memory. The baseline's processes stay."""
        baseline = baseline_of(self.workers)
        for worker in workers:
            if worker is not baseline and worker.start is not None:
                take_profiles([worker])
                worker.end()

    def _compiled(self, running: Sequence[Worker]) -> None:
        done = sum(one not in running and (one.is_ready or one.trial.status != "ok") for one in self.workers)
        total = len(self.workers)
        self._watch.step(done / total, f"{done} of {total} configurations are ready")
        self.show()
        ready = [one for one in self.workers if one.is_ok]
        has_baseline = any(one.name == BASELINE for one in ready)
        is_time = has_baseline and len(ready) >= _FIRST_TABLE and running and self._is_timed and not self._on_gpu
        if is_time and not self._has_table and not any(one.rounds for one in ready):
            self._has_table = True
            self._show_first_table(ready, running)

    def _show_first_table(self, ready: Sequence[Worker], running: Sequence[Worker]) -> None:
        """Shows provisional times of the ready workers. The workers that still compile are stopped meanwhile."""
        self._eager.wait()
        with stopped(running):
            self._open(ready)
            baseline = baseline_of(ready)
            if baseline is not None:
                take_rounds([one for one in ready if one.is_ok], baseline, _FIRST_TABLE_SECONDS, self._meter)
                self._watch.provisional(self.recordings())
                for one in ready:
                    one.rounds = []

    def _open(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if worker.is_ok and worker.start is None:
                worker.open(self._eager.reference)

    def _time(self, workers: Sequence[Worker]) -> None:
        """Times workers in turns, beside the baseline and the fastest configuration so far."""
        baseline = baseline_of(self.workers)
        if baseline is None:
            return
        self._watch.begin("timing all configurations in turns")
        chosen = dict.fromkeys((baseline, *contenders_of(self.workers, baseline)[:1], *workers))
        ready = [worker for worker in chosen if worker.is_ok and worker.start is not None]
        done = lambda number: self._watch.step(number / _USUAL_ROUNDS, f"round {number}")  # noqa: E731
        take_rounds(ready, baseline, self._budget * _ROUNDS_SHARE, self._meter, done)
        self.show()

    @property
    def _budget(self) -> Seconds:
        usual = min(max(self._compile_seconds, _LEAST_BUDGET_SECONDS), _MOST_BUDGET_SECONDS)
        return usual if self._request.budget_seconds is None else self._request.budget_seconds

    def _derive(self) -> None:
        self._measure_bandwidth()
        if self._request.derives == "matrix_products":
            self._try_more(single_cures(self.workers, self._medians(), self._bandwidth, (MATRIX_PRODUCT_RULE,)))
            return
        self._try_more(in_both_directions(self.workers))
        self._try_more(single_cures(self.workers, self._medians(), self._bandwidth))
        self._try_more(cures_together(self.workers, self._medians()))
        if self._on_gpu:
            environment = self._host.loaded.environment
            self._try_more(on_a_gpu(self.workers, self._medians(), environment, tries_all=self._request.tries_all))

    def _try_more(self, configurations: Sequence[Configuration]) -> None:
        known = {worker.name for worker in self.workers}
        new = [one for one in configurations if one.name not in known]
        if new:
            self._try(new)

    def _medians(self) -> dict[str, float]:
        baseline = baseline_of(self.workers)
        return {} if baseline is None else {baseline.name: 1.0, **medians_of(self.workers, baseline)}

    def _start_again(self) -> None:
        """
        Times the best configurations in further starts, until no other configuration could be better.

        If it is then still open which of two configurations to recommend, both are started again.
        """
        baseline = baseline_of(self.workers)
        if baseline is None:
            return
        found = contenders_of(self.workers, baseline)
        if not found:
            return
        at_once = 1
        if self._on_gpu:  # the further starts need the GPU's memory
            self._profile()
            self.end()
            at_once = self._eager.room // (len(found) + 1)
        self._watch.begin("timing the best again in further processes")
        limit = self._budget * (1 - _ROUNDS_SHARE)
        done = lambda number: self._watch.step(number / _USUAL_STARTS, f"start {number}")  # noqa: E731
        started: set[str] = set()
        while found:
            take_starts(found, baseline, limit, self._meter, done, at_once=at_once)
            started.update(worker.name for worker in found)
            limit = self._budget * _STANDING_SHARE
            standing = left_standing([one.trial for one in self.recordings()])
            found = [worker for worker in self.workers if worker.name in standing and worker.name not in started]
        trials = [one.trial for one in self.recordings()]
        comparison = compare_trials(trials)
        if comparison is not None and (names := undecided(trials, comparison)):
            found = [worker for worker in self.workers if worker.name in names]
            take_starts(found, baseline, limit, self._meter, done, at_once=at_once)
        self.show()

    def _profile(self) -> None:
        ready = [worker for worker in self.workers if worker.start is not None]
        if not ready:
            return
        self._watch.begin("profiling")
        take_profiles(ready, lambda share: self._watch.step(share, "kernels"))
        self._measure_bandwidth()

    def _measure_bandwidth(self) -> None:
        """Measures the device's copy bandwidth once, in the first process that still answers."""
        for worker in self.workers:
            if self._bandwidth is None and worker.start is not None and not worker.start_is_lost:
                with contextlib.suppress(LostError):
                    self._bandwidth = worker.start.process.ask(Bandwidth(), Copied).bytes_per_second

    # ------------------------------------------------------------------------------------------ results
    def recordings(self) -> tuple[Recording, ...]:
        """Returns the present recordings of all configurations."""
        logs = (one.log for worker in self.workers for one in worker.iterations if one.log is not None)
        onednn = next((log for log in logs if log.version or log.isa), None)
        environment = msgspec.structs.replace(
            self._eager.head.environment,
            onednn=onednn and onednn.version,
            onednn_isa=onednn and onednn.isa,
            copy_bandwidth_bytes_per_second=self._bandwidth,
        )
        head = msgspec.structs.replace(
            self._eager.head,
            environment=environment,
            configurations=tuple(worker.name for worker in self.workers),
            other_cores=self._meter.other_cores,
        )
        return tuple(worker.recording(head) for worker in self.workers)

    def show(self) -> None:
        """Shows the rows of the configurations that have compiled or failed."""
        is_known = [worker.is_ready or worker.trial.status != "ok" for worker in self.workers]
        if any(is_known):
            self._watch.show(list(itertools.compress(self.recordings(), is_known)))
