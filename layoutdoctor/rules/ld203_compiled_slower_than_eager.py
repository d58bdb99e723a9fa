"""
torch.compile makes the model slower than plain eager execution.

What it finds:
    ``eager`` measurably faster than the baseline; or, where it is not, ``eager-channels-last`` faster: then it is the
    layout that wins, and no compiled configuration with the caller's layout makes up for it.

Why it costs:
    The compile itself took time, and each call takes longer than without it.

Example:
    A decoder in training on a CPU: Inductor lays the saved activations out anew for the backward, and eager with
    channels_last input beats every compiled configuration.

What to do:
    Use the configuration that was measured to be fastest. Where none of the compiled ones beats eager, leave this
    model, or this part of it, out of torch.compile.

When it is fine:
    torch.compile is wanted for something other than speed, such as memory. Where the two cannot be told apart, there
    is no finding.

Source:
    Measured here, in rounds in which all configurations take turns. pytorch/pytorch issue #192551 is such a case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, RatioInterval, Trial


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    baseline = evidence.main_trial(diagnosis)
    if baseline is None or diagnosis.comparison is None or baseline.configuration.backend != "inductor":
        return
    name = diagnosis.comparison.baseline
    for other, words in (("eager", "eager"), ("eager-channels-last", "eager in channels_last")):
        ratio = evidence.faster_ratio(diagnosis, other)
        if ratio is not None:
            message = f"{name} is slower than {words}: {evidence.speed_words(ratio, name)}"
            yield _finding(diagnosis, baseline, ratio, message)
            return


def _finding(diagnosis: Diagnosis, baseline: Trial, ratio: RatioInterval, message: str) -> Finding:
    cure = evidence.verified_cure(diagnosis)
    return RULE.finding(
        baseline.name,
        message,
        _suggestion(diagnosis, ratio, cure),
        severity="warning" if cure is None else "error",
        evidence=(ratio.name,),
        seconds=evidence.seconds_lost(diagnosis, ratio.name),
    )


def _suggestion(diagnosis: Diagnosis, ratio: RatioInterval, cure: Trial | None) -> str:
    if cure is None:
        return f"use {ratio.name}, or compile only the parts that gain from it"
    speedup = diagnosis.recommendation.speedup if diagnosis.recommendation is not None else None
    return f"use {cure.name}" + (f": {evidence.speedup_words(speedup)}" if speedup is not None else "")


RULE = document_rule("LD203", "compiled-slower-than-eager", check, __doc__)
