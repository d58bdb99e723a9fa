"""A configuration traced on the CPU and lowered for a GPU that is not there: decisions, nodes, buffers and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.retarget import TargetLowering
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.trial import Failure, Trial
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.applying import effective_options
from layoutdoctor.subjects.subject import owned_module

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.subject import Subject
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject

STAGE = "target"
"""Failure kind of whatever concerns the target."""


def described_for(target: Target, subject: LoadedSubject, described: Subject) -> Subject:
    """
    The record of a subject that is lowered for a target.

    Raises:
        UsageError: The model or an input is not on the CPU.
    """
    module = owned_module(subject)
    tensors = [*module.parameters(), *module.buffers()] if module is not None else []
    tensors += [leaf for leaf in pytree.tree_leaves((subject.args, subject.kwargs)) if isinstance(leaf, torch.Tensor)]
    elsewhere = sorted({tensor.device.type for tensor in tensors} - {"cpu", "meta"})
    if elsewhere:
        raise UsageError(
            f"cannot lower {subject.name} for target {target.name!r}: it has tensors on {', '.join(elsewhere)}, "
            "expected model and inputs on cpu, where they are traced; call .cpu() on both, or leave the target out"
        )
    note = f"{target.name}: what Inductor asks the device about was answered as for {target.device_name}"
    return msgspec.structs.replace(described, device="cuda", target=target.name, notes=(*described.notes, note))


def lower(trial: Trial, step: Step, target: Target) -> Trial:
    """Runs the step once with the target's lowering as its backend, under capture; a graph not lowered is a failure."""
    lowering = TargetLowering(target, effective_options(trial.configuration))
    step.run = torch.compile(step.run, backend=lowering)
    # The lowering is entered first: the capture's hooks see what it cuts short.
    with compile_settings({"freezing": False}), lowering, CompileCapture() as capture:
        step()
    trial = msgspec.structs.replace(
        trial,
        graph_break_reasons=capture.graph_break_reasons,
        graphs=capture.graphs,
        notes=(*trial.notes, *lowering.notes, *(f"not recorded: {failure}" for failure in capture.failures)),
    )
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
    else:
        return trial
    return msgspec.structs.replace(trial, status="failed", failure=failure)


def failure_to_lower(failure: Failure, target: Target) -> Failure:
    """The failure of a model that raised while it was lowered, with what to do next."""
    message = (
        f"cannot lower the model for {target.name}: {failure.message}; diagnose it where the GPU is (without a target)"
    )
    return msgspec.structs.replace(failure, message=message)
