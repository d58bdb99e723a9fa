"""
What both kinds of comparison are made of: amounts before and after, and what became of them.

Faces the other modules of ``comparison_records``; imports records only.
"""

from __future__ import annotations

from typing import Literal

from layoutdoctor.layout import Size
from layoutdoctor.records import ConversionDirection, Owner, Record, TensorKind, TotalKind

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
