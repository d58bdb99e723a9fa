"""Questions that several rules ask of a diagnosis: which trial matters most, what was faster, what would cure it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.examination.costs import all_conversions_of as all_conversions_of  # reports take it from here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutdoctor.diagnosis.records import (
        Decision,
        Diagnosis,
        FxNode,
        InputTensor,
        Kernel,
        RatioInterval,
        Severity,
        Trial,
    )

Found = TypeVar("Found")
# Below this share of the kernel time, removing a conversion cannot be felt: a note, no warning. It is also about the
# smallest difference that paired rounds on a shared machine resolve.
NEGLIGIBLE_SHARE = 0.02

CHANNELS_LAST_CONFIGURATIONS = ("inductor-channels-last", "inductor-channels-last-opt-off")
_FORMAT_PAIRS = (("inductor", "inductor-channels-last"), ("eager", "eager-channels-last"))
# A profiled iteration whose kernels take this many times what an iteration takes in the rounds was disturbed.
_DISTURBED_FACTOR = 1.5
# What libraries and autograd call what only a training step runs.
_BACKWARD = re.compile(r"backward|dgrad|wgrad|_bwd|bn_bw", re.IGNORECASE)


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


def severity_of_share(share: float | None) -> Severity:
    """``note`` for a loss that cannot be felt, else ``warning``; also where its time was not recorded."""
    return "note" if share is not None and share < NEGLIGIBLE_SHARE else "warning"


def severity_of_cost(trial: Trial, seconds: float | None) -> Severity:
    """The same for what is seen in a graph: without a measured share nothing says that it can be felt: a note."""
    share = share_of_kernels(trial, seconds)
    return "note" if trial.is_static or share is None else severity_of_share(share)


def is_baseline(diagnosis: Diagnosis, name: str) -> bool:
    """Whether a configuration is the baseline, or the trial whose measurement stands for it."""
    if diagnosis.comparison is None:
        return False
    return _measured_name(diagnosis, name) == _measured_name(diagnosis, diagnosis.comparison.baseline)


def ratio_of(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """
    A configuration's ratio against the baseline, its own or that of the trial it is the same as.

    Returns:
        None where it was not measured, or is the baseline itself.
    """
    if diagnosis.comparison is None or is_baseline(diagnosis, name):
        return None
    wanted = (_measured_name(diagnosis, name), name)
    return next((ratio for ratio in diagnosis.comparison.ratios if ratio.name in wanted), None)


def faster_ratio(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """The ratio of a configuration that is measurably faster than the baseline and computes the same; else None."""
    ratio = ratio_of(diagnosis, name)
    if ratio is None or ratio.verdict != FASTER or has_different_outputs(diagnosis, name):
        return None
    return ratio


def fastest_of(diagnosis: Diagnosis, names: Iterable[str]) -> RatioInterval | None:
    """Of some configurations, the one that gains most over the baseline; None where none is measurably faster."""
    ratios = [ratio for name in names if (ratio := faster_ratio(diagnosis, name)) is not None]
    return max(ratios, key=lambda ratio: ratio.median, default=None)


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


def clean_alternative(diagnosis: Diagnosis, trial: Trial, is_clean: Callable[[Trial], bool]) -> Trial | None:
    """
    A measured trial without the trouble that is at least as fast: the recommended one, else the fastest, else a tie.

    Args:
        diagnosis: Any diagnosis.
        trial: The trial with the trouble.
        is_clean: Whether a trial is free of it; asked only of trials whose kernels were recorded.
    """
    advised = diagnosis.recommendation.configuration if diagnosis.recommendation is not None else None
    candidates = [
        other
        for other in own_trials(diagnosis)
        if other.name != trial.name
        and other.status == "ok"
        and other.kernels is not None
        and not has_different_outputs(diagnosis, other.name)
        and is_clean(other)
        and _is_as_fast(diagnosis, other.name, trial.name)
    ]
    return max(candidates, key=lambda other: (other.name == advised, _median(diagnosis, other.name)), default=None)


def is_worth_it(diagnosis: Diagnosis, trial: Trial, is_clean: Callable[[Trial], bool]) -> bool:
    """Whether every trial without the trouble that was measured is slower: then the trouble pays."""
    others = [o for o in own_trials(diagnosis) if o.name != trial.name and o.kernels is not None and is_clean(o)]
    is_measured = any(ratio_of(diagnosis, o.name) is not None or is_baseline(diagnosis, o.name) for o in others)
    return is_measured and clean_alternative(diagnosis, trial, is_clean) is None


def seconds_lost(diagnosis: Diagnosis, name: str) -> float | None:
    """What the baseline takes longer per iteration than a faster configuration, by the ratio; None if not measured."""
    baseline, ratio = main_trial(diagnosis), ratio_of(diagnosis, name)
    if baseline is None or baseline.measurement is None or ratio is None:
        return None
    return max(0.0, baseline.measurement.median_seconds * (1 - 1 / ratio.median))


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
        diagnosis: Any diagnosis.
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
    return trial.measurement is None or (trial.kernels.seconds <= _DISTURBED_FACTOR * trial.measurement.median_seconds)


def _measured_name(diagnosis: Diagnosis, name: str) -> str:
    trial = diagnosis.measured_trial(name)
    return trial.name if trial is not None else name


def _median(diagnosis: Diagnosis, name: str) -> float:
    ratio = ratio_of(diagnosis, name)
    return ratio.median if ratio is not None else 1.0


def _is_as_fast(diagnosis: Diagnosis, name: str, than: str) -> bool:
    """Whether a configuration was measured and is faster than, or not distinguishable from, another measured one."""
    ratio, other = ratio_of(diagnosis, name), ratio_of(diagnosis, than)
    if is_baseline(diagnosis, than):
        return ratio is not None and ratio.verdict in (FASTER, NO_DIFFERENCE)
    if is_baseline(diagnosis, name):
        return other is not None and other.verdict in (SLOWER, NO_DIFFERENCE)
    return ratio is not None and other is not None and ratio.high >= other.low
