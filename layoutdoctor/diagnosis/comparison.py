"""
The comparison of two diagnoses, as frozen values that are saved as JSON.

Every difference is new minus old; every ratio of times is old over new, so that above 1 is faster. ``None`` is "not
recorded", or "not there".
"""

from __future__ import annotations

from typing import Literal

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.answer import Account, Ratio, Severity
from layoutdoctor.diagnosis.conversion import ConversionDirection, Owner, TensorKind
from layoutdoctor.diagnosis.diagnosis import reports_layer
from layoutdoctor.diagnosis.kernel import TotalKind
from layoutdoctor.diagnosis.layout import Size
from layoutdoctor.diagnosis.record import Record
from layoutdoctor.diagnosis.trial import TrialStatus

COMPARISON_SCHEMA_VERSION = 1
WITH_RESULT = ("ok", "same_as")
"""Statuses of a trial that has a result."""


class Amount(Record, frozen=True, kw_only=True):
    """
    Kernels, conversions or round trips added up, per profiler step if the comparison's ``basis`` is ``step``.

    Attributes:
        conversion_count: How many of these kernels are layout conversions; None for conversions and round trips.
    """

    count: float
    seconds: float | None
    conversion_count: float | None = None


class Costs(Record, frozen=True, kw_only=True):
    """
    Everything that one run spent, per profiler step or in all.

    Attributes:
        kernel_seconds: Time of all kernels, summed; not the wall time.
        exposed_conversion_seconds: The part of ``conversion_seconds`` in which nothing else ran on the device.
        convolution_seconds: Time of all kernels that ran for a convolution, conversions included.
        redundant_pair_seconds: Time of the conversions in round trips, each counted once.
    """

    kernel_count: float
    kernel_seconds: float | None
    conversion_count: float
    conversion_seconds: float | None
    exposed_conversion_seconds: float | None
    convolution_seconds: float | None
    redundant_pair_count: float
    redundant_pair_seconds: float | None


class CostChange(Record, frozen=True, kw_only=True):
    """Something that both runs spent time on, or one of them; ``old`` or ``new`` is None if it is not in that run."""

    old: Amount | None
    new: Amount | None

    @property
    def count_difference(self) -> float:
        """New minus old."""
        return (self.new.count if self.new else 0) - (self.old.count if self.old else 0)

    @property
    def seconds_difference(self) -> float | None:
        """New minus old; None if a time was not recorded."""
        seconds = [0.0 if amount is None else amount.seconds for amount in (self.old, self.new)]
        return None if seconds[0] is None or seconds[1] is None else seconds[1] - seconds[0]


class ConversionChange(CostChange, frozen=True, kw_only=True):
    """Layout conversions that are equal in these fields of a ``Conversion``."""

    owner: Owner
    op: str | None
    module: str | None
    direction: ConversionDirection
    tensor: TensorKind
    shape: tuple[Size, ...] | None


class RoundTripChange(CostChange, frozen=True, kw_only=True):
    """Round trips that are equal in these fields of a ``RedundantPair``."""

    kind: Literal["adjacent", "through"]
    module: str | None
    between: tuple[str, ...]
    shape: tuple[Size, ...] | None


class TotalChange(CostChange, frozen=True, kw_only=True):
    """
    One operation, kernel or module.

    Attributes:
        is_loose: Whether only the names without template arguments, numbers and versions are equal.
    """

    kind: TotalKind
    name: str
    is_loose: bool = False


class EnvironmentDifference(Record, frozen=True, kw_only=True):
    """A device, version or setting that is not the same in both."""

    name: str
    old: str | None
    new: str | None


class Regression(Record, frozen=True, kw_only=True):
    """
    Whether the new one loses more to layouts.

    Attributes:
        losses: Each loss in a clause; empty if nothing is worse by more than the tolerance.
        not_judged: Why that cannot be said; None if it can.
    """

    losses: tuple[str, ...] = ()
    not_judged: str | None = None


class AnyComparison(Record, frozen=True, kw_only=True):
    """
    Both kinds of comparison. ``print(comparison)`` is the text report.

    Attributes:
        is_same: Whether the two say the same, number by number.
        is_empty: Whether the two have nothing in common.
        environment: Devices, versions and settings that are not the same.
        notes: Remarks without which a number would be misread.
    """

    schema_version: int = COMPARISON_SCHEMA_VERSION
    layoutdoctor_version: str = __version__
    is_same: bool
    is_empty: bool
    environment: tuple[EnvironmentDifference, ...]
    regression: Regression
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(reports_layer().render_comparison(self, "text"))


# ------------------------------------------------------------------------------------------------- two recorded traces
class ComparedTrace(Record, frozen=True, kw_only=True):
    """
    One of the two recorded runs.

    Attributes:
        name: File, without folders.
        created_at: When the diagnosis was made: UTC, ISO 8601.
        step_count: Profiler steps with kernels in them; 0 if none was recorded.
        lacks: What was not recorded, and why.
    """

    name: str
    created_at: str
    step_count: int
    costs: Costs
    lacks: tuple[str, ...] = ()


