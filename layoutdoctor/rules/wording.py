"""How findings say things: ratios with their interval, costs and what they are a part of, places, what to try."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import conversion_places, sum_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.rules.evidence import is_baseline, ratio_of, share_of_kernels
from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        Conversion,
        ConversionDirection,
        CostSource,
        Diagnosis,
        RatioInterval,
        Speedup,
        Trial,
    )
    from layoutdoctor.examination.costs import Place

_DIAGNOSE = "or diagnose the model itself, which measures: python -m layoutdoctor model.py"
_PLACES_NAMED = 3
_SHAPES_NAMED = 3
# Of all of a time nothing that can be read is missing above this, and nothing is there below the rest.
_ALL = 0.995


def speed_words(ratio: RatioInterval, baseline: str) -> str:
    """What was measured: ``"eager runs at 0.61x the speed of inductor (99 % interval 0.60x to 0.62x)"``."""
    ends = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
    kind = "range" if ratio.coverage is None else f"{format_share(ratio.coverage)} interval"
    return f"{ratio.name} runs at {format_ratio(ratio.median)} the speed of {baseline} ({kind} {ends})"


def speedup_words(speedup: Speedup) -> str:
    """A gain that was measured again after the choice: ``"1.28x faster (1.25x to 1.31x)"``."""
    return f"{format_ratio(speedup.median)} faster ({format_ratio(speedup.low)} to {format_ratio(speedup.high)})"


def alternative_words(diagnosis: Diagnosis, trial: Trial, other: Trial) -> str:
    """What was measured of a better trial, and of the one a finding is about; empty without a comparison."""
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else ""
    names = [name for name in (other.name, trial.name) if not is_baseline(diagnosis, name)]
    ratios = [ratio for name in names if (ratio := ratio_of(diagnosis, name)) is not None]
    return " and ".join(speed_words(ratio, baseline) for ratio in ratios)


def cost_words(
    trial: Trial, seconds: float | None, *remarks: str | None, exposed_seconds: float | None = None
) -> str | None:
    """
    A cost and what it is a part of: ``"6.00 ms of 15.0 ms kernel time (40 %), 402 us of it while nothing else ran"``.

    Args:
        trial: The trial it was measured in.
        seconds: The cost; None where it was not measured, then nothing is said.
        remarks: What is said beside the share, such as ``"estimated"``.
        exposed_seconds: The part in which nothing else ran on the device; None where not recorded.
    """
    if seconds is None:
        return None
    share = share_of_kernels(trial, seconds)
    beside = joined((None if share is None else format_share(share), *remarks), ", ")
    cost = format_seconds(seconds)
    if share is not None and trial.kernels is not None and trial.kernels.seconds is not None:
        cost = f"{cost} of {format_seconds(trial.kernels.seconds)} kernel time"
    if beside:
        cost = f"{cost} ({beside})"
    if exposed_seconds is None or not seconds:
        return cost
    part = exposed_seconds / seconds
    amount = "all" if part >= _ALL else "none" if part <= 1 - _ALL else format_seconds(exposed_seconds)
    return f"{cost}, {amount} of it while nothing else ran"


def conversion_cost_words(trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """What conversions cost: their time where recorded, else what they move; None where neither is known."""
    seconds = sum_known(conversion.seconds for conversion in conversions)
    if seconds is None:
        return moved_words(sum_known(conversion.bytes_moved for conversion in conversions))
    own = convolution_share_words(trial, seconds) if all(c.owner == "library" for c in conversions) else None
    exposed = sum_known(conversion.exposed_seconds for conversion in conversions)
    return cost_words(trial, seconds, own, estimate_words(conversions), exposed_seconds=exposed)


def convolution_share_words(trial: Trial, seconds: float | None) -> str | None:
    """Of all kernels that ran for a convolution, conversions included; None where these were not counted."""
    whole = trial.kernels.convolution_seconds if trial.kernels is not None else None
    return f"{format_share(seconds / whole)} of the convolution time" if seconds is not None and whole else None


def source_words(sources: Iterable[CostSource | None]) -> str | None:
    """Whether a sum of costs is ``"measured"``, ``"estimated"`` or ``"partly estimated"``; None where not known."""
    known = set(sources)
    if known == {"estimated"}:
        return "estimated"
    if "estimated" in known:
        return "partly estimated"
    return "measured" if known == {"measured"} else None


def estimate_words(conversions: Iterable[Conversion]) -> str | None:
    """Whether what conversions cost is an estimate, in part or as a whole; None where nothing says so."""
    words = source_words(c.seconds_source for c in conversions if c.seconds is not None)
    return None if words == "measured" else words


def moved_words(bytes_moved: int | None) -> str | None:
    """``"6.12 MiB moved"``; None where not recorded."""
    return None if bytes_moved is None else f"{format_bytes(bytes_moved)} moved"


def place_words(place: Place) -> str:
    """A place as it stands in a sentence: ``"in layer3.0 (model.py:15)"``, ``"at model.py:15"``."""
    line = line_words(place.location) if place.location is not None else None
    if place.module is None:
        return f"at {line}"
    return f"in {place.module}" + (f" ({line})" if line is not None else "")


def dearest_words(found: Sequence[Place]) -> str | None:
    """The first of several places: ``"most in layer3.0 (model.py:15): 12 of them, 120 us"``; None of one alone."""
    if len(found) < 2:
        return None
    first = found[0]
    cost = "" if first.seconds is None else f", {format_seconds(first.seconds)}"
    return f"most {place_words(first)}: {first.count} of them{cost}"


def dearest_place_words(conversions: Iterable[Conversion]) -> str | None:
    """The same of conversions."""
    return dearest_words(conversion_places(conversions))


def places_words(conversions: Iterable[Conversion]) -> str | None:
    """The most expensive of several places: ``"12 at model.py:15 and 3 in conv1"``; None of one alone."""
    found = conversion_places(conversions)
    if len(found) < 2:
        return None
    named = [f"{place.count} {place_words(place)}" for place in found[:_PLACES_NAMED]]
    if len(found) > _PLACES_NAMED:
        named.append(f"the others at {count_of(len(found) - _PLACES_NAMED, 'more place')}")
    return listing(named)


def step_words(conversions: Iterable[Conversion]) -> str | None:
    """In which of the profiler's steps: ``"8 in each of 3 recorded steps"``, ``"in 3 recorded steps"``; else None."""
    counts = _summed((conversion.step, conversion.count) for conversion in conversions)
    if len(counts) < 2:
        return None
    each = set(counts.values())
    return f"{f'{each.pop()} in each of' if len(each) == 1 else 'in'} {len(counts)} recorded steps"


