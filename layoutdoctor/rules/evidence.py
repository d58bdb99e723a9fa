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
from layoutdoctor.diagnosis.records import FASTER, SLOWER
from layoutdoctor.examination.choice import Demands, demands
from layoutdoctor.examination.costs import all_conversions_of, conversion_places, sum_known
from layoutdoctor.examination.gaps import is_recorded_like
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.examination.ratios import EQUALITY, is_too_noisy
from layoutdoctor.examination.trust import exceeds_rounds
from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

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
        RatioInterval,
        Severity,
        Speedup,
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
_DIAGNOSE = "or diagnose the model itself, which measures: python -m layoutdoctor model.py"
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


def is_baseline(diagnosis: Diagnosis, name: str) -> bool:
    """Whether a configuration is the baseline, or the trial whose measurement stands for it."""
    if diagnosis.comparison is None:
        return False
    return _measured_name(diagnosis, name) == _measured_name(diagnosis, diagnosis.comparison.baseline)


def ratio_of(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """
    A configuration's ratio against the baseline, its own or that of the trial it is the same as.

    Returns:
        None where it was not measured, or in too few rounds to tell anything, or is the baseline itself.
    """
    if diagnosis.comparison is None or is_baseline(diagnosis, name):
        return None
    wanted = (_measured_name(diagnosis, name), name)
    return next((one for one in diagnosis.comparison.ratios if one.name in wanted and not one.lacks_rounds), None)


def faster_ratio(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """The ratio of a configuration that is measurably faster than the baseline and computes the same; else None."""
    ratio = ratio_of(diagnosis, name)
    if ratio is None or ratio.verdict != FASTER or has_different_outputs(diagnosis, name):
        return None
    return None if is_refuted(diagnosis, name) else ratio


def fastest_of(diagnosis: Diagnosis, names: Iterable[str]) -> RatioInterval | None:
    """Of some configurations, the one that gains most over the baseline; None where none is measurably faster."""
    ratios = {name: ratio for name in names if (ratio := faster_ratio(diagnosis, name)) is not None}
    return ratios.get(_best_of(diagnosis, ratios) or "")


def _best_of(diagnosis: Diagnosis, names: Collection[str]) -> str | None:
    """The recommended one, else of the fastest, which cannot be told apart, that which changes least."""
    first = max(names, key=lambda name: _median(diagnosis, name), default=None)
    if first is None:
        return None
    ratio = ratio_of(diagnosis, first)
    least = 1.0 if ratio is None else ratio.low
    tied = [name for name in names if _high(diagnosis, name) >= least or _is_advised(diagnosis, name)]
    return min(tied, key=lambda name: (_preference(diagnosis, name), -_median(diagnosis, name)))


def _is_advised(diagnosis: Diagnosis, name: str) -> bool:
    advice = diagnosis.recommendation
    if advice is None or advice.configuration is None:
        return False
    return _measured_name(diagnosis, name) == _measured_name(diagnosis, advice.configuration)


def _preference(diagnosis: Diagnosis, name: str) -> tuple[bool, Demands]:
    """Of configurations that are as good: the recommended one first, then those that demand least."""
    trial = diagnosis.measured_trial(name)
    return not _is_advised(diagnosis, name), (False, False, 0) if trial is None else demands(trial.configuration)


def is_refuted(diagnosis: Diagnosis, name: str) -> bool:
    """Whether a configuration led the rounds, and was not faster in fresh processes."""
    advice, comparison = diagnosis.recommendation, diagnosis.comparison
    if advice is None or advice.fresh_processes is None or comparison is None or not comparison.fastest:
        return False
    led = comparison.fastest[0]
    return led != advice.configuration and _measured_name(diagnosis, name) == _measured_name(diagnosis, led)


def has_different_outputs(diagnosis: Diagnosis, name: str) -> bool:
    """Whether a configuration was seen to compute something else; False where it was not checked."""
    trial = diagnosis.measured_trial(name)
    return trial is not None and trial.equivalence is not None and trial.equivalence.status == "different"


def verified_cure(diagnosis: Diagnosis) -> Trial | None:
    """The recommended trial where its gain was verified and it is not the baseline."""
    advice = diagnosis.recommendation
    if advice is None or not advice.verified or advice.configuration is None:
        return None
    return None if is_baseline(diagnosis, advice.configuration) else diagnosis.measured_trial(advice.configuration)


def severity_of_gain(gain: RatioInterval | None) -> Severity:
    """``warning`` where another configuration gains what can be felt, else ``note``."""
    return "note" if gain is None or gain.median < 1 + NEGLIGIBLE_SHARE else "warning"


def severity_of_loss(diagnosis: Diagnosis, name: str, than: str) -> Severity:
    """``warning`` where a configuration was measured to be slower than another by what can be felt, else ``note``."""
    gain = _median(diagnosis, than) / _median(diagnosis, name)
    return "warning" if is_surely_slower(diagnosis, name, than) and gain >= 1 + NEGLIGIBLE_SHARE else "note"


def clean_trials(diagnosis: Diagnosis, trial: Trial, is_clean: Callable[[Trial], bool]) -> list[Trial]:
    """The other trials that compute the same without the trouble, however fast; arguments as below."""
    return [
        other
        for other in own_trials(diagnosis)
        if other.name != trial.name
        and other.status == "ok"
        and is_recorded_like(other, trial)
        and not has_different_outputs(diagnosis, other.name)
        and is_clean(other)
    ]


def clean_alternative(diagnosis: Diagnosis, trial: Trial, is_clean: Callable[[Trial], bool]) -> Trial | None:
    """
    A measured trial without the trouble that is at least as fast: the recommended one, else of the fastest that which
    changes least.

    Args:
        is_clean: Whether a trial is free of it; asked only of trials that were recorded as ``trial`` was.
    """
    candidates = [
        other
        for other in clean_trials(diagnosis, trial, is_clean)
        if not is_refuted(diagnosis, other.name) and _is_as_fast(diagnosis, other.name, trial.name)
    ]
    best = _best_of(diagnosis, [other.name for other in candidates])
    return next((other for other in candidates if other.name == best), None)


def is_worth_it(diagnosis: Diagnosis, trial: Trial, is_clean: Callable[[Trial], bool]) -> bool:
    """Whether every trial without the trouble that was measured is slower: then the trouble pays."""
    others = clean_trials(diagnosis, trial, is_clean)
    is_known = [is_baseline(diagnosis, o.name) or ratio_of(diagnosis, o.name) is not None for o in (trial, *others)]
    return is_known[0] and any(is_known[1:]) and clean_alternative(diagnosis, trial, is_clean) is None


def seconds_lost(diagnosis: Diagnosis, name: str) -> float | None:
    """What the baseline takes longer per iteration than a faster configuration, by the ratio; None if not measured."""
    baseline, ratio = main_trial(diagnosis), ratio_of(diagnosis, name)
    if baseline is None or baseline.measurement is None or ratio is None:
        return None
    return max(0.0, baseline.measurement.usual_seconds * (1 - 1 / ratio.median))


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
        Pairs with kernels of their own, both from an iteration that nothing else disturbed, as far as the rounds tell.
    """
    for names in _FORMAT_PAIRS:
        first, second = (diagnosis.measured_trial(name) for name in names)
        if first is None or second is None or first is second:
            continue
        if backend in (None, first.configuration.backend) and _is_sound(first) and _is_sound(second):
            yield first, second


def node_of(trial: Trial, kernel: Kernel) -> FxNode | None:
    """The graph node that ran a kernel, where that was recorded and is one node."""
    graphs = [graph for graph in trial.graphs if kernel.graph in (None, graph.name)]
    found = [node for graph in graphs for node in graph.nodes if node.name == kernel.node]
    return found[0] if len(found) == 1 else None


def _is_sound(trial: Trial) -> bool:
    if trial.kernels is None or trial.kernels.seconds is None:
        return False
    return not exceeds_rounds(trial.kernels, trial.measurement)


def is_surely_slower(diagnosis: Diagnosis, name: str, than: str) -> bool:
    """Whether a configuration was measured, and is slower than another one by more than the rounds leave open."""
    ratio, other = ratio_of(diagnosis, name), ratio_of(diagnosis, than)
    if is_baseline(diagnosis, name):
        return other is not None and other.verdict == FASTER
    if is_baseline(diagnosis, than):
        return ratio is not None and ratio.verdict == SLOWER
    return ratio is not None and other is not None and ratio.high < other.low


def _measured_name(diagnosis: Diagnosis, name: str) -> str:
    trial = diagnosis.measured_trial(name)
    return trial.name if trial is not None else name


def _median(diagnosis: Diagnosis, name: str) -> float:
    ratio = ratio_of(diagnosis, name)
    return ratio.median if ratio is not None else 1.0


def _high(diagnosis: Diagnosis, name: str) -> float:
    ratio = ratio_of(diagnosis, name)
    return ratio.high if ratio is not None else 1.0


def _is_as_fast(diagnosis: Diagnosis, name: str, than: str) -> bool:
    """
    Whether a configuration was measured and is faster than another one, or about as fast and not surely slower: what
    noise leaves undecided is no advice where the medians are far apart.
    """
    ratio, other = ratio_of(diagnosis, name), ratio_of(diagnosis, than)
    if is_baseline(diagnosis, than):
        return ratio is not None and ratio.verdict != SLOWER and ratio.median >= 1 - EQUALITY
    if is_baseline(diagnosis, name):
        return other is not None and other.verdict != FASTER and other.median <= 1 + EQUALITY
    if ratio is None or other is None:
        return False
    return ratio.high >= other.low and ratio.median >= other.median * (1 - EQUALITY)


# ---------------------------------------------------------------------------------------------- how it is told
def speed_words(ratio: RatioInterval, baseline: str) -> str:
    """What was measured: ``"eager runs at 0.61x the speed of inductor (0.60 to 0.62)"``."""
    return f"{ratio.name} runs at {format_ratio(ratio.median)} the speed of {baseline} ({_ends(ratio)})"


def _ends(ratio: RatioInterval) -> str:
    return f"{'range ' if ratio.coverage is None else ''}{ratio.low:.2f} to {ratio.high:.2f}"


def speedup_words(speedup: Speedup) -> str:
    """A gain that was measured again after the choice: ``"1.28x faster (1.25 to 1.31)"``."""
    return f"{format_ratio(speedup.median)} faster ({speedup.low:.2f} to {speedup.high:.2f})"


def alternative_words(diagnosis: Diagnosis, trial: Trial, other: Trial) -> str:
    """What was measured of a better trial, which has been named, and of the one a finding is about; empty if none."""
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else ""
    better = None if is_baseline(diagnosis, other.name) else ratio_of(diagnosis, other.name)
    own = None if is_baseline(diagnosis, trial.name) else ratio_of(diagnosis, trial.name)
    if better is None and own is not None and is_too_noisy(own):
        return f"the times of {own.name} are too noisy to tell how fast it is"
    if better is None:
        return "" if own is None else speed_words(own, baseline)
    against = "" if own is None else f", {own.name} at {format_ratio(own.median)}"
    if better.decided is False and is_too_noisy(better):
        return "the times are too noisy to tell what it brings"
    told = "the times are too noisy to tell what it brings:" if better.decided is False else "measured at"
    return f"{told} {format_ratio(better.median)} the speed of {baseline} ({_ends(better)}){against}"


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
