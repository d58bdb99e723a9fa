"""Compares the machines, costs, conversions and round trips of two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from layoutdoctor.diagnosis import Conversion, Diagnosis, KernelSummary, Trial
from layoutdoctor.diagnosis.comparison import (
    Amount,
    ConversionChange,
    CostChange,
    Costs,
    EnvironmentDifference,
    RoundTripChange,
)
from layoutdoctor.examination.counts import counted_conversions, launch_count, parts_of_pairs, sum_seconds
from layoutdoctor.units import format_seconds, format_significant, sum_if_all_known

TIME_TOLERANCE = 0.10
"""Conversions that take longer by less than this share may be the same conversions at another clock rate."""

LEAST_COST_SHARE = 0.001
"""Additional conversion time below this share of the kernel time is no loss."""

COUNT_TOLERANCE = 0.5
"""A smaller increase of the number of conversions per step comes from a step that was recorded only in part."""

_Change = TypeVar("_Change", bound=CostChange)
Quantity = TypeVar("Quantity", float, float | None)
_Fields = Mapping[str, Callable[[Any], object]]
"""Fields by which conversions or round trips of two runs are matched: names, and functions that read the values."""

_OF_CONVERSION: _Fields = {
    **{name: attrgetter(name) for name in ("owner", "direction", "tensor", "op", "module")},
    "shape": lambda conversion: layout.shape if (layout := conversion.source or conversion.target) else None,
}
_OF_ROUND_TRIP: _Fields = {
    **{name: attrgetter(name) for name in ("kind", "module", "between")},
    "shape": attrgetter("tensor_shape"),
}


def recorded_by_one(old: Trial, new: Trial) -> frozenset[str]:
    """
    The fields among ``op``, ``module`` and ``shape`` that only one of two runs recorded for its conversions.

    Conversions are not matched by these fields, because no conversions of the two runs would match. Empty if a run has
    no conversions.
    """
    return _recorded_by_one(_OF_CONVERSION, counted_conversions(old), counted_conversions(new))


def _recorded_by_one(fields: _Fields, *runs: Sequence[Any]) -> frozenset[str]:
    return frozenset(
        name
        for name, value_of in fields.items()
        if len({any(value_of(item) is not None for item in run) for run in runs if run}) > 1
    )


def costs_of(trial: Trial, parts: int = 1) -> Costs:
    """
    The costs of a run.

    Args:
        parts: The number of steps to divide by.
    """
    kernels, conversions, pairs = trial.kernel_summary, counted_conversions(trial), trial.redundant_pairs
    return Costs(
        kernel_count=per(kernels.count, parts),
        kernel_seconds=per(kernels.seconds, parts),
        conversion_count=per(launch_count(conversions), parts),
        conversion_seconds=per(sum_seconds(conversions), parts),
        exposed_conversion_seconds=per(_exposed_seconds(kernels, conversions), parts),
        convolution_seconds=per(kernels.convolution_seconds, parts),
        redundant_pair_count=per(len(pairs), parts),
        redundant_pair_seconds=per(
            sum_if_all_known(0.0, *(part.seconds for part in parts_of_pairs(pairs, conversions))), parts
        ),
    )


def _exposed_seconds(kernels: KernelSummary, conversions: Sequence[Conversion]) -> float | None:
    """The time in which only conversions ran. Library conversions may overlap: the kernel list's sum is preferred."""
    own = [conversion.exposed_seconds for conversion in conversions if conversion.owner != "library"]
    libraries = [conversion.exposed_seconds for conversion in conversions if conversion.owner == "library"]
    if libraries and kernels.exposed_conversion_seconds is not None:
        libraries = [kernels.exposed_conversion_seconds]
    return sum_if_all_known(0.0, *own, *libraries)


def conversion_changes(old: Trial, new: Trial, parts: tuple[int, int] = (1, 1)) -> tuple[ConversionChange, ...]:
    """The conversions of both runs, outer-joined by the fields that both runs recorded; largest difference first."""
    runs = counted_conversions(old), counted_conversions(new)
    return _joined(ConversionChange, _OF_CONVERSION, runs, launch_count, parts)


