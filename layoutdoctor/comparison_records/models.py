"""
What a comparison of two diagnoses of models says about each configuration, its decisions and its findings.

Faces ``comparison_records``, whose ``ModelComparison`` holds all of it; imports records only.
"""

from __future__ import annotations

from layoutdoctor.comparison_records.amounts import (
    Change,
    ConversionChange,
    CostDifference,
    CostTotals,
    Regression,
    RoundTripChange,
)
from layoutdoctor.records import ConvolutionClass, Record, Severity, Speedup, TrialStatus, Verdict


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
