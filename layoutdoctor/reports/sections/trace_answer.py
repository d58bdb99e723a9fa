"""
The first lines of a report of a recorded trace: what layout conversions took, which undo each other, what to try.

One run was recorded and nothing was compared, so nothing here may sound proved by a comparison, and a file without
kernels is never called healthy. Faces the view; imports records, units and the sums only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, launch_count
from layoutdoctor.reports.sections.answer import Answer
from layoutdoctor.reports.sections.costs import count_by_tensor, waste_of
from layoutdoctor.reports.sections.rows import failure_clause
from layoutdoctor.reports.sections.trace_wording import (
    DIRECTION_WORDS,
    alone_clause,
    conversion_seconds,
    exposed_seconds,
    is_on_cpu,
    precise_share,
    recorded_trial,
    seconds_clause,
    terms_of,
)
from layoutdoctor.reports.sections.wording import clean, count_of, cut_list, in_words
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.records import Confidence, Conversion, Diagnosis, KernelSummary, Owner, Trial
    from layoutdoctor.reports.sections.trace_wording import Terms

MOST_LINES_NAMED = 3
MOST_FAILURE_CHARACTERS = 300

_OWNER_WORDS: dict[Owner, str] = {
    "library": "in library calls",
    "framework": "by eager copies",
    "compiler": "by generated kernels",
    "user": "written in the model",
}
_TENSOR_WORDS = {"activation": "activation", "weight": "weight", "gradient": "gradient", "unknown": "other"}
_PAIR_WORDS: tuple[tuple[Confidence | None, str], ...] = (
    ("shapes", "agree in shape all along the way"),
    ("grid", "by launch grid alone"),
    ("order", "by order of kernels alone"),
)
_LIBRARY_RULES = ("LD101", "LD111")
_TO_TRY = "To try: model and inputs in channels_last (5-D: channels_last_3d), where they are not yet"
_TO_DIAGNOSE = "To find the fastest layout: python -m layoutdoctor model.py"


def build_trace_answer(diagnosis: Diagnosis) -> Answer:
    """
    The answer that a diagnosis of a recorded trace holds.

    Args:
        diagnosis: One of a trace, also an interrupted one.
    """
    terms, trial = terms_of(diagnosis), recorded_trial(diagnosis)
    if trial is None:
        return _not_examined(diagnosis)
    counted = counted_conversions(trial)
    if counted:
        return Answer(_headline(trial, terms), lines=tuple(_lines(diagnosis, trial, terms, counted)))
    if trial.kernels is None or not trial.kernels.count:
        return _no_kernels(diagnosis, terms)
    return _no_conversion(diagnosis, trial, trial.kernels, terms)


def _not_examined(diagnosis: Diagnosis) -> Answer:
    failed = next((trial for trial in diagnosis.trials if trial.failure is not None), None)
    why = clean(failure_clause(failed), MOST_FAILURE_CHARACTERS) if failed else "nothing was examined"
    return Answer(f"Nothing could be concluded: {why}")


def _no_kernels(diagnosis: Diagnosis, terms: Terms) -> Answer:
    if terms.file == "log":
        return Answer(
            "Nothing could be concluded: the log holds no primitive that ran",
            lines=("To record them: run the model with ONEDNN_VERBOSE=1 and save what it prints",),
        )
    if terms.file == "table":
        return Answer("Nothing could be concluded: the table holds no kernels")
    headline = "Nothing could be concluded: the trace holds no device kernels"
    if is_on_cpu(diagnosis):
        return Answer(
            headline,
            lines=(
                "On a CPU, layout conversions run inside oneDNN, which writes them to its own log, not to a trace",
                "To record them: run the model with ONEDNN_VERBOSE=1 and examine what it prints",
                _TO_DIAGNOSE,
            ),
        )
    return Answer(
        headline,
        lines=(
            "To record them: torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            _TO_DIAGNOSE,
        ),
    )


def _no_conversion(diagnosis: Diagnosis, trial: Trial, kernels: KernelSummary, terms: Terms) -> Answer:
    seconds = "" if kernels.seconds is None else f", {format_seconds(kernels.seconds)} {terms.time}"
    headline = f"No layout conversion in {count_of(kernels.count, terms.kernel)}{seconds}"
    lines = [*_convolution_lines(kernels, terms), *_doubt_lines(kernels, terms), *_uncounted_lines(trial, terms)]
    return Answer(headline, lines=tuple(lines), is_short=_nothing_else_to_say(diagnosis, trial, kernels))


def _convolution_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """How much ran for convolutions, and what of it the libraries' conversions are, which that time holds."""
    if kernels.convolution_count == 0:
        yield f"Convolutions: no {terms.kernel} ran for one"
        return
    count = kernels.convolution_count
    known = [count_of(count, terms.kernel)] if count is not None else []
    part, whole = kernels.conversion_seconds, kernels.convolution_seconds
    if whole:
        known.append(format_seconds(whole))
        if part and part <= whole:
            known.append(f"{precise_share(part, whole)} of that in layout conversions")
    if known:
        yield f"Convolutions: {', '.join(known)}"


def _doubt_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """What "none" rests on, where something that could have told is missing."""
    if terms.file != "log" and not any(total.kind == "operation" for total in kernels.totals):
        yield (
            f"Looked for by kernel name alone: the {terms.file} does not say which operations ran, "
            "so copies outside libraries were not judged"
        )
    elif kernels.lacks or kernels.not_understood_count:
        yield f"That is as far as the {terms.file} tells; what it lacks stands below"


