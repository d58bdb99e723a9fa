"""
A static diagnosis: every configuration traced on the CPU and lowered for a GPU that is not there; nothing is measured.

What comes out are recordings without times and iterations: decision cards, FX nodes, buffers and kernel names of each
graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch.utils import _pytree as pytree

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import compile_settings, triton_version
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.records import Failure, Recommendation
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.examination.choice import effective_options
from layoutdoctor.isolation.messages import Progress
from layoutdoctor.measure.environment import describe_environment
from layoutdoctor.recording.recording import Head
from layoutdoctor.run.rehearsal import check_runs
from layoutdoctor.run.trial import LiveTrial, code_key, fingerprint, own_frame
from layoutdoctor.subjects.prepare import prepare, same_preparation_key
from layoutdoctor.subjects.step import Step
from layoutdoctor.subjects.subject import describe, owned_module, with_something_to_train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.records import Configuration, Mode, Subject
    from layoutdoctor.isolation.messages import Attempt, Request
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.subject import LoadedSubject

EAGER_REASON = "eager runs no compiler: nothing to lower for a GPU that is not there"
FREEZING_REASON = (
    "freezing folds the weights into the CPU's own convolutions before a graph is lowered; "
    "diagnose it on a machine with the GPU"
)
_INTERRUPTED = "stopped before every configuration was lowered"
STAGE = "target"
"""Failure kind of whatever concerns the target."""


def record_for_target(
    subject: LoadedSubject,
    target: Target,
    request: Request,
    progress: Callable[[Progress], None],
    attempt: Attempt,
) -> tuple[Recording, ...]:
    """
    Every configuration of a loaded subject, lowered for a target.

    Raises:
        UsageError: The model or an input is not on the CPU.
        SubjectError: The model does not run in eager mode.
    """
    mode, configurations = request.mode, request.configurations
    _check_on_cpu(subject, target)
    if mode == "training":
        subject = with_something_to_train(subject)
    described = _describe(subject, mode, target)
    reason = f"nothing was run on {target.name}: the graphs were lowered for it without the device, so no time is known"
    recommendation = Recommendation(configuration=None, speedup=None, how=None, verified=False, reason=reason)
    created_at = attempt.created_at()
    total = len(configurations) + 1
    trials: list[LiveTrial] = []

    def head(interrupted: str | None = None) -> Head:
        environment = describe_environment("cpu", triton=triton_version(), onednn=(None, None), command=request.command)
        return Head(
            layoutdoctor_version=__version__,
            created_at=created_at,
            # Processor and threads have no part in it.
            environment=msgspec.structs.replace(environment, device_name=None, thread_count=None),
            subject=described,
            configurations=tuple(trial.name for trial in trials),
            recommendation=recommendation,
            interrupted=interrupted,
        )

    progress(Progress("running the model once in eager mode", 0, total))
    attempt.began(None, "running the model once in eager mode")
    rehearsal = check_runs(subject, mode)
    for done, configuration in enumerate(configurations, start=1):
        doing = f"lowering for {target.name}" if _reason_to_skip(configuration) is None else "nothing to lower"
        progress(Progress(f"{configuration.name}: {doing}", done, total))
        trial = LiveTrial.earlier(configuration, attempt, "static")
        is_new = trial is None
        if trial is None:
            attempt.began(configuration.name, "prepare")
            trial = lower_trial(subject, configuration, mode, target, trials, changes_inputs=rehearsal.changes_inputs)
        trials.append(trial)
        if is_new or trial.lost is not None:
            trial.hand_over(head(_INTERRUPTED), attempt)
    final = head()
    return tuple(trial.recording(final) for trial in trials)


def _check_on_cpu(subject: LoadedSubject, target: Target) -> None:
    module = owned_module(subject)
    tensors = [*module.parameters(), *module.buffers()] if module is not None else []
    tensors += [leaf for leaf in pytree.tree_leaves((subject.args, subject.kwargs)) if isinstance(leaf, torch.Tensor)]
    elsewhere = sorted({tensor.device.type for tensor in tensors} - {"cpu", "meta"})
    if elsewhere:
        raise UsageError(
            f"cannot lower {subject.name} for target {target.name!r}: it has tensors on {', '.join(elsewhere)}, "
            "expected model and inputs on cpu, where they are traced; call .cpu() on both, or leave the target out"
        )


def _describe(subject: LoadedSubject, mode: Mode, target: Target) -> Subject:
    described = describe(subject, mode)
    facts = f"what Inductor asks the device about was answered as for {target.device_name}"
    return msgspec.structs.replace(
        described, device="cuda", target=target.name, notes=(*described.notes, f"{target.name}: {facts}")
    )


def lower_trial(
    subject: LoadedSubject,
    configuration: Configuration,
    mode: Mode,
    target: Target,
    earlier: Sequence[LiveTrial],
    *,
    changes_inputs: bool,
) -> LiveTrial:
    """
    One configuration, lowered for a target; a failure is a result.

    Args:
        earlier: Trials already lowered, which this one may turn out to be the same as.
    """
    trial = LiveTrial(configuration, source="static")
    reason = _reason_to_skip(configuration)
    if reason is not None:
        trial.is_skipped = True
        trial.failure = Failure(kind=STAGE, message=reason)
        return trial
    try:
        prepared = prepare(subject, configuration, mode)
        trial.notes += prepared.notes
        trial.key = fingerprint(same_preparation_key(prepared, configuration))
        if trial.is_same_as_one_of(earlier):
            return trial
        trial.enter(STAGE)
        step = Step(prepared.run, prepared.module, prepared.args, prepared.kwargs, mode, changes_inputs)
        _lower(trial, step, target)
        if trial.failure is None:
            trial.code = code_key(prepared, trial)
            if trial.is_same_as_one_of(earlier):
                return trial
            trial.ran = True
        trial.was_profiled = True
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything
        # What Dynamo wraps around an exception of the backend says less than that one.
        cause = getattr(error, "inner_exception", None) or error
        trial.fail(cause)
        if trial.failure is not None and trial.stage == STAGE and not isinstance(cause, LayoutDoctorError):
            reason = trial.failure.message
            message = (
                f"cannot lower the model for {target.name}: {reason}; diagnose it where the GPU is (without a target)"
            )
            trial.failure = msgspec.structs.replace(trial.failure, message=message)
    return trial


def _reason_to_skip(configuration: Configuration) -> str | None:
    if configuration.backend != "inductor":
        return EAGER_REASON
    return FREEZING_REASON if configuration.inductor_options.get("freezing") else None


def _lower(trial: LiveTrial, step: Step, target: Target) -> None:
    """Runs the step once with the target's lowering as its backend, under capture."""
    lowering = TargetLowering(target, effective_options(trial.configuration))
    step.run = torch.compile(own_frame(step.run, trial.name), backend=lowering)
    try:
        # The capture's hooks stand around the lowering that the target's backend cuts short.
        with compile_settings({"freezing": False}), lowering, CompileCapture() as capture:
            step()
    finally:
        step.forget_results()
    trial.graph_break_reasons = capture.graph_break_reasons
    trial.graphs = capture.graphs
    trial.notes += lowering.notes
    trial.notes += [f"not recorded: {failure}" for failure in capture.failures]
    if lowering.failures:
        first, *others = lowering.failures
        more = f" (and {len(others)} further graphs)" if others else ""
        trial.failure = Failure(kind=STAGE, message=first + more, log="\n".join(lowering.failures) if others else None)
    elif not trial.graphs:
        why = f" ({trial.graph_break_reasons[0]})" if trial.graph_break_reasons else ""
        trial.failure = Failure(
            kind=STAGE,
            message=f"cannot lower anything for {target.name}: torch.compile traced no graph of this model{why}; "
            "it would run as eager code",
        )
