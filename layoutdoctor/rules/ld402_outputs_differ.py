"""LD402: outputs whose values differ from the model's."""

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
    """Yields one finding per trial whose outputs differ."""
    for trial in evidence.own_trials(diagnosis):
        seen = trial.equivalence
        if seen is not None and trial.is_wrong:
            cause, advice = _cause(diagnosis, trial)
            is_error = trial is wrong_baseline(diagnosis) and is_far_off(trial)
            reference = f"{seen.reference or 'eager'} reference{phrase(' ({})', seen.detail)}"
            what = f"outputs of {shown(trial.name)} differ from the {reference}"
            severity: Severity = "error" if is_error else "warning"
            yield LD402.finding(trial.name, joined((what, cause)), advice, severity=severity)


def _cause(diagnosis: Diagnosis, trial: Trial) -> tuple[str, str]:
    """Returns the cause of the difference, as other trials show it (empty if they do not), and the advice."""
    times, last = Times(diagnosis), "eager-channels-last"
    if not times.computes_right("eager"):
        too = "" if trial.name == "eager" else "eager differs too: "
        return (
            f"{too}the model is random, or its dtype is not exact enough",
            "make the model deterministic (no dropout, a fixed seed) before its configurations are compared",
        )
    if evidence.is_channels_last(trial) and not times.computes_right(last):
        too = "" if trial.name == last else f"{shown(last)} differs too: "
        return (
            f"{too}the model depends on strides, as as_strided() does",
            "keep the input's layout, or replace as_strided() by indexing that does not depend on strides",
        )
    same = msgspec.structs.replace(trial.configuration, name="", layout_optimization="off")
    for other in evidence.own_trials(diagnosis):
        is_same = other is not trial and msgspec.structs.replace(other.configuration, name="") == same
        if is_same and other.is_right:
            return (
                f"the outputs of {shown(other.name)} do not differ, so layout optimization is the cause",
                'compile with options={"layout_optimization": False} until torch is fixed; '
                "report the bug to PyTorch, with the reproducer",
            )
    eager = diagnosis.measured_trial("eager")
    is_compiled = trial.configuration.backend == "inductor" and eager is not None and eager.is_right
    return (
        "the outputs of eager do not differ, so compiling is the cause" if is_compiled else "",
        "do not use this configuration; report the bug to PyTorch, with the reproducer",
    )


LD402 = Rule("LD402", "outputs-differ", other_values)
