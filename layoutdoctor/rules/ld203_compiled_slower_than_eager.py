"""
torch.compile makes the model slower than plain eager execution.

What it finds:
    Eager measurably faster than the baseline, and than everything compiled with the same formats of model and input: in
    the caller's formats, or else in channels_last. Where eager in one format beats compiled code in another,
    it is the format that wins: no finding.

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
from layoutdoctor.rules.advice import other_cure, severity_by_cure
from layoutdoctor.rules.base import document_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, RatioInterval, Trial


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    main, comparison = evidence.main_trial(diagnosis), diagnosis.comparison
    if main is None or comparison is None or main.configuration.backend != "inductor":
        return
    for eager, words in (("eager", "eager"), ("eager-channels-last", "eager in channels_last")):
        own, ratio = diagnosis.measured_trial(eager), evidence.faster_ratio(diagnosis, eager)
        if own is None or ratio is None:
            continue
        compiled = [trial for trial in diagnosis.trials if _is_compiled_alike(diagnosis, trial, own)]
        if compiled and all(evidence.is_surely_slower(diagnosis, trial.name, eager) for trial in compiled):
            slower = main if main in compiled else min(compiled, key=lambda trial: trial.name)
            yield _finding(diagnosis, main, slower, ratio, words)
            return


def _is_compiled_alike(diagnosis: Diagnosis, trial: Trial, eager: Trial) -> bool:
    """Whether a trial was compiled with the formats of an eager one, and compared."""
    mine, theirs = trial.configuration, eager.configuration
    is_alike = (mine.model_format, mine.input_format) == (theirs.model_format, theirs.input_format)
    is_compared = evidence.is_baseline(diagnosis, trial.name) or evidence.ratio_of(diagnosis, trial.name) is not None
    return is_alike and mine.backend == "inductor" and trial.status == "ok" and is_compared


def _finding(diagnosis: Diagnosis, main: Trial, slower: Trial, ratio: RatioInterval, words: str) -> Finding:
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else ""
    own = evidence.ratio_of(diagnosis, slower.name)
    beside = "" if own is None else f", {evidence.speed_words(own, baseline)}"
    return RULE.finding(
        slower.name,
        f"{slower.name} is slower than {words}: {evidence.speed_words(ratio, baseline)}{beside}",
        other_cure(diagnosis, main, lambda cure: cure.name == ratio.name)
        or f"use {ratio.name}, or compile only the parts that gain from it",
        severity=severity_by_cure(diagnosis, ratio, lambda cure: own is None or cure.backend == "eager"),
        evidence=(ratio.name,),
        seconds=evidence.seconds_lost(diagnosis, ratio.name) if own is None else None,
    )


RULE = document_rule("LD203", "compiled-slower-than-eager", check, __doc__)
