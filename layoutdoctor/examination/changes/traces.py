"""
Two examined traces against each other: what each operation, kernel and module took, what conversions came and
went.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.comparison import Amount, ComparedRun, ComparedTotal, Overlap, Regression, TraceComparison
from layoutdoctor.diagnosis.records import Account, AccountRow
from layoutdoctor.examination.account_rows import SMALL_SHARE, sum_row, told
from layoutdoctor.examination.changes.conversions import (
    conversion_changes,
    cost_difference,
    cost_totals,
    per,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.examination.changes.regressions import clock_resolution, format_count, layout_losses
from layoutdoctor.examination.changes.times import RESOLUTION, environment_changes, has_another_device
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.units import format_share
from layoutdoctor.words import OWNER_WORDS, TENSOR_WORDS, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.comparison import Basis, ConversionChange, Match
    from layoutdoctor.diagnosis.records import AccountKind, Diagnosis, Owner, TensorKind, Total, TotalKind, Trial

# Inductor numbers its kernels through the graph: take one away, and all later ones of its kind are called otherwise.
_NUMBERED = re.compile(r"^((?:triton|cpp)_[A-Za-z_]\w*?)_\d+(?:d[\dce]*)?$")
# cuDNN 8 calls these cudnn::ops, cuDNN 9 cudnn::engines_precompiled, cuDNN 7 has them without a namespace.
_CUDNN_NAMESPACE = re.compile(r"\bcudnn::(?:ops|engines_precompiled)::")
# One library builds the same kernel once per generation of GPU, and says so at the beginning of its name.
_GENERATION = re.compile(r"^(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_")
_CUTLASS_GENERATION = re.compile(r"^cutlass_?\d*x?(?:_\w+?)?::")
# The kernel that ATen's elementwise_kernel and the like were made from stands in the template arguments.
_INNER_KERNEL = re.compile(r"\b\w*(?:_kernel_cuda|_kernel_impl|Functor\w*|_functor\w*|Ops)\b")
_GENERIC_INNER_KERNELS = frozenset({"gpu_kernel_impl", "gpu_kernel_impl_nocast"})
_WRAPPERS = frozenset({"Kernel", "Kernel2", "kernel"})
_ANONYMOUS = re.compile(r"\((?:anonymous namespace|anonymous)\)::|<unnamed>::")
_CUT = re.compile(r"(?:\.\.\.|\u2026)$")


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
        Without ``void``, parameters and template arguments, cuDNN's inner namespace, the generation of GPU it was built
        for, and Inductor's number. What an elementwise kernel of ATen computes, and what a bare ``Kernel`` wraps, is
        kept, as it would be no name without. A name of which nothing would be left stays as it is.
    """
    numbered = _NUMBERED.match(name)
    if numbered is not None:
        return numbered.group(1)
    plain = _ANONYMOUS.sub("", _CUT.sub("", name)).strip().removeprefix("void ")
    outer, arguments = _split_template(_CUDNN_NAMESPACE.sub("", plain))
    outer = _CUTLASS_GENERATION.sub("cutlass::", outer.rpartition("::type ")[2])  # after a templated return type
    if outer.rpartition("::")[2] in _WRAPPERS and arguments:
        outer = f"{outer.rpartition('::')[0]}::{_split_template(arguments)[0]}".removeprefix("::")
    inner = dict.fromkeys(
        word for word in _INNER_KERNEL.findall(arguments) if word not in _GENERIC_INNER_KERNELS and word not in outer
    )
    shown = _GENERATION.sub("", outer)
    return " ".join((shown, *inner)) if shown else name


def _split_template(name: str) -> tuple[str, str]:
    """A name before its parameters, without what stands between ``<`` and ``>``; and what stood there last."""
    outer: list[str] = []
    arguments: list[str] = []
    depth = 0
    for position, character in enumerate(name):
        if character == "<":
            if not depth:
                arguments.clear()
            depth += 1
        elif character == ">" and depth and name[position - 1] != "-":
            depth -= 1
            if not depth:
                continue
        elif character == "(" and not depth:
            break
        if depth:
            arguments.append(character)
        else:
            outer.append(character)
    return "".join(outer).strip(), "".join(arguments)[1:].strip()


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
"""Where this part of all common kernels ran the same number of times as often, the work was done so often."""

