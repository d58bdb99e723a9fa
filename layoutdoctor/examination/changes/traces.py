"""Compares two examined traces: their conversions, round trips, operations, modules and kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.diagnosis import Diagnosis, Total, TotalKind, Trial
from layoutdoctor.diagnosis.comparison import Amount, ComparedTrace, Overlap, Regression, TotalChange, TraceComparison
from layoutdoctor.examination.changes.costs import (
    conversion_changes,
    costs_of,
    environment_changes,
    format_count,
    has_another_machine,
    layout_losses,
    per,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    _Matches = Mapping[TotalKind, Sequence["NameMatch"]]

SMALL_OVERLAP = 0.25
"""Runs with less than this share of names in common are different runs, unless ``LARGE_SHARE`` of time is common."""

LARGE_SHARE = 0.5
"""A change such as ``torch.compile`` keeps few names, but both runs spend this share of time under common names."""

SAME_COUNT = 0.02
"""Kernel counts that differ by at most this share come from the same work."""

ALIKE_SHARE = 0.8
"""Share of the common names whose counts must change by the same factor to show another amount of work."""

KINDS: tuple[TotalKind, ...] = ("operation", "module", "kernel")

# Inductor numbers its kernels through the graph: if one is missing, all later kernels of its kind have other numbers.
_NUMBERED = re.compile(r"^((?:triton|cpp)_[A-Za-z_]\w*?)_\d+(?:d[\dce]*)?$")
# cuDNN 8 has cudnn::ops, cuDNN 9 cudnn::engines_precompiled, cuDNN 7 no namespace. A library builds the same kernel
# for each generation of GPU, and the kernel's name begins with the generation.
_VARYING = re.compile(
    r"^void |\bcudnn::(?:ops|engines_precompiled)::|\((?:anonymous namespace|anonymous)\)::|<unnamed>::"
)
_GENERATION = re.compile(r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_")
_ARGUMENTS = re.compile(r"[<(].*$", re.DOTALL)
_FIELD_WORDS = {"op": "operations", "module": "modules", "shape": "shapes"}


class _Run(NamedTuple):
    """One of the two traces; ``totals`` are by kind and name, ``parts`` is the number of steps to divide by, or 1."""

    diagnosis: Diagnosis
    trial: Trial
    totals: Mapping[str, Mapping[str, Total]]
    parts: int
    compared: ComparedTrace


def compare_traces(old: Diagnosis, new: Diagnosis) -> TraceComparison:
    """
    Finds the changes between two examined traces.

    Returns:
        The comparison. Its numbers are per profiler step if both traces recorded steps, else for whole traces. Traces
        that seem unrelated are compared as well; ``overlap.is_small`` is then True.
    """
    by_step = all(_totals(diagnosis)["step"] for diagnosis in (old, new))
    before, after = _run_of(old, by_step=by_step), _run_of(new, by_step=by_step)
    matches = {kind: match_names(kind, before.totals[kind], after.totals[kind]) for kind in KINDS}
    overlap, unequal_work = find_overlap(before, after, matches), find_unequal_work(before, after, matches)
    environment = environment_changes(old, new)
    parts = before.parts, after.parts
    is_known = all(any(run.totals.values()) or not run.compared.costs.kernel_count for run in (before, after))
    return TraceComparison(
        basis="step" if by_step else "sum",
        old=before.compared,
        new=after.compared,
        overlap=overlap,
        is_same=before.trial.kernels is not None and old.trials == new.trials and not environment,
        is_empty=is_known and not any(match.is_common for kind in KINDS for match in matches[kind]),
        unequal_work=unequal_work,
        environment=environment,
        conversions=conversion_changes(before.trial, after.trial, parts),
        round_trips=round_trip_changes(before.trial, after.trial, parts),
        totals=tuple(_total_changes(before, after, matches)),
        regression=_judge(before, after, overlap, unequal_work),
        notes=tuple(_notes(before, after)),
    )


def _totals(diagnosis: Diagnosis) -> dict[str, dict[str, Total]]:
    found: dict[str, dict[str, Total]] = defaultdict(dict)
    for total in (total for trial in diagnosis.trials for total in trial.kernel_summary.totals):
        found[total.kind][total.name] = total
    return found


def _run_of(diagnosis: Diagnosis, *, by_step: bool) -> _Run:
    totals = _totals(diagnosis)
    trial = next((trial for trial in diagnosis.trials if trial.kernels is not None), diagnosis.trials[0])
    kernels, lacks = trial.kernel_summary, [lack.reason for lack in trial.kernel_summary.lacks]
    if trial.kernels is None:
        failures = [f"no kernels: {one.failure.message}" for one in diagnosis.trials if one.failure is not None]
        lacks = failures[:1] or ["no kernels"]
    if kernels.undecided_seconds:
        undecided = f"{count_of(kernels.undecided_count, 'kernel')} ({format_seconds(kernels.undecided_seconds)})"
        lacks.append(f"whether {undecided} may convert a layout")
    step_count = len(totals["step"])
    parts = step_count if by_step else 1
    compared = ComparedTrace(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        step_count=step_count,
        costs=costs_of(trial, parts),
        lacks=tuple(lacks),
    )
    return _Run(diagnosis, trial, totals, parts, compared)


# ------------------------------------------------------------------------------------------------------------- names
class NameMatch(NamedTuple):
    """Names of two runs that match; ``old_names`` or ``new_names`` is empty if only the other run has the name."""

    name: str
    old_names: tuple[str, ...]
    new_names: tuple[str, ...]

    @property
    def is_common(self) -> bool:
        """Whether both runs have the name."""
        return bool(self.old_names and self.new_names)

    @property
    def is_loose(self) -> bool:
        """Whether only the loose names are equal, not the full names."""
        return {*self.old_names, *self.new_names} != {self.name}


def match_names(kind: TotalKind, old: Collection[str], new: Collection[str]) -> list[NameMatch]:
    """
    Matches the names of two runs, each name once: first equal names, then the remaining kernels by ``loose_name``.

    Numbered kernels of Inductor are matched by full names only if both runs have the same numbers for this kind of
    kernel, because a missing kernel shifts the numbers of all later kernels.
    """
    shifted = {_kind_of(name) for name in set(old) ^ set(new)} - {None} if kind == "kernel" else set()
    exact = {name for name in set(old) & set(new) if _kind_of(name) not in shifted}
    matches = [NameMatch(name, (name,), (name,)) for name in old if name in exact]
    left: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for age, names in enumerate((old, new)):
        for name in names:
            if name not in exact:
                left[loose_name(name) if kind == "kernel" else name][age].append(name)
    for loose, (before, after) in left.items():
        if before and after:
            matches.append(NameMatch(loose, tuple(before), tuple(after)))
        else:
            matches += [NameMatch(name, (name,), ()) for name in before]
            matches += [NameMatch(name, (), (name,)) for name in after]
    return matches


def loose_name(name: str) -> str:
    """
    A kernel's name without the parts that depend on versions and GPUs.

    Template arguments, parameters, inner namespaces, the generation of GPU and Inductor's number are left out, unless
    nothing would be left.
    """
    plain = _ARGUMENTS.sub("", _VARYING.sub("", name)).strip()
    return _kind_of(name) or _GENERATION.sub("", plain) or name


def _kind_of(name: str) -> str | None:
    """The name of a numbered kernel of Inductor, without the number; None for other kernels."""
    numbered = _NUMBERED.match(name)
    return numbered.group(1) if numbered is not None else None


# ----------------------------------------------------------------------------------------------- the same work or not
def find_overlap(old: _Run, new: _Run, matches: _Matches) -> Overlap:
    """Finds the names that two runs have in common: of operations, or of kernels if a run has no operations."""
    kind: TotalKind = "operation" if old.totals["operation"] and new.totals["operation"] else "kernel"
    common, total_count = [match for match in matches[kind] if match.is_common], len(matches[kind])
    shares = (
        _share(old.totals[kind], [name for match in common for name in match.old_names]),
        _share(new.totals[kind], [name for match in common for name in match.new_names]),
    )
    share = min(shares) if None not in shares else None  # type: ignore[type-var]
    is_small = len(common) < SMALL_OVERLAP * total_count and (share is None or share < LARGE_SHARE)
    return Overlap(kind=kind, common_count=len(common), total_count=total_count, common_share=share, is_small=is_small)


def _share(totals: Mapping[str, Total], names: Iterable[str]) -> float | None:
    whole = sum(total.seconds for total in totals.values())
    return sum(totals[name].seconds for name in names) / whole if whole else None


def find_unequal_work(old: _Run, new: _Run, matches: _Matches) -> str | None:
    """
    Returns the reason why two runs seem to have done different work; None if nothing shows a difference.

    The work differs if the counts of nearly all common names changed by the same factor. Conversions are not counted,
    because their number may change for the same work. Another batch size does not change counts.
    """
    kinds: tuple[TotalKind, ...] = ("operation", "kernel")
    for kind in kinds:
        counts = [
            (_count(old, kind, match.old_names) / old.parts, _count(new, kind, match.new_names) / new.parts)
            for match in matches[kind]
            if match.is_common
        ]
        counts = [entry for entry in counts if all(entry)]
        ratios = [now / once for once, now in counts]
        times = median(ratios or [1.0])
        if not _is_same(1.0, times) and sum(_is_same(times, r) for r in ratios) >= ALIKE_SHARE * len(ratios):
            once, now = (format_count(sum(side)) for side in zip(*counts, strict=True))
            return (
                f"for {kind}s in both traces, {once} kernels ran in the old one and {now} in the new one, "
                "conversions left out"
            )
    return None


def _count(run: _Run, kind: TotalKind, names: Iterable[str]) -> int:
    totals = run.totals[kind]
    return sum(totals[name].count - totals[name].conversion_count for name in names)


def _is_same(old: float, new: float) -> bool:
    return abs(new - old) <= SAME_COUNT * max(old, new)


# ------------------------------------------------------------------------------------------------------------ changes
def _total_changes(old: _Run, new: _Run, matches: _Matches) -> Iterator[TotalChange]:
    for kind in KINDS:
        changes = [
            TotalChange(
                kind=kind,
                name=match.name,
                is_loose=match.is_loose,
                old=_amount([old.totals[kind][name] for name in match.old_names], old.parts),
                new=_amount([new.totals[kind][name] for name in match.new_names], new.parts),
            )
            for match in matches[kind]
        ]
        yield from sorted(changes, key=lambda change: -abs(change.seconds_difference or 0.0))


def _amount(totals: list[Total], parts: int) -> Amount | None:
    if not totals:
        return None
    return Amount(
        count=per(sum(total.count for total in totals), parts),
        seconds=per(sum(total.seconds for total in totals), parts),
        conversion_count=per(sum(total.conversion_count for total in totals), parts),
    )


def _judge(old: _Run, new: _Run, overlap: Overlap, unequal_work: str | None) -> Regression:
    before, after = old.compared.costs, new.compared.costs
    if not (before.kernel_count and after.kernel_count):
        return Regression(not_judged="one of the two has no kernels")
    if overlap.is_small:
        return Regression(not_judged="the two seem to be different runs")
    if unequal_work is not None:
        return Regression(not_judged="the two seem not to have done the same work")
    judges_time = not has_another_machine(old.diagnosis, new.diagnosis)
    judges_round_trips = "shape" not in recorded_by_one(old.trial, new.trial)
    losses = layout_losses(before, after, judges_time=judges_time, judges_round_trips=judges_round_trips)
    return Regression(losses=tuple(losses))


def _notes(old: _Run, new: _Run) -> Iterator[str]:
    ages = (("old", old), ("new", new))
    if not (old.compared.step_count and new.compared.step_count):
        recorded = [f"recorded in the {age} trace only" for age, run in ages if run.compared.step_count]
        where = recorded[0] if recorded else "not recorded"
        yield f"profiler steps are {where}: the whole traces are compared, as if both runs did equal work"
    if has_another_machine(old.diagnosis, new.diagnosis):
        yield "the two traces were recorded on different devices, so their times differ for that reason as well"
    missing = recorded_by_one(old.trial, new.trial)
    for field, words in _FIELD_WORDS.items():
        if field in missing:
            yield f"{words} of conversions are recorded in one of the two only: conversions are compared without them"
    if "shape" in missing:
        yield "round trips cannot be compared: only one of the traces has the shapes that prove them"
    for age, run in ages:
        yield from (f"{age} trace: {note}" for note in run.diagnosis.subject.notes)