def _nothing_else_to_say(diagnosis: Diagnosis, trial: Trial, kernels: KernelSummary) -> bool:
    """Whether the report may end after the answer: everything was read, nothing lacks, and no rule found a loss."""
    in_full = not (kernels.lacks or kernels.not_understood_count or diagnosis.interrupted)
    silent = not (diagnosis.subject.notes or trial.notes or any(graph.not_understood for graph in trial.graphs))
    return in_full and silent and all(finding.severity == "note" for finding in diagnosis.findings)


def _headline(trial: Trial, terms: Terms) -> str:
    seconds, kernels = conversion_seconds(trial), trial.kernels
    if seconds is None:
        count = launch_count(counted_conversions(trial))
        return f"{count_of(count, 'layout conversion')}, whose time was not recorded"
    if kernels is None or not kernels.seconds:
        return f"Layout conversions take {format_seconds(seconds)}; the time of all {terms.kernel}s was not recorded"
    share = precise_share(seconds, kernels.seconds)
    return (
        f"Layout conversions take {format_seconds(seconds)} of {format_seconds(kernels.seconds)} {terms.time} "
        f"({share}){alone_clause(exposed_seconds(trial), seconds)}"
    )


def _lines(diagnosis: Diagnosis, trial: Trial, terms: Terms, counted: Sequence[Conversion]) -> Iterator[str]:
    if trial.kernels is not None:
        yield from _convolution_lines(trial.kernels, terms)
    yield _owner_line(counted)
    yield from _tensor_lines(counted)
    yield _round_trips_line(trial, terms)
    yield from _source_lines(counted)
    yield from _uncounted_lines(trial, terms)
    if terms.file != "log" and _wants_channels_last(diagnosis, counted):
        yield _TO_TRY
    yield _TO_DIAGNOSE


def _wants_channels_last(diagnosis: Diagnosis, counted: Sequence[Conversion]) -> bool:
    """Whether a rule found what libraries convert worth telling, and most of it is on the way into channels_last."""
    if not any(finding.code in _LIBRARY_RULES for finding in diagnosis.findings):
        return False
    own = [conversion for conversion in counted if conversion.owner == "library"]
    ways = [sum(c.count for c in own if c.direction == way) for way in ("to_channels_last", "to_contiguous")]
    return ways[0] >= ways[1]


def _owner_line(counted: Sequence[Conversion]) -> str:
    """Who made the conversions, and into which layouts."""
    owners = [owner for owner in _OWNER_WORDS if any(c.owner == owner for c in counted)]
    parts = []
    for owner in owners:
        own = [conversion for conversion in counted if conversion.owner == owner]
        seconds = seconds_clause(own) if len(owners) > 1 else ""
        parts.append(f"{launch_count(own)} {_OWNER_WORDS[owner]}{seconds} ({_directions(own)})")
    return f"Conversions: {'; '.join(parts)}"


def _directions(conversions: Iterable[Conversion]) -> str:
    counts: Counter[str] = Counter()
    for conversion in conversions:
        is_known = conversion.direction != "other" or conversion.source or conversion.target
        counts[
            DIRECTION_WORDS[conversion.direction] if is_known else "between other layouts, or which way is not known"
        ] += conversion.count
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def _tensor_lines(counted: Sequence[Conversion]) -> Iterator[str]:
    tensors = count_by_tensor(counted)
    if tensors.keys() != {"unknown"}:
        yield f"Tensors converted: {in_words(count_of(n, _TENSOR_WORDS[kind]) for kind, n in tensors.items())}"


def _round_trips_line(trial: Trial, terms: Terms) -> str:
    waste = waste_of(trial)
    if waste is None:
        if terms.file == "table":
            return "Round trips: not looked for, as a table of totals has no order"
        lacking = trial.kernels is not None and bool(trial.kernels.lacks)
        return f"Round trips: none found{' in what was recorded' if lacking else ''}"
    seconds = "" if waste.seconds is None else f", {format_seconds(waste.seconds)}"
    counts = Counter(pair.confidence for pair in trial.redundant_pairs)
    rests = [f"{counts[confidence]} {words}" for confidence, words in _PAIR_WORDS if counts[confidence]]
    alone = alone_clause(waste.exposed_seconds, waste.seconds)
    return f"Round trips: {'; '.join((f'{waste.pair_count}{seconds}{alone}', *rests))}"


def _source_lines(counted: Iterable[Conversion]) -> Iterator[str]:
    """The user's lines that cost most, where the Python stack was recorded."""
    cost: dict[str, float] = {}
    for conversion in counted:
        if conversion.location is not None and conversion.seconds is not None:
            place = clean(str(conversion.location), 60)
            cost[place] = cost.get(place, 0.0) + conversion.seconds
    ordered = sorted(cost, key=lambda place: -cost[place])
    if ordered:
        yield f"Costliest lines: {cut_list([f'{p} {format_seconds(cost[p])}' for p in ordered], MOST_LINES_NAMED)}"


def _uncounted_lines(trial: Trial, terms: Terms) -> Iterator[str]:
    """What looks like a conversion and changes no memory format: named, so that nobody has to wonder."""
    padded = [c for c in trial.kernels.conversions if c.direction == "none"] if trial.kernels is not None else []
    if padded:
        count = count_of(launch_count(padded), f"library {terms.kernel}")
        yield f"Not counted: {count} padding or copying without a layout change{seconds_clause(padded)}"
    permuted = [c for graph in trial.graphs for c in graph.conversions if c.direction == "none"]
    if permuted:
        count, seconds = count_of(launch_count(permuted), "copy", "copies"), seconds_clause(permuted)
        yield f"Not counted: {count} into another order of dimensions, as attention makes them{seconds}"
