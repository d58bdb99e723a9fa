"""The parts of a trial that were not examined for round trips: a round trip in such a part would not be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layoutdoctor.diagnosis import Diagnosis, Trial
from layoutdoctor.words import RAN_AS_EAGER


@dataclass(frozen=True)
class Examination:
    """
    The completeness of a trial's examination. A trial without blockers, gaps and found round trips has no round trip.

    Attributes:
        blockers: Reasons why nothing can be said about the trial.
        gaps: Parts that were not recorded or not understood; a round trip there would not be found.
    """

    blockers: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


def examination_of(diagnosis: Diagnosis, name: str) -> Examination:
    """Finds out how completely the trial of a configuration was examined for round trips."""
    trial = diagnosis.find_trial(name)
    if trial is None:
        tried = ", ".join(other.name for other in diagnosis.trials) or "nothing"
        return Examination(blockers=(f"it was not tried; the diagnosis has {tried}",))
    if trial.status == "same_as":
        twin = diagnosis.measured_trial(name)
        if twin is None or twin.status != "ok":
            return Examination(blockers=(f"it has the same options or code as {trial.same_as}, which has no result",))
        trial = twin
    blockers = tuple(_blockers(trial))
    return Examination(blockers, gaps=() if blockers else tuple(dict.fromkeys(_gaps(trial))))


def _blockers(trial: Trial) -> Iterator[str]:
    if trial.status != "ok" or trial.failure is not None:
        failure = trial.failure
        cause = f" ({failure.kind}): {failure.message}" if failure is not None else ""
        how = "was skipped" if trial.status == "skipped" else trial.status.replace("_", " ")
        yield f"it {how}{cause}"
        return
    if trial.is_static:
        yield "it was lowered for a device that is not there: nothing ran, so library conversions are unknown"
        return
    yield from (lack.reason for lack in trial.lacks)
    if trial.ran_as_eager:
        yield RAN_AS_EAGER
    if trial.kernels is None:
        yield "its kernel list was not recorded"
    elif not trial.kernels.count:
        yield "no kernel was recorded"
    if trial.configuration.backend == "recorded":
        return
    if not trial.graphs:
        yield "no graph was recorded"
    for graph in trial.graphs:
        if graph.hook_failure is not None:
            yield f"{graph.name} was not recorded: {graph.hook_failure}"
        elif not graph.nodes:
            yield f"{graph.name} was recorded without its operations"


def _gaps(trial: Trial) -> Iterator[str]:
    kernels = trial.kernel_summary
    for graph in trial.graphs:
        yield from (f"not understood in {graph.name}: {line}" for line in graph.not_understood)
    yield from (f"not recorded: {lack.reason}" for lack in kernels.lacks)
    if kernels.undecided_count:
        yield f"kernels that may convert a layout: {kernels.undecided_count}"
    count = kernels.not_understood_count
    if count:
        yield f"not understood in the kernel list: {count} {'event or line' if count == 1 else 'events or lines'}"
    unplaced = sum(  # conversions of unknown values cannot be part of a proved pair
        None in (conversion.node, conversion.port) and conversion.direction != "none" and conversion.tensor != "weight"
        for conversion in kernels.conversions
    )
    if unplaced and trial.configuration.backend != "recorded":
        yield f"conversions in the kernel list without a recorded operation: {unplaced}"
    suspected = sum(pair.confidence == "order" for pair in trial.redundant_pairs)
    if suspected:
        yield f"possible round trips, known by the order of kernels only: {suspected}"


def is_recorded_like(trial: Trial, other: Trial) -> bool:
    """Whether a trial was recorded from all sources of ``other``: a kernel missing in ``trial`` then did not run."""
    kernels = trial.kernel_summary
    is_listed = kernels.count > 0 and set(other.kernel_summary.sources) <= set(kernels.sources)
    return is_listed and all(graph.hook_failure is None for graph in trial.graphs)
