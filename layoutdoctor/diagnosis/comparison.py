"""
What a comparison of two diagnoses says, as frozen values that are saved as JSON.

The JSON of a comparison (``schema_version`` 1, ``kind`` tells which) is these classes, field by field; fields may be
added, none goes. Differences are new minus old everywhere, so that a negative one was saved; ratios of times are old
over new, so that above 1 is faster; ``None`` means "not recorded" or "not there", never zero.
"""

from __future__ import annotations

from typing import Literal

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.layout import Size
from layoutdoctor.diagnosis.records import (
    Account,
    ConversionDirection,
    Owner,
    Ratio,
    Record,
    Severity,
    TensorKind,
    TotalKind,
    TrialStatus,
    reports_layer,
)
from layoutdoctor.diagnosis.saved import encoded

COMPARISON_SCHEMA_VERSION = 1

Basis = Literal["step", "sum", "iteration"]
Match = Literal["exact", "loose"]
Change = Literal["came", "went", "more", "fewer", "same"]


# ---------------------------------------------------------------------------------------------- what both kinds say
class Regression(Record, frozen=True, kw_only=True):
    """
    Whether the new one loses more to layouts.

    Attributes:
        losses: What it loses more, one sentence each; empty where nothing beyond the tolerance was found.
        not_judged: Why that cannot be said; None where it can.
    """

    losses: tuple[str, ...] = ()
    not_judged: str | None = None


class EnvironmentDifference(Record, frozen=True, kw_only=True):
    """A version or device that is not the same in both: its field in ``Environment``, and both values."""

    name: str
    old: str | None
    new: str | None


class CostTotals(Record, frozen=True, kw_only=True):
    """
    What one run spent, per step, per iteration or in all: as the comparison's ``basis`` says.

    Attributes:
        kernel_count: Kernels.
        kernel_seconds: Their time, summed; not the wall time.
        conversion_count: Library conversions that change a layout.
        conversion_seconds: Their time.
        exposed_conversion_seconds: The part of it in which nothing else ran on the device.
        convolution_seconds: Time of all kernels that ran for a convolution, conversions included.
        convolution_share: ``conversion_seconds`` over ``convolution_seconds``.
        kernel_share: ``conversion_seconds`` over ``kernel_seconds``.
        redundant_pair_count: Round trips.
        redundant_pair_seconds: Time of the conversions in them, each counted once.
        exposed_redundant_pair_seconds: The part of it in which nothing else ran on the device.
    """

    kernel_count: float
    kernel_seconds: float | None
    conversion_count: float
    conversion_seconds: float | None
    exposed_conversion_seconds: float | None
    convolution_seconds: float | None
    convolution_share: float | None
    kernel_share: float | None
    redundant_pair_count: float
    redundant_pair_seconds: float | None
    exposed_redundant_pair_seconds: float | None


class CostDifference(Record, frozen=True, kw_only=True):
    """New minus old, in the units of ``CostTotals``; negative is saved. None where one of both is not recorded."""

    kernel_seconds: float | None
    conversion_count: float
    conversion_seconds: float | None
    exposed_conversion_seconds: float | None
    redundant_pair_count: float
    redundant_pair_seconds: float | None
    exposed_redundant_pair_seconds: float | None


class ConversionAmount(Record, frozen=True, kw_only=True):
    """Conversions, or round trips, added up: how many, their seconds, the part of these that nothing else ran in."""

    count: float
    seconds: float | None
    exposed_seconds: float | None = None


class ConversionChange(Record, frozen=True, kw_only=True):
    """
    Conversions of one kind at one place, in both runs.

    Attributes:
        change: What happened to their number.
        owner: Who inserted them.
        op: ATen operation that ran them.
        module: Path of the nn.Module.
        direction: What kind of change of layout.
        tensor: What kind of tensor.
        shape: Shape of the tensor; None where not recorded.
        old: What they took in the old run; None where there were none.
        new: The same in the new run.
        seconds_difference: New minus old; None where a time was not recorded.
    """

    change: Change
    owner: Owner
    op: str | None
    module: str | None
    direction: ConversionDirection
    tensor: TensorKind
    shape: tuple[Size, ...] | None
    old: ConversionAmount | None
    new: ConversionAmount | None
    seconds_difference: float | None


