"""
A measured diagnosis: rehearsed, every configuration run, all of them timed in turns, compared, the choice timed again.

What it ends in are recordings; which configuration is faster is judged here, by times and outputs alone.
"""

from __future__ import annotations

import time
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch

from layoutdoctor.capture.building import prepare_compiler
from layoutdoctor.capture.compat import missing_cpp_compiler, triton_version
from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import DeviceLostError
from layoutdoctor.examination.applying import how_to_apply
from layoutdoctor.isolation.judged import time_in_turns
from layoutdoctor.isolation.load import LoadMeter, core_count
from layoutdoctor.isolation.messages import TURNS, Progress
from layoutdoctor.isolation.rounds import telling
from layoutdoctor.measure.environment import describe_environment, measure_copy_bandwidth, why_unusable
from layoutdoctor.measure.memory import release_memory
from layoutdoctor.measure.timing import choose_timer
from layoutdoctor.run.deriving import cures_together, in_both_directions, single_cures, under_switches
from layoutdoctor.run.rehearsal import compute_reference
from layoutdoctor.run.trial import LiveTrial, finish_lowering, head_of, lower, rehearse, run_trial, warm_up
from layoutdoctor.subjects.subject import call_of, describe, parameter_ranks, with_something_to_train

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.capture.building import CompilerBegun
    from layoutdoctor.isolation.messages import Listener, Request
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.measure.timing import Timer
    from layoutdoctor.recording.recording import Head, Recording
    from layoutdoctor.run.rehearsal import Rehearsal
    from layoutdoctor.subjects.subject import LoadedSubject

_INTERRUPTED = "stopped before the timing rounds were over"

_LONGEST_WAIT_SECONDS = 30
"""For what the compiler builds in the background before anything is profiled."""

_SHORT_ROUNDS = 5
_SHORT_SECONDS = 2.0
"""To find out which configuration to make others of."""


def _notes_on_machine(device: str) -> tuple[str, ...]:
    """What about the machine changes what can be concluded."""
    if device != "cpu":
        return ()
    if not torch.backends.mkldnn.is_available():
        return ("this torch was built without oneDNN: convolutions run in ATen's own code",)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return ("this processor has no AVX2: oneDNN and Inductor run slow general code, which says little of others",)
    return ()


def record_measured(
    subject: LoadedSubject, request: Request, listener: Listener, timer: Timer | None = None
) -> tuple[Recording, ...]:
    """
    Runs and measures every configuration of a loaded subject.

    Raises:
        UsageError: No timer is known for the device.
        SubjectError: The model does not run in eager mode.
        DeviceLostError: The device can run nothing more in this process, and another process would go on.
    """
    if request.mode == "training":
        subject = with_something_to_train(subject)
    described = describe(subject, request.mode)
    device = described.device or "cpu"
    # Whoever brings a timer of their own, as a GPU does, is not measured by what else runs on the processor.
    meter = LoadMeter(torch.get_num_threads(), core_count()) if timer is None and device == "cpu" else None
    timer = timer or choose_timer(device)  # before anything is compiled that could not be timed
    before = request.kept.head
    bandwidth = None if before is None else before.environment.copy_bandwidth_bytes_per_second
    bandwidth = bandwidth or measure_copy_bandwidth(device)  # before compilers run beside it
    compiles = device == "cpu" and any(one.backend == "inductor" for one in request.configurations)
    compiler = prepare_compiler() if compiles else None
    step_count = len(request.configurations) + 3
    rehearsal = rehearse(subject, request, listener, step_count)
    environment = msgspec.structs.replace(
        describe_environment(device, triton=triton_version(), onednn=(None, None), command=request.command),
        copy_bandwidth_bytes_per_second=bandwidth,
    )
    notes = (*described.notes, *rehearsal.notes, *_notes_on_machine(device))
    head = head_of(request, msgspec.structs.replace(described, notes=notes), environment)
    run = Diagnosing(subject, request, listener, rehearsal, head, step_count, compiler)
    run.run_trials()
    run.derive(timer)
    run.measure(timer, meter)
    return run.recordings()


