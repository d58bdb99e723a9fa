"""LD402: outputs with other values than the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.examination.choice import is_far_off, wrong_baseline
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Equivalence, Trial


def other_values(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial whose outputs differ."""
    for trial in evidence.own_trials(diagnosis):
        if trial.equivalence is not None and trial.equivalence.status == "different":
            cause, advice = _cause(diagnosis, trial)
            is_error = trial is wrong_baseline(diagnosis) and is_far_off(trial)
            message = f"the outputs of {shown(trial.name)} differ from the {_error_words(trial.equivalence)}{cause}"
            yield LD402.finding(trial.name, message, advice, severity="error" if is_error else "warning")


def _error_words(equivalence: Equivalence) -> str:
    detail = f" ({equivalence.detail})" if equivalence.detail else ""
    return f"{equivalence.reference or 'eager'} reference{detail}"


def _cause(diagnosis: Diagnosis, trial: Trial) -> tuple[str, str]:
    """The reason, by the other trials, as the end of the message; and what to do about it."""
    times, last = Times(diagnosis), "eager-channels-last"
    if not times.computes_right("eager"):
        too = "" if trial.name == "eager" else "; eager differs too"
        return (
            f"{too}: the model is random, or float32 alone is too coarse for it",
            "make the model deterministic (no dropout, a fixed seed) before its configurations are compared",
        )
    if evidence.is_channels_last(trial) and not times.computes_right(last):
        too = "" if trial.name == last else f"; {shown(last)} differs too"
        return (
            f"{too}: the model itself depends on the strides of its tensors, as as_strided() does",
            "keep the input's layout, or replace as_strided() by indexing that does not see strides",
        )
    same = msgspec.structs.replace(trial.configuration, name="", layout_optimization="off")
    for other in evidence.own_trials(diagnosis):
        is_same = other is not trial and msgspec.structs.replace(other.configuration, name="") == same
        if is_same and other.equivalence is not None and other.equivalence.status == "equal":
            return (
                f"; {shown(other.name)} does not, so it comes with layout optimization",
                'compile with options={"layout_optimization": False} until torch is mended; '
                "the reproducer belongs into a bug report to PyTorch",
            )
    return (
        "; eager does not, so it comes from compiling" if diagnosis.find_trial("eager") is not None else "",
        "do not use this configuration; the reproducer belongs into a bug report to PyTorch",
    )


LD402 = Rule("LD402", "outputs-differ", other_values)
