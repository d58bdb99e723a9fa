"""
What the charts of the HTML report draw: numbers of the record, names cleaned, nothing computed that a table lacks.

Faces ``html``, which puts it into the page as JSON. Times are seconds, those of the timeline whole nanoseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.comparison import LEAST_COVERAGE, median_interval
from layoutdoctor.reports.sections.rows import find_ratio, format_interval
from layoutdoctor.reports.sections.wording import clean_name
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Measurement, Trial


@dataclass(frozen=True, slots=True)
class RatioBar:
    """
    How many times faster than the baseline, as drawn.

    Attributes:
        low: Lower end of the interval.
        median: Median of the ratios.
        high: Upper end.
        text: All three as the table has them.
        verdict: What may be said.
    """

    low: float
    median: float
    high: float
    text: str
    verdict: str


@dataclass(frozen=True, slots=True)
class TimeBar:
    """
    One measured configuration.

    Attributes:
        name: Of the configuration.
        role: ``best`` for the recommended one, ``baseline`` or ``other``.
        median_seconds: As recorded.
        low_seconds: Lower end of an interval for the true median, from the round times.
        high_seconds: Its upper end.
        has_coverage: Whether that interval has the coverage that the chart names; else it is shortest to longest round.
        text: The median as the table has it.
        ratio: Against the baseline; None for the baseline itself and where not compared.
    """

    name: str
    role: str
    median_seconds: float
    low_seconds: float
    high_seconds: float
    has_coverage: bool
    text: str
    ratio: RatioBar | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """
    The round times of one configuration, in round order.

    Attributes:
        name: Of the configuration.
        median_seconds: As recorded.
        text: The median as text.
        seconds: One per round.
    """

    name: str
    median_seconds: float
    text: str
    seconds: tuple[float, ...]


COVERAGE_SHARE = LEAST_COVERAGE
"""How often the interval of a time bar covers the true median, at least."""


def build_bars(diagnosis: Diagnosis) -> tuple[TimeBar, ...]:
    """
    The measured configurations, fastest first.

    Args:
        diagnosis: Any diagnosis; there are none in one of a trace or for a device that is not there.
    """
    measured = [(trial, trial.measurement) for trial in diagnosis.trials if trial.measurement is not None]
    drawable = [(trial, measurement) for trial, measurement in measured if _is_drawable(measurement)]
    drawable.sort(key=lambda item: item[1].median_seconds)
    return tuple(_bar(diagnosis, trial, measurement) for trial, measurement in drawable)


def _is_drawable(measurement: Measurement) -> bool:
    """A hand-edited record may hold anything; what is no positive number has no place on an axis."""
    seconds = (measurement.median_seconds, *measurement.round_seconds)
    return all(0 < value < math.inf for value in seconds)


def _bar(diagnosis: Diagnosis, trial: Trial, measurement: Measurement) -> TimeBar:
    interval = median_interval(measurement.round_seconds or (measurement.median_seconds,), COVERAGE_SHARE)
    return TimeBar(
        name=clean_name(trial.name),
        role=_role(diagnosis, trial),
        median_seconds=measurement.median_seconds,
        low_seconds=min(interval.low, measurement.median_seconds),
        high_seconds=max(interval.high, measurement.median_seconds),
        has_coverage=interval.coverage is not None,
        text=format_seconds(measurement.median_seconds),
        ratio=_ratio(diagnosis, trial),
    )


def _role(diagnosis: Diagnosis, trial: Trial) -> str:
    recommended = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    if trial.name == recommended:
        return "best"
    return "baseline" if diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline else "other"


def _ratio(diagnosis: Diagnosis, trial: Trial) -> RatioBar | None:
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is None or not all(0 < end < math.inf for end in (ratio.low, ratio.median, ratio.high)):
        return None
    return RatioBar(ratio.low, ratio.median, ratio.high, format_interval(ratio), ratio.verdict)


def build_rounds(diagnosis: Diagnosis) -> tuple[Rounds, ...]:
    """
    The round times of every configuration measured in more than one round, in the order of the configurations.

    Args:
        diagnosis: Any diagnosis.
    """
    return tuple(
        Rounds(
            clean_name(trial.name),
            trial.measurement.median_seconds,
            format_seconds(trial.measurement.median_seconds),
            trial.measurement.round_seconds,
        )
        for trial in diagnosis.trials
        if trial.measurement is not None
        and len(trial.measurement.round_seconds) > 1
        and _is_drawable(trial.measurement)
    )
