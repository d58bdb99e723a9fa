"""
What a comparison of two diagnoses says, as frozen values that are saved as JSON.

The JSON of a comparison (``schema_version`` 1, ``kind`` tells which) is these classes, field by field; fields may be
added, none goes. Differences are new minus old everywhere, so that a negative one was saved; ratios of times are old
over new, so that above 1 is faster; ``None`` means "not recorded" or "not there", never zero. Faces ``analysis`` (which
fills them), the reports and the command; imports records only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.comparison_records.amounts import (
    Amount,
    Basis,
    Change,
    ComparedRun,
    ComparedTotal,
    ConversionAmount,
    ConversionChange,
    CostDifference,
    CostTotals,
    EnvironmentDifference,
    Match,
    Overlap,
    Regression,
    RoundTripChange,
)
from layoutdoctor.comparison_records.models import (
    ComparedSubject,
    ComparedTrial,
    ConvolutionChange,
    DecisionChange,
    FindingChange,
    GraphDecision,
    RatioBounds,
    TimeChange,
    TimeSummary,
)
from layoutdoctor.records import Record

__all__ = [
    "COMPARISON_SCHEMA_VERSION",
    "Amount",
    "Basis",
    "Change",
    "ComparedRun",
    "ComparedSubject",
    "ComparedTotal",
    "ComparedTrial",
    "ConversionAmount",
    "ConversionChange",
    "ConvolutionChange",
    "CostDifference",
    "CostTotals",
    "DecisionChange",
    "EnvironmentDifference",
    "FindingChange",
    "GraphDecision",
    "Match",
    "ModelComparison",
    "Overlap",
    "RatioBounds",
    "Regression",
    "RoundTripChange",
    "TimeChange",
    "TimeSummary",
    "TraceComparison",
    "comparison_to_json",
]

COMPARISON_SCHEMA_VERSION = 1


class TraceComparison(Record, frozen=True, kw_only=True):
    """
    Two examined traces, outer-joined. ``print(comparison)`` is the text report.

    Attributes:
        schema_version: Version of this JSON.
        kind: Always ``trace-comparison``.
        layoutdoctor_version: What wrote it.
        basis: ``step`` where both traces record profiler steps: every count and every second is that of the whole trace
            over the number of its steps. ``sum`` where not: whole traces are compared, which assumes equal work.
        old: The earlier run.
        new: The later run.
        difference: New minus old.
        overlap: What the two have in common.
        is_same: Whether the two say the same, number by number.
        unequal_work: Why the two seem not to have done the same work; None where nothing says so.
        environment: Versions and devices that are not the same.
        conversions: By owner, operation, module, direction, tensor and shape; largest difference of seconds first.
        round_trips: By module, what is between, and shape; likewise.
        operations: By name; likewise.
        kernels: By name; likewise.
        modules: By name; likewise.
        regression: Whether the new one loses more to layouts.
        notes: What a reader of the numbers has to know.
    """

    schema_version: int = COMPARISON_SCHEMA_VERSION
    kind: Literal["trace-comparison"] = "trace-comparison"
    layoutdoctor_version: str = __version__
    basis: Basis
    old: ComparedRun
    new: ComparedRun
    difference: CostDifference
    overlap: Overlap
    is_same: bool
    unequal_work: str | None
    environment: tuple[EnvironmentDifference, ...]
    conversions: tuple[ConversionChange, ...]
    round_trips: tuple[RoundTripChange, ...]
    operations: tuple[ComparedTotal, ...]
    kernels: tuple[ComparedTotal, ...]
    modules: tuple[ComparedTotal, ...]
    regression: Regression
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _text_report(self)


class ModelComparison(Record, frozen=True, kw_only=True):
    """
    Two diagnoses of models, trial by trial. ``print(comparison)`` is the text report.

    Attributes:
        schema_version: Version of this JSON.
        kind: Always ``model-comparison``.
        layoutdoctor_version: What wrote it.
        basis: Always ``iteration``: a trial records one warm iteration.
        old: The earlier diagnosis.
        new: The later diagnosis.
        is_same: Whether the two say the same, number by number.
        is_empty: Whether no configuration has a result in both.
        different_subject: Why the two seem to be about different models or inputs; None where nothing says so.
        environment: Versions, devices and settings that are not the same.
        trials: By configuration, in the order of the new diagnosis.
        findings: What the rules found in one more often than in the other.
        regression: Whether the new one is worse; ``analysis.model_regression`` says what counts.
        notes: What a reader of the numbers has to know.
        stayed: What the rules found as often in both, with its severity and cost in each.
        times: How the times were judged, and what all configurations have in common.
    """

    schema_version: int = COMPARISON_SCHEMA_VERSION
    kind: Literal["model-comparison"] = "model-comparison"
    layoutdoctor_version: str = __version__
    basis: Basis = "iteration"
    old: ComparedSubject
    new: ComparedSubject
    is_same: bool
    is_empty: bool
    different_subject: str | None
    environment: tuple[EnvironmentDifference, ...]
    trials: tuple[ComparedTrial, ...]
    findings: tuple[FindingChange, ...]
    regression: Regression
    notes: tuple[str, ...] = ()
    stayed: tuple[FindingChange, ...] = ()
    times: TimeSummary = TimeSummary()

    def __str__(self) -> str:
        return _text_report(self)


def comparison_to_json(comparison: TraceComparison | ModelComparison) -> bytes:
    """
    A comparison as indented JSON.

    Args:
        comparison: Any comparison.
    """
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n"


def _text_report(comparison: TraceComparison | ModelComparison) -> str:
    from layoutdoctor import reports  # the upper layer

    return str(reports.render_comparison(comparison, "text"))