def round_trip_changes(old: Trial, new: Trial, parts: tuple[int, int] = (1, 1)) -> tuple[RoundTripChange, ...]:
    """The round trips of both runs, outer-joined by the fields that both runs recorded; largest difference first."""
    return _joined(RoundTripChange, _OF_ROUND_TRIP, (old.redundant_pairs, new.redundant_pairs), len, parts)


def _joined(
    kind: type[_Change],
    fields: _Fields,
    runs: tuple[Sequence[Any], Sequence[Any]],
    count_of: Callable[[list[Any]], int],
    parts: tuple[int, int],
) -> tuple[_Change, ...]:
    """The changes, the largest difference in seconds first; changes without seconds follow, by count."""
    unknown = _recorded_by_one(fields, *runs)
    groups: dict[tuple[Any, ...], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for age, run in enumerate(runs):
        for item in run:
            key = tuple(None if name in unknown else value_of(item) for name, value_of in fields.items())
            groups[key][age].append(item)
    changes = []
    for key, sides in groups.items():
        old, new = (
            Amount(count=per(count_of(own), part), seconds=per(sum_if_all_known(*(one.seconds for one in own)), part))
            if own
            else None
            for own, part in zip(sides, parts, strict=True)
        )
        changes.append(kind(old=old, new=new, **dict(zip(fields, key, strict=True))))  # fields of the change
    return tuple(sorted(changes, key=_size, reverse=True))


def _size(change: CostChange) -> tuple[float, float]:
    seconds = change.seconds_difference
    return (-1.0 if seconds is None else abs(seconds), abs(change.count_difference))


def layout_losses(old: Costs, new: Costs, *, judges_time: bool, judges_round_trips: bool) -> Iterator[str]:
    """
    Yields one clause for each loss that layouts cause in the new run. A longer kernel time alone is no such loss.

    Args:
        judges_time: Whether to compare seconds. If False, as for different devices, or if seconds are not known,
            conversions are counted instead.
    """
    if judges_time and old.conversion_seconds is not None and new.conversion_seconds is not None:
        least = max(TIME_TOLERANCE * old.conversion_seconds, LEAST_COST_SHARE * (new.kernel_seconds or 0.0))
        if new.conversion_seconds - old.conversion_seconds > least:
            times = format_seconds(new.conversion_seconds), format_seconds(old.conversion_seconds)
            yield "layout conversions take {} instead of {}".format(*times)
    else:
        yield from more_than("layout conversion", old.conversion_count, new.conversion_count)
    if judges_round_trips:
        yield from more_than("round trip", old.redundant_pair_count, new.redundant_pair_count)


def more_than(noun: str, old: float, new: float) -> Iterator[str]:
    """Yields a clause if the new run has at least ``COUNT_TOLERANCE`` more conversions or round trips."""
    if new - old >= COUNT_TOLERANCE:
        yield f"{format_count(new)} {noun}{'' if new == 1 else 's'} instead of {format_count(old)}"


def format_count(count: float) -> str:
    """A count, or a mean count per step, as text: ``"53"``, ``"17.7"``."""
    return str(round(count)) if float(count).is_integer() else format_significant(count)


def per(amount: Quantity, parts: int) -> Quantity:
    """An amount divided by the number of steps; divided by 1, an integer stays an integer in JSON."""
    return amount if parts == 1 or amount is None else amount / parts


_MACHINE = ("device", "device_name", "onednn_isa", "cpu_count", "thread_count")
_FIELDS = (
    "device_name torch cuda driver cudnn triton onednn onednn_isa compiler python platform thread_count cpu_count"
).split()


def environment_changes(old: Diagnosis, new: Diagnosis) -> tuple[EnvironmentDifference, ...]:
    """Devices, versions and settings that differ; the device first, then versions, then settings by name."""
    values = [("device", old.subject.device, new.subject.device)]
    values += [(name, getattr(old.environment, name), getattr(new.environment, name)) for name in _FIELDS]
    before, after = old.environment.settings, new.environment.settings
    values += [(f"setting {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    return tuple(
        EnvironmentDifference(name=name, old=None if once is None else str(once), new=None if now is None else str(now))
        for name, once, now in values
        if once != now
    )


def has_another_machine(old: Diagnosis, new: Diagnosis) -> bool:
    """Whether two diagnoses are known to come from different devices, processors or thread counts."""
    changes = environment_changes(old, new)
    return any(change.name in _MACHINE and None not in (change.old, change.new) for change in changes)
