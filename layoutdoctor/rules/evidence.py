"""
What several rules ask of a diagnosis and say of it: which trial matters most, what was faster, what would cure it; and
how findings tell ratios with their interval, costs and what they are a part of, places, and what to try.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import all_conversions_of, conversion_places, sum_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, name_in_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        Conversion,
        ConversionDirection,
        CostSource,
        Decision,
        Diagnosis,
        FxNode,
        InputTensor,
        Kernel,
        Severity,
        Trial,
    )
    from layoutdoctor.examination.costs import Place

Found = TypeVar("Found")
# Below this share of the kernel time, removing a conversion cannot be felt: a note, no warning. It is also about the
# smallest difference that paired rounds on a shared machine resolve.
NEGLIGIBLE_SHARE = 0.02

CHANNELS_LAST_CONFIGURATIONS = ("inductor-channels-last", "inductor-channels-last-opt-off")
_FORMAT_PAIRS = (("inductor", "inductor-channels-last"), ("eager", "eager-channels-last"))
# What libraries and autograd call what only a training step runs.
_BACKWARD = re.compile(r"backward|dgrad|wgrad|_bwd|bn_bw", re.IGNORECASE)
DIAGNOSE = "diagnose the model itself, which measures: python -m layoutdoctor model.py"
_PLACES_NAMED = 3
_SHAPES_NAMED = 3
# Of all of a time nothing that can be read is missing above this, and nothing is there below the rest.
_ALL = 0.995


def main_trial(diagnosis: Diagnosis) -> Trial | None:
    """The trial the user has today: the baseline, else the only trial there is (a recorded trace)."""
    name = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    trial = diagnosis.measured_trial(name)
    if trial is None and len(diagnosis.trials) == 1:
        return diagnosis.trials[0]
    return trial


def own_trials(diagnosis: Diagnosis) -> tuple[Trial, ...]:
    """The trials that have facts of their own, the main one first; one that is the same as another is left out."""
    main = main_trial(diagnosis)
    trials = [trial for trial in diagnosis.trials if trial.status != "same_as"]
    return tuple(sorted(trials, key=lambda trial: trial is not main))


def first_showing(trials: Iterable[Trial], find: Callable[[Trial], list[Found]]) -> Iterator[tuple[Trial, list[Found]]]:
    """The first of some trials in which something is found, with all that is: where the others only repeat it."""
    found = ((trial, find(trial)) for trial in trials)
    yield from itertools.islice(((trial, seen) for trial, seen in found if seen), 1)


def cards_of(trial: Trial, *, with_backward: bool = True) -> list[Decision]:
    """The decision cards of a trial's graphs."""
    graphs = (graph for graph in trial.graphs if with_backward or graph.direction != "backward")
    return [graph.decision for graph in graphs if graph.decision is not None]


def main_or_eager(diagnosis: Diagnosis) -> Iterator[Trial]:
    """The main trial, then eager: where one of them shows a thing, the other configurations only repeat it."""
    yield from (trial for trial in (main_trial(diagnosis), diagnosis.measured_trial("eager")) if trial is not None)


def is_trace(trial: Trial) -> bool:
    """Whether a trial was recorded elsewhere: nothing else was tried, and no graph says who reads what."""
    return trial.configuration.backend == "recorded"


def trace_trials(diagnosis: Diagnosis) -> Iterator[Trial]:
    """The main trial where it was recorded elsewhere: for rules on what the graphs of a model tell better."""
    main = main_trial(diagnosis)
    if main is not None and is_trace(main):
        yield main


def is_channels_last(trial: Trial) -> bool:
    """Whether a configuration gives the model or its input channels_last."""
    return "channels_last" in (trial.configuration.model_format, trial.configuration.input_format)


def is_training(diagnosis: Diagnosis, trial: Trial) -> bool:
    """Whether a trial trains: by the mode, or where that was not recorded, by a backward among its kernels."""
    return has_backward(trial) if is_trace(trial) else diagnosis.subject.mode == "training"


