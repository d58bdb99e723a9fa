"""
``diagnose()``: the whole story on one page.

Load, rehearse, run every configuration under capture, time them in turns, compare, choose, measure the choice again,
let the rules look. Everything that comes out is one frozen record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from numbers import Real
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor._version import __version__
from layoutdoctor.analysis.choice import choose_baseline, eligible_names, recommend
from layoutdoctor.analysis.comparison import COVERAGE, compare, rounds_needed
from layoutdoctor.capture.compat import DynamoState, triton_version
from layoutdoctor.configurations import choose_configurations
from layoutdoctor.errors import UsageError
from layoutdoctor.measure.bandwidth import measure_copy_bandwidth
from layoutdoctor.measure.environment import describe_environment
from layoutdoctor.measure.equivalence import compute_reference
from layoutdoctor.measure.step import check_runs
from layoutdoctor.measure.timing import choose_timer, measure_rounds, to_measurement
from layoutdoctor.progress import DEFAULT_BUDGET_SECONDS, Progress
from layoutdoctor.records import Configuration, Diagnosis, Failure
from layoutdoctor.rules import Rule, run_rules
from layoutdoctor.static_trials import diagnose_for_target
from layoutdoctor.subjects.state import preserved_state
from layoutdoctor.subjects.subject import (
    describe,
    input_ranks,
    parameter_ranks,
    subject_from_python,
    with_something_to_train,
)
from layoutdoctor.targets import find_target
from layoutdoctor.trials import LiveTrial, run_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from layoutdoctor.measure.timing import RoundTimes, Timer
    from layoutdoctor.records import Comparison, Mode, Recommendation, Subject
    from layoutdoctor.subjects.subject import LoadedSubject

CONFIRMATION_SHARE = 0.25
"""Part of the budget kept for measuring the chosen configuration again."""


def diagnose(
    model: Callable[..., Any],
    example_input: Any,
    *,
    mode: Mode = "inference",
    configurations: str | Configuration | Iterable[str | Configuration] = "default",
    rules: Sequence[Rule] | None = None,
    target: str | None = None,
    budget_seconds: float = DEFAULT_BUDGET_SECONDS,
    progress: Callable[[Progress], None] | None = None,
    timer: Timer | None = None,
) -> Diagnosis:
    """
    Finds out under which layout configuration a model is fastest, and what the conversions between layouts cost.

    Args:
        model: An nn.Module or any callable; it is copied, never changed. A compiled model is unwrapped.
        example_input: A Tensor, a tuple of positional or a dict of keyword arguments, such as images ``[N, C, H, W]``.
        mode: ``inference`` (a copy in eval mode, no gradients) or ``training`` (forward, backward of a scalar loss).
        configurations: ``default``, ``all``, names, or Configuration values.
        rules: Rules to run; None for all.
        target: A GPU that is not there, such as ``cuda:90``: the graphs are traced on the CPU and lowered for it, and
            nothing is measured. None measures where the model is.
        budget_seconds: Bounds the timing rounds only; every configuration gets at least a few.
        progress: Called with a ``Progress`` at every step.
        timer: What times a block of calls; None chooses by device.

    Returns:
        The record; ``print`` it for the report.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run on the example input in eager mode, or cannot be copied.
    """
    _check(mode, budget_seconds, progress, timer)
    chosen = choose_configurations(_checked_configurations(configurations), mode)
    rules = None if rules is None else _checked_rules(rules)
    if target is not None:
        find_target(target)  # before the model is looked at
    return diagnose_subject(
        subject_from_python(model, example_input),
        mode=mode,
        configurations=chosen,
        rules=rules,
        target=target,
        budget_seconds=budget_seconds,
        progress=progress,
        timer=timer,
    )


def diagnose_subject(
    subject: LoadedSubject,
    *,
    mode: Mode = "inference",
    configurations: Sequence[Configuration],
    rules: Sequence[Rule] | None = None,
    target: str | None = None,
    budget_seconds: float = DEFAULT_BUDGET_SECONDS,
    progress: Callable[[Progress], None] | None = None,
    on_trial: Callable[[Diagnosis], None] | None = None,
    timer: Timer | None = None,
    trace_directory: Path | None = None,
    command: str | None = None,
) -> Diagnosis:
    """
    The same for a loaded subject.

    Args:
        subject: Model and inputs.
        mode: ``inference`` or ``training``.
        configurations: What to try, in the order of the report.
        rules: Rules to run; None for all.
        target: A GPU that is not there, to lower for instead of measuring.
        budget_seconds: Bounds the timing rounds.
        progress: Called at every step.
        on_trial: Called with the diagnosis so far after each trial, so that an interruption loses nothing.
        timer: What times a block of calls.
        trace_directory: Where to keep each configuration's profiler trace.
        command: The command line, for the record.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run in eager mode.
    """
    _check(mode, budget_seconds, progress, timer)
    known_target = None if target is None else find_target(target)
    # The caller's inference mode would make tensors that know no version, and that no autograd can use.
    with preserved_state(), torch.inference_mode(mode=False):
        dynamo = DynamoState()
        try:
            if known_target is not None:
                static = diagnose_for_target(
                    subject,
                    known_target,
                    mode=mode,
                    configurations=configurations,
                    progress=progress,
                    on_trial=on_trial,
                    command=command,
                )
                return msgspec.structs.replace(static, findings=run_rules(static, rules))
            run = _Diagnosing(subject, mode, configurations, progress, on_trial, trace_directory, command)
            timer = timer or choose_timer(run.device)  # before anything is compiled that could not be timed
            run.run_trials()
            run.measure(budget_seconds, timer)
            return run.conclude(rules)
        finally:
            dynamo.restore()


def _check(mode: object, budget_seconds: object, progress: object, timer: object) -> None:
    if mode not in ("inference", "training"):
        raise UsageError(f"cannot diagnose in mode {mode!r}: expected inference or training")
    if not isinstance(budget_seconds, Real) or not 0 < float(budget_seconds) < math.inf:
        raise UsageError(f"cannot measure within {budget_seconds!r} seconds: expected a budget above 0, such as 30")
    for name, value in (("progress", progress), ("timer", timer)):
        if value is not None and not callable(value):
            raise UsageError(f"cannot use {value!r} as {name}: expected a function, or None")


def _checked_configurations(configurations: object) -> str | Configuration | tuple[str | Configuration, ...]:
    if isinstance(configurations, (str, Configuration)):
        return configurations
    listed = tuple(configurations) if isinstance(configurations, Iterable) else (configurations,)
    wrong = [value for value in listed if not isinstance(value, (str, Configuration))]
    if wrong:
        raise UsageError(
            f"cannot use {wrong[0]!r} as a configuration: expected a name such as 'inductor', 'default', 'all', "
            "or a Configuration, or several of them"
        )
    return listed


def _checked_rules(rules: object) -> tuple[Rule, ...]:
    listed = tuple(rules) if isinstance(rules, Iterable) else (rules,)
    wrong = [rule for rule in listed if not isinstance(rule, Rule)]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a rule: expected Rule values, such as those in ALL_RULES")
    return listed


def _notes_on_machine(device: str) -> tuple[str, ...]:
    """What about the machine changes what can be concluded."""
    if device != "cpu":
        return ()
    if not torch.backends.mkldnn.is_available():
        return ("this torch was built without oneDNN: convolutions run in ATen's own code",)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return ("this processor has no AVX2: oneDNN and Inductor run slow general code, which says little of others",)
    return ()


class _Diagnosing:
    """A diagnosis under way: what is known so far, and the steps that add to it."""

    def __init__(
        self,
        subject: LoadedSubject,
        mode: Mode,
        configurations: Sequence[Configuration],
        progress: Callable[[Progress], None] | None,
        on_trial: Callable[[Diagnosis], None] | None,
        trace_directory: Path | None,
        command: str | None,
    ) -> None:
        if mode == "training":
            subject = with_something_to_train(subject)
        self.loaded, self.mode, self.configurations = subject, mode, configurations
        self.progress, self.on_trial = progress, on_trial
        self.trace_directory, self.command = trace_directory, command
        self.trials: list[LiveTrial] = []
        self.comparison: Comparison | None = None
        self.recommendation: Recommendation | None = None
        self.subject: Subject = describe(subject, mode)
        self.device = self.subject.device or "cpu"
        self.bandwidth: float | None = None
        self.created_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._done = 0

    def _say(self, stage: str) -> None:
        if self.progress is not None:
            self.progress(Progress(stage, self._done, len(self.configurations) + 3))
        self._done += 1

    def run_trials(self) -> None:
        """Rehearses the model once in eager mode, then runs every configuration up to its timing."""
        self._say("running the model once in eager mode")
        rehearsal = check_runs(self.loaded, self.mode)
        notes = (*self.subject.notes, *rehearsal.notes, *_notes_on_machine(self.device))
        self.subject = msgspec.structs.replace(self.subject, notes=notes)
        reference = compute_reference(self.loaded, self.mode)
        self.bandwidth = measure_copy_bandwidth(self.device)
        for configuration in self.configurations:
            doing = "compiling" if configuration.backend == "inductor" else "running"
            self._say(f"{configuration.name}: {doing}, profiling")
            trace_file = self._trace_file(configuration.name)
            self.trials.append(
                run_trial(
                    self.loaded, configuration, self.mode, reference, self.trials, rehearsal, trace_file, self.bandwidth
                )
            )
            if self.on_trial is not None:
                self.on_trial(self.record(interrupted="stopped before the timing rounds were over"))

    def _trace_file(self, name: str) -> Path | None:
        return None if self.trace_directory is None else self.trace_directory / f"{name}.json.gz"

    def measure(self, budget_seconds: float, timer: Timer) -> None:
        """Times all that ran in turns, compares, and measures the choice again."""
        steps = {trial.name: trial.step for trial in self.trials if trial.step is not None}
        if not steps:
            return
        baseline = choose_baseline(self.configurations, steps)
        self._say("timing all configurations in turns")
        share = 1 - CONFIRMATION_SHARE if len(steps) > 1 else 1.0
        times = measure_rounds(
            steps, baseline=baseline, budget_seconds=share * budget_seconds, timer=timer, on_round=self._on_round()
        )
        self._keep(times)
        rounds = {name: item.round_seconds for name, item in times.items() if item.failure is None}
        eligible = eligible_names([trial.record() for trial in self.trials])
        self.comparison = compare(rounds, baseline, eligible=eligible)
        self._recommend(steps, CONFIRMATION_SHARE * budget_seconds, timer)

    def _on_round(self) -> Callable[[int, int], None] | None:
        progress = self.progress
        if progress is None:
            return None
        done, total = self._done - 1, len(self.configurations) + 3
        last = time.monotonic()

        def on_round(count: int, expected: int) -> None:
            nonlocal last
            if time.monotonic() - last > 5:
                last = time.monotonic()
                progress(
                    Progress(f"timing all configurations in turns: round {count} of up to {expected}", done, total)
                )

        return on_round

    def _keep(self, times: Mapping[str, RoundTimes]) -> None:
        for trial in self.trials:
            item = times.get(trial.name)
            if item is None:
                continue
            if item.failure is not None:
                trial.failure = Failure(kind="measure", message=item.failure)
            if item.round_seconds:
                trial.measurement = to_measurement(
                    item, compile_seconds=trial.compile_seconds, peak_memory_bytes=trial.peak_memory_bytes
                )

    def _recommend(self, steps: Mapping[str, Callable[[], None]], budget_seconds: float, timer: Timer) -> None:
        records = [trial.record() for trial in self.trials]
        ranks = (parameter_ranks(self.loaded), input_ranks(self.loaded))
        chosen = self.comparison.fastest[0] if self.comparison and self.comparison.fastest else None
        confirmed: Comparison | None = None
        if self.comparison is not None and chosen is not None and chosen != self.comparison.baseline:
            self._say(f"{chosen}: measuring the gain again")
            baseline = self.comparison.baseline
            pair = {baseline: steps[baseline], chosen: steps[chosen]}
            again = measure_rounds(
                pair,
                baseline=baseline,
                budget_seconds=budget_seconds,
                timer=timer,
                minimum_rounds=rounds_needed(COVERAGE, len(pair)),
                seed=1,
            )
            confirmed = compare({name: item.round_seconds for name, item in again.items()}, baseline)
        self.recommendation = recommend(records, self.comparison, confirmed, ranks)

    def conclude(self, rules: Sequence[Rule] | None) -> Diagnosis:
        """The finished record, findings included."""
        self._say("looking for findings")
        diagnosis = self.record()
        return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))

    def record(self, interrupted: str | None = None) -> Diagnosis:
        """The diagnosis so far."""
        onednn = next((trial.onednn for trial in self.trials if trial.onednn[0] is not None), (None, None))
        return Diagnosis(
            layoutdoctor_version=__version__,
            created_at=self.created_at,
            environment=msgspec.structs.replace(
                describe_environment(self.device, triton=triton_version(), onednn=onednn, command=self.command),
                copy_bandwidth_bytes_per_second=self.bandwidth,
            ),
            subject=self.subject,
            trials=tuple(trial.record() for trial in self.trials),
            comparison=self.comparison,
            recommendation=self.recommendation,
            interrupted=interrupted,
        )
