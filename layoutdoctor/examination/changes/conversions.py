"""
What two runs spent on layout conversions, and which conversions and round trips came and went between them.

The runs may be two recorded traces or two trials of a model.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from layoutdoctor.diagnosis.comparison import (
    ConversionAmount,
    ConversionChange,
    CostDifference,
    CostTotals,
    RoundTripChange,
)
from layoutdoctor.diagnosis.records import Conversion, RedundantPair
from layoutdoctor.examination.costs import counted_conversions, launch_count, parts_of_pairs, sum_seconds
from layoutdoctor.examination.graphs.regions import known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.comparison import Change
    from layoutdoctor.diagnosis.layout import Size
    from layoutdoctor.diagnosis.records import ConversionDirection, Owner, TensorKind, Trial

_Item = TypeVar("_Item", Conversion, RedundantPair)


class _ConversionKey(NamedTuple):
    owner: Owner
    op: str | None
    module: str | None
    direction: ConversionDirection
    tensor: TensorKind
    shape: tuple[Size, ...] | None


class _RoundTripKey(NamedTuple):
    kind: Literal["adjacent", "through"]
    module: str | None
    between: tuple[str, ...]
    shape: tuple[Size, ...] | None


_Key = TypeVar("_Key", bound="_ConversionKey | _RoundTripKey")

_RECORDED: dict[str, Callable[[Conversion], bool]] = {
    "op": lambda conversion: conversion.op is not None,
    "module": lambda conversion: conversion.module is not None,
    "shape": lambda conversion: _shape_of(conversion) is not None,
}


def recorded_by_one(old: Trial | None, new: Trial | None) -> frozenset[str]:
    """
    What only one of two runs recorded of its conversions: of ``op``, ``module`` and ``shape``.

    Returns:
        Compared by these, everything would have gone and come again. Nothing where a run has no conversions.
    """
    runs = [conversions for conversions in (_conversions_of(old), _conversions_of(new)) if conversions]
    return frozenset(
        name
        for name, is_known in _RECORDED.items()
        if len({any(map(is_known, conversions)) for conversions in runs}) > 1
    )


def cost_totals(trial: Trial | None, parts: int) -> CostTotals:
    """
    What a run spent.

    Args:
        trial: The run; None for one without a result.
        parts: By how many steps everything is divided; 1 for the whole.
    """
    kernels = trial.kernels if trial is not None else None
    conversions, pairs = _conversions_of(trial), _pairs_of(trial)
    seconds = sum_seconds(conversions)
    in_convolutions = kernels.convolution_seconds if kernels is not None else None
    by_libraries = kernels.conversion_seconds if kernels is not None else None
    kernel_seconds = kernels.seconds if kernels is not None else None
    round_trips = parts_of_pairs(pairs, conversions)
    return CostTotals(
        kernel_count=per(kernels.count if kernels is not None else 0, parts),
        kernel_seconds=_per_known(kernel_seconds, parts),
        conversion_count=per(launch_count(conversions), parts),
        conversion_seconds=_per_known(seconds, parts),
        exposed_conversion_seconds=_per_known(_exposed_seconds(trial, conversions), parts),
        convolution_seconds=_per_known(in_convolutions, parts),
        convolution_share=by_libraries / in_convolutions if in_convolutions and by_libraries is not None else None,
        kernel_share=seconds / kernel_seconds if kernel_seconds and seconds is not None else None,
        redundant_pair_count=per(len(pairs), parts),
        redundant_pair_seconds=_per_known(_sum_known(part.seconds for part in round_trips), parts),
        exposed_redundant_pair_seconds=_per_known(_sum_known(part.exposed_seconds for part in round_trips), parts),
    )


def cost_difference(old: CostTotals, new: CostTotals) -> CostDifference:
    """New minus old."""
    return CostDifference(
        kernel_seconds=_minus(new.kernel_seconds, old.kernel_seconds),
        conversion_count=new.conversion_count - old.conversion_count,
        conversion_seconds=_minus(new.conversion_seconds, old.conversion_seconds),
        exposed_conversion_seconds=_minus(new.exposed_conversion_seconds, old.exposed_conversion_seconds),
        redundant_pair_count=new.redundant_pair_count - old.redundant_pair_count,
        redundant_pair_seconds=_minus(new.redundant_pair_seconds, old.redundant_pair_seconds),
        exposed_redundant_pair_seconds=_minus(new.exposed_redundant_pair_seconds, old.exposed_redundant_pair_seconds),
    )


def conversion_changes(
    old: Trial | None, new: Trial | None, old_parts: int = 1, new_parts: int = 1
) -> tuple[ConversionChange, ...]:
    """
    The conversions of both runs by owner, operation, module, direction, tensor and shape, outer-joined.

    Returns:
        Largest difference of seconds first. By what only one run recorded of its conversions they are not told apart.
    """
    unknown = recorded_by_one(old, new)

    def key_of(conversion: Conversion) -> _ConversionKey:
        return _ConversionKey(
            conversion.owner,
            conversion.op if "op" not in unknown else None,
            conversion.module if "module" not in unknown else None,
            conversion.direction,
            conversion.tensor,
            _shape_of(conversion) if "shape" not in unknown else None,
        )

    before = _amounts(_conversions_of(old), key_of, old_parts)
    after = _amounts(_conversions_of(new), key_of, new_parts)
    return _changes(ConversionChange, before, after)


def round_trip_changes(
    old: Trial | None, new: Trial | None, old_parts: int = 1, new_parts: int = 1
) -> tuple[RoundTripChange, ...]:
    """The round trips of both runs by kind, module, what is between, and shape, outer-joined; the dearest first."""
    runs = [pairs for pairs in (_pairs_of(old), _pairs_of(new)) if pairs]
    has_module = all(any(pair.module is not None for pair in pairs) for pairs in runs)
    has_shape = all(any(pair.tensor_shape is not None for pair in pairs) for pairs in runs)

    def key_of(pair: RedundantPair) -> _RoundTripKey:
        module, shape = pair.module if has_module else None, pair.tensor_shape if has_shape else None
        return _RoundTripKey(pair.kind, module, pair.between, shape)

    before = _amounts(_pairs_of(old), key_of, old_parts)
    after = _amounts(_pairs_of(new), key_of, new_parts)
    return _changes(RoundTripChange, before, after)


def change_of(old: float, new: float) -> Change:
    """What happened to the number of something."""
    if old == new:
        return "same"
    if not old or not new:
        return "came" if new else "went"
    return "more" if new > old else "fewer"


def _conversions_of(trial: Trial | None) -> tuple[Conversion, ...]:
    return counted_conversions(trial) if trial is not None else ()


def _pairs_of(trial: Trial | None) -> tuple[RedundantPair, ...]:
    return trial.redundant_pairs if trial is not None else ()


def _shape_of(conversion: Conversion) -> tuple[Size, ...] | None:
    layout = conversion.source or conversion.target
    return layout.shape if layout is not None else None


def per(amount: float, parts: int) -> float:
    """An amount divided among steps; of one, a whole number stays one: 53, not 53.0, in the JSON of a comparison."""
    return amount if parts == 1 else amount / parts


def _per_known(seconds: float | None, parts: int) -> float | None:
    return None if seconds is None else per(seconds, parts)


def _minus(new: float | None, old: float | None) -> float | None:
    return None if new is None or old is None else new - old


def _sum_known(values: Iterable[float | None]) -> float | None:
    """The sum; None where one of them is not known."""
    return known_sum(0.0, *values)


def _exposed_seconds(trial: Trial | None, conversions: Sequence[Conversion]) -> float | None:
    """
    The libraries' part as it was summed up, where it was, plus that of everybody else's conversions.

    What is exposed ran alone, so parts never overlap and may be added.
    """
    kernels = trial.kernels if trial is not None else None
    own = [conversion.exposed_seconds for conversion in conversions if conversion.owner != "library"]
    by_libraries = [conversion.exposed_seconds for conversion in conversions if conversion.owner == "library"]
    if by_libraries and kernels is not None and kernels.exposed_conversion_seconds is not None:
        by_libraries = [kernels.exposed_conversion_seconds]
    return _sum_known((*own, *by_libraries))


def _launches(item: Conversion | RedundantPair) -> int:
    return item.count if isinstance(item, Conversion) else 1


def _amounts(items: Iterable[_Item], key_of: Callable[[_Item], _Key], parts: int) -> dict[_Key, ConversionAmount]:
    groups: dict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        groups[key_of(item)].append(item)
    return {
        key: ConversionAmount(
            count=per(sum(map(_launches, group)), parts),
            seconds=_per_known(_sum_known(item.seconds for item in group), parts),
            exposed_seconds=_per_known(_sum_known(item.exposed_seconds for item in group), parts),
        )
        for key, group in groups.items()
    }


_Changed = TypeVar("_Changed", ConversionChange, RoundTripChange)
_NOTHING = ConversionAmount(count=0, seconds=0.0, exposed_seconds=0.0)


def _changes(
    kind: type[_Changed], before: Mapping[_Key, ConversionAmount], after: Mapping[_Key, ConversionAmount]
) -> tuple[_Changed, ...]:
    """By the seconds that changed hands; what was not measured by number, after all that was."""
    found: list[tuple[tuple[float, float], _Changed]] = []
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, _NOTHING), after.get(key, _NOTHING)
        seconds = _minus(new.seconds, old.seconds)
        change = kind(
            change=change_of(old.count, new.count),
            **key._asdict(),
            old=before.get(key),
            new=after.get(key),
            seconds_difference=seconds,
        )
        found.append(((-1.0 if seconds is None else abs(seconds), abs(new.count - old.count)), change))
    return tuple(change for _, change in sorted(found, key=lambda entry: entry[0], reverse=True))
