"""
A diagnosis under way: what is known so far, and the steps that add to it.

What it ends in are recordings; which configuration is faster is judged here, by times and outputs alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import triton_version
from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.diagnosis.writing import trace_name
from layoutdoctor.errors import DeviceLostError
from layoutdoctor.examination.choice import choose_baseline, eligible_names, recommend
from layoutdoctor.examination.ratios import compare
from layoutdoctor.isolation.messages import TURNS, Lost, Progress
from layoutdoctor.measure.environment import describe_environment, measure_copy_bandwidth, why_unusable
from layoutdoctor.measure.memory import release_memory
from layoutdoctor.measure.timing import measure_rounds, to_measurement
from layoutdoctor.recording.recording import Head
from layoutdoctor.run.rehearsal import check_runs, compute_reference
from layoutdoctor.run.trial import LiveTrial, run_trial, warm_up
from layoutdoctor.subjects.subject import describe, input_ranks, parameter_ranks, with_something_to_train

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Comparison, Configuration, Recommendation, Subject
    from layoutdoctor.isolation.messages import Attempt, Request
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.measure.timing import RoundTimes, Timer
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.run.rehearsal import Rehearsal
    from layoutdoctor.subjects.subject import LoadedSubject


def _notes_on_machine(device: str) -> tuple[str, ...]:
    """What about the machine changes what can be concluded."""
    if device != "cpu":
        return ()
    if not torch.backends.mkldnn.is_available():
        return ("this torch was built without oneDNN: convolutions run in ATen's own code",)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return ("this processor has no AVX2: oneDNN and Inductor run slow general code, which says little of others",)
    return ()


class Diagnosing:
    """A diagnosis under way: what is known so far, and the steps that add to it."""

    def __init__(
        self,
        subject: LoadedSubject,
        request: Request,
        progress: Callable[[Progress], None],
        attempt: Attempt,
    ) -> None:
        if request.mode == "training":
            subject = with_something_to_train(subject)
        self.loaded, self.request, self.progress, self.attempt = subject, request, progress, attempt
        self.trials: list[LiveTrial] = []
        self.comparison: Comparison | None = None
        self.recommendation: Recommendation | None = None
        self.subject: Subject = describe(subject, request.mode)
        self.device = self.subject.device or "cpu"
        self.rehearsal: Rehearsal | None = None
        self.unusable: str | None = None
        before = attempt.kept.recordings[0].head if attempt.kept is not None else None
        self.bandwidth = before.environment.copy_bandwidth_bytes_per_second if before is not None else None
        self.created_at = attempt.created_at()
        self._done = 0

    def _say(self, stage: str) -> None:
        self.progress(Progress(stage, self._done, len(self.request.configurations) + 3))
        self._done += 1

    def run_trials(self) -> None:
        """
        Rehearses the model once in eager mode, then runs every configuration up to its timing.

        Raises:
            SubjectError: The model does not run in eager mode.
            DeviceLostError: The device can run nothing more in this process, and another process would go on.
        """
        self._say("running the model once in eager mode")
        self.attempt.began(None, "running the model once in eager mode")
        rehearsal = self.rehearsal = check_runs(self.loaded, self.request.mode)
        notes = (*self.subject.notes, *rehearsal.notes, *_notes_on_machine(self.device))
        self.subject = msgspec.structs.replace(self.subject, notes=notes)
        earlier = [LiveTrial.earlier(configuration, self.attempt) for configuration in self.request.configurations]
        reference: Reference | None = None
        if None in earlier:
            self.attempt.began(None, "computing the float64 reference")
            reference = compute_reference(self.loaded, self.request.mode, rehearsal)
            self.subject = msgspec.structs.replace(self.subject, notes=(*notes, *reference.notes))
        elif self.attempt.kept is not None:  # what the reference had to say was said then
            self.subject = msgspec.structs.replace(
                self.subject, notes=self.attempt.kept.recordings[0].head.subject.notes
            )
        if self.bandwidth is None:
            self.bandwidth = measure_copy_bandwidth(self.device)
        for configuration, trial in zip(self.request.configurations, earlier, strict=True):
            if self.unusable is not None:
                unrun = LiveTrial(configuration, failure=Failure(kind="prepare", message=self.unusable))
                self.trials.append(unrun)
            elif trial is not None:
                self._say(f"{configuration.name}: done before")
                self.trials.append(trial)
                if trial.lost is not None:
                    self._hand_over(trial)
            elif reference is not None:
                self._run_one(configuration, reference, rehearsal)

    def _run_one(self, configuration: Configuration, reference: Reference, rehearsal: Rehearsal) -> None:
        name = configuration.name
        self._say(f"{name}: {'compiling' if configuration.backend == 'inductor' else 'running'}, profiling")
        self.attempt.began(name, "prepare")
        directory = self.request.trace_directory
        trace = None if directory is None else Path(directory) / trace_name(name)
        announce = self._announcing(name)
        trial = run_trial(
            self.loaded, configuration, self.request.mode, reference, self.trials, rehearsal, trace, announce
        )
        self.trials.append(trial)
        if trial.failure is not None:
            release_memory()
        problem = why_unusable(self.device) if trial.failure is not None else None
        if problem is None:
            self._hand_over(trial)
            return
        self._lose_device(trial, problem)

    def _announcing(self, name: str) -> Callable[[str], None]:
        return lambda stage: self.attempt.began(name, stage, is_new=False)

    def _lose_device(self, trial: LiveTrial, problem: str) -> None:
        """Ends the process's part: whatever ran next would fail for what this configuration did."""
        failure = trial.failure or Failure(kind=trial.stage, message=problem)
        message = f"{failure.message}; the device could not be used in that process any more ({problem})"
        failure = msgspec.structs.replace(failure, message=message)
        if self.attempt.may_restart:
            raise DeviceLostError(trial.name, failure.kind, message, failure.log)
        trial.lost = Lost(status="crashed", failure=failure)
        self.unusable = f"not run: {trial.name} made the device unusable in this process; diagnose it on its own"

    def _hand_over(self, trial: LiveTrial) -> None:
        trial.hand_over(self.head(interrupted="stopped before the timing rounds were over"), self.attempt)

    def _warm_up_earlier(self) -> None:
        """Makes what an earlier process ran ready to be timed in this one."""
        for trial in self.trials:
            if trial.ran and trial.step is None and self.rehearsal is not None:
                self._say(f"{trial.name}: compiling again")
                self.attempt.began(trial.name, "prepare")
                trial.announce = self._announcing(trial.name)
                warm_up(trial, self.loaded, self.request.mode, self.rehearsal)

    def measure(self, timer: Timer) -> None:
        """Times all that ran in turns, compares and chooses."""
        self._warm_up_earlier()
        steps = {trial.name: trial.step for trial in self.trials if trial.step is not None}
        if not steps:
            return
        baseline = choose_baseline(self.request.configurations, steps)
        self.attempt.began(None, TURNS)
        self._say("timing all configurations in turns")
        times = measure_rounds(
            steps,
            baseline=baseline,
            budget_seconds=self.request.budget_seconds,
            timer=timer,
            on_round=self._on_round(),
            on_turn=self.attempt.turn,
        )
        self._keep(times)
        rounds = {name: item.round_seconds for name, item in times.items() if item.failure is None}
        if rounds and baseline not in rounds:  # it failed while it was timed: the others are compared all the same
            baseline = choose_baseline(self.request.configurations, rounds)
        eligible = eligible_names([trial.record() for trial in self.trials])
        self.comparison = compare(rounds, baseline, eligible=eligible)
        self._recommend(rounds, baseline, eligible)

    def _on_round(self) -> Callable[[int, int], None]:
        done, total = self._done - 1, len(self.request.configurations) + 3
        last = time.monotonic()

        def on_round(count: int, expected: int) -> None:
            nonlocal last
            if time.monotonic() - last > 5:
                last = time.monotonic()
                stage = f"timing all configurations in turns: round {count} of up to {expected}"
                self.progress(Progress(stage, done, total))

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

    def _recommend(self, rounds: Mapping[str, Sequence[float]], baseline: str, eligible: frozenset[str]) -> None:
        records = [trial.record() for trial in self.trials]
        frozen = {trial.name for trial in self.trials if trial.configuration.freezes}
        free = {name: seconds for name, seconds in rounds.items() if name not in frozen}
        without_freezing = compare(free, baseline, eligible=eligible) if frozen else None
        ranks = (parameter_ranks(self.loaded), input_ranks(self.loaded))
        self.recommendation = recommend(records, self.comparison, without_freezing, ranks)

    def head(self, interrupted: str | None = None) -> Head:
        """What is known of the whole so far."""
        onednn = next((trial.onednn for trial in self.trials if trial.onednn[0] is not None), (None, None))
        return Head(
            layoutdoctor_version=__version__,
            created_at=self.created_at,
            environment=msgspec.structs.replace(
                describe_environment(self.device, triton=triton_version(), onednn=onednn, command=self.request.command),
                copy_bandwidth_bytes_per_second=self.bandwidth,
            ),
            subject=self.subject,
            configurations=tuple(trial.name for trial in self.trials),
            comparison=self.comparison,
            recommendation=self.recommendation,
            interrupted=interrupted,
        )

    def recordings(self) -> tuple[Recording, ...]:
        """What was seen of every trial; without the graphs and iterations that another process keeps."""
        self._say("looking for findings")
        self.attempt.began(None, "looking for findings")
        head = self.head()
        return tuple(trial.recording(head) for trial in self.trials)
