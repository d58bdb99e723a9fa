"""
The comparison of two diagnoses, as frozen values that are saved as JSON.

Every difference is new minus old. A ratio of an old time to a new time is above 1 if the new run is faster. ``None``
means "not recorded" or "not there".
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
    A sum over kernels, conversions or round trips; per profiler step if the comparison's ``basis`` is ``step``.

    Attributes:
        conversion_count: Number of layout conversions among the kernels; None in a sum over conversions or round trips.
    """

    count: float
    seconds: float | None
    conversion_count: float | None = None


class Costs(Record, frozen=True, kw_only=True):
    """
    The costs of one run, per profiler step or in total.

    Attributes:
        kernel_seconds: Time of all kernels, summed; not the wall time.
        exposed_conversion_seconds: The part of ``conversion_seconds`` in which nothing else ran on the device.
        convolution_seconds: Time of all kernels that ran for a convolution, including its conversions.
        redundant_pair_seconds: Time of the conversions in round trips; each conversion counts once.
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
    """A cost in one or both of two runs; ``old`` or ``new`` is None if the cost is not in that run."""

    old: Amount | None
    new: Amount | None

    @property
    def count_difference(self) -> float:
        """New count minus old count."""
        return (self.new.count if self.new else 0) - (self.old.count if self.old else 0)

    @property
    def seconds_difference(self) -> float | None:
        """New time minus old time; None if a time was not recorded."""
        seconds = [0.0 if amount is None else amount.seconds for amount in (self.old, self.new)]
        return None if seconds[0] is None or seconds[1] is None else seconds[1] - seconds[0]


class ConversionChange(CostChange, frozen=True, kw_only=True):
    """The cost of all conversions with these values in the fields below. A field that only one run recorded is None."""

    owner: Owner
    op: str | None
    module: str | None
    direction: ConversionDirection
    tensor: TensorKind
    shape: tuple[Size, ...] | None


class RoundTripChange(CostChange, frozen=True, kw_only=True):
    """The cost of all round trips with these values in the fields below. A field that only one run recorded is None."""

    kind: Literal["adjacent", "through"]
    module: str | None
    between: tuple[str, ...]
    shape: tuple[Size, ...] | None


class TotalChange(CostChange, frozen=True, kw_only=True):
    """
    The cost of one operation, kernel or module in two runs.

    Attributes:
        is_loose: Whether the two runs' names are equal only without their template arguments, numbers and versions.
    """

    kind: TotalKind
    name: str
    is_loose: bool = False


class EnvironmentDifference(Record, frozen=True, kw_only=True):
    """A device, version or setting that differs between the two diagnoses."""

    name: str
    old: str | None
    new: str | None


class Regression(Record, frozen=True, kw_only=True):
    """
    The judgement whether the new diagnosis loses more to layouts than the old one.

    Attributes:
        losses: A clause for each loss; empty if nothing is worse by more than the tolerance.
        not_judged: Reason why the diagnoses, or the times of a configuration, cannot be judged; None if they can.
    """

    losses: tuple[str, ...] = ()
    not_judged: str | None = None


class AnyComparison(Record, frozen=True, kw_only=True):
    """
    The base of both kinds of comparison. ``print(comparison)`` prints the text report.

    Attributes:
        is_same: Whether the trials, the findings and the environments of the two diagnoses are equal.
        is_empty: Whether the two diagnoses have nothing in common.
        environment: Devices, versions and settings that differ.
        notes: Remarks that a reader needs to understand the numbers.
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
        name: Name of the file, without folders.
        created_at: Time at which the diagnosis was made: UTC, ISO 8601.
        step_count: Number of profiler steps with kernels; 0 if no steps were recorded.
        lacks: The facts that were not recorded, with the reasons.
    """

    name: str
    created_at: str
    step_count: int
    costs: Costs
    lacks: tuple[str, ...] = ()


class Overlap(Record, frozen=True, kw_only=True):
    """
    The overlap of two recorded runs: how many names they have in common.

    Attributes:
        kind: The kind of the compared names: ``operation``, or ``kernel`` if one run has no operations.
        common_count: Number of names in both runs.
        total_count: Number of names in at least one of the runs.
        common_share: Share of a run's time that it spends under common names; of the two runs, the smaller share. None
            if a run has no time.
        is_small: Whether the overlap is so small that the two seem to be different runs.
    """

    kind: TotalKind
    common_count: int
    total_count: int
    common_share: float | None
    is_small: bool


class TraceComparison(AnyComparison, frozen=True, kw_only=True, tag_field="kind", tag="trace-comparison"):
    """
    The comparison of two examined traces. Rows of either trace are kept; the largest difference in seconds comes first.

    Attributes:
        basis: ``step`` if both traces record profiler steps: the amounts of a trace are divided by the number of its
            steps. Otherwise ``sum``: whole traces are compared, as if both did the same work.
        unequal_work: Reason why the two runs seem to have done different work; None if nothing shows a difference.
        totals: Changes of operations, then of modules, then of kernels.
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
        created_at: Time at which the diagnosis was made: UTC, ISO 8601.
        baseline: The configuration that ratios refer to; None if no configurations were compared.
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
        same_as: The configuration with the same code that was measured instead; None otherwise.
        ratio: The configuration's ratio to the baseline; None for the baseline, and if not measured.
        costs: Costs of one iteration; None without recorded kernels. A trial for an absent GPU always has costs.
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
    """A graph for which Inductor's layout decision differs between the diagnoses; graphs are matched by name."""

    graph: str
    old: GraphDecision
    new: GraphDecision


