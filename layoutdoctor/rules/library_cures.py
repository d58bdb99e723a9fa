"""
What cures the conversions of a library in the diagnosis of a model: a configuration that was measured, or none is.

Faces LD111; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence, recorded, wording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Conversion, Diagnosis, Trial


def library_conversions(trial: Trial) -> list[Conversion]:
    """
    The conversions of a trial that libraries make.

    Args:
        trial: Any trial.
    """
    return [conversion for conversion in evidence.conversions_of(trial) if conversion.owner == "library"]


def are_worth_it(diagnosis: Diagnosis, trial: Trial) -> bool:
    """
    Whether every measured configuration with fewer conversions by libraries is slower: they pay.

    Args:
        diagnosis: The diagnosis of a model.
        trial: Its trial with the conversions.
    """
    others = [
        other
        for other in evidence.own_trials(diagnosis)
        if other.name != trial.name and other.kernels is not None and _has_fewer(other, trial)
    ]
    is_measured = any(
        evidence.ratio_of(diagnosis, other.name) is not None or evidence.is_baseline(diagnosis, other.name)
        for other in others
    )
    return is_measured and _cure(diagnosis, trial) is None


def suggestion(diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], memory_format: str | None) -> str:
    """
    What to do about them.

    Args:
        diagnosis: The diagnosis of a model.
        trial: Its trial with the conversions.
        conversions: Those.
        memory_format: What the library wants, as torch calls it; None where the conversions do not say.
    """
    other = _cure(diagnosis, trial)
    if other is not None:
        left = len(library_conversions(other)) or "none"
        return f"use {other.name}: it leaves {left} of them; {wording.alternative_words(diagnosis, trial, other)}"
    if are_worth_it(diagnosis, trial):
        return "leave them: every configuration with fewer of them that was measured is slower here"
    if memory_format is None:
        return "measure both memory formats: --configurations default"
    return (
        f"give the model and its input {memory_format}, and measure that as well: --configurations default"
        + recorded.miopen_words(conversions)
    )


def _cure(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    return evidence.clean_alternative(diagnosis, trial, lambda candidate: _has_fewer(candidate, trial))


def _has_fewer(candidate: Trial, trial: Trial) -> bool:
    """Half as many at most."""
    return 2 * len(library_conversions(candidate)) <= len(library_conversions(trial))
