"""
Questions that several rules ask of a recorded trace, and how they say the answers: launches, places, exposed time.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.kernel_names import library_of
from layoutdoctor.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.graph_evidence import channels_last_only
from layoutdoctor.units import format_seconds, format_share
from layoutdoctor.words import count_of, line_words, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import (
        Confidence,
        Conversion,
        ConversionDirection,
        Diagnosis,
        SourceLocation,
        Trial,
    )

# What libraries and autograd call what only a training step runs.
_BACKWARD = re.compile(r"backward|dgrad|wgrad|_bwd|bn_bw", re.IGNORECASE)

_DIAGNOSE = "or diagnose the model itself, which measures: python -m layoutdoctor model.py"
_CONFIDENCE_WORDS: dict[Confidence, str] = {
    "shapes": "with shapes that agree all along the way",
    "grid": "by launch grids that agree",
    "order": "by the order of kernels only",
}
_PLACES_NAMED = 3
_SHAPES_NAMED = 3
# Of all of a time nothing that can be read is missing above this, and nothing is there below the rest.
_ALL = 0.995


@dataclass(frozen=True)
class Place:
    """
    A module and line of the model, and what was recorded there.

    Attributes:
        module: The nn.Module; None where not recorded.
        location: The user's line; None where not recorded.
        count: Launches, or pairs.
        seconds: Their time, summed; None where not recorded.
    """

    module: str | None
    location: SourceLocation | None
    count: int
    seconds: float | None


Sighting = tuple["str | None", "SourceLocation | None", int, "float | None"]
"""Module, line, count and seconds of one thing seen."""


def recorded_trial(diagnosis: Diagnosis) -> Trial | None:
    """
    The one trial of a recorded trace; None for the diagnosis of a model.

    Args:
        diagnosis: Any diagnosis.
    """
    if diagnosis.subject.mode != "trace" or not diagnosis.trials:
        return None
    return diagnosis.trials[0]


def is_training(trial: Trial) -> bool:
    """
    Whether a recorded run has a backward in it, which is all that a trace says about the mode.

    Args:
        trial: The trial of a trace.
    """
    conversions = evidence.all_conversions_of(trial)
    if any(c.tensor == "gradient" or _BACKWARD.search(c.op or "") for c in conversions):
        return True
    if trial.kernels is None:
        return False
    names = {name for k in trial.kernels.kernels for name in (k.name, k.op or "")}
    names.update(total.name for total in trial.kernels.totals if total.kind in ("kernel", "operation"))
    return any(k.backward for k in trial.kernels.kernels) or any(_BACKWARD.search(name) for name in names)


def is_call_out_of_channels_last(conversion: Conversion) -> bool:
    """
    Whether the model's own code asked for a copy that leaves channels-last: what LD501 tells, and LD108 does not.

    Args:
        conversion: One of a trace.
    """
    is_asked = conversion.owner == "user" and conversion.direction != "to_channels_last"
    return is_asked and channels_last_only(conversion.source) is not None


def launch_count(conversions: Iterable[Conversion]) -> int:
    """
    How many launches conversions stand for; a line of a table of totals stands for many.

    Args:
        conversions: Any.
    """
    return sum(conversion.count for conversion in conversions)


def dearest_direction(conversions: Iterable[Conversion]) -> ConversionDirection | None:
    """
    The direction on which most time goes, or which most have where no time was recorded; None of no conversions.

    Args:
        conversions: Any.
    """
    weights: dict[ConversionDirection, tuple[float, int]] = {}
    for conversion in conversions:
        seconds, count = weights.get(conversion.direction, (0.0, 0))
        weights[conversion.direction] = (seconds + (conversion.seconds or 0.0), count + conversion.count)
    return max(weights, key=lambda direction: weights[direction], default=None)


def exposed_seconds(conversions: Iterable[Conversion]) -> float | None:
    """
    The part of their time in which nothing else ran on the device; None where that was not recorded.

    Args:
        conversions: Any.
    """
    return evidence.sum_known(conversion.exposed_seconds for conversion in conversions)


def cost_words(trial: Trial, seconds: float | None, exposed: float | None, *, is_library: bool = False) -> str | None:
    """
    A cost, and how much of it the run really waited for: ``"..., 402 us of it while nothing else ran"``.

    Args:
        trial: The trial of a trace.
        seconds: Summed time; None where not recorded.
        exposed: The part of it in which nothing else ran; None where not recorded.
        is_library: Whether libraries spent all of it, so that it is a part of the convolution time as well.
    """
    cost = wording.cost_words(trial, seconds, _convolution_share_words(trial, seconds) if is_library else None)
    if cost is None or not seconds or exposed is None:
        return cost
    part = exposed / seconds
    amount = "all" if part >= _ALL else "none" if part <= 1 - _ALL else format_seconds(exposed)
    return f"{cost}, {amount} of it while nothing else ran"


def conversion_cost_words(trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """
    The same for conversions, with their share of the convolution time where libraries made all of them.

    Args:
        trial: The trial of a trace.
        conversions: Any of its conversions.
    """
    seconds = evidence.sum_known(conversion.seconds for conversion in conversions)
    is_library = all(conversion.owner == "library" for conversion in conversions)
    return cost_words(trial, seconds, exposed_seconds(conversions), is_library=is_library)


def _convolution_share_words(trial: Trial, seconds: float | None) -> str | None:
    """Of all kernels that ran for a convolution, conversions included."""
    whole = trial.kernels.convolution_seconds if trial.kernels is not None else None
    return f"{format_share(seconds / whole)} of the convolution time" if seconds is not None and whole else None


def confidence_words(confidences: Iterable[Confidence | None], noun: str) -> str:
    """
    How many of something, and what proves them: ``"3 round trips: 2 with shapes ... and 1 by the order ..."``.

    Args:
        confidences: One for each; None says no more than the order of kernels.
        noun: What is counted, in the singular; its plural ends in ``s``.
    """
    counts = Counter(confidence or "order" for confidence in confidences)
    known = [(counts[confidence], words) for confidence, words in _CONFIDENCE_WORDS.items() if counts[confidence]]
    total = count_of(sum(counts.values()), noun)
    if len(known) == 1:
        return f"{total} {known[0][1]}"
    return f"{total}: {listing([f'{count} {words}' for count, words in known])}"


def places(sightings: Iterable[Sighting]) -> list[Place]:
    """
    What was seen, by module and line, the most expensive first; what has neither is left out.

    Args:
        sightings: Module, line, count and seconds of each.
    """
    counts: Counter[tuple[str | None, SourceLocation | None]] = Counter()
    seconds: dict[tuple[str | None, SourceLocation | None], float] = {}
    for module, location, count, cost in sightings:
        key = (module, location)
        if key != (None, None):
            counts[key] += count
            if cost is not None:
                seconds[key] = seconds.get(key, 0.0) + cost
    found = [Place(*key, count, seconds.get(key)) for key, count in counts.items()]
    return sorted(found, key=lambda place: (-(place.seconds or 0.0), -place.count))


def conversion_places(conversions: Iterable[Conversion]) -> list[Place]:
    """
    The same for conversions.

    Args:
        conversions: Any.
    """
    return places((c.module, c.location, c.count, c.seconds) for c in conversions)


def dearest_words(found: Sequence[Place]) -> str | None:
    """
    The most expensive of several places: ``"most in layer3.0 (model.py:15): 12 of them, 120 us"``; None of one alone.

    Args:
        found: Places, the most expensive first.
    """
    if len(found) < 2:
        return None
    first = found[0]
    cost = "" if first.seconds is None else f", {format_seconds(first.seconds)}"
    return f"most {place_words(first)}: {first.count} of them{cost}"


def places_words(found: Sequence[Place]) -> str | None:
    """
    The most expensive of several places: ``"12 at model.py:15 and 3 in conv1"``; None of one alone.

    Args:
        found: Places, the most expensive first.
    """
    if len(found) < 2:
        return None
    named = [f"{place.count} {place_words(place)}" for place in found[:_PLACES_NAMED]]
    if len(found) > _PLACES_NAMED:
        named.append(f"the others at {count_of(len(found) - _PLACES_NAMED, 'more place')}")
    return listing(named)


def place_words(place: Place) -> str:
    """
    A place as it stands in a sentence: ``"in layer3.0 (model.py:15)"``, ``"at model.py:15"``.

    Args:
        place: With a module or a line.
    """
    line = line_words(place.location) if place.location is not None else None
    if place.module is None:
        return f"at {line}"
    return f"in {place.module}" + (f" ({line})" if line is not None else "")


def step_words(conversions: Iterable[Conversion]) -> str | None:
    """
    In which of the profiler's steps: ``"8 in each of 3 recorded steps"``, ``"in 3 recorded steps"``; None without any.

    Args:
        conversions: Any.
    """
    counts: Counter[str] = Counter()
    for conversion in conversions:
        if conversion.step is not None:
            counts[conversion.step] += conversion.count
    if len(counts) < 2:
        return None
    each = set(counts.values())
    return f"{f'{each.pop()} in each of' if len(each) == 1 else 'in'} {len(counts)} recorded steps"


def named_counts(names: Iterable[tuple[str, int]], most: int = 4) -> str | None:
    """
    Names with how often each: ``"copy_ (20) and clone (4)"``, the most frequent first; one alone without its count.

    Args:
        names: Names and counts; a name may stand more than once.
        most: How many to name.

    Returns:
        None without any.
    """
    counts: Counter[str] = Counter()
    for name, count in names:
        counts[name] += count
    if len(counts) < 2:
        return next(iter(counts), None)
    return listing([f"{name} ({count})" for name, count in counts.most_common()], most)


def on_shapes(layouts: Iterable[Layout | None]) -> str | None:
    """
    The shapes of tensors, each once: ``"on 4x64x56x56 and 4x128x28x28"``; None where none was recorded.

    Args:
        layouts: The most expensive first.
    """
    shapes = list(dict.fromkeys(shape_words(layout.shape) for layout in layouts if layout is not None))
    return f"on {listing(shapes, _SHAPES_NAMED)}" if shapes else None


def channels_last_words(ranks: Iterable[int]) -> str:
    """
    The channels-last format of tensors, as torch calls it; ``channels_last`` where their rank does not say.

    Args:
        ranks: How many dimensions each has.
    """
    known = {CHANNELS_LAST_BY_RANK[rank] for rank in ranks if rank in CHANNELS_LAST_BY_RANK}
    return f"torch.{known.pop()}" if len(known) == 1 else "torch.channels_last"


def try_words(memory_format: str) -> str:
    """
    How to find out what a memory format would change, after a trace, in which nothing was tried.

    Args:
        memory_format: As torch calls it, such as ``"torch.channels_last"``.
    """
    return (
        f"record it again with model = model.to(memory_format={memory_format}) and x = x.to(memory_format="
        f"{memory_format}); {_DIAGNOSE}"
    )


def miopen_words(conversions: Iterable[Conversion]) -> str:
    """
    What else an AMD GPU needs for channels_last to take effect, to follow an advice; empty for other libraries.

    Args:
        conversions: Those the advice is about.

    Source:
        ``miopen_conv_use_channels_last`` in aten/src/ATen/native/ConvUtils.h; pytorch/pytorch PR #170947: on by default
        only from ROCm 7.0 on.
    """
    if not any(c.kernel is not None and library_of(c.kernel) == "miopen" for c in conversions):
        return ""
    return "; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"


def try_other_words() -> str:
    """The same where the trace does not say which format the model is in."""
    return (
        "record it again with model and input in the other memory format, channels_last if they are contiguous now; "
        f"{_DIAGNOSE}"
    )
