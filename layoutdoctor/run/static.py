"""
One configuration traced on the CPU and lowered for a GPU that is not there; nothing is measured.

Its trial has decision cards, FX nodes, buffers and kernel names of each graph, and no times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.configurations import find_target
from layoutdoctor.diagnosis.records import Failure, Trial
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.examination.applying import effective_options
from layoutdoctor.run.trial import code_key, failure_of, fingerprint, own_frame
from layoutdoctor.subjects.copies import input_tensors
from layoutdoctor.subjects.prepare import prepare, same_preparation_key
from layoutdoctor.subjects.subject import owned_module
from layoutdoctor.workers.messages import ClosedError, Compiled, Failed, Prepared

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Channel, Request

STAGE = "target"
"""Failure kind of whatever concerns the target."""


def check_on_cpu(subject: LoadedSubject, target: str) -> None:
    """
    Refuses a subject that cannot be traced here.

    Raises:
        UsageError: The model or an input is not on the CPU.
    """
    module = owned_module(subject)
    tensors = [*module.parameters(), *module.buffers()] if module is not None else []
    tensors += input_tensors(subject.args, subject.kwargs)
    elsewhere = sorted({tensor.device.type for tensor in tensors} - {"cpu", "meta"})
    if elsewhere:
        raise UsageError(
            f"cannot lower {subject.name} for target {target!r}: it has tensors on {', '.join(elsewhere)}, "
            "expected model and inputs on cpu, where they are traced; call .cpu() on both, or leave the target out"
        )


def lower(subject: LoadedSubject, configuration: Configuration, request: Request, channel: Channel) -> None:
    """Prepares one configuration, waits for the order to go on, and lowers it; a failure is an answer, too."""
    target = find_target(request.lower_for)
    stage = "prepare"
    try:
        step = prepare(subject, configuration, request.mode)
        channel.send(Prepared(key=fingerprint(same_preparation_key(step, configuration))))
        channel.receive()
        stage = STAGE
        trial = Trial(configuration=configuration, status="ok", is_static=True, notes=step.notes)
        trial = _lower(trial, step, target)
        channel.send(Compiled(trial=trial, code=code_key(step, trial)))
    except (ClosedError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything
        # An exception of the backend says more than the one that Dynamo raises from it.
        cause = getattr(error, "inner_exception", None) or error
        failure = failure_of(cause, stage)
        if stage == STAGE and not isinstance(cause, LayoutDoctorError):
            reason = f"cannot lower the model for {target.name}: {failure.message}"
            message = f"{reason}; diagnose it where the GPU is (without a target)"
            failure = msgspec.structs.replace(failure, message=message)
        channel.send(Failed(failure=failure))


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
