"""What a finding's cure was measured to bring, where this diagnosis tried it: told in place of advice, or before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.configurations import base_name
from layoutdoctor.diagnosis.records import FASTER, SLOWER
from layoutdoctor.examination.ratios import COVERAGE, RESOLUTION, family_coverage, paired_ratio
from layoutdoctor.units import format_ratio

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, RatioInterval, Trial

_ABOUT_ATTEMPTS = ("LD402",)  # that its outputs differ
_EQUAL = 1.03
"""An interval that ends below says that there is nothing to gain; one that ends above may hide something."""


def is_of_interest(diagnosis: Diagnosis, finding: Finding) -> bool:
    """Whether a finding is about more than an attempt at a cure that nobody is told to use."""
    trial = None if finding.configuration is None else diagnosis.find_trial(finding.configuration)
    if trial is None or not trial.configuration.cures or finding.code in _ABOUT_ATTEMPTS:
        return True
    return diagnosis.recommendation is not None and diagnosis.recommendation.configuration == trial.name


def with_measured_cure(diagnosis: Diagnosis, finding: Finding) -> Finding:
    """A finding with what its cure brought by itself; as it is where none was tried."""
    trial = next((trial for trial in diagnosis.trials if _answers(trial, finding)), None)
    if trial is None:
        return finding
    ratio = gain_alone(diagnosis, trial)
    if ratio is not None and ratio.verdict == FASTER and not _differs(trial):
        words = (
            f"{trial.name}: measured {format_ratio(ratio.median)} on its own "
            f"({format_ratio(ratio.low)} to {format_ratio(ratio.high)}, against {base_name(trial.configuration)})"
        )
    else:
        words = f"{trial.name} was tried: {_why_not(trial, ratio)}"
    return msgspec.structs.replace(finding, suggestion=words)


def gain_alone(diagnosis: Diagnosis, trial: Trial) -> RatioInterval | None:
    """How many times faster a configuration with cures is than the same without them; None where not measured."""
    base = diagnosis.find_trial(base_name(trial.configuration))
    if base is None or base.measurement is None or trial.measurement is None:
        return None
    count = sum(trial.measurement is not None for trial in diagnosis.trials)
    resolution = diagnosis.comparison.resolution if diagnosis.comparison is not None else None
    return paired_ratio(
        trial.name,
        base.measurement.round_seconds,
        trial.measurement.round_seconds,
        coverage=family_coverage(COVERAGE, count),
        resolution=RESOLUTION if resolution is None else resolution,
    )


def _answers(trial: Trial, finding: Finding) -> bool:
    cures = trial.configuration.cures
    return len(cures) == 1 and cures[0].answers == finding.code and not trial.configuration.library_switches


def _differs(trial: Trial) -> bool:
    return trial.equivalence is not None and trial.equivalence.status == "different"


def _why_not(trial: Trial, ratio: RatioInterval | None) -> str:
    if trial.same_as is not None:
        return f"the compiled code is the same as of {trial.same_as}"
    if trial.failure is not None:
        return f"it failed ({trial.failure.message})"
    if _differs(trial):
        return "its outputs differ"
    if ratio is None:
        return "it was not timed"
    if ratio.lacks_rounds:
        return "the rounds could not tell"
    ends = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
    if ratio.verdict != SLOWER and ratio.high > _EQUAL:
        return f"not sure to be faster ({ends})"
    return f"no faster ({format_ratio(ratio.median)}, {ends})"