class TrialChange(Record, frozen=True, kw_only=True):
    """
    One configuration in two diagnoses. ``old`` is None if the old diagnosis lacks it, ``new`` if the new one lacks it.

    Attributes:
        change: The new ratio to the baseline divided by the old ratio; above 1, the configuration became faster in
            comparison with the baseline. None for the baseline, and if not judged.
        not_judged: Reason why ``change`` was not judged; None for the baseline, without times, and if it was judged.
        losses: A clause of a sentence for each fact that became worse.
        account: The parts of the difference of the two times; None if the difference is below 5 %, or without kernels.
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
        """The old time divided by the new time; meaningful only on equal machines and versions. None without a time."""
        if self.old is None or self.new is None or self.old.seconds is None or self.new.seconds is None:
            return None
        return self.old.seconds / self.new.seconds if self.new.seconds else None

    @property
    def has_both_results(self) -> bool:
        """Whether the configuration has a result in both diagnoses."""
        return all(trial is not None and trial.status in WITH_RESULT for trial in (self.old, self.new))

    @property
    def same_as_in_both(self) -> str | None:
        """The other configuration that has the same code in both diagnoses; None otherwise."""
        same = {trial.same_as if trial is not None else None for trial in (self.old, self.new)}
        return same.pop() if len(same) == 1 else None


class FindingChange(Record, frozen=True, kw_only=True):
    """
    A change in the number of findings of one rule about one configuration.

    ``severity``, ``module``, ``place`` and ``seconds`` describe the findings of the new diagnosis. If the new diagnosis
    has no such findings, they describe the findings of the old diagnosis.

    Attributes:
        severity: Severity of the most severe finding.
        configuration: Name of the configuration; None for findings about the whole diagnosis.
        module: Module of the first finding.
        place: File and line of the first finding.
        seconds: Total cost of the findings; None if the cost of one finding is not known.
        is_accepted: Whether all findings of the new diagnosis are accepted; False if it has no such findings.
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
    The comparison of two diagnoses of models.

    Attributes:
        trials: The change of each configuration: first those of the new diagnosis, in its order, then all others.
        findings: Changes in the number of findings; the most severe first.
    """

    old: ComparedModel
    new: ComparedModel
    trials: tuple[TrialChange, ...]
    findings: tuple[FindingChange, ...]
