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

from layoutdoctor.capture.compat import compile_settings, triton_version
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.records import Failure, Recommendation
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.examination.applying import effective_options
from layoutdoctor.isolation.messages import Progress
from layoutdoctor.measure.environment import describe_environment
from layoutdoctor.run.trial import LiveTrial, code_key, fingerprint, head_of, own_frame, rehearse
from layoutdoctor.subjects.prepare import prepare, same_preparation_key
from layoutdoctor.subjects.subject import describe, owned_module, with_something_to_train

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.records import Configuration, Mode
    from layoutdoctor.isolation.messages import Listener, Request
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.step import Step
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
    listener: Listener,
) -> tuple[Recording, ...]:
    """
    Every configuration of a loaded subject, lowered for a target.

    Raises:
        UsageError: The model or an input is not on the CPU.
        SubjectError: The model does not run in eager mode.
    """
    _check_on_cpu(subject, target)
    if request.mode == "training":
        subject = with_something_to_train(subject)
    described = describe(subject, request.mode)
    note = f"{target.name}: what Inductor asks the device about was answered as for {target.device_name}"
    described = msgspec.structs.replace(described, device="cuda", target=target.name, notes=(*described.notes, note))
    environment = describe_environment("cpu", triton=triton_version(), onednn=(None, None), command=request.command)
    # Processor and threads have no part in it.
    environment = msgspec.structs.replace(environment, device_name=None, thread_count=None)
    reason = f"nothing was run on {target.name}: the graphs were lowered for it without the device, so no time is known"
    head = msgspec.structs.replace(
        head_of(request, described, environment),
        recommendation=Recommendation(configuration=None, speedup=None, how=None, verified=False, reason=reason),
    )
    step_count = len(request.configurations) + 1
    rehearsal = rehearse(subject, request, listener, step_count)
    trials: list[LiveTrial] = []
    for done, configuration in enumerate(request.configurations, start=1):
        doing = f"lowering for {target.name}" if _reason_to_skip(configuration) is None else "nothing to lower"
        listener.progress(Progress(f"{configuration.name}: {doing}", done, step_count))
        trial = LiveTrial.of(configuration, request, listener)
        trials.append(trial)
        head = msgspec.structs.replace(head, configurations=(*head.configurations, trial.name))
        if not trial.was_done:
            listener.began(trial.name, "prepare")
            lower_trial(trial, subject, request.mode, target, trials[:-1], changes_inputs=rehearsal.changes_inputs)
        if not trial.was_done or trial.name in request.lost:
            trial.hand_over(msgspec.structs.replace(head, interrupted=_INTERRUPTED))
    return tuple(trial.recording(head) for trial in trials)


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


def lower_trial(
    trial: LiveTrial,
    subject: LoadedSubject,
    mode: Mode,
    target: Target,
    earlier: Sequence[LiveTrial],
    *,
    changes_inputs: bool,
) -> None:
    """
    One configuration, lowered for a target; a failure is a result.

    Args:
        earlier: Trials already lowered, which this one may turn out to be the same as.
    """
    reason = _reason_to_skip(trial.configuration)
    if reason is not None:
        trial.observe(status="skipped", failure=Failure(kind=STAGE, message=reason))
        return
    try:
        prepared = prepare(subject, trial.configuration, mode)
        trial.note(*prepared.notes)
        trial.remember(key=fingerprint(same_preparation_key(prepared, trial.configuration)))
        if trial.is_same_as_one_of(earlier):
            return
        trial.enter(STAGE)
        _lower(trial, prepared.step(mode, fresh_inputs=changes_inputs), target)
        if trial.record.failure is None:
            trial.remember(code=code_key(prepared, trial.record))
            if trial.is_same_as_one_of(earlier):
                return
        trial.was_profiled = True
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything
        # What Dynamo wraps around an exception of the backend says less than that one.
        cause = getattr(error, "inner_exception", None) or error
        trial.fail(cause)
        failure = trial.record.failure
        if failure is not None and trial.stage == STAGE and not isinstance(cause, LayoutDoctorError):
            reason = f"cannot lower the model for {target.name}: {failure.message}"
            message = f"{reason}; diagnose it where the GPU is (without a target)"
            trial.observe(failure=msgspec.structs.replace(failure, message=message))


def _reason_to_skip(configuration: Configuration) -> str | None:
    if configuration.backend != "inductor":
        return EAGER_REASON
    return FREEZING_REASON if configuration.freezes else None


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
    trial.observe(graph_break_reasons=capture.graph_break_reasons, graphs=capture.graphs)
    trial.note(*lowering.notes, *(f"not recorded: {failure}" for failure in capture.failures))
    if lowering.failures:
        first, *others = lowering.failures
        more = f" (and {len(others)} further graphs)" if others else ""
        log = "\n".join(lowering.failures) if others else None
        trial.observe(status="failed", failure=Failure(kind=STAGE, message=first + more, log=log))
    elif not capture.graphs:
        why = f" ({capture.graph_break_reasons[0]})" if capture.graph_break_reasons else ""
        message = (
            f"cannot lower anything for {target.name}: torch.compile traced no graph of this model{why}; "
            "it would run as eager code"
        )
        trial.observe(status="failed", failure=Failure(kind=STAGE, message=message))
