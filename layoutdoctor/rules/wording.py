"""Makes words for findings: costs and their shares, counts, memory formats, and formats to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from layoutdoctor.diagnosis import Conversion, ConversionDirection, Layout, RedundantPair, Trial
from layoutdoctor.examination.counts import sum_of_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.rules.evidence import formats_of_ranks, share_of_kernels
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import distinct, joined, listing, phrase, shape_words

Thing = TypeVar("Thing")
DIAGNOSE = "diagnose the model: python -m layoutdoctor model.py"
BY_RANK = (
    "to the channels-last format of its rank: Module.to(memory_format=...) refuses a model with 4-D and 5-D parameters"
)
_ALL = 0.995  # a larger part counts as all; a part below 1 - _ALL counts as nothing


# -------------------------------------------------------------------------------------------------------- costs
def cost_words(trial: Trial, seconds: float | None, *remarks: str, exposed_seconds: float | None = None) -> str:
    """
    Describes a cost and its share: ``"6.00 ms of 15.0 ms kernel time (40 %), 402 us of it while nothing else ran"``.

    Args:
        trial: The trial in which the cost was measured.
        seconds: The cost; the result is empty if the cost is None.
        remarks: Words beside the share, such as ``"estimated"``.
        exposed_seconds: Part of the cost in which nothing else ran on the device; None if not recorded.
    """
    if seconds is None:
        return ""
    share = phrase("{}", share_of_kernels(trial, seconds), format_share)
    cost = format_seconds(seconds) + phrase(" of {} kernel time", trial.kernel_seconds or None, format_seconds)
    cost += phrase(" ({})", joined((share, *remarks), ", "))
    if exposed_seconds is None or not seconds:
        return cost
    part = exposed_seconds / seconds
    if part <= 1 - _ALL:
        return f"{cost}, always beside other work"
    amount = "all" if part >= _ALL else format_seconds(exposed_seconds)
    return f"{cost}, {amount} of it while nothing else ran"


def conversion_cost_words(trial: Trial, costs: Sequence[Conversion | RedundantPair]) -> str:
    """Describes the time of conversions or round trips, else the bytes that they move; empty if neither is known."""
    seconds = sum_of_known(cost.seconds for cost in costs)
    exposed = sum_of_known(cost.exposed_seconds for cost in costs)
    time = cost_words(trial, seconds, estimate_words(costs), exposed_seconds=exposed)
    return time or moved_words(sum_of_known(cost.bytes_moved for cost in costs))


def estimate_words(costs: Iterable[Conversion | RedundantPair]) -> str:
    """Says whether the sum of times is ``"estimated"`` or ``"partly estimated"``; empty if no time is an estimate."""
    known = {cost.seconds_source for cost in costs if cost.seconds is not None}
    if "estimated" not in known:
        return ""
    return "estimated" if known == {"estimated"} else "partly estimated"


def moved_words(bytes_moved: int | None) -> str:
    """Formats bytes: ``"6.12 MiB moved"``; empty if not recorded."""
    return phrase("{} moved", bytes_moved, format_bytes)


# ------------------------------------------------------------------------------------------------------- counts
def summed(counts: Iterable[tuple[Thing, int]]) -> Counter[Thing]:
    """Adds up the counts of equal things."""
    sums: Counter[Thing] = Counter()
    for thing, count in counts:
        sums[thing] += count
    return sums


def named_counts(names: Iterable[tuple[str, int]]) -> str:
    """Lists names with counts: ``"copy_ (20) and clone (4)"``; a single name without its count, and no empty name."""
    counts = summed((name, count) for name, count in names if name)
    if len(counts) < 2:
        return "".join(counts)
    return listing([f"{name} ({count})" for name, count in counts.most_common()])


def step_words(conversions: Iterable[Conversion]) -> str:
    """Counts per profiler step: ``"8 in each of 3 recorded steps"``, ``"in 3 recorded steps"``; empty for one step."""
    counts = summed((c.step, c.count) for c in conversions if c.step is not None)
    if len(counts) < 2:
        return ""
    each = set(counts.values())
    return f"{f'{each.pop()} in each of' if len(each) == 1 else 'in'} {len(counts)} recorded steps"


def owner_words(conversions: Iterable[Conversion]) -> str:
    """Names the owners: ``"by the compiler and library"``; empty for no conversions."""
    return phrase("by the {}", listing(sorted({conversion.owner for conversion in conversions})))


def on_shapes(shapes: Iterable[Sequence[int | str] | None]) -> str:
    """Lists the shapes of tensors, each once: ``"on 4x64x56x56 and 4x128x28x28"``; empty if none was recorded."""
    return phrase("on {}", listing(distinct(shape_words(shape) for shape in shapes if shape), 3))


def on_dearest_shapes(conversions: Iterable[Conversion]) -> str:
    """Lists the shapes of the tensors that conversions read, the most expensive conversion first."""
    dearest = sorted(conversions, key=lambda c: -(c.seconds or 0.0))
    return on_shapes(c.source.shape for c in dearest if c.source is not None)


def shape_of(layout: Layout | None) -> str:
    """Names a layout's shape; empty if not recorded."""
    return phrase("{}", layout, lambda one: shape_words(one.shape))


# ------------------------------------------------------------------------------------------------------ formats
def dearest_direction(conversions: Iterable[Conversion]) -> ConversionDirection | None:
    """Returns the direction that takes most time, or without times the most frequent one; None without conversions."""
    weights: dict[ConversionDirection, tuple[float, int]] = {}
    for conversion in conversions:
        seconds, count = weights.get(conversion.direction, (0.0, 0))
        weights[conversion.direction] = (seconds + (conversion.seconds or 0.0), count + conversion.count)
    return max(weights, key=lambda direction: weights[direction], default=None)


def channels_last_words(ranks: Iterable[int | None]) -> str:
    """Names the channels-last format for some ranks; ``torch.channels_last`` if the ranks differ or are not known."""
    known = formats_of_ranks(ranks)
    return f"torch.{known.pop()}" if len(known) == 1 else "torch.channels_last"


def wanted_format(conversions: Sequence[Conversion]) -> str:
    """Names the contiguous format if conversions to it take most time, else the channels-last format of the tensors."""
    if dearest_direction(conversions) == "to_contiguous":
        return "torch.contiguous_format"
    return channels_last_words(c.rank for c in conversions)


def try_words(memory_format: str | None, *, is_of_one_rank: bool = True) -> str:
    """
    Says how to measure another memory format; for traces, in which only one format was recorded.

    Args:
        memory_format: Name of the format, such as ``"torch.channels_last"``; None if the trace does not show which
            format the model is in.
        is_of_one_rank: Whether all tensors are known to have the rank of the format, so that one line converts all.
    """
    other = f"model and input in {memory_format}, by .to(memory_format=...)"
    if memory_format is None:
        other = "model and input in the other memory format, channels_last if they are contiguous now"
    elif not is_of_one_rank and memory_format != "torch.contiguous_format":
        other = "each parameter and input in the channels-last format of its rank"
    return f"record again with {other}; or {DIAGNOSE}"


def miopen_words(conversions: Iterable[Conversion]) -> str:
    """
    Returns the further condition for channels_last on an AMD GPU, to append to an advice; empty for other libraries.

    Source:
        ``miopen_conv_use_channels_last`` in aten/src/ATen/native/ConvUtils.h; pytorch/pytorch PR #170947: on by default
        only from ROCm 7.0 on.
    """
    if not any(library_of(c.kernel or "") == "miopen" for c in conversions):
        return ""
    return "; before ROCm 7, also set PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"