@dataclass
class Diagnosing:
    """
    A measured diagnosis under way.

    Attributes:
        head: What all recordings share, as far as it is known.
        step_count: How many steps there are to tell of, and below how many were told.
        compiler: What is built for the first compile meanwhile; None where nothing is.
        unusable: Why nothing more can run in this process; None where it can.
    """

    loaded: LoadedSubject
    request: Request
    listener: Listener
    rehearsal: Rehearsal
    head: Head
    step_count: int
    compiler: CompilerBegun | None = None
    steps_done: int = 1  # the rehearsal
    trials: list[LiveTrial] = field(default_factory=list)
    reference: Reference | None = None
    unusable: str | None = None

    def _say(self, stage: str) -> None:
        self.listener.progress(Progress(stage, self.steps_done, self.step_count))
        self.steps_done += 1

    def run_trials(self) -> None:
        """Runs every configuration up to its timing, unless an earlier process has done so."""
        trials = [LiveTrial.of(one, self.request, self.listener) for one in self.request.configurations]
        if not all(trial.was_done for trial in trials):
            self._compute_reference()
        elif self.request.kept.head is not None:  # what the reference had to say was said then
            self._set_notes(*self.request.kept.head.subject.notes)
        self._let_compiler_end()
        is_lowered = False
        for trial in trials:
            if not trial.was_done:
                if not is_lowered and trial.configuration.backend == "inductor":
                    self._lower(trials)
                    is_lowered = True
                self._run_one(trial)
                continue
            self.trials.append(trial)
            self._say(f"{trial.name}: done before")
            if trial.name in self.request.lost:
                self._hand_over(trial)

    def _compute_reference(self) -> Reference:
        self.listener.began(None, "computing the float64 reference")
        self.reference = compute_reference(self.loaded, self.request.mode, self.rehearsal)
        self._set_notes(*dict.fromkeys((*self.head.subject.notes, *self.reference.notes)))
        return self.reference

    def _set_notes(self, *notes: str) -> None:
        self.head = msgspec.structs.replace(self.head, subject=msgspec.structs.replace(self.head.subject, notes=notes))

    def _let_compiler_end(self) -> None:
        """Before anything is profiled; one that hangs keeps no processor busy, and costs what is compiled only."""
        if self.compiler is None:
            return
        for _ in range(_LONGEST_WAIT_SECONDS):
            self.listener.began(None, "waiting for the compiler")
            if not wait(self.compiler, 1.0).not_done:
                break

    def _lower(self, trials: Sequence[LiveTrial]) -> None:
        """
        Lowers all that is to be compiled before any of it runs: the kernels of one are built while the next is lowered,
        and nothing is built any more while something is profiled.
        """
        compiled = [trial for trial in trials if not trial.was_done and trial.configuration.backend == "inductor"]
        if len(compiled) < 2 or self.head.subject.device != "cpu" or missing_cpp_compiler() is not None:
            return
        self.listener.began(compiled[0].name, "compile")
        if self.compiler is not None:
            self.compiler.tests.result()
        keys: set[str | None] = set()
        for trial in compiled:
            self._tell(f"{trial.name}: lowering", self.steps_done)
            self.listener.began(trial.name, "compile")
            lower(trial, self.loaded, self.request.mode, self.rehearsal, keys)
            keys.add(trial.memo.key)
        self._tell("building kernels", self.steps_done)
        for trial in compiled:
            self.listener.began(trial.name, "compile")
            finish_lowering(trial)

    def _tell(self, stage: str, done: int) -> None:
        """A stage that is no step of its own."""
        self.listener.progress(Progress(stage, done, self.step_count))

    def _run_one(self, trial: LiveTrial) -> None:
        """Runs one configuration, where this process can run any."""
        self.trials.append(trial)
        if self.unusable is not None:
            trial.observe(status="failed", failure=Failure(kind="prepare", message=self.unusable))
            return
        reference = self.reference or self._compute_reference()
        self._say(f"{trial.name}: {'compiling' if trial.configuration.backend == 'inductor' else 'running'}, profiling")
        self.listener.began(trial.name, "prepare")
        run_trial(trial, self.loaded, self.request, self.rehearsal, reference, self.trials[:-1])
        failure = trial.record.failure
        if failure is not None:
            release_memory()
            problem = why_unusable(self.head.subject.device or "cpu")
            if problem is not None:
                self._lose_device(trial, failure, problem)
                return
        self._hand_over(trial)

    def _lose_device(self, trial: LiveTrial, failure: Failure, problem: str) -> None:
        """Ends the process's part: whatever ran next would fail for what this configuration did."""
        message = f"{failure.message}; the device could not be used in that process any more ({problem})"
        if self.listener.may_restart:
            raise DeviceLostError(trial.name, failure.kind, message, failure.log)
        trial.observe(status="crashed", failure=msgspec.structs.replace(failure, message=message))
        self.unusable = f"not run: {trial.name} made the device unusable in this process; diagnose it on its own"

    def _hand_over(self, trial: LiveTrial) -> None:
        how = how_to_apply(trial.configuration, parameter_ranks(self.loaded), call_of(self.loaded))
        trial.remember(how=how)
        trial.hand_over(self._head_now(_INTERRUPTED))

    def _warm_up_earlier(self) -> None:
        """Makes what an earlier process ran ready to be timed in this one."""
        for trial in self.trials:
            if trial.was_done and trial.record.status == "ok" and trial.step is None:
                self._say(f"{trial.name}: compiling again")
                self.listener.began(trial.name, "prepare")
                warm_up(trial, self.loaded, self.request.mode, self.rehearsal)

    def derive(self, timer: Timer) -> None:
        """
        Runs configurations that follow from those that ran: layout optimization in the backward too, the best so far
        with the cures that may help, each alone and then those that help together, the best two under switches of
        libraries.
        """
        if not self.request.derives:
            return
        self._warm_up_earlier()
        quick = partial(self._time_shortly, timer)
        device = self.head.subject.device or "cpu"
        for choose in (in_both_directions, single_cures, cures_together, partial(under_switches, device=device)):
            chosen = choose(self.trials, quick) if self.unusable is None else ()
            if chosen:
                self.step_count += len(chosen)
                self.listener.derived(chosen)
            made = [LiveTrial.of(configuration, self.request, self.listener) for configuration in chosen]
            self._lower(made)
            for trial in made:
                self._run_one(trial)

    def _time_shortly(self, timer: Timer, trials: Sequence[LiveTrial]) -> dict[str, float]:
        """Seconds of some trials by a few calls in turns; one that fails is left out of all that comes."""
        found: dict[str, float] = {}
        start = time.monotonic()
        for count in range(_SHORT_ROUNDS):
            for trial in trials:
                self.listener.began(trial.name, "measure")
                trial.stage = "measure"
                with trial.failing():
                    if trial.step is not None:
                        seconds = min(timer(trial.step, 1 if count else 2))  # the first of all warms up
                        found[trial.name] = min(seconds, found.get(trial.name, seconds))
            if time.monotonic() - start > _SHORT_SECONDS:
                break
        return {trial.name: found[trial.name] for trial in trials if trial.step is not None}

    def measure(self, timer: Timer, meter: LoadMeter | None = None) -> None:
        """Times all that ran in turns, compares and chooses, unless each is timed in a process of its own."""
        device = self.head.subject.device or "cpu"
        if self.listener.may_restart and not self.request.times_here and device == "cpu":
            return
        self.reference = None  # its gradients lie beside those that are timed
        self._warm_up_earlier()
        steps = {trial.name: trial.step for trial in self.trials if trial.step is not None}
        if not steps:
            return
        self.listener.began(None, TURNS)
        self._say("timing all configurations in turns")
        before = self.request.kept.head
        judged = time_in_turns(
            [trial.record for trial in self.trials],
            {trial.name: trial.memo for trial in self.trials},
            steps,
            timer,
            earlier=None if before is None else before.comparison,
            budget_seconds=self.request.budget_seconds,
            meter=meter,
            on_round=telling(lambda stage: self._tell(stage, self.steps_done - 1)),
            on_turn=self.listener.turn,
        )
        for trial, record in zip(self.trials, judged.trials, strict=True):
            trial.record = record
        self.head = msgspec.structs.replace(
            self.head, comparison=judged.comparison, recommendation=judged.recommendation
        )

    def _head_now(self, interrupted: str | None = None) -> Head:
        """With what its trials tell of the whole."""
        onednn = next((trial.memo.onednn for trial in self.trials if trial.memo.onednn[0] is not None), (None, None))
        environment = msgspec.structs.replace(self.head.environment, onednn=onednn[0], onednn_isa=onednn[1])
        names = tuple(trial.name for trial in self.trials)
        return msgspec.structs.replace(
            self.head, environment=environment, configurations=names, interrupted=interrupted
        )

    def recordings(self) -> tuple[Recording, ...]:
        """What was seen of every trial; without the graphs and iterations that another process keeps."""
        self._say("looking for findings")
        self.listener.began(None, "looking for findings")
        head = self._head_now()
        return tuple(trial.recording(head) for trial in self.trials)
