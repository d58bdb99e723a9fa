"""
Two examined traces against each other: what each operation, kernel and module took, what conversions came and went.

Faces ``layoutdoctor.compare``; a pure function of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.conversion_changes import (
    conversion_changes,
    cost_difference,
    cost_totals,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.analysis.environment_changes import environment_changes, has_another_device
from layoutdoctor.analysis.layout_regression import clock_resolution, layout_losses
from layoutdoctor.analysis.name_matching import match_exact_names, match_kernel_names
from layoutdoctor.analysis.work import find_overlap, find_unequal_work, totals_by_name
from layoutdoctor.comparison_records import Amount, ComparedRun, ComparedTotal, Regression, TraceComparison
from layoutdoctor.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from layoutdoctor.analysis.name_matching import NameMatch
    from layoutdoctor.comparison_records import Basis, Overlap
    from layoutdoctor.records import Diagnosis, Total, Trial

OUTSIDE_SHARE = 0.05
"""Kernel time outside of all steps above this part makes a number per step one that needs a word of warning."""

_FIELD_WORDS = {"op": "operations", "module": "modules", "shape": "shapes"}


def compare_traces(old: Diagnosis, new: Diagnosis) -> TraceComparison:
    """
    What changed between two examined traces.

    Args:
        old: The earlier one.
        new: The later one.

    Returns:
        Numbers per profiler step where both recorded steps, of whole traces else. Two traces that have nothing to do
        with each other are compared as well, and the comparison says so.
    """
    before, after = _recorded_trial(old), _recorded_trial(new)
    old_totals, new_totals = _totals_of(before), _totals_of(after)
    old_steps, new_steps = len(totals_by_name(old_totals, "step")), len(totals_by_name(new_totals, "step"))
    basis: Basis = "step" if old_steps and new_steps else "sum"
    old_parts, new_parts = (old_steps, new_steps) if basis == "step" else (1, 1)
    old_run = _compared_run(old, before, old_steps, old_parts)
    new_run = _compared_run(new, after, new_steps, new_parts)
    overlap = find_overlap(old_totals, new_totals)
    if old_run.costs.kernel_count and new_run.costs.kernel_count and not (old_totals and new_totals):
        # Without totals by name nothing is known of what the two have in common.
        overlap = msgspec.structs.replace(overlap, is_empty=False, is_small=False)
    unequal_work = find_unequal_work(old_totals, new_totals, old_parts, new_parts)
    environment = environment_changes(old, new)

    def compared(matches: Iterable[NameMatch], before: Mapping[str, Total], after: Mapping[str, Total]) -> _Compared:
        entries = [_compared_total(match, before, after, old_parts, new_parts) for match in matches]
        return tuple(sorted(entries, key=lambda entry: -abs(entry.seconds_difference)))

    by_name = {
        kind: (totals_by_name(old_totals, kind), totals_by_name(new_totals, kind))
        for kind in ("operation", "kernel", "module")
    }
    return TraceComparison(
        basis=basis,
        old=old_run,
        new=new_run,
        difference=cost_difference(old_run.costs, new_run.costs),
        overlap=overlap,
        is_same=before is not None and old.trials == new.trials and not environment,
        unequal_work=unequal_work,
        environment=environment,
        conversions=conversion_changes(before, after, old_parts, new_parts),
        round_trips=round_trip_changes(before, after, old_parts, new_parts),
        operations=compared(match_exact_names(*by_name["operation"]), *by_name["operation"]),
        kernels=compared(match_kernel_names(*by_name["kernel"]), *by_name["kernel"]),
        modules=compared(match_exact_names(*by_name["module"]), *by_name["module"]),
        regression=_judge(old, new, old_run, new_run, overlap, unequal_work),
        notes=tuple(_notes(old, new, old_run, new_run)),
    )


_Compared = tuple[ComparedTotal, ...]


def _recorded_trial(diagnosis: Diagnosis) -> Trial | None:
    """The one trial of an examined trace; None where it could not be examined."""
    return next((trial for trial in diagnosis.trials if trial.kernels is not None), None)


def _totals_of(trial: Trial | None) -> tuple[Total, ...]:
    return trial.kernels.totals if trial is not None and trial.kernels is not None else ()


def _compared_run(diagnosis: Diagnosis, trial: Trial | None, step_count: int, parts: int) -> ComparedRun:
    if trial is not None and trial.kernels is not None:
        lacks = trial.kernels.lacks
    else:
        failures = [trial.failure.message for trial in diagnosis.trials if trial.failure is not None]
        lacks = (f"no kernels: {failures[0]}" if failures else "no kernels",)
    return ComparedRun(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        step_count=step_count,
        costs=cost_totals(trial, parts),
        lacks=lacks,
    )


def _compared_total(
    match: NameMatch, before: Mapping[str, Total], after: Mapping[str, Total], old_parts: int, new_parts: int
) -> ComparedTotal:
    old = _amount([before[name] for name in match.old_names], old_parts)
    new = _amount([after[name] for name in match.new_names], new_parts)
    is_loose = match.match == "loose"
    return ComparedTotal(
        name=match.name,
        match=match.match,
        old=old,
        new=new,
        seconds_difference=(new.seconds if new is not None else 0.0) - (old.seconds if old is not None else 0.0),
        old_names=match.old_names if is_loose else (),
        new_names=match.new_names if is_loose else (),
    )


def _amount(totals: list[Total], parts: int) -> Amount | None:
    if not totals:
        return None
    amount = Amount(
        count=sum(total.count for total in totals),
        seconds=sum(total.seconds for total in totals),
        conversion_count=sum(total.conversion_count for total in totals),
        conversion_seconds=sum(total.conversion_seconds for total in totals),
    )
    if parts == 1:
        return amount
    return Amount(
        count=amount.count / parts,
        seconds=amount.seconds / parts,
        conversion_count=amount.conversion_count / parts,
        conversion_seconds=amount.conversion_seconds / parts,
    )


def _judge(
    old: Diagnosis, new: Diagnosis, old_run: ComparedRun, new_run: ComparedRun, overlap: Overlap, unequal: str | None
) -> Regression:
    before, after = _recorded_trial(old), _recorded_trial(new)
    if before is None or after is None or not (old_run.costs.kernel_count and new_run.costs.kernel_count):
        return Regression(not_judged="one of the two has no kernels")
    if overlap.is_small:
        return Regression(not_judged="the two seem to be different runs")
    if unequal is not None:
        return Regression(not_judged="the two seem not to have done the same work")
    runs = (before, old_run), (after, new_run)
    resolution = max(clock_resolution(counted_conversions(trial)) / max(1, run.step_count) for trial, run in runs)
    losses = layout_losses(
        old_run.costs,
        new_run.costs,
        resolution_seconds=resolution,
        judges_time=not has_another_device(old, new),
        judges_round_trips="shape" not in recorded_by_one(before, after),
    )
    return Regression(losses=losses)


def _notes(old: Diagnosis, new: Diagnosis, old_run: ComparedRun, new_run: ComparedRun) -> Iterator[str]:
    before, after = _recorded_trial(old), _recorded_trial(new)
    if old_run.step_count and new_run.step_count:
        yield from _outside_notes(("old", before), ("new", after))
    else:
        recorded = [f"in the {age} one only" for age, run in (("old", old_run), ("new", new_run)) if run.step_count]
        where = f"recorded {recorded[0]}" if recorded else "not recorded"
        yield f"profiler steps are {where}: the whole traces are compared, which assumes that both did equal work"
    if has_another_device(old, new):
        yield "the two were recorded on different devices: their times differ for that reason as well"
    missing = recorded_by_one(before, after)
    for field, words in _FIELD_WORDS.items():
        if field in missing:
            yield f"{words} of conversions are recorded in one of the two only: conversions are compared without them"
    if "shape" in missing:
        yield "round trips are proved by shapes, which one of the two lacks: their numbers cannot be compared"
    for age, diagnosis in (("old", old), ("new", new)):
        for note in diagnosis.subject.notes:
            yield f"the {age} one: {note}"


def _outside_notes(*runs: tuple[str, Trial | None]) -> Iterator[str]:
    """Where much ran outside of all steps: an average per step counts it in."""
    for age, trial in runs:
        if trial is None or trial.kernels is None or not trial.kernels.seconds:
            continue
        inside = sum(total.seconds for total in totals_by_name(trial.kernels.totals, "step").values())
        outside = 1 - inside / trial.kernels.seconds
        if outside > OUTSIDE_SHARE:
            yield f"{format_share(outside)} of the {age} one's kernel time is outside of its steps, and counted in"