FEWEST_OTHERS = 3
"""So many other operations must be there to say that a changed count of convolution kernels is not more work."""

_CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)


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
    Why two runs seem not to have done the same work, by how many kernels ran for the operations that both have.

    Returns:
        A clause; None where nothing says so. Conversions are left out, as these are what may come and go. Convolutions
        decide; where their count alone has changed and other operations' have not, another algorithm runs them.
        Counts cannot tell another batch size. Where it cannot be told so, as common operations took little of the time
        of replays of a graph, kernels decide that all ran the same number of times as often.
    """
    counted = _common_counts("operation", old, new, old_parts, new_parts)
    by_kernel = _common_counts("kernel", old, new, old_parts, new_parts)
    kind: TotalKind = "operation" if counted else "kernel"
    counted = counted or by_kernel
    ratios = [now / once for _, once, now in by_kernel]
    if len(ratios) >= FEWEST_OTHERS and not _is_same(1.0, times := median(ratios)):
        alike = sum(_is_same(times, ratio) for ratio in ratios)
        if alike >= ALIKE_SHARE * len(ratios):
            return _sentence("kernels", sum(e[1] for e in by_kernel), sum(e[2] for e in by_kernel), [])
    of_convolutions = [entry for entry in counted if _CONVOLUTION.search(entry[0].name)]
    others = [now / once for match, once, now in counted if not _CONVOLUTION.search(match.name)]
    others_agree = len(others) >= FEWEST_OTHERS and _is_same(1.0, median(others))
    if of_convolutions:
        once, now = sum(entry[1] for entry in of_convolutions), sum(entry[2] for entry in of_convolutions)
        if _is_same(once, now) or others_agree:
            return None
        return _sentence("convolutions", once, now, [entry[0] for entry in of_convolutions])
    if len(others) < FEWEST_OTHERS or others_agree:
        return None
    once, now = sum(entry[1] for entry in counted), sum(entry[2] for entry in counted)
    return _sentence("operations" if kind == "operation" else "kernels", once, now, [])


def _common_counts(
    kind: TotalKind, old: Sequence[Total], new: Sequence[Total], old_parts: int, new_parts: int
) -> list[tuple[NameMatch, float, float]]:
    """How many kernels, conversions left out, ran for each name that both runs have, per step."""
    before, after = totals_by_name(old, kind), totals_by_name(new, kind)
    matched = match_exact_names(before, after) if kind == "operation" else match_kernel_names(before, after)
    counted = (
        (match, _count(before, match.old_names) / old_parts, _count(after, match.new_names) / new_parts)
        for match in matched
        if match.match is not None
    )
    return [entry for entry in counted if entry[1] and entry[2]]


def _sentence(what: str, old: float, new: float, matches: Sequence[NameMatch]) -> str:
    names = f" ({', '.join(match.name for match in matches[:2])}{', ...' if len(matches) > 2 else ''})"
    return (
        f"for the {what} that both have{names if matches else ''} {format_count(old)} kernels ran in the old one and "
        f"{format_count(new)} in the new one, conversions left out"
    )


def _count(totals: Mapping[str, Total], names: Iterable[str]) -> int:
    return sum(totals[name].count - totals[name].conversion_count for name in names)


def _share(totals: Mapping[str, Total], names: Iterable[str]) -> float | None:
    whole = sum(total.seconds for total in totals.values())
    return sum(totals[name].seconds for name in names) / whole if whole else None


def _is_same(old: float, new: float) -> bool:
    return abs(new - old) <= SAME_COUNT * max(old, new)


OUTSIDE_SHARE = 0.05
"""Kernel time outside of all steps above this part makes a number per step one that needs a word of warning."""

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

    def compared(matches: Iterable[NameMatch], before: Mapping[str, Total], after: Mapping[str, Total]) -> _Compared:
        entries = [_compared_total(match, before, after, old_parts, new_parts) for match in matches]
        return tuple(sorted(entries, key=lambda entry: -abs(entry.seconds_difference)))

    by_name = {
        kind: (totals_by_name(old_totals, kind), totals_by_name(new_totals, kind))
        for kind in ("operation", "kernel", "module")
    }
    operations = compared(match_exact_names(*by_name["operation"]), *by_name["operation"])
    kernels = compared(match_kernel_names(*by_name["kernel"]), *by_name["kernel"])
    conversions = conversion_changes(before, after, old_parts, new_parts)
    return TraceComparison(
        basis=basis,
        old=old_run,
        new=new_run,
        difference=cost_difference(old_run.costs, new_run.costs),
        overlap=overlap,
        is_same=before is not None and old.trials == new.trials and not environment,
        unequal_work=unequal_work,
        environment=environment,
        account=None if overlap.is_empty else _account(old_run, new_run, operations or kernels, conversions),
        conversions=conversions,
        round_trips=round_trip_changes(before, after, old_parts, new_parts),
        operations=operations,
        kernels=kernels,
        modules=compared(match_exact_names(*by_name["module"]), *by_name["module"]),
        regression=_judge(old, new, old_run, new_run, overlap, unequal_work),
        notes=tuple(_notes(old, new, old_run, new_run)),
    )


_Compared = tuple[ComparedTotal, ...]


def _account(
    old: ComparedRun, new: ComparedRun, totals: Iterable[ComparedTotal], conversions: Sequence[ConversionChange]
) -> Account | None:
    """Where the difference of two runs' kernel times goes; None where there is next to none, or one is not known."""
    runs = {"old": old, "new": new}
    times = {age: run.costs.kernel_seconds or 0.0 for age, run in runs.items()}
    slow, fast = ("new", "old") if times["new"] >= times["old"] else ("old", "new")
    difference = times[slow] - times[fast]
    if not times[fast] or difference < RESOLUTION * times[fast]:
        return None
    rows: list[AccountRow] = []
    alone: list[AccountRow] = []
    for total in totals:
        amounts = {"old": total.old, "new": total.new}
        times_of_both = (_computing(amounts[slow]), _computing(amounts[fast]))
        counts = [0.0 if amount is None else amount.count - amount.conversion_count for amount in amounts.values()]
        detail = None if counts[0] == counts[1] else f"{format_count(counts[0])} -> {format_count(counts[1])} kernels"
        row = _row("operation", *times_of_both, operations=(total.name,), detail=detail)
        (rows if total.match is not None else alone).append(row)
    rows += _conversion_rows(conversions, slow)
    if alone:
        rows.append(sum_row("not_aligned", alone))
    kept = told(rows, difference)
    rest = [times[slow], times[fast]]
    for row in kept:
        rest[0] -= row.slower_seconds or 0.0
        rest[1] -= row.faster_seconds or 0.0
    if abs(rest[0] - rest[1]) > SMALL_SHARE * difference:
        kept.append(_row("operation", *(max(side, 0.0) for side in rest), operations=("kernels of no operation",)))
    return Account(
        slower=f"the {slow} one",
        faster=f"the {fast} one",
        slower_seconds=times[slow],
        faster_seconds=times[fast],
        rows=tuple(kept),
    )


def _conversion_rows(changes: Iterable[ConversionChange], slow: str) -> Iterator[AccountRow]:
    """Conversions of one kind of tensor and one owner together."""
    groups: dict[tuple[TensorKind, Owner], list[ConversionChange]] = defaultdict(list)
    for change in changes:
        groups[change.tensor, change.owner].append(change)
    for (tensor, owner), own in groups.items():
        old = [change.old for change in own if change.old is not None]
        new = [change.new for change in own if change.new is not None]
        sides = (new, old) if slow == "new" else (old, new)
        times = [sum(amount.seconds or 0.0 for amount in side) for side in sides]
        counts = [format_count(sum(amount.count for amount in side)) for side in sides]
        yield _row(
            "conversion",
            *times,
            operations=(f"conversion of {plural(TENSOR_WORDS[tensor])}",),
            detail=f"{' against '.join(counts)}, {OWNER_WORDS[owner]}",
        )


def _computing(amount: Amount | None) -> float:
    return 0.0 if amount is None else amount.seconds - amount.conversion_seconds


def _row(kind: AccountKind, slower: float, faster: float, **more: Any) -> AccountRow:
    return AccountRow(kind=kind, seconds=slower - faster, slower_seconds=slower, faster_seconds=faster, **more)


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
