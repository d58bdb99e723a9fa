"""
``diagnose()``: the whole story on one page.

Load, rehearse, run every configuration under capture, time them in turns, compare, choose, measure the choice again:
that is recorded. Examine what was recorded, let the rules look. Everything that comes out is one frozen record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.capture.compat import notes_on_torch
from layoutdoctor.diagnosis.configurations import QUICK, choose_configurations, find_target, is_a_group
from layoutdoctor.diagnosis.records import Configuration, Diagnosis
from layoutdoctor.errors import SubjectError, TransportError, UsageError
from layoutdoctor.examination.applying import how_to_apply
from layoutdoctor.isolation.fresh import verified, with_head
from layoutdoctor.isolation.journal import temporary_journal
from layoutdoctor.isolation.messages import DEFAULT_TIMEOUT_SECONDS, Listener, Request, StageClock
from layoutdoctor.isolation.processes import private_directory
from layoutdoctor.isolation.supervisor import Watch, supervise
from layoutdoctor.rules import Rule, run_rules
from layoutdoctor.run.diagnosing import record_measured
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.showing import showing
from layoutdoctor.run.static import record_for_target
from layoutdoctor.state.dynamo import DynamoState
from layoutdoctor.state.process import one_at_a_time, preserved_state
from layoutdoctor.subjects.subject import call_of, parameter_ranks, subject_from_python
from layoutdoctor.subjects.transport import save_subject
from layoutdoctor.subjects.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Mode
    from layoutdoctor.isolation.messages import Progress
    from layoutdoctor.measure.timing import Timer
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.subject import LoadedSubject


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
    timer: Timer | None = None,
    isolate: bool | None = None,
    timeout_seconds: float | None = None,
) -> Diagnosis:
    """
    Finds out under which layout configuration a model is fastest, and what the conversions between layouts cost.

    Args:
        model: An nn.Module or any callable; it is copied, never changed. A compiled model is unwrapped.
        example_input: A Tensor, a tuple of positional or a dict of keyword arguments, such as images ``[N, C, H, W]``;
            or what ``record_inputs`` kept of a call of the model.
        mode: ``inference`` (a copy in eval mode, no gradients) or ``training`` (forward, backward of a scalar loss).
        configurations: ``default``, ``quick``, ``all``, names, or Configuration values.
        rules: Rules to run; None for all.
        target: A GPU that is not there, such as ``cuda:90``: the graphs are traced on the CPU and lowered for it, and
            nothing is measured. None measures where the model is.
        budget_seconds: Bounds the timing rounds, and the starts of fresh processes beyond three; below 10 s there are
            none. None lets rounds go on until there is a verdict, for at most half of what compiling took, at least
            10 s and at most 3 minutes, and starts for 4 minutes.
        progress: Called with a ``Progress`` at every step; None shows a line in a notebook and on a terminal, which is
            gone at the end.
        timer: What times a block of calls; None chooses by device.
        isolate: Whether the diagnosis runs in processes of its own on a copy of the model, so that a configuration that
            crashes or hangs costs itself only. A model that cannot be rebuilt in another process is diagnosed in this
            one, and a note says why. None does so unless a ``timer`` of this process is given; False runs in this
            process, one diagnosis at a time, where a checksum proves that the model is as it was.
        timeout_seconds: In processes of its own, how long one configuration may take; None for half an hour, infinity
            for no limit.

    Returns:
        The record; ``print`` it for the report.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run on the example input in eager mode, cannot be copied, or was changed.
    """
    _check(mode, budget_seconds, progress, timer)
    _check_isolation(timer, timeout_seconds, isolate=isolate)
    listed = _listed(configurations, (str, Configuration), "configuration", _A_CONFIGURATION)
    chosen = choose_configurations(listed[0] if isinstance(configurations, str) else listed, mode)
    rules = None if rules is None else _listed(rules, (Rule,), "rule", _A_RULE)
    if target is not None:
        find_target(target)  # before the model is looked at
    subject = subject_from_python(model, example_input)
    request = Request(
        mode=mode,
        configurations=chosen,
        derives=is_a_group(configurations),
        is_quick=configurations == QUICK,
        lower_for=target,
        budget_seconds=budget_seconds,
    )
    with showing(progress) as tell:
        if isolate or (isolate is None and timer is None):
            try:
                return diagnose_isolated(subject, request, rules=rules, progress=tell, timeout_seconds=timeout_seconds)
            except TransportError as error:
                subject = dataclasses.replace(subject, notes=(*subject.notes, f"not isolated: {error}"))
        clock = StageClock(tell)
        recordings = record_subject(subject, request, Listener(clock), timer=timer)
        if timer is None:
            recordings = _verified_elsewhere(recordings, subject, request, clock)
        return diagnose_recordings(with_head(recordings, stage_seconds=clock.end()), rules)


def _verified_elsewhere(
    recordings: tuple[Recording, ...],
    subject: LoadedSubject,
    request: Request,
    progress: Callable[[Progress], None] | None,
) -> tuple[Recording, ...]:
    """The recordings with what fresh processes make of the choice, where the model can be sent to them."""
    advice = recordings[0].head.recommendation
    if advice is None:
        return recordings
    try:
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(_saved_elsewhere(subject))
            there = msgspec.structs.replace(request, subject_directory=directory)
            ranks, call = parameter_ranks(subject), call_of(subject)
            how = {one.name: how_to_apply(one.trial.configuration, ranks, call) for one in recordings}
            return verified(recordings, there, progress or (lambda step: None), how)
    except TransportError as error:
        advice = msgspec.structs.replace(advice, reason=f"{advice.reason}: {error}")
        return with_head(recordings, recommendation=advice)


def record_subject(
    subject: LoadedSubject, request: Request, listener: Listener | None = None, *, timer: Timer | None = None
) -> tuple[Recording, ...]:
    """
    Runs and measures every configuration, or lowers it for a target; nothing is examined yet.

    Args:
        listener: Whom to tell what is done; None for nobody.

    Returns:
        One recording for each configuration, in their order; without the graphs and iterations that were handed to
        another process.

    Raises:
        UsageError: An argument is wrong.
        SubjectError: The model does not run in eager mode.
        UnsupportedTorchError: This torch is older than any that layoutdoctor was checked with.
    """
    target = None if request.lower_for is None else find_target(request.lower_for)
    listener = listener or Listener()
    # The caller's inference mode would make tensors that know no version, and that no autograd can use.
    with one_at_a_time(), preserved_state(), torch.inference_mode(mode=False), _left_alone(subject):
        dynamo = DynamoState()
        try:
            lost = notes_on_torch(with_target=target is not None)
            subject = dataclasses.replace(subject, notes=(*subject.notes, *lost))
            if target is not None:
                return record_for_target(subject, target, request, listener)
            return record_measured(subject, request, listener, timer)
        finally:
            dynamo.restore()


def _left_alone(subject: LoadedSubject) -> contextlib.AbstractContextManager[None]:
    """Watches over what somebody else holds."""
    return contextlib.nullcontext() if subject.is_ours else untouched(subject)


def diagnose_isolated(
    subject: LoadedSubject,
    request: Request,
    *,
    rules: Sequence[Rule] | None,
    progress: Callable[[Progress], None] | None,
    timeout_seconds: float | None,
) -> Diagnosis:
    """
    The diagnosis of a loaded subject by child processes; it is saved for them in a private directory meanwhile.

    Raises:
        TransportError: The model cannot be saved, or not be rebuilt in another process.
        SubjectError: The model does not run in eager mode, or takes the process with it.
    """
    with one_at_a_time(), _saved_elsewhere(subject) as directory:  # two would time each other
        request = msgspec.structs.replace(request, subject_directory=directory)
        seconds = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else float(timeout_seconds)
        watch = Watch() if progress is None else Watch(progress=progress)
        journal = temporary_journal()
        try:
            diagnosis = supervise(request, journal, watch, None if seconds == math.inf else seconds)
        finally:
            journal.close(is_needed=False)
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))


@contextlib.contextmanager
def _saved_elsewhere(subject: LoadedSubject) -> Iterator[str]:
    with private_directory() as directory:
        try:
            save_subject(subject, Path(directory))
        except SubjectError as error:
            raise TransportError(str(error)) from error
        yield directory


def _check(mode: object, budget_seconds: object, progress: object, timer: object) -> None:
    if mode not in ("inference", "training"):
        raise UsageError(f"cannot diagnose in mode {mode!r}: expected inference or training")
    bound = 1.0 if budget_seconds is None else budget_seconds
    if not isinstance(bound, Real) or not 0 < float(bound) < math.inf:
        raise UsageError(f"cannot measure within {budget_seconds!r} seconds: expected a budget above 0, such as 30")
    for name, value in (("progress", progress), ("timer", timer)):
        if value is not None and not callable(value):
            raise UsageError(f"cannot use {value!r} as {name}: expected a function, or None")


def _check_isolation(timer: object, timeout_seconds: object, *, isolate: object) -> None:
    if timeout_seconds is not None and (not isinstance(timeout_seconds, Real) or not float(timeout_seconds) > 0):
        raise UsageError(
            f"cannot limit a configuration to {timeout_seconds!r} seconds: expected a number above 0, such as 600"
        )
    if timeout_seconds is not None and (isolate is False or timer is not None):
        raise UsageError("cannot limit a configuration's time in this process: leave out isolate=False and timer")
    if timer is not None and isolate:
        raise UsageError("cannot use a timer of your own with isolate=True: it lives in this process; leave out one")


_A_CONFIGURATION = "a name such as 'inductor', 'default', 'all', or a Configuration, or several of them"
_A_RULE = "Rule values, such as those in ALL_RULES"


def _listed(values: object, kinds: tuple[type, ...], kind: str, expected: str) -> tuple[Any, ...]:
    listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, kinds) else (values,)
    wrong = [value for value in listed if not isinstance(value, kinds)]
    if wrong:
        raise UsageError(f"cannot use {wrong[0]!r} as a {kind}: expected {expected}")
    return listed
