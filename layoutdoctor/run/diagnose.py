"""
``diagnose()``: the whole story on one page.

Load the subject, compile every configuration in a worker of its own, time them in turns, derive further ones, time the
best again in further starts, profile. Examine the recordings, run the rules. This process compiles nothing, runs no
model, and changes nothing of the caller's.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.configurations import ALL, BASELINE, choose_configurations, find_target, is_a_group
from layoutdoctor.diagnosis.subject import Configuration
from layoutdoctor.diagnosis.trial import Trial
from layoutdoctor.errors import SubjectError, TransportError, UsageError, needs_torch
from layoutdoctor.examination.applying import how_to_apply
from layoutdoctor.examination.choice import compare, recommend
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.rules import Rule
from layoutdoctor.run.deriving import cures_together, in_both_directions, on_a_gpu, single_cures
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.watching import Watch, now, showing
from layoutdoctor.workers.launcher import LostError, kept_launcher
from layoutdoctor.workers.messages import DEFAULT_TIMEOUT_SECONDS, Bandwidth, Copied, Progress, Ran, Request
from layoutdoctor.workers.scheduling import compile_side_by_side, stopped
from layoutdoctor.workers.turns import (
    UNKEPT_STARTS,
    LoadMeter,
    baseline_of,
    contenders_of,
    medians_of,
    provisional_rounds,
    take_rounds,
    take_starts,
    time_start,
)
from layoutdoctor.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.units import Seconds
    from layoutdoctor.workers.launcher import Host, Launcher, Process
    from layoutdoctor.workers.messages import Loaded

_LEAST_BUDGET_SECONDS = 10.0
_MOST_BUDGET_SECONDS = 60.0
_ROUNDS_SHARE = 0.5
_FIRST_TABLE = 3
_USUAL_ROUNDS, _USUAL_STARTS = 12, 4


def diagnose(
    model: Callable[..., Any],
    example_input: Any,
    *,
    mode: Mode = "inference",
    configurations: str | Configuration | Iterable[str | Configuration] = "default",
    rules: Sequence[Rule] | None = None,
    target: str | None = None,
    budget_seconds: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    timeout_seconds: float | None = None,
) -> Diagnosis:
    """
    Finds out under which layout configuration a model is fastest, and what the conversions between layouts cost.

    The model travels to processes of layoutdoctor's own, by cloudpickle. This process compiles nothing.

    Args:
        model: An nn.Module or any callable; it is not changed. A compiled model is unwrapped.
        example_input: A Tensor, a tuple of positional or a dict of keyword arguments, such as images ``[N, C, H, W]``;
            or what ``record_inputs`` kept of a call of the model.
        mode: ``inference`` (eval mode, no gradients) or ``training`` (forward, backward of a scalar loss).
        configurations: ``default``, ``quick``, ``all``, names, or Configuration values.
        rules: Rules to run; None for all.
        target: A GPU that is not there, such as ``cuda:90``: the graphs are traced on the CPU and lowered for it, and
            nothing is measured. None measures where the model is.
        budget_seconds: For rounds and starts. None: as long as compiling took, at least 10 s, at most 60 s.
        progress: Called with a ``Progress`` at every step; None shows a line in a notebook and on a terminal, which is
            gone at the end.
        timeout_seconds: How long one configuration may take; None for half an hour, infinity for no limit.

    Returns:
        The record; ``print`` it for the report.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run on the example input in eager mode.
        TransportError: The model cannot travel to another process; the message names what cannot.
    """
    _check(mode, budget_seconds, progress, timeout_seconds)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    chosen = choose_configurations(listed[0] if isinstance(configurations, str) else listed, mode)
    rules = None if rules is None else _listed(rules, (Rule,), "rule", _A_RULE)
    if target is not None:
        find_target(target)  # before the model is looked at
    limit = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    request = Request(
        mode=mode,
        configurations=chosen,
        derives=is_a_group(configurations),
        tries_all=configurations == ALL,
        lower_for=target,
        budget_seconds=budget_seconds,
        timeout_seconds=None if limit == math.inf else float(limit),
    )
    with showing(progress) as tell:
        return diagnose_object(model, example_input, request, Watch(tell), rules)


def record_only(
    model: Callable[..., Any], example_input: Any, *, mode: Mode, configurations: Iterable[str | Configuration]
) -> Diagnosis:
    """A diagnosis without times: conversions, kernels and decisions; arguments and errors are those of ``diagnose``."""
    _check(mode, None, None, None)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    request = Request(mode=mode, configurations=choose_configurations(listed, mode), is_timed=False)
    return diagnose_object(model, example_input, request, Watch(lambda progress: None))


def diagnose_object(
    model: Callable[..., Any],
    example_input: Any,
    request: Request,
    watch: Watch,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """The diagnosis of a model that the caller holds; raises as ``diagnose`` does."""
    with needs_torch():  # late, as the command's process has no torch
        from layoutdoctor.measure.memory import release_memory
        from layoutdoctor.subjects.subject import subject_from_python
        from layoutdoctor.subjects.transport import save_subject
    subject = subject_from_python(model, example_input)
    release_memory()  # what this process's allocators keep for later is room for the workers
    launcher = kept_launcher()
    with launcher.folder() as directory:
        try:
            save_subject(subject, directory)
        except SubjectError as error:
            raise TransportError(str(error)) from error
        request = msgspec.structs.replace(request, subject_directory=str(directory))
        return diagnose_request(launcher, request, watch, rules)


def diagnose_request(
    launcher: Launcher, request: Request, watch: Watch, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    The diagnosis that a request asks for, findings included.

    Raises:
        LayoutDoctorError: The subject cannot be loaded, or does not run in eager mode.
    """
    watch.begin("loading the model")
    with launcher.folder():
        loaded, seen = _scouted(launcher, request)
        if seen.may_convolve or request.lower_for is not None:
            recordings = _recorded(launcher, request, watch, seen.notes)
        else:
            recordings = _not_tried(loaded, seen.notes, request)
    watch.begin("looking for findings")
    return diagnose_recordings(watch.finished(recordings), rules)


