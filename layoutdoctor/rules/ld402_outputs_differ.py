"""
A configuration computes something other than the model does.

What it finds:
    A trial whose outputs (or gradients, in training) are further from the float64 eager reference than the tolerance
    allows: ten times eager's own error in the model's dtype, at least 1e-4 (outputs in float32) or 0.2 (gradients), as
    a relative root mean square error. An error where it is what the user runs today, by more than 1.5 times the
    tolerance, and eager is right.

Why it costs:
    Its time does not count: it is never recommended, however fast it is. And whoever uses it gets other results.

Example:
    A model that calls ``x.as_strided(...)`` reads raw memory: with channels_last input the same call picks other
    elements, in eager as well. And torch 2.13.0 on a CPU, in training: behind two convolutions whose sum is divided
    and upsampled from 4 x 4 (``nearest``), as in a U-Net of diffusers, every gradient is zero where layout optimization
    converts that sum: the generated code reads the buffer before the upsampling's backward has added to it.

What to do:
    Where ``eager-channels-last`` differs too, the model depends on the strides of its tensors: replace ``as_strided``
    by indexing, or keep the input contiguous. Where only compiled configurations differ, it may be a bug in torch:
    the reproducer belongs into its report. Where ``inductor-layout-opt-off`` is right, use that meanwhile.

When it is fine:
    The model is random by design (dropout in training, sampling).

Source:
    ``torch.as_strided`` works on the storage, whatever the layout. pytorch/pytorch issue #67239 is a case of a layout
    that changed results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.examination.choice import is_far_off, wrong_baseline
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Equivalence, Finding, Severity, Trial

_EAGER = "eager"
_EAGER_CHANNELS_LAST = "eager-channels-last"


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial that differs."""
    for trial in evidence.own_trials(diagnosis):
        if trial.equivalence is not None and trial.equivalence.status == "different":
            cause, advice = _cause(diagnosis, trial)
            severity: Severity = "error" if trial is wrong_baseline(diagnosis) and is_far_off(trial) else "warning"
            yield RULE.finding(trial.name, _message(trial, trial.equivalence) + cause, advice, severity=severity)


def _message(trial: Trial, equivalence: Equivalence) -> str:
    message = (
        f"the outputs of {evidence.shown(trial.name)} differ from the {equivalence.reference or 'eager'} reference"
    )
    if equivalence.detail:
        return f"{message} ({equivalence.detail})"
    if equivalence.relative_error is not None:
        message += f" by a relative error of {equivalence.relative_error:.2g}"
        if equivalence.tolerance is not None:
            message += f", where {equivalence.tolerance:.2g} is allowed"
    return message


def _cause(diagnosis: Diagnosis, trial: Trial) -> tuple[str, str]:
    """What the other trials say about the reason, as the end of the message, and what to do about it."""
    if not Times(diagnosis).computes_right(_EAGER):
        too = "" if trial.name == _EAGER else "; eager differs too"
        return (
            f"{too}: the model is random, or float32 alone is too coarse for it",
            "make the model deterministic (no dropout, a fixed seed) before its configurations are compared",
        )
    if evidence.is_channels_last(trial) and not Times(diagnosis).computes_right(_EAGER_CHANNELS_LAST):
        too = "" if trial.name == _EAGER_CHANNELS_LAST else f"; {evidence.shown(_EAGER_CHANNELS_LAST)} differs too"
        return (
            f"{too}: the model itself depends on the strides of its tensors, as as_strided() does",
            "keep the input's layout, or replace as_strided() by indexing that does not see strides",
        )
    without = _without_layout_optimization(diagnosis, trial)
    if without is not None:
        return (
            f"; {evidence.shown(without.name)} does not, so it comes with layout optimization",
            'compile with options={"layout_optimization": False} until torch is mended; '
            "the reproducer belongs into a bug report to PyTorch",
        )
    return (
        "; eager does not, so it comes from compiling" if diagnosis.find_trial(_EAGER) is not None else "",
        "do not use this configuration; the reproducer belongs into a bug report to PyTorch",
    )


def _without_layout_optimization(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """The same configuration without it, where its outputs are right."""
    same = msgspec.structs.replace(trial.configuration, name="", layout_optimization="off")
    for other in evidence.own_trials(diagnosis):
        is_same = msgspec.structs.replace(other.configuration, name="") == same
        if is_same and other is not trial and other.equivalence is not None and other.equivalence.status == "equal":
            return other
    return None


RULE = document_rule("LD402", "outputs-differ", check, __doc__)
