"""
A static diagnosis: every configuration traced on the CPU and lowered for a GPU that is not there; nothing is measured.

What comes out are recordings without times and iterations: decision cards, FX nodes, buffers and kernel names of each
graph.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from torch.utils import _pytree as pytree

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import compile_settings, triton_version
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.records import Failure, Trial
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.examination.applying import effective_options
from layoutdoctor.measure.environment import describe_environment
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.run.rehearsal import check_runs
from layoutdoctor.run.trial import code_key, failure_of, fingerprint, own_frame
from layoutdoctor.subjects.prepare import prepare, same_preparation_key
from layoutdoctor.subjects.subject import describe, owned_module
from layoutdoctor.workers.messages import Lowered, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.records import Configuration, Mode
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Request

EAGER_REASON = "eager runs no compiler: nothing to lower for a GPU that is not there"
FREEZING_REASON = (
    "freezing folds the weights into the CPU's own convolutions before a graph is lowered; "
    "diagnose it on a machine with the GPU"
)
STAGE = "target"
"""Failure kind of whatever concerns the target."""


def record_for_target(subject: LoadedSubject, target: Target, request: Request) -> Iterator[Lowered | Progress]:
    """
    Every configuration of a loaded subject, lowered for a target.

    Yields:
        A recording for each, and before it what is done.

    Raises:
        UsageError: The model or an input is not on the CPU.
        SubjectError: The model does not run in eager mode.
    """
    _check_on_cpu(subject, target)
    described = describe(subject, request.mode)
    note = f"{target.name}: what Inductor asks the device about was answered as for {target.device_name}"
    described = msgspec.structs.replace(described, device="cuda", target=target.name, notes=(*described.notes, note))
    environment = describe_environment("cpu", triton=triton_version(), onednn=(None, None), command=request.command)
    # Processor and threads have no part in it.
    environment = msgspec.structs.replace(environment, device_name=None, thread_count=None)
    head = Head(
        layoutdoctor_version=__version__,
        created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment,
        subject=described,
        configurations=tuple(configuration.name for configuration in request.configurations),
    )
    check_runs(subject, request.mode)
    lowered: list[LoweredTrial] = []
    for number, configuration in enumerate(request.configurations):
        done = 20 + 80 * number // len(request.configurations)
        yield Progress(stage=f"{configuration.name}: lowering for {target.name}", done=done)
        lowered.append(lower_trial(subject, configuration, request.mode, target, lowered))
        recording = Recording(head=head, trial=lowered[-1].trial, source="static", was_profiled=lowered[-1].was_lowered)
        yield Lowered(recording=recording)


class LoweredTrial(NamedTuple):
    """
    A configuration that was lowered.

    Attributes:
        key: What configurations with the same options and formats have in common; None if it was not prepared.
        code: The same of the generated code.
        was_lowered: Whether its graphs are there.
    """

    trial: Trial
    key: str | None = None
    code: str | None = None
    was_lowered: bool = False


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
    subject: LoadedSubject,
    configuration: Configuration,
    mode: Mode,
    target: Target,
    earlier: Sequence[LoweredTrial],
) -> LoweredTrial:
    """
    One configuration, lowered for a target; a failure is a result.

    Args:
        earlier: Trials already lowered, which this one may turn out to be the same as.
    """
    trial = Trial(configuration=configuration, status="ok", is_static=True)
    reason = _reason_to_skip(configuration)
    if reason is not None:
        failure = Failure(kind=STAGE, message=reason)
        return LoweredTrial(msgspec.structs.replace(trial, status="skipped", failure=failure))
    stage = "prepare"
    try:
        prepared = prepare(subject, configuration, mode, copies=True)
        trial = msgspec.structs.replace(trial, notes=prepared.notes)
        key = fingerprint(same_preparation_key(prepared, configuration))
        same = _same_as_one_of(trial, [(one, one.key) for one in earlier], key, "the same options and formats")
        if same is not None:
            return LoweredTrial(same, key)
        stage = STAGE
        trial = _lower(trial, prepared.step(mode, fresh_inputs=False), target)
        if trial.failure is not None:
            return LoweredTrial(trial, key)
        code = code_key(prepared, trial)
        same = _same_as_one_of(trial, [(one, one.code) for one in earlier], code, "the same generated code")
        return LoweredTrial(same or trial, key, code, was_lowered=same is None)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything
        # What Dynamo wraps around an exception of the backend says less than that one.
        cause = getattr(error, "inner_exception", None) or error
        failure = failure_of(cause, stage)
        if stage == STAGE and not isinstance(cause, LayoutDoctorError):
            reason = f"cannot lower the model for {target.name}: {failure.message}"
            message = f"{reason}; diagnose it where the GPU is (without a target)"
            failure = msgspec.structs.replace(failure, message=message)
        return LoweredTrial(msgspec.structs.replace(trial, status="failed", failure=failure))


def _same_as_one_of(
    trial: Trial, known: Sequence[tuple[LoweredTrial, str | None]], mine: str | None, what: str
) -> Trial | None:
    for other, theirs in known:
        if mine is not None and theirs == mine and other.trial.status == "ok":
            notes = (*trial.notes, f"{what} as {other.trial.name}")
            return msgspec.structs.replace(trial, status="same_as", same_as=other.trial.name, notes=notes)
    return None


def _reason_to_skip(configuration: Configuration) -> str | None:
    if configuration.backend != "inductor":
        return EAGER_REASON
    return FREEZING_REASON if configuration.freezes else None


def _lower(trial: Trial, step: Step, target: Target) -> Trial:
    """Runs the step once with the target's lowering as its backend, under capture."""
    lowering = TargetLowering(target, effective_options(trial.configuration))
    step.run = torch.compile(own_frame(step.run, trial.name), backend=lowering)
    try:
        # The capture's hooks stand around the lowering that the target's backend cuts short.
        with compile_settings({"freezing": False}), lowering, CompileCapture() as capture:
            step()
    finally:
        step.forget_results()
    trial = msgspec.structs.replace(
        trial,
        graph_break_reasons=capture.graph_break_reasons,
        graphs=capture.graphs,
        notes=(*trial.notes, *lowering.notes, *(f"not recorded: {failure}" for failure in capture.failures)),
    )
    failure: Failure | None = None
    if lowering.failures:
        first, *others = lowering.failures
        more = f" (and {len(others)} further graphs)" if others else ""
        failure = Failure(kind=STAGE, message=first + more, log="\n".join(lowering.failures) if others else None)
    elif not capture.graphs:
        why = f" ({capture.graph_break_reasons[0]})" if capture.graph_break_reasons else ""
        message = (
            f"cannot lower anything for {target.name}: torch.compile traced no graph of this model{why}; "
            "it would run as eager code"
        )
        failure = Failure(kind=STAGE, message=message)
    return trial if failure is None else msgspec.structs.replace(trial, status="failed", failure=failure)
