"""
What a comparison of two diagnoses says, as frozen values that are saved as JSON.

Differences are new minus old everywhere, so that a negative one was saved; ``None`` means "not recorded" or "not
there", never zero. Faces ``analysis`` (which fills them), the reports and the command; imports records only.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.layout import Size
from layoutdoctor.records import ConversionDirection, Owner, Record, Severity, TensorKind, TotalKind, TrialStatus

COMPARISON_SCHEMA_VERSION = 1

Basis = Literal["step", "sum", "iteration"]
Match = Literal["exact", "loose"]
Change = Literal["came", "went", "more", "fewer", "same"]


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


class EnvironmentDifference(Record, frozen=True, kw_only=True):
    """A version or device that is not the same in both: its field in ``Environment``, and both values."""

    name: str
    old: str | None
    new: str | None


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
        old_names: For a loose match: the old run's names.
        new_names: For a loose match: the new run's names.
    """

    name: str
    match: Match | None
    old: Amount | None
    new: Amount | None
    seconds_difference: float
    old_names: tuple[str, ...] = ()
    new_names: tuple[str, ...] = ()


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


class Regression(Record, frozen=True, kw_only=True):
    """
    Whether the new one loses more to layouts.

    Attributes:
        losses: What it loses more, one sentence each; empty where nothing beyond the tolerance was found.
        not_judged: Why that cannot be said; None where it can.
    """

    losses: tuple[str, ...] = ()
    not_judged: str | None = None


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


class ComparedTrial(Record, frozen=True, kw_only=True):
    """
    One configuration in both diagnoses.

    Attributes:
        name: The configuration.
        old_status: How its trial ended; None where it is not in the old diagnosis.
        new_status: The same in the new one.
        old_median_seconds: Median of its rounds; None where not measured.
        new_median_seconds: The same in the new one.
        median_ratio: Old over new. Both were measured at another time, so this is no verdict.
        old_costs: What one iteration spent; None where no kernels were recorded, unless the trial is a static one.
        new_costs: The same in the new one.
        difference: New minus old; None unless both have their costs.
        conversions: What came, went or stayed, from kernels and graphs.
        round_trips: The same of round trips.
        decisions: Graphs that Inductor decided otherwise; empty where none was.
        regression: Whether the new one loses more to layouts.
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


class FindingChange(Record, frozen=True, kw_only=True):
    """
    Findings of one rule about one configuration and module, of which there are more or fewer.

    ``severity`` is that of the most severe one, ``message`` that of the first, of the new diagnosis where it is there.
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


class ComparedSubject(Record, frozen=True, kw_only=True):
    """What one of the two diagnoses was about, when (UTC, ISO 8601), and the configuration it recommends."""

    name: str
    created_at: str
    mode: str
    device: str | None
    recommended: str | None


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
        different_subject: Why the two seem to be about different models; None where nothing says so.
        environment: Versions, devices and settings that are not the same.
        trials: By configuration, in the order of the new diagnosis.
        findings: What the rules found in one more often than in the other.
        regression: Whether any trial of the new one loses more to layouts.
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
    """
    A comparison as indented JSON.

    Args:
        comparison: Any comparison.
    """
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n"


def _text_report(comparison: TraceComparison | ModelComparison) -> str:
    from layoutdoctor.reports.comparison import render_comparison  # reports are the upper layer

    return render_comparison(comparison, "text")