def has_backward(trial: Trial) -> bool:
    """Whether a backward is among the kernels of a trial, which is all that a trace says about the mode."""
    conversions = all_conversions_of(trial)
    if any(c.tensor == "gradient" or _BACKWARD.search(c.op or "") for c in conversions):
        return True
    if trial.kernels is None:
        return False
    names = {name for k in trial.kernels.kernels for name in (k.name, k.op or "")}
    names.update(total.name for total in trial.kernels.totals if total.kind in ("kernel", "operation"))
    return any(k.backward for k in trial.kernels.kernels) or any(_BACKWARD.search(name) for name in names)


def share_of_kernels(trial: Trial, seconds: float | None) -> float | None:
    """A duration over the trial's kernel time; None where either was not recorded."""
    if seconds is None or trial.kernels is None or not trial.kernels.seconds:
        return None
    return seconds / trial.kernels.seconds


def severity_of_cost(trial: Trial, seconds: float | None) -> Severity:
    """``warning`` for a loss that can be felt, else ``note``; also where nothing says how large a share it is."""
    share = share_of_kernels(trial, seconds)
    return "note" if trial.is_static or share is None or share < NEGLIGIBLE_SHARE else "warning"


def inputs_not_channels_last(diagnosis: Diagnosis) -> tuple[InputTensor, ...]:
    """The 4-D and 5-D inputs that do not satisfy the channels-last format of their rank."""
    return tuple(
        tensor
        for tensor in diagnosis.subject.inputs
        if (wanted := CHANNELS_LAST_BY_RANK.get(len(tensor.shape))) and wanted not in tensor.memory_formats
    )


def eager_of_same_formats(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """The eager trial with the same formats of model and input as a compiled one; None for any other trial."""
    wanted = (trial.configuration.model_format, trial.configuration.input_format)
    if trial.configuration.backend != "inductor":
        return None
    others = (other for other in diagnosis.trials if other.configuration.backend == "eager")
    return next((o for o in others if (o.configuration.model_format, o.configuration.input_format) == wanted), None)


def format_pairs(diagnosis: Diagnosis, backend: str | None = None) -> Iterator[tuple[Trial, Trial]]:
    """
    Measured trials that differ in the formats of model and input only, the caller's format first.

    Args:
        backend: ``eager`` or ``inductor``; None for both.

    Yields:
        Pairs whose kernels have times.
    """
    for names in _FORMAT_PAIRS:
        first, second = (diagnosis.measured_trial(name) for name in names)
        if first is None or second is None or first is second:
            continue
        if backend in (None, first.configuration.backend) and _has_times(first) and _has_times(second):
            yield first, second


def _has_times(trial: Trial) -> bool:
    return trial.kernels is not None and trial.kernels.seconds is not None


def shown(name: str) -> str:
    """A configuration in a sentence: ``"the default"``, ``"compiled + channels_last"``."""
    return "the default" if name == BASELINE else name_in_words(name)


def node_of(trial: Trial, kernel: Kernel) -> FxNode | None:
    """The graph node that ran a kernel, where that was recorded and is one node."""
    graphs = [graph for graph in trial.graphs if kernel.graph in (None, graph.name)]
    found = [node for graph in graphs for node in graph.nodes if node.name == kernel.node]
    return found[0] if len(found) == 1 else None


# ---------------------------------------------------------------------------------------------- how it is told
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
    counts = summed((c.step, c.count) for c in conversions if c.step is not None)
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
    counts = summed((name, count) for name, count in names if name is not None)
    if len(counts) < 2:
        return next(iter(counts), None)
    return listing([f"{name} ({count})" for name, count in counts.most_common()], most)


def summed(counts: Iterable[tuple[Found, int]]) -> Counter[Found]:
    """The counts of things, those of one thing added up."""
    sums: Counter[Found] = Counter()
    for thing, count in counts:
        sums[thing] += count
    return sums


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
    return f"record it again with {other}; or {DIAGNOSE}"


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