class Overlap(Record, frozen=True, kw_only=True):
    """
    How much two recorded runs have in common.

    Attributes:
        kind: Whether names of operations or, if one run has none, of kernels were compared.
        common_count: Names in both runs.
        total_count: Names in either.
        common_share: The least share of a run's time under common names; None if a run has no time.
        is_small: Whether the two seem to be different runs.
    """

    kind: TotalKind
    common_count: int
    total_count: int
    common_share: float | None
    is_small: bool


class TraceComparison(AnyComparison, frozen=True, kw_only=True, tag_field="kind", tag="trace-comparison"):
    """
    Two examined traces, outer-joined; the largest difference of seconds first.

    Attributes:
        basis: ``step`` if both traces record profiler steps: amounts are those of a trace over the number of its steps.
            ``sum`` if not: whole traces are compared, as if both did the same work.
        unequal_work: Why the two seem not to have done the same work; None if nothing says so.
        totals: Operations, kernels and modules.
    """

    basis: Literal["step", "sum"]
    old: ComparedTrace
    new: ComparedTrace
    overlap: Overlap
    unequal_work: str | None
    conversions: tuple[ConversionChange, ...]
    round_trips: tuple[RoundTripChange, ...]
    totals: tuple[TotalChange, ...]


# ------------------------------------------------------------------------------------------- two diagnoses of models
class ComparedModel(Record, frozen=True, kw_only=True):
    """
    One of the two diagnoses.

    Attributes:
        name: The target, as the user named it.
        created_at: UTC, ISO 8601.
        baseline: The configuration that ratios refer to; None if nothing was compared.
    """

    name: str
    created_at: str
    mode: str
    device: str | None
    baseline: str | None
    recommended: str | None
    speedup: Ratio | None


class ComparedTrial(Record, frozen=True, kw_only=True):
    """
    One configuration in one of the two diagnoses.

    Attributes:
        same_as: The configuration with the same code that was measured instead.
        ratio: Its ratio to the baseline; None for the baseline, and if not measured.
        costs: One iteration; None if no kernels were recorded, unless the trial is a static one.
    """

    status: TrialStatus
    same_as: str | None = None
    seconds: float | None = None
    ratio: Ratio | None = None
    costs: Costs | None = None
    failure: str | None = None


class GraphDecision(Record, frozen=True, kw_only=True):
    """Whether layout optimization was on for a graph, by which rule, and how many convolutions became channels-last."""

    applied: bool | None
    rule: str
    channels_last_convolution_count: int
    convolution_count: int


class DecisionChange(Record, frozen=True, kw_only=True):
    """A graph, by its name, that Inductor decided otherwise in the new diagnosis."""

    graph: str
    old: GraphDecision
    new: GraphDecision


class TrialChange(Record, frozen=True, kw_only=True):
    """
    One configuration in both diagnoses; ``old`` or ``new`` is None if it is in the other one only.

    Attributes:
        change: The new ratio to the baseline over the old one; above 1, the configuration became faster in comparison
            with the baseline. None for the baseline, and if not judged.
        not_judged: Why there is no ``change``; None if there is, and for the baseline.
        losses: What is worse, each in a clause.
        account: What the difference of the two times consists of, if the times differ by 5 % or more.
    """

    name: str
    old: ComparedTrial | None
    new: ComparedTrial | None
    change: Ratio | None = None
    not_judged: str | None = None
    conversions: tuple[ConversionChange, ...] = ()
    round_trips: tuple[RoundTripChange, ...] = ()
    decisions: tuple[DecisionChange, ...] = ()
    losses: tuple[str, ...] = ()
    account: Account | None = None

    @property
    def own_ratio(self) -> float | None:
        """The old time over the new one; meaningful only if devices, thread counts and versions are equal."""
        if self.old is None or self.new is None or self.old.seconds is None or self.new.seconds is None:
            return None
        return self.old.seconds / self.new.seconds if self.new.seconds else None

    @property
    def has_both_results(self) -> bool:
        """Whether it has a result in both diagnoses."""
        return all(trial is not None and trial.status in WITH_RESULT for trial in (self.old, self.new))

    @property
    def same_as_in_both(self) -> str | None:
        """The configuration that has the same code in both diagnoses, so that its row says everything."""
        same = {trial.same_as if trial is not None else None for trial in (self.old, self.new)}
        return same.pop() if len(same) == 1 else None


class FindingChange(Record, frozen=True, kw_only=True):
    """
    Findings of one rule about one configuration, if the two diagnoses have different numbers of them.

    Attributes:
        severity: Of the most severe one; this and the following of the new diagnosis, if it has any.
        configuration: None for the whole diagnosis.
        module: Of the first one, as is ``place``, its file and line.
        seconds: Cost of all; None if one has no cost.
        is_accepted: Whether all of the new diagnosis are accepted there.
    """

    code: str
    rule: str
    severity: Severity
    configuration: str | None
    module: str | None
    place: str | None
    old_count: int
    new_count: int
    seconds: float | None = None
    is_accepted: bool = False


class ModelComparison(AnyComparison, frozen=True, kw_only=True, tag_field="kind", tag="model-comparison"):
    """
    Two diagnoses of models.

    Attributes:
        trials: By configuration, in the order of the new diagnosis.
        findings: The most severe first.
    """

    old: ComparedModel
    new: ComparedModel
    trials: tuple[TrialChange, ...]
    findings: tuple[FindingChange, ...]
