"""
What a diagnosis claims about conversions and redundant pairs, held against traces counted by hand.

Faces ``diagnoses``, whose docstring says what the fields mean.
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from kernel_count import Count, count_kernels, group_of, short_name
from plain_runs import record

import layoutdoctor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from layoutdoctor.records import Diagnosis, Trial


def conversions(trial: Trial, trace: Path) -> dict[str, Any]:
    """
    A configuration's conversions, found three ways in one trace.

    Args:
        trial: With its kernel list.
        trace: The trace that the list was made from.
    """
    count = count_kernels(trace)
    examined = layoutdoctor.examine_trace(trace).trials[0]
    listed = [one for graph in trial.graphs for one in graph.conversions]
    named = [one for one in listed if one.owner == "compiler" and one.kernel]
    kernels = {str(one.kernel) for one in named}
    return {
        "kernel_count": count.kernel_count,
        "live": dict(_library_kernels(trial)) if count.kernel_count else {},
        "examined": dict(_library_kernels(examined)),
        "changing_no_layout": _changing_no_layout(trial),
        "counted": _by_short_name(count.library),
        "compiler": len(named),
        "compiler_present": sum(one.kernel in count.generated for one in named),
        "eager_conversions": sum(one.owner in ("user", "framework") for one in listed),
        "absent": sorted(kernels - count.generated.keys()),
        "candidates": sorted(count.moving.keys() - kernels),
        "unread": list(count.unread),
        "look_alikes": list(count.look_alikes),
        "eager_copies": count.eager_copies,
        "seconds": count.seconds,
        "seconds_of": count.seconds_of,
    }


def _library_kernels(trial: Trial) -> Counter[str]:
    """Library conversions that change a layout, by kernel; on a processor they are oneDNN's, and in no trace."""
    found = trial.kernels.conversions if trial.kernels is not None else ()
    return Counter(
        short_name(one.kernel)
        for one in found
        if one.owner == "library" and one.direction != "none" and one.kernel is not None
        for _ in range(one.count)
    )


def _changing_no_layout(trial: Trial) -> int:
    """Library conversions that the diagnosis lists and calls none: a 1x1 weight, a cast."""
    found = trial.kernels.conversions if trial.kernels is not None else ()
    return sum(one.owner == "library" and one.direction == "none" for one in found)


def _by_short_name(names: Counter[str]) -> dict[str, int]:
    groups: Counter[str] = Counter()
    for name, count in names.items():
        groups[short_name(name)] += count
    return dict(groups)


def removal(
    diagnosis: Diagnosis,
    baseline: str,
    steps: Mapping[str, Callable[[], None]],
    rounds: Mapping[str, list[float]],
    device: str,
    folder: Path,
) -> dict[str, Any]:
    """
    Whether redundant pairs were redundant: another configuration is applied, and they should be gone.

    Args:
        diagnosis: With the pairs.
        baseline: The configuration whose pairs are looked at.
        steps: Warm iterations applied by hand.
        rounds: Their times, side by side.
        device: ``cuda`` or ``cpu``.
        folder: Where traces are recorded.
    """
    trial = diagnosis.measured_trial(baseline)
    pairs = trial.redundant_pairs if trial is not None else ()
    promised = [pair.seconds for pair in pairs if pair.seconds is not None]
    result: dict[str, Any] = {"claimed": len(pairs), "promised_seconds": sum(promised), "confirmed": None}
    cure = cure_for(diagnosis, baseline)
    result["cure"] = cure
    if trial is None or not pairs:
        return result
    if cure is None or cure not in steps or baseline not in steps:
        return {**result, "why_not": "no configuration that could be applied by hand has fewer pairs"}
    result["saved_seconds"] = statistics.median(rounds[baseline]) - statistics.median(rounds[cure])
    result["baseline_seconds"] = statistics.median(rounds[baseline])
    counts = {name: recorded(name, steps[name], device, folder) for name in (baseline, cure)}
    if not counts[baseline].kernel_count:
        return {**result, "why_not": "the trace holds no kernels of a device"}
    result["before"], result["after"] = dict(counts[baseline].groups()), dict(counts[cure].groups())
    result["kernel_seconds_saved"] = sum(counts[baseline].seconds_of.values()) - sum(counts[cure].seconds_of.values())
    generated = any("generated copy" in kinds for kinds in _kinds_of_pairs(trial))
    if generated and (counts[baseline].unread or counts[cure].unread):
        return {**result, "why_not": "the code of generated kernels was not found"}
    result["confirmed"] = confirmed_pairs(trial, counts[baseline], counts[cure])
    return result


def cure_for(diagnosis: Diagnosis, baseline: str) -> str | None:
    """
    The configuration of the same backend to apply: the recommended one where it has fewer pairs, else the one with the
    fewest; None where none has fewer.

    Args:
        diagnosis: With its trials.
        baseline: The configuration to be cured.
    """
    trial = diagnosis.measured_trial(baseline)
    if trial is None:
        return None
    backend, most = trial.configuration.backend, len(trial.redundant_pairs)
    better = [
        one
        for one in diagnosis.trials
        if one.status == "ok" and one.configuration.backend == backend and len(one.redundant_pairs) < most
    ]
    chosen = diagnosis.recommendation.configuration if diagnosis.recommendation is not None else None
    return (
        min((one for one in better), key=lambda one: (one.name != chosen, len(one.redundant_pairs))).name
        if (better)
        else None
    )


def confirmed_pairs(trial: Trial, before: Count, after: Count) -> int:
    """
    How many of a trial's pairs are gone: for each, two conversions of its kinds ran before and do not any more.

    Args:
        trial: With its pairs.
        before: Counted in a trace of this configuration.
        after: Counted in a trace of another one.
    """
    gone = before.groups() - after.groups()
    confirmed = 0
    for needed in _kinds_of_pairs(trial):
        if needed <= gone:
            gone -= needed
            confirmed += 1
    return confirmed


def _kinds_of_pairs(trial: Trial) -> list[Counter[str]]:
    """For each pair, what kinds of kernels its two conversions are."""
    kernels = {one.id: one.kernel for one in trial.kernels.conversions} if trial.kernels is not None else {}
    kernels |= {one.id: one.kernel for graph in trial.graphs for one in graph.conversions}
    return [
        Counter(group_of(kernels.get(identity)) for identity in (pair.first, pair.second))
        for pair in trial.redundant_pairs
    ]


def recorded(name: str, step: Callable[[], None], device: str, folder: Path) -> Count:
    """
    What is counted in a trace of a configuration applied by hand, which is recorded once.

    Args:
        name: The configuration.
        step: A warm iteration of it.
        device: ``cuda`` or ``cpu``.
        folder: Where the trace is, or goes.
    """
    file = folder / f"plain-{name}.json.gz"
    if not file.exists():
        record(step, device, file, with_stack=True)
    return count_kernels(file)