def _scouted(launcher: Launcher, request: Request) -> tuple[Loaded, Ran]:
    """
    The subject, and what one eager call showed.

    Raises:
        SubjectError: The subject cannot be loaded, or does not run.
    """
    scout = launcher.load(request, scouts=True)
    try:
        return scout.loaded, scout.process.answer(Ran, request.timeout_seconds)
    except LostError as lost:
        raise SubjectError(f"cannot run {scout.loaded.subject.name} in eager mode: {lost}") from lost
    finally:
        scout.end()


def _recorded(launcher: Launcher, request: Request, watch: Watch, notes: Sequence[str]) -> Sequence[Recording]:
    host = launcher.load(request)
    run = Run(host, request, watch, notes)
    try:
        run.go()
    finally:
        watch.keep(run.recordings)
        run.end()
        host.end()
    return run.recordings()


def _not_tried(loaded: Loaded, notes: Sequence[str], request: Request) -> Sequence[Recording]:
    """Recordings of a model without convolution, for which nothing is compiled."""
    head = _head_of(loaded, notes)
    head = msgspec.structs.replace(
        head,
        subject=msgspec.structs.replace(head.subject, convolution_module_count=0),
        configurations=tuple(configuration.name for configuration in request.configurations),
    )
    trials = (Trial(configuration=one, status="skipped") for one in request.configurations)
    return [Recording(head=head, trial=trial, source="live") for trial in trials]


def _head_of(loaded: Loaded, notes: Sequence[str]) -> Head:
    head = Head(
        layoutdoctor_version=__version__,
        created_at=now(),
        environment=loaded.environment,
        subject=loaded.subject,
        configurations=(),
    )
    return _with_notes(head, notes)


def _with_notes(head: Head, notes: Sequence[str]) -> Head:
    notes = tuple(dict.fromkeys((*head.subject.notes, *notes)))
    return msgspec.structs.replace(head, subject=msgspec.structs.replace(head.subject, notes=notes))


