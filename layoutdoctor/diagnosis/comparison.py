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
    ConvolutionClass,
    Owner,
    Record,
    Severity,
    Speedup,
    TensorKind,
    TotalKind,
    TrialStatus,
    Verdict,
    reports_layer,
)
from layoutdoctor.diagnosis.saved import encoded

COMPARISON_SCHEMA_VERSION = 1

Basis = Literal["step", "sum", "iteration"]
Match = Literal["exact", "loose"]
Change = Literal["came", "went", "more", "fewer", "same"]


# ---------------------------------------------------------------------------------------------- what both kinds say
class RatioBounds(Record, frozen=True, kw_only=True):
    """
    A ratio of times between two runs, old over new, so that above 1 is faster.

    Attributes:
        low: Lower end of its interval.
        median: Ratio of the two medians.
        high: Upper end.
        coverage: How often all intervals of the comparison hold together, at least; None where there were too few
            rounds for any: the ends are then those of what was seen.
    """

    low: float
    median: float
    high: float
    coverage: float | None


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
        account: Where the difference of the kernel times goes, where that is 5 % or more; None where it cannot be told.
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
    account: Account | None = None
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
        speedup: What that one gained against the baseline; None where it is the baseline, or nothing was confirmed.
        baseline: The configuration that ratios referred to; None where nothing was compared.
        fastest: The fastest configurations: the best one and those that cannot be told from it.
        target: The device it was lowered for without its being there; None where it ran.
        reason: Why this one is recommended, or none.
    """

    name: str
    created_at: str
    mode: str
    device: str | None
    recommended: str | None
    speedup: Speedup | None = None
    baseline: str | None = None
    fastest: tuple[str, ...] = ()
    target: str | None = None
    reason: str | None = None


class GraphDecision(Record, frozen=True, kw_only=True):
    """Whether layout optimization was on for a graph, by which rule, and how many convolutions became channels-last."""

    applied: bool | None
    rule: str
    channels_last_convolution_count: int
    convolution_count: int


class ConvolutionChange(Record, frozen=True, kw_only=True):
    """
    A convolution that Inductor classed or laid out otherwise.

    Attributes:
        module: Path of the nn.Module; None where not recorded.
        node: FX node in the new graph.
        old_class: Its class before.
        new_class: Its class now.
        old_channels_last: Whether its output was channels-last; None where not recorded.
        new_channels_last: Whether it is now.
    """

    module: str | None
    node: str
    old_class: ConvolutionClass
    new_class: ConvolutionClass
    old_channels_last: bool | None
    new_channels_last: bool | None


class DecisionChange(Record, frozen=True, kw_only=True):
    """A graph, by its name, that Inductor decided otherwise in the new diagnosis, and its convolutions that changed."""

    graph: str
    old: GraphDecision
    new: GraphDecision
    convolutions: tuple[ConvolutionChange, ...] = ()


class TimeChange(Record, frozen=True, kw_only=True):
    """
    What became of the time of one configuration.

    Attributes:
        old_round_count: Rounds in the old diagnosis.
        new_round_count: Rounds in the new one.
        absolute: Old median over new one, as timed; None where the two were not given the same work. It holds for these
            two runs, not for the code: the machine may have been another one on the next day, so it is no verdict.
        references: The configurations it was judged against; among them itself where it is one of those.
        change: How many times faster it became relative to the references, on the geometric mean; None where there are
            none. 1 for a reference: nothing of its change is its own, as far as can be told.
        relative_to_baseline: How many times faster than the baseline it was in its own run, new over old; None for
            the baseline itself, and where either was not measured.
        baseline_verdict: What may be said of that; None where it cannot be judged.
        verdict: What may be said of ``change``; None where it was not judged.
        not_judged: Why it was not; None where it was.
        has_same_code: Whether both runs ran the same code: operations in eager, generated code else, under the same
            versions and settings; None where that was not recorded.
    """

    old_round_count: int
    new_round_count: int
    absolute: RatioBounds | None = None
    references: tuple[str, ...] = ()
    change: RatioBounds | None = None
    relative_to_baseline: RatioBounds | None = None
    baseline_verdict: Verdict | None = None
    verdict: Verdict | None = None
    not_judged: str | None = None
    has_same_code: bool | None = None


class TimeSummary(Record, frozen=True, kw_only=True):
    """
    How the times of two diagnoses were judged.

    Attributes:
        resolution: Smallest relative change of a configuration against the references that is called one.
        steadiness: How far a time may move between two runs for the machine to count as unchanged.
        references: Configurations that stand for the machine; empty where none could be told.
        basis: Why these do: ``same code``; ``steady`` (most moved alike, by less than the steadiness); ``majority``
            (most moved alike, by more); None where there are none.
        drift: What the times of the references became, old over new, on the geometric mean; None where that has no
            interval.
        has_drifted: Whether that is beyond doubt and noticeable: everything became faster or slower by it.
        not_judged: Why no time was judged at all; None where some were.
        is_other_machine: Whether the two ran on different machines, or with another thread count.
    """

    resolution: float | None = None
    steadiness: float | None = None
    references: tuple[str, ...] = ()
    basis: str | None = None
    drift: RatioBounds | None = None
    has_drifted: bool = False
    not_judged: str | None = None
    is_other_machine: bool = False


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
        time: What became of its time; None where it was not measured in both.
        old_same_as: The configuration it was found to be the same as, and that was measured for it.
        new_same_as: The same in the new one.
        old_failure: Why it had no result, in one line; None where it had one.
        new_failure: The same in the new one.
        old_graph_break_count: Graph breaks; None where it is not there or has no result.
        new_graph_break_count: The same in the new one.
        old_recompile_count: Compiles beyond the first of the same code; None likewise.
        new_recompile_count: The same in the new one.
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
    old_graph_break_count: int | None = None
    new_graph_break_count: int | None = None
    old_recompile_count: int | None = None
    new_recompile_count: int | None = None
    account: Account | None = None


class FindingChange(Record, frozen=True, kw_only=True):
    """
    Findings of one rule about one configuration, module and file; lines move with every edit, so they do not count.

    Attributes:
        change: What happened to their number; ``same`` where they stayed.
        code: The rule's code.
        rule: Its name.
        severity: That of the most severe one, of the new diagnosis where there are any.
        configuration: The trial they are about; None where they are about the whole diagnosis.
        module: Path of the nn.Module.
        message: That of the first, of the new diagnosis where there are any.
        old_count: How many there were.
        new_count: How many there are.
        place: File and line of the first, of the new diagnosis where there are any; None where not recorded.
        old_severity: That of the most severe one before; None where there was none.
        new_severity: The same now.
        old_seconds: What they cost together; None where one of them has no cost, or there was none.
        new_seconds: The same now.
        suggestion: What to do about the first.
        old_module: The module that the first one named before; a finding about several names the costliest.
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
    old_severity: Severity | None = None
    new_severity: Severity | None = None
    old_seconds: float | None = None
    new_seconds: float | None = None
    suggestion: str | None = None
    old_module: str | None = None
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
    """A comparison as one line of JSON."""
    return encoded(comparison)


def _text_report(comparison: TraceComparison | ModelComparison) -> str:

    return str(reports_layer().render_comparison(comparison, "text"))