def named_counts(names: Iterable[tuple[str | None, int]], most: int = 4) -> str | None:
    """
    Names with how often each: ``"copy_ (20) and clone (4)"``, the most frequent first; one alone without its count.

    Args:
        names: Names and counts; a name may stand more than once, and None is left out.
        most: How many to name.

    Returns:
        None without any.
    """
    counts = _summed(names)
    if len(counts) < 2:
        return next(iter(counts), None)
    return listing([f"{name} ({count})" for name, count in counts.most_common()], most)


def _summed(names: Iterable[tuple[str | None, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, count in names:
        if name is not None:
            counts[name] += count
    return counts


def on_shapes(shapes: Iterable[Sequence[int | str] | None]) -> str | None:
    """The shapes of tensors, each once: ``"on 4x64x56x56 and 4x128x28x28"``; None where none was recorded."""
    named = distinct(shape_words(shape) if shape else None for shape in shapes)
    return f"on {listing(named, _SHAPES_NAMED)}" if named else None


def on_dearest_shapes(conversions: Iterable[Conversion]) -> str | None:
    """The same of conversions, the most expensive first."""
    dearest = sorted(conversions, key=lambda c: -(c.seconds or 0.0))
    return on_shapes(c.source.shape if c.source is not None else None for c in dearest)


def shape_of(layout: Layout | None) -> str:
    """A layout's shape; empty where not recorded."""
    return shape_words(layout.shape) if layout is not None else ""


def owner_words(conversions: Iterable[Conversion]) -> str | None:
    """``"inserted by the compiler and library"``; None of no conversions."""
    owners = sorted({conversion.owner for conversion in conversions})
    return f"inserted by the {listing(owners)}" if owners else None


def dearest_direction(conversions: Iterable[Conversion]) -> ConversionDirection | None:
    """The direction on which most time goes, or which most have where no time was recorded; None of no conversions."""
    weights: dict[ConversionDirection, tuple[float, int]] = {}
    for conversion in conversions:
        seconds, count = weights.get(conversion.direction, (0.0, 0))
        weights[conversion.direction] = (seconds + (conversion.seconds or 0.0), count + conversion.count)
    return max(weights, key=lambda direction: weights[direction], default=None)


def channels_last_words(ranks: Iterable[int]) -> str:
    """The channels-last format of tensors of some ranks, as torch calls it; ``channels_last`` if they do not say."""
    known = {CHANNELS_LAST_BY_RANK[rank] for rank in ranks if rank in CHANNELS_LAST_BY_RANK}
    return f"torch.{known.pop()}" if len(known) == 1 else "torch.channels_last"


def wanted_format(conversions: Iterable[Conversion]) -> str:
    """The memory format that most time goes into making, as torch calls it."""
    own = list(conversions)
    if dearest_direction(own) == "to_contiguous":
        return "torch.contiguous_format"
    return channels_last_words(len(c.source.shape) for c in own if c.source is not None)


def try_words(memory_format: str | None) -> str:
    """
    How to find out what a memory format would change, after a trace, in which nothing was tried.

    Args:
        memory_format: As torch calls it, such as ``"torch.channels_last"``; None where the trace does not say which
            format the model is in.
    """
    other = f"model = model.to(memory_format={memory_format}) and x = x.to(memory_format={memory_format})"
    if memory_format is None:
        other = "model and input in the other memory format, channels_last if they are contiguous now"
    return f"record it again with {other}; {_DIAGNOSE}"


def miopen_words(conversions: Iterable[Conversion]) -> str:
    """
    What else an AMD GPU needs for channels_last to take effect, to follow an advice; empty for other libraries.

    Source:
        ``miopen_conv_use_channels_last`` in aten/src/ATen/native/ConvUtils.h; pytorch/pytorch PR #170947: on by default
        only from ROCm 7.0 on.
    """
    if not any(c.kernel is not None and library_of(c.kernel) == "miopen" for c in conversions):
        return ""
    return "; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"