class Run:
    """
    A measured diagnosis under way.

    Attributes:
        workers: One per configuration, in the order of the report.
    """

    def __init__(self, host: Host, request: Request, watch: Watch, notes: Sequence[str]) -> None:
        self.workers: list[Worker] = []
        self._host, self._request, self._watch = host, request, watch
        self._head = _head_of(host.loaded, notes)
        self._meter = LoadMeter()
        self._is_static = request.lower_for is not None
        self._is_timed = request.is_timed and not self._is_static
        self._on_gpu = (host.loaded.subject.device or "cpu").startswith("cuda") and not self._is_static
        self._reference: Process | None = None
        self._reference_file: str | None = None
        self._has_table = False
        self._compile_seconds = 0.0
        self._bandwidth: float | None = None

    def go(self) -> None:
        """From the first compile to the last profile."""
        if not self._is_static:
            self._begin_reference()
        self._try(self._request.configurations)
        if self._is_static:
            return
        if self._request.derives:
            self._derive()
        if self._is_timed:
            self._start_again()
        self._profile()
        if self._is_timed:
            self._time_without_kept_memory()

    def end(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.end()
        if self._reference is not None:
            self._reference.end()

    # ------------------------------------------------------------------------------------------ the reference
    def _begin_reference(self) -> None:
        self._watch.begin("running the model in eager mode")
        self._reference_file = self._host.file("reference")
        self._reference = self._host.begin("reference", path=self._reference_file)
        if self._on_gpu:  # its memory is needed
            self._wait_for_reference()

    def _wait_for_reference(self) -> None:
        """Lets the reference end; if its process is lost, no outputs are compared."""
        if self._reference is None:
            return
        process, self._reference = self._reference, None
        try:
            notes = process.answer(Ran, self._request.timeout_seconds).notes
        except LostError as lost:
            self._reference_file = None
            notes = (f"outputs were not compared: computing the reference failed: {lost}",)
        finally:
            process.end()
        self._head = _with_notes(self._head, notes)

    # ------------------------------------------------------------------------------------------ configurations
    def _try(self, configurations: Sequence[Configuration]) -> None:
        """Compiles configurations, and times them beside the baseline and the best."""
        new = [Worker(self._host, one, self._request, self._how(one)) for one in configurations]
        self.workers += new
        left = list(new)
        while left:
            batch = self._batch(left)
            left = [worker for worker in left if worker not in batch]
            done = [worker for worker in self.workers if worker.is_ready and worker not in batch]
            begin = time.monotonic()
            self._watch.begin("compiling")
            compile_side_by_side(batch, done, self._compiled, most=1 if self._on_gpu else None)
            self._compile_seconds += time.monotonic() - begin
            if self._is_static:
                return
            self._wait_for_reference()
            self._watch.begin("checking outputs")
            self._open(batch)
            if self._is_timed:
                self._time(batch)
            if left:
                self._release(batch)

    def _how(self, configuration: Configuration) -> str | None:
        """Lines to paste that apply a configuration."""
        loaded = self._host.loaded
        return None if self._is_static else how_to_apply(configuration, frozenset(loaded.parameter_ranks), loaded.call)

    def _batch(self, left: Sequence[Worker]) -> list[Worker]:
        """Those that a GPU's memory holds at once beside the baseline, which comes first; on a CPU all."""
        if not self._on_gpu:
            return list(left)
        baseline = baseline_of(self.workers)
        if baseline is None or baseline.start is None:
            return [next((one for one in left if one.name == BASELINE), left[0])]
        room = baseline.start.room
        return list(left if room is None else left[: max(1, room)])

    def _release(self, workers: Sequence[Worker]) -> None:
        """Lets go of processes whose memory others need; the baseline stays."""
        baseline = baseline_of(self.workers)
        for worker in workers:
            if worker is not baseline and worker.start is not None:
                worker.profile()
                worker.end()

    def _compiled(self, worker: Worker, running: Sequence[Worker]) -> None:
        done = sum(one not in running and (one.is_ready or one.trial.status != "ok") for one in self.workers)
        total = len(self.workers)
        self._watch.step(done / total, f"{done} of {total} configurations are ready")
        self._show()
        ready = [one for one in self.workers if one.is_ok]
        has_baseline = any(one.name == BASELINE for one in ready)
        is_time = has_baseline and len(ready) >= _FIRST_TABLE and running and self._is_timed and not self._on_gpu
        if is_time and not self._has_table:
            self._has_table = True
            self._show_first_table(ready, running)

    def _show_first_table(self, ready: Sequence[Worker], running: Sequence[Worker]) -> None:
        """Shows provisional times, while what compiles is stopped."""
        self._wait_for_reference()
        with stopped(running):
            self._open(ready)
            if baseline_of(ready) is not None:
                provisional_rounds([one for one in ready if one.is_ok], self._meter)
                self._watch.provisional(self.recordings())
                for one in ready:
                    one.forget_rounds()

    def _open(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if worker.is_ok and worker.start is None:
                worker.open(self._reference_file)

    def _time(self, workers: Sequence[Worker]) -> None:
        """Times workers in turns, beside the baseline and the best so far."""
        baseline = baseline_of(self.workers)
        if baseline is None:
            return
        self._watch.begin("timing all configurations in turns")
        chosen = dict.fromkeys((baseline, *contenders_of(self.workers, baseline)[:1], *workers))
        ready = [worker for worker in chosen if worker.is_ok and worker.start is not None]
        take_rounds(ready, baseline, self._budget * _ROUNDS_SHARE, self._meter, self._rounds_done)
        self._show()

    def _rounds_done(self, number: int) -> None:
        self._watch.step(number / _USUAL_ROUNDS, f"round {number}")

    def _starts_done(self, number: int) -> None:
        self._watch.step(number / _USUAL_STARTS, f"start {number}")

    @property
    def _budget(self) -> Seconds:
        usual = min(max(self._compile_seconds, _LEAST_BUDGET_SECONDS), _MOST_BUDGET_SECONDS)
        return usual if self._request.budget_seconds is None else self._request.budget_seconds

    def _derive(self) -> None:
        """Tries what follows from what was timed."""
        self._try_more(in_both_directions(self.workers))
        self._try_more(single_cures(self.workers, self._medians()))
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
        baseline = baseline_of(self.workers)
        if baseline is None:
            return
        found = contenders_of(self.workers, baseline)
        if found:
            self._watch.begin("timing the best again in further processes")
            if self._on_gpu:
                self._release(self.workers)
            take_starts(found, baseline, self._budget * (1 - _ROUNDS_SHARE), self._meter, self._starts_done)
            self._show()

    def _profile(self) -> None:
        self._watch.begin("profiling")
        ready = [worker for worker in self.workers if worker.start is not None]
        for number, worker in enumerate(ready):
            worker.profile()
            self._watch.step((number + 1) / len(ready), f"{number + 1} of {len(ready)}")
        for worker in ready:
            try:
                copied = worker.ask_start(Bandwidth(), Copied)
            except LostError:  # its profile was the end of it
                continue
            self._bandwidth = copied.bytes_per_second
            return

    def _time_without_kept_memory(self) -> None:
        """A few starts of the default and the best with glibc's own settings, whose page faults are the user's."""
        baseline = baseline_of(self.workers)
        if baseline is None or self._on_gpu or not baseline.forks:
            return
        self._watch.begin("timing with the allocator's own settings")
        trials = [one.trial for one in self.recordings()]
        advice = recommend(trials, compare(trials), {})
        name = None if advice is None else advice.configuration
        pair = [baseline, *(one for one in self.workers if one.name == name and one is not baseline and one.forks)]
        for _ in range(UNKEPT_STARTS):
            rounds = time_start(pair, baseline.calls, self._meter, keeps_memory=False)
            if rounds is None:
                return
            for worker, seconds in zip(pair, rounds, strict=True):
                worker.unkept = (*worker.unkept, statistics.median(seconds))

    # ------------------------------------------------------------------------------------------ what was seen
    def recordings(self) -> tuple[Recording, ...]:
        """The recordings of all configurations so far."""
        onednn = next((worker.onednn for worker in self.workers if worker.onednn != (None, None)), (None, None))
        environment = msgspec.structs.replace(
            self._head.environment,
            onednn=onednn[0],
            onednn_isa=onednn[1],
            copy_bandwidth_bytes_per_second=self._bandwidth,
        )
        head = msgspec.structs.replace(
            self._head,
            environment=environment,
            configurations=tuple(worker.name for worker in self.workers),
            other_cores=self._meter.other_cores,
        )
        return tuple(worker.recording(head) for worker in self.workers)

    def _show(self) -> None:
        """Shows the rows of what has compiled or failed."""
        is_known = [worker.is_ready or worker.trial.status != "ok" for worker in self.workers]
        if any(is_known):
            self._watch.show(list(itertools.compress(self.recordings(), is_known)))


def _check(mode: object, budget_seconds: object, progress: object, timeout_seconds: object) -> None:
    if mode not in ("inference", "training"):
        raise UsageError(f"cannot diagnose in mode {mode!r}: expected inference or training")
    bound = 1.0 if budget_seconds is None else budget_seconds
    if not isinstance(bound, Real) or not 0 < float(bound) < math.inf:
        raise UsageError(f"cannot measure within {budget_seconds!r} seconds: expected a budget above 0, such as 30")
    if progress is not None and not callable(progress):
        raise UsageError(f"cannot use {progress!r} as progress: expected a function, or None")
    if timeout_seconds is not None and (not isinstance(timeout_seconds, Real) or not float(timeout_seconds) > 0):
        raise UsageError(
            f"cannot limit a configuration to {timeout_seconds!r} seconds: expected a number above 0, such as 600"
        )


_A_CONFIGURATION = "a name such as 'inductor', 'default', 'all', or a Configuration, or several of them"
_A_RULE = "Rule values, such as those in ALL_RULES"


def _listed(values: object, kinds: tuple[type, ...], kind: str, expected: str) -> tuple[Any, ...]:
    listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, kinds) else (values,)
    wrong = [value for value in listed if not isinstance(value, kinds)]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a {kind}: expected {expected}")
    return listed