class RoundTripChange(Record, frozen=True, kw_only=True):
    """Round trips of one kind at one place, in both runs; fields as in ``ConversionChange`` and ``RedundantPair``."""

    change: Change
    kind: Literal["adjacent", "through"]
    module: str | None
    between: tuple[str, ...]
    shape: tuple[Size, ...] | None
    old: ConversionAmount | None
    new: ConversionAmount | None
    seconds_difference: float | None


# ---------------------------------------------------------------------------------------------- two recorded traces
class ComparedRun(Record, frozen=True, kw_only=True):
    """
    One of the two recorded runs.

    Attributes:
        name: File, without folders.
        created_at: When the diagnosis was made: UTC, ISO 8601.
        step_count: Profiler steps with kernels in them; 0 where none was recorded.
        costs: What it spent.
        lacks: What was not recorded, and why.
    """

    name: str
    created_at: str
    step_count: int
    costs: CostTotals
    lacks: tuple[str, ...] = ()


class Overlap(Record, frozen=True, kw_only=True):
    """
    How much two recorded runs have in common, by the names of their operations (of their kernels, without these).

    Attributes:
        kind: Whose names were compared.
        common_count: Names that stand in both.
        total_count: Names that stand in either.
        old_share: Share of the old run's time that runs under common names; None where it has no time.
        new_share: The same of the new run.
        is_empty: Whether nothing at all stands in both, neither operation nor kernel nor module.
        is_small: Whether so little does that the two seem to be different runs.
    """

    kind: TotalKind
    common_count: int
    total_count: int
    old_share: float | None
    new_share: float | None
    is_empty: bool
    is_small: bool


class Amount(Record, frozen=True, kw_only=True):
    """Kernels added up: how many, their seconds, how many of them are library conversions, and the seconds of these."""

    count: float
    seconds: float
    conversion_count: float = 0
    conversion_seconds: float = 0.0


class ComparedTotal(Record, frozen=True, kw_only=True):
    """
    One operation, kernel or module in both runs.

    Attributes:
        name: Its name; for a loose match, what the names have in common.
        match: ``exact`` where the same name stands in both, ``loose`` where only the names without template arguments,
            numbers and versions are equal; None where it stands in one only.
        old: What ran under it in the old run; None where nothing did.
        new: The same in the new run.
        seconds_difference: New minus old; what is not there counts as nothing.
    """

    name: str
    match: Match | None
    old: Amount | None
    new: Amount | None
    seconds_difference: float


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


# ---------------------------------------------------------------------------------------------- two diagnoses of models
class ComparedSubject(Record, frozen=True, kw_only=True):
    """
    What one of the two diagnoses was about.

    Attributes:
        name: The target, as it was named.
        created_at: When it was diagnosed: UTC, ISO 8601.
        mode: Inference or training.
        device: What it ran on.
        recommended: The configuration it recommends; None for none.
        speedup: Its ratio to the baseline; None for the baseline.
        baseline: The configuration that ratios referred to; None where nothing was compared.
        fastest: The fastest configurations: the best one and those within 3 % of it.
        target: The device it was lowered for without its being there; None where it ran.
    """

    name: str
    created_at: str
    mode: str
    device: str | None
    recommended: str | None
    speedup: Ratio | None = None
    baseline: str | None = None
    fastest: tuple[str, ...] = ()
    target: str | None = None


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


