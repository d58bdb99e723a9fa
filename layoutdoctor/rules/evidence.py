"""
Questions that several rules ask of a diagnosis: which trial matters most, what was faster, what would cure it.

Faces the rules; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.configurations import BASELINE
from layoutdoctor.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from layoutdoctor.records import Conversion, Diagnosis, InputTensor, RatioInterval, Severity, Trial

# Below this share of the kernel time, removing a conversion cannot be felt: a note, no warning. It is also about the
# smallest difference that paired rounds on a shared machine resolve.
NEGLIGIBLE_SHARE = 0.02

CHANNELS_LAST_CONFIGURATIONS = ("inductor-channels-last", "inductor-channels-last-opt-off")


def main_trial(diagnosis: Diagnosis) -> Trial | None:
    """
    The trial the user has today: the baseline, else the only trial there is (a recorded trace).

    Args:
        diagnosis: Any diagnosis.
    """
    name = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    trial = diagnosis.measured_trial(name)
    if trial is None and len(diagnosis.trials) == 1:
        return diagnosis.trials[0]
    return trial


def own_trials(diagnosis: Diagnosis) -> tuple[Trial, ...]:
    """
    The trials that have facts of their own, the main one first; one that is the same as another is left out.

    Args:
        diagnosis: Any diagnosis.
    """
    main = main_trial(diagnosis)
    trials = [trial for trial in diagnosis.trials if trial.status != "same_as"]
    return tuple(sorted(trials, key=lambda trial: trial is not main))


def all_conversions_of(trial: Trial) -> tuple[Conversion, ...]:
    """
    Every conversion of a trial that changes a layout, fused ones too, each once: kernels first, then graphs.

    Args:
        trial: Any trial.
    """
    found: dict[str, Conversion] = {}
    kernels = trial.kernels.conversions if trial.kernels is not None else ()
    for conversion in (*kernels, *(c for graph in trial.graphs for c in graph.conversions)):
        if conversion.direction != "none":
            found.setdefault(conversion.id, conversion)
    return tuple(found.values())


def conversions_of(trial: Trial) -> tuple[Conversion, ...]:
    """
    Every conversion of a trial that changes a layout and is a step of its own, each once: kernels first, then graphs.

    Args:
        trial: Any trial.
    """
    return tuple(conversion for conversion in all_conversions_of(trial) if not conversion.fused)


def sum_known(values: Iterable[float | None]) -> float | None:
    """
    The sum of what was recorded; None where nothing was.

    Args:
        values: Quantities in one unit, None where not recorded.
    """
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def sum_bytes(values: Iterable[int | None]) -> int | None:
    """
    The same for counts of bytes.

    Args:
        values: Counts, None where not recorded.
    """
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def share_of_kernels(trial: Trial, seconds: float | None) -> float | None:
    """
    A duration over the trial's kernel time; None where either was not recorded.

    Args:
        trial: The trial in whose profiled iteration the duration was measured.
        seconds: The duration.
    """
    if seconds is None or trial.kernels is None or not trial.kernels.seconds:
        return None
    return seconds / trial.kernels.seconds


def severity_of_share(share: float | None) -> Severity:
    """
    ``note`` for a loss that cannot be felt, else ``warning``; also where its time was not recorded.

    Args:
        share: Part of the kernel time, 0 to 1.
    """
    return "note" if share is not None and share < NEGLIGIBLE_SHARE else "warning"


def severity_of_cost(trial: Trial, seconds: float | None) -> Severity:
    """
    The same for what is seen in a graph: without a measured share nothing says that it can be felt, so it is a note.

    Args:
        trial: The trial it was seen in.
        seconds: What it costs per iteration; None where not recorded.
    """
    share = share_of_kernels(trial, seconds)
    return "note" if trial.is_static or share is None else severity_of_share(share)


def is_baseline(diagnosis: Diagnosis, name: str) -> bool:
    """
    Whether a configuration is the baseline, or the trial whose measurement stands for it.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration's name.
    """
    if diagnosis.comparison is None:
        return False
    return _measured_name(diagnosis, name) == _measured_name(diagnosis, diagnosis.comparison.baseline)


def ratio_of(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """
    A configuration's ratio against the baseline, its own or that of the trial it is the same as.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration's name.

    Returns:
        None where it was not measured, or is the baseline itself.
    """
    if diagnosis.comparison is None or is_baseline(diagnosis, name):
        return None
    wanted = (_measured_name(diagnosis, name), name)
    return next((ratio for ratio in diagnosis.comparison.ratios if ratio.name in wanted), None)


def faster_ratio(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """
    The ratio of a configuration that is measurably faster than the baseline and computes the same; else None.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration's name.
    """
    ratio = ratio_of(diagnosis, name)
    if ratio is None or ratio.verdict != FASTER or has_different_outputs(diagnosis, name):
        return None
    return ratio


def fastest_of(diagnosis: Diagnosis, names: Iterable[str]) -> RatioInterval | None:
    """
    Of some configurations, the one that gains most over the baseline; None where none is measurably faster.

    Args:
        diagnosis: Any diagnosis.
        names: Configuration names.
    """
    ratios = [ratio for name in names if (ratio := faster_ratio(diagnosis, name)) is not None]
    return max(ratios, key=lambda ratio: ratio.median, default=None)


def has_different_outputs(diagnosis: Diagnosis, name: str) -> bool:
    """
    Whether a configuration was seen to compute something else; False where it was not checked.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration's name.
    """
    trial = diagnosis.measured_trial(name)
    return trial is not None and trial.equivalence is not None and trial.equivalence.status == "different"


def verified_cure(diagnosis: Diagnosis) -> Trial | None:
    """
    The recommended trial where its gain was verified and it is not the baseline.

    Args:
        diagnosis: Any diagnosis.
    """
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


def seconds_lost(diagnosis: Diagnosis, name: str) -> float | None:
    """
    What the baseline takes longer than a faster configuration per iteration, by the ratio; None where not measured.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration that is faster than the baseline.
    """
    baseline, ratio = main_trial(diagnosis), ratio_of(diagnosis, name)
    if baseline is None or baseline.measurement is None or ratio is None:
        return None
    return max(0.0, baseline.measurement.median_seconds * (1 - 1 / ratio.median))


def inputs_not_channels_last(diagnosis: Diagnosis) -> tuple[InputTensor, ...]:
    """
    The 4-D and 5-D inputs that do not satisfy the channels-last format of their rank.

    Args:
        diagnosis: Any diagnosis.
    """
    return tuple(
        tensor
        for tensor in diagnosis.subject.inputs
        if (wanted := CHANNELS_LAST_BY_RANK.get(len(tensor.shape))) and wanted not in tensor.memory_formats
    )


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
