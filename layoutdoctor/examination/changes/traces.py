"""
Two examined traces against each other: what each operation, kernel and module took, what conversions came and
went.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.comparison import Amount, ComparedRun, ComparedTotal, Overlap, Regression, TraceComparison
from layoutdoctor.examination.changes.conversions import (
    conversion_changes,
    cost_difference,
    cost_totals,
    per,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.examination.changes.regressions import format_count, layout_losses
from layoutdoctor.examination.changes.times import environment_changes, has_another_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.comparison import Basis, Match
    from layoutdoctor.diagnosis.records import Diagnosis, Total, TotalKind, Trial

# Inductor numbers its kernels through the graph: take one away, and all later ones of its kind are called otherwise.
_NUMBERED = re.compile(r"^((?:triton|cpp)_[A-Za-z_]\w*?)_\d+(?:d[\dce]*)?$")
# cuDNN 8 calls these cudnn::ops, cuDNN 9 cudnn::engines_precompiled, cuDNN 7 has them without a namespace.
_CUDNN_NAMESPACE = re.compile(r"\bcudnn::(?:ops|engines_precompiled)::")
# One library builds the same kernel once per generation of GPU, and says so at the beginning of its name.
_GENERATION = re.compile(r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_")
_ANONYMOUS = re.compile(r"\((?:anonymous namespace|anonymous)\)::|<unnamed>::")
_ARGUMENTS = re.compile(r"[<(].*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NameMatch:
    """
    Names of two runs that belong together.

    Attributes:
        match: ``exact`` or ``loose``; None where they stand in one run only.
    """

    name: str
    match: Match | None
    old_names: tuple[str, ...]
    new_names: tuple[str, ...]


def match_kernel_names(old: Collection[str], new: Collection[str]) -> tuple[NameMatch, ...]:
    """
    The kernels of two runs by name: equal names first, then what is left by ``loose_name``.

    Returns:
        Every name of both exactly once. Numbered kernels of Inductor are matched by their own name only where the runs
        have the same numbers of that kind, as a kernel that goes shifts the numbers of all later ones.
    """
    shifted = {_kind_of(name) for name in set(old) ^ set(new)} - {None}
    exact = {name for name in set(old) & set(new) if _kind_of(name) not in shifted}
    return _matches(old, new, exact, loose_name)


def match_exact_names(old: Collection[str], new: Collection[str]) -> tuple[NameMatch, ...]:
    """The operations or modules of two runs, by equal names only."""
    return _matches(old, new, set(old) & set(new), str)


def _matches(
    old: Collection[str], new: Collection[str], exact: Collection[str], name_of: Callable[[str], str]
) -> tuple[NameMatch, ...]:
    matches = [NameMatch(name, "exact", (name,), (name,)) for name in old if name in exact]
    old_left, new_left = (_by_name(names, exact, name_of) for names in (old, new))
    for loose in dict.fromkeys((*old_left, *new_left)):
        before, after = tuple(old_left.get(loose, ())), tuple(new_left.get(loose, ()))
        if before and after:
            matches.append(NameMatch(loose, "loose", before, after))
        else:
            matches += [NameMatch(name, None, (name,), ()) for name in before]
            matches += [NameMatch(name, None, (), (name,)) for name in after]
    return tuple(matches)


def loose_name(name: str) -> str:
    """
    A kernel's name without what changes from version to version and from GPU to GPU.

    Returns:
        Without template arguments and parameters, cuDNN's inner namespace, the generation of GPU it was built for, and
        Inductor's number. A name of which nothing would be left stays as it is.
    """
    kind = _kind_of(name)
    if kind is not None:
        return kind
    plain = _CUDNN_NAMESPACE.sub("", _ANONYMOUS.sub("", name.removeprefix("void ")))
    return _GENERATION.sub("", _ARGUMENTS.sub("", plain).strip()) or name


def _kind_of(name: str) -> str | None:
    """For a numbered kernel of Inductor: its name without the number; None for any other."""
    numbered = _NUMBERED.match(name)
    return numbered.group(1) if numbered is not None else None


def _by_name(names: Iterable[str], left_out: Collection[str], name_of: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name not in left_out:
            groups[name_of(name)].append(name)
    return groups


SMALL_OVERLAP = 0.25
"""Two runs with less than this part of their names in common seem to be different ones, if times agree with it."""

LARGE_SHARE = 0.5
"""A change such as ``torch.compile`` leaves few names and much of the time: both runs spend it under common names."""

SAME_COUNT = 0.02
"""Counts of kernels that differ by less than this part are those of the same work."""

ALIKE_SHARE = 0.8
"""If this part of all common names ran the same number of times as often, the work was done so often."""


def totals_by_name(totals: Iterable[Total], kind: TotalKind) -> dict[str, Total]:
    """The totals of one kind by their name, in their order."""
    return {total.name: total for total in totals if total.kind == kind}


def find_overlap(old: Sequence[Total], new: Sequence[Total]) -> Overlap:
    """
    How much two recorded runs have in common.

    Returns:
        By operations, by kernels where a run has no operation. A run without totals has nothing in common with any.
    """
    operations = totals_by_name(old, "operation"), totals_by_name(new, "operation")
    kernels = totals_by_name(old, "kernel"), totals_by_name(new, "kernel")
    modules = totals_by_name(old, "module"), totals_by_name(new, "module")
    by_kernel = match_kernel_names(*kernels)
    if all(operations):
        kind: TotalKind = "operation"
        names, (before, after) = match_exact_names(*operations), operations
    else:
        kind = "kernel"
        names, (before, after) = by_kernel, kernels
    common = [match for match in names if match.match is not None]
    old_share = _share(before, [name for match in common for name in match.old_names])
    new_share = _share(after, [name for match in common for name in match.new_names])
    is_empty = not (
        any(match.match is not None for match in by_kernel)
        or operations[0].keys() & operations[1].keys()
        or modules[0].keys() & modules[1].keys()
    )
    little_time = old_share is None or new_share is None or min(old_share, new_share) < LARGE_SHARE
    return Overlap(
        kind=kind,
        common_count=len(common),
        total_count=len(names),
        old_share=old_share,
        new_share=new_share,
        is_empty=is_empty,
        is_small=is_empty or (len(common) < SMALL_OVERLAP * len(names) and little_time),
    )


def find_unequal_work(old: Sequence[Total], new: Sequence[Total], old_parts: int = 1, new_parts: int = 1) -> str | None:
    """
    Why two runs seem not to have done the same work: nearly all of what both have ran another number of times, alike.

    Returns:
        A clause; None if nothing says so. Conversions are left out, as these may come and go. Counts cannot tell
        another batch size.
    """
    kinds: tuple[TotalKind, ...] = ("operation", "kernel")
    for kind in kinds:
        counted = _common_counts(kind, old, new, old_parts, new_parts)
        ratios = [now / once for once, now in counted]
        times = median(ratios) if ratios else 1.0
        if not _is_same(1.0, times) and sum(_is_same(times, r) for r in ratios) >= ALIKE_SHARE * len(ratios):
            once, now = (format_count(sum(side)) for side in zip(*counted, strict=True))
            return (
                f"for the {kind}s that both have {once} kernels ran in the old one and {now} in the new one, "
                "conversions left out"
            )
    return None


def _common_counts(
    kind: TotalKind, old: Sequence[Total], new: Sequence[Total], old_parts: int, new_parts: int
) -> list[tuple[float, float]]:
    """How many kernels, conversions left out, ran for each name that both runs have, per step."""
    before, after = totals_by_name(old, kind), totals_by_name(new, kind)
    matched = match_exact_names(before, after) if kind == "operation" else match_kernel_names(before, after)
    counted = (
        (_count(before, match.old_names) / old_parts, _count(after, match.new_names) / new_parts)
        for match in matched
        if match.match is not None
    )
    return [entry for entry in counted if entry[0] and entry[1]]


def _count(totals: Mapping[str, Total], names: Iterable[str]) -> int:
    return sum(totals[name].count - totals[name].conversion_count for name in names)


def _share(totals: Mapping[str, Total], names: Iterable[str]) -> float | None:
    whole = sum(total.seconds for total in totals.values())
    return sum(totals[name].seconds for name in names) / whole if whole else None


def _is_same(old: float, new: float) -> bool:
    return abs(new - old) <= SAME_COUNT * max(old, new)


_FIELD_WORDS = {"op": "operations", "module": "modules", "shape": "shapes"}


def compare_traces(old: Diagnosis, new: Diagnosis) -> TraceComparison:
    """
    What changed between two examined traces.

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

    def compared(
        matches: Iterable[NameMatch], before: Mapping[str, Total], after: Mapping[str, Total]
    ) -> tuple[ComparedTotal, ...]:
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
    return ComparedTotal(
        name=match.name,
        match=match.match,
        old=old,
        new=new,
        seconds_difference=(new.seconds if new is not None else 0.0) - (old.seconds if old is not None else 0.0),
    )


def _amount(totals: list[Total], parts: int) -> Amount | None:
    if not totals:
        return None
    return Amount(
        count=per(sum(total.count for total in totals), parts),
        seconds=per(sum(total.seconds for total in totals), parts),
        conversion_count=per(sum(total.conversion_count for total in totals), parts),
        conversion_seconds=per(sum(total.conversion_seconds for total in totals), parts),
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
    losses = layout_losses(
        old_run.costs,
        new_run.costs,
        judges_time=not has_another_machine(old, new),
        judges_round_trips="shape" not in recorded_by_one(before, after),
    )
    return Regression(losses=losses)


def _notes(old: Diagnosis, new: Diagnosis, old_run: ComparedRun, new_run: ComparedRun) -> Iterator[str]:
    before, after = _recorded_trial(old), _recorded_trial(new)
    if not (old_run.step_count and new_run.step_count):
        recorded = [f"in the {age} one only" for age, run in (("old", old_run), ("new", new_run)) if run.step_count]
        where = f"recorded {recorded[0]}" if recorded else "not recorded"
        yield f"profiler steps are {where}: the whole traces are compared, which assumes that both did equal work"
    if has_another_machine(old, new):
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
