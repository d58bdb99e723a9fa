"""LD402: outputs with other values than the model's."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from layoutdoctor.diagnosis import Diagnosis, Finding, Severity, Trial
from layoutdoctor.examination.advice.choice import is_far_off, wrong_baseline
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import joined, phrase, shown


def other_values(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial whose outputs differ."""
    for trial in evidence.own_trials(diagnosis):
        seen = trial.equivalence
        if seen is not None and trial.is_wrong:
            cause, advice = _cause(diagnosis, trial)
            is_error = trial is wrong_baseline(diagnosis) and is_far_off(trial)
            reference = f"{seen.reference or 'eager'} reference{phrase(' ({})', seen.detail)}"
            what = f"different outputs: {shown(trial.name)} against the {reference}"
            severity: Severity = "error" if is_error else "warning"
            yield LD402.finding(trial.name, joined((what, cause)), advice, severity=severity)


def _cause(diagnosis: Diagnosis, trial: Trial) -> tuple[str, str]:
    """The reason, by the other trials, empty if they show none; and what to do about it."""
    times, last = Times(diagnosis), "eager-channels-last"
    if not times.computes_right("eager"):
        too = "" if trial.name == "eager" else "eager differs too: "
        return (
            f"{too}the model is random, or float32 alone is too coarse for it",
            "make the model deterministic (no dropout, a fixed seed) before its configurations are compared",
        )
    if evidence.is_channels_last(trial) and not times.computes_right(last):
        too = "" if trial.name == last else f"{shown(last)} differs too: "
        return (
            f"{too}the model depends on strides, as as_strided() does",
            "keep the input's layout, or replace as_strided() by indexing that does not see strides",
        )
    same = msgspec.structs.replace(trial.configuration, name="", layout_optimization="off")
    for other in evidence.own_trials(diagnosis):
        is_same = other is not trial and msgspec.structs.replace(other.configuration, name="") == same
        if is_same and other.is_right:
            return (
                f"{shown(other.name)} does not differ, so it comes with layout optimization",
                'compile with options={"layout_optimization": False} until torch is mended; '
                "the reproducer belongs into a bug report to PyTorch",
            )
    return (
        "eager does not differ, so it comes from compiling" if diagnosis.find_trial("eager") is not None else "",
        "do not use this configuration; the reproducer belongs into a bug report to PyTorch",
    )


LD402 = Rule("LD402", "outputs-differ", other_values)