class TimeChange(Record, frozen=True, kw_only=True):
    """
    What became of the speed of one configuration, beside the baseline of its own diagnosis.

    Attributes:
        old_ratio: Its ratio to the baseline in the old diagnosis; None for the baseline, and if not measured.
        new_ratio: The same in the new one.
        change: The new ratio over the old one; above 1, it became faster beside the baseline. It is ``faster`` or
            ``slower`` from 5 % on, and ``equal`` within 5 % of 1. None for the baseline.
        not_judged: Why there is no change; None if there is, and for the baseline.
    """

    old_ratio: Ratio | None = None
    new_ratio: Ratio | None = None
    change: Ratio | None = None
    not_judged: str | None = None


class ComparedTrial(Record, frozen=True, kw_only=True):
    """
    One configuration in both diagnoses.

    Attributes:
        name: The configuration.
        old_status: How its trial ended; None where it is not in the old diagnosis.
        new_status: The same in the new one.
        old_median_seconds: Time of one call; None if not measured.
        new_median_seconds: The same in the new one.
        median_ratio: Old over new, without a verdict: the machine may have been slower at one of the two times. None
            unless device, thread count and versions are the same in both.
        old_costs: What one iteration spent; None where no kernels were recorded, unless the trial is a static one.
        new_costs: The same in the new one.
        difference: New minus old; None unless both have their costs.
        conversions: What came, went or stayed, from kernels and graphs.
        round_trips: The same of round trips.
        decisions: Graphs that Inductor decided otherwise; empty where none was.
        regression: Whether the new one loses more to layouts.
        time: What became of its ratio to the baseline; None if it was not measured in both.
        old_same_as: The configuration it was found to be the same as, and that was measured for it.
        new_same_as: The same in the new one.
        old_failure: Why it had no result, in one line; None where it had one.
        new_failure: The same in the new one.
        account: Where the difference of its times goes, where that is 5 % or more; None where kernels have no times.
    """

    name: str
    old_status: TrialStatus | None
    new_status: TrialStatus | None
    old_median_seconds: float | None
    new_median_seconds: float | None
    median_ratio: float | None
    old_costs: CostTotals | None
    new_costs: CostTotals | None
    difference: CostDifference | None
    conversions: tuple[ConversionChange, ...]
    round_trips: tuple[RoundTripChange, ...]
    decisions: tuple[DecisionChange, ...]
    regression: Regression
    time: TimeChange | None = None
    old_same_as: str | None = None
    new_same_as: str | None = None
    old_failure: str | None = None
    new_failure: str | None = None
    account: Account | None = None


class FindingChange(Record, frozen=True, kw_only=True):
    """
    Findings of one rule about one configuration.

    Attributes:
        change: What happened to their number.
        code: The rule's code.
        rule: Its name.
        severity: That of the most severe one, of the new diagnosis where there are any.
        configuration: The trial they are about; None where they are about the whole diagnosis.
        module: Path of the nn.Module that the first names, of the new diagnosis where there are any.
        message: That of the first, of the new diagnosis where there are any.
        old_count: How many there were.
        new_count: How many there are.
        place: File and line of the first, of the new diagnosis where there are any; None where not recorded.
        seconds: What they cost together, of the new diagnosis where there are any; None where one has no cost.
        is_accepted: Whether all of the new diagnosis are accepted there.
    """

    change: Change
    code: str
    rule: str
    severity: Severity
    configuration: str | None
    module: str | None
    message: str
    old_count: int
    new_count: int
    place: str | None = None
    seconds: float | None = None
    is_accepted: bool = False


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
        regression: Whether the new one is worse.
        notes: What a reader of the numbers has to know.
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

    def __str__(self) -> str:
        return _text_report(self)


def comparison_to_json(comparison: TraceComparison | ModelComparison) -> bytes:
    """A comparison as one line of JSON."""
    return encoded(comparison)


def _text_report(comparison: TraceComparison | ModelComparison) -> str:

    return str(reports_layer().render_comparison(comparison, "text"))
