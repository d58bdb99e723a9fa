"""
The first lines of a report on a recorded run: what its layout conversions took, which undo each other, what to try.

They word what the record says and decide nothing; a file without kernels is never called healthy.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import count_by_tensor, counted_conversions, launch_count, sides_words, sum_seconds
from layoutdoctor.examination.kernels.host import OF_A_CPU
from layoutdoctor.examination.kernels.names import are_of_an_engine
from layoutdoctor.reports.sections.answer import Answer, nothing_else_to_say
from layoutdoctor.reports.sections.wording import (
    alone_clause,
    clean,
    direction_words,
    exposed_seconds,
    failure_clause,
    precise_share,
    recorded_trial,
    terms_of,
    waste_of,
)
from layoutdoctor.units import format_seconds
from layoutdoctor.words import OWNER_WORDS, PROOF_WORDS, TENSOR_WORDS, count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, KernelSummary, Trial
    from layoutdoctor.reports.sections.wording import Terms

MOST_SOURCE_LINES = 3
MOST_FAILURE_CHARACTERS = 300
_WORTH_A_WORD = 0.001

_LIBRARY_RULES = ("LD101", "LD111")
_TO_TRY = "To try: model and inputs in channels_last (5-D: channels_last_3d), where they are not yet"
_TO_BUILD = (
    "To try: build the TensorRT engine with the formats that its first and last layers want (allowed_formats of inputs "
    "and outputs, such as HWC8 or CHW32)"
)
_TO_DIAGNOSE = "To find the fastest layout: python -m layoutdoctor model.py"
_ON_A_CPU = (
    "On a CPU, layout conversions run inside oneDNN, which writes them to its own log, not to a trace",
    "To record them: run the model with ONEDNN_VERBOSE=1 and examine what it prints",
    _TO_DIAGNOSE,
)
_WITHIN_ONEDNN = "To see those within oneDNN as well: run the model with ONEDNN_VERBOSE=1 and examine what it prints"
_ON_A_GPU = (
    "To record them: torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    _TO_DIAGNOSE,
)
_LOST_BY_THE_PROFILER = (
    "The profiler got nothing from the GPU: that may need permission (NVreg_RestrictProfilingToAdminUsers=0, or root), "
    "another profiler may have held it, WSL may not give it, or the recording ended first",
    _TO_DIAGNOSE,
)
_ON_MPS = (
    "The operations ran on MPS, whose kernels torch.profiler does not record; Metal System Trace in Xcode's "
    "Instruments shows them, but its files are not read here",
)
_BY_NSIGHT = (
    "To record them: nsys profile --trace=cuda,nvtx, and nsys export --type sqlite of what it wrote",
    _TO_DIAGNOSE,
)
_IN_A_LOG = ("To record them: run the model with ONEDNN_VERBOSE=1 and save what it prints",)


def build_run_answer(diagnosis: Diagnosis) -> Answer:
    """What layout conversions took in a recorded run, which undo each other, what to try."""
    terms, trial = terms_of(diagnosis), recorded_trial(diagnosis)
    if trial is None:
        return _not_examined(diagnosis)
    counted = counted_conversions(trial)
    if counted:
        lines = tuple(_recorded_lines(diagnosis, trial, terms, counted))
        return Answer(_conversions_headline(trial, terms), lines=lines)
    if trial.kernels is None or not trial.kernels.count:
        return _no_kernels(diagnosis, trial, terms)
    return _no_conversion(diagnosis, trial, trial.kernels, terms)


def _not_examined(diagnosis: Diagnosis) -> Answer:
    failed = next((trial for trial in diagnosis.trials if trial.failure is not None), None)
    why = clean(failure_clause(failed), MOST_FAILURE_CHARACTERS) if failed else "nothing was examined"
    return Answer(f"Nothing could be concluded: {why}")


def _no_kernels(diagnosis: Diagnosis, trial: Trial, terms: Terms) -> Answer:
    headline = f"Nothing could be concluded: the {terms.file} holds no "
    if terms.file == "log":
        return Answer(f"{headline}primitive that ran", lines=_IN_A_LOG)
    if terms.file == "table":
        return Answer(f"{headline}kernels")
    sources = trial.kernels.sources if trial.kernels is not None else ()
    if any(source.startswith("Nsight") for source in sources):
        return Answer(f"{headline}device kernels", lines=_BY_NSIGHT)
    if diagnosis.subject.device == "mps":
        return Answer(f"{headline}device kernels", lines=_ON_MPS)
    if diagnosis.subject.device not in ("cpu", "cuda", "xpu", None):
        return Answer(
            f"{headline}kernels of a device that is understood (its events are of {diagnosis.subject.device})"
        )
    if trial.kernels is not None and diagnosis.subject.device not in ("cpu", None):
        return Answer(f"{headline}device kernels, though they were launched", lines=_LOST_BY_THE_PROFILER)
    return Answer(f"{headline}device kernels", lines=_ON_A_CPU if diagnosis.subject.device == "cpu" else _ON_A_GPU)


def _no_conversion(diagnosis: Diagnosis, trial: Trial, kernels: KernelSummary, terms: Terms) -> Answer:
    seconds = "" if kernels.seconds is None else f", {format_seconds(kernels.seconds)} {terms.time}"
    undecided = _undecided_clause(kernels)
    shown = "No layout conversion can be shown" if undecided else "No layout conversion"
    headline = f"{shown} in {count_of(kernels.count, terms.kernel)}{seconds}{undecided}"
    lines = [*_waiting_lines(kernels), *_convolution_lines(kernels, terms), *_doubt_lines(kernels, terms)]
    lines += [*_undecided_lines(kernels, terms), *_uncounted_lines(trial, terms)]
    return Answer(headline, lines=tuple(lines), is_short=nothing_else_to_say(diagnosis))


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


def _undecided_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """What may be a conversion though nothing says so; it is in no sum but its own."""
    if kernels.undecided_count:
        count = count_of(kernels.undecided_count, terms.kernel)
        yield f"Undecided: {count} that may convert a layout, as nothing recorded says whether; why stands below"


def _doubt_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """What "none" rests on, where something that could have told is missing."""
    if terms.file != "log" and not any(total.kind == "operation" for total in kernels.totals):
        yield (
            f"Looked for by kernel name alone: the {terms.file} does not say which operations ran, "
            "so copies outside libraries were not judged"
        )
    elif kernels.lacks or kernels.not_understood_count:
        yield f"That is as far as the {terms.file} tells; what it lacks stands below"


def _conversions_headline(trial: Trial, terms: Terms) -> str:
    seconds, kernels = sum_seconds(counted_conversions(trial)), trial.kernels
    if seconds is None:
        count = launch_count(counted_conversions(trial))
        return f"{count_of(count, 'layout conversion')}, whose time was not recorded"
    if kernels is None or not kernels.seconds:
        return f"Layout conversions take {format_seconds(seconds)}; the time of all {terms.kernel}s was not recorded"
    undecided = _undecided_clause(kernels, seconds)
    if kernels.waiting is None:
        whole = f"{format_seconds(kernels.seconds)} {terms.time} ({precise_share(seconds, kernels.seconds)})"
        alone = alone_clause(exposed_seconds(trial), seconds)
        least = "at least " if OF_A_CPU in kernels.sources else ""
        return f"Layout conversions take {least}{format_seconds(seconds)} of {whole}{alone}{undecided}"
    bound, of = kernels.waiting.conversion_bound_seconds, kernels.waiting.step_seconds
    run = "a step of" if of is not None else "a run of"
    of = of if of is not None else kernels.waiting.span_seconds
    compute = kernels.seconds - kernels.waiting.collective_seconds
    without = " without collectives" if kernels.waiting.collective_seconds else ""
    share = f" ({precise_share(seconds, compute)})" if seconds <= compute else ""
    return (
        f"Layout conversions cost at most {format_seconds(bound)} of {run} {format_seconds(of)} "
        f"({precise_share(bound, of)}); they take {format_seconds(seconds)} of {format_seconds(compute)} "
        f"{terms.time}{without}{share}{undecided}"
    )


def _waiting_lines(kernels: KernelSummary) -> Iterator[str]:
    """How busy the device was, what else ran on it, and what the run waited for."""
    waiting = kernels.waiting
    if waiting is None or not waiting.span_seconds:
        return
    busy = f"busy {format_seconds(waiting.busy_seconds)} of {format_seconds(waiting.span_seconds)}"
    parts = [f"{busy} ({precise_share(min(waiting.busy_seconds, waiting.span_seconds), waiting.span_seconds)})"]
    if waiting.step_count is not None and waiting.step_count > 1:
        parts[0] += f" in {waiting.step_count} steps"
    if waiting.device_count > 1:
        parts[0] += f", the busiest of {waiting.device_count}"
    if waiting.collective_seconds:
        parts.append(f"collectives {format_seconds(waiting.collective_seconds)}")
    if waiting.copy_seconds:
        parts.append(f"copies by its own engines {format_seconds(waiting.copy_seconds)}")
    yield f"GPU: {'; '.join(parts)}"
    if waiting.waits_for is not None:
        lag = waiting.launch_lag_seconds
        start = f": kernels start {format_seconds(lag)} after their launch" if lag is not None else ""
        mostly_collectives = waiting.collective_seconds > waiting.busy_seconds / 2
        for_device = "collectives most of the time" if mostly_collectives else "the GPU, which was hardly ever idle"
        for_host = f"the host, which the profiler slows as well{start}"
        yield f"The run waited for {for_host if waiting.waits_for == 'host' else for_device}"


def _undecided_clause(kernels: KernelSummary, seconds: float = 0.0) -> str:
    """What is undecided, where it could change what the headline says."""
    undecided = kernels.undecided_seconds
    least = min(_WORTH_A_WORD * (kernels.seconds or 0.0), seconds / 100 or math.inf)
    if not undecided or undecided < least:
        return ""
    return f", and {format_seconds(undecided)} undecided"


def _recorded_lines(diagnosis: Diagnosis, trial: Trial, terms: Terms, counted: Sequence[Conversion]) -> Iterator[str]:
    if trial.kernels is not None:
        yield from _waiting_lines(trial.kernels)
        yield from _convolution_lines(trial.kernels, terms)
    yield _owner_line(counted)
    yield from _tensor_lines(counted)
    yield _round_trips_line(trial, terms)
    yield from _source_lines(counted)
    if trial.kernels is not None:
        yield from _undecided_lines(trial.kernels, terms)
    yield from _uncounted_lines(trial, terms)
    if are_of_an_engine(conversion.kernel for conversion in counted):
        yield _TO_BUILD
        return
    if terms.file != "log" and _wants_channels_last(diagnosis, counted):
        yield _TO_TRY
    if trial.kernels is not None and OF_A_CPU in trial.kernels.sources:
        yield _WITHIN_ONEDNN
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
    owners = [owner for owner in OWNER_WORDS if any(c.owner == owner for c in counted)]
    parts = []
    for owner in owners:
        own = [conversion for conversion in counted if conversion.owner == owner]
        seconds = _seconds_clause(own) if len(owners) > 1 else ""
        parts.append(f"{launch_count(own)} {OWNER_WORDS[owner]}{seconds} ({_directions(own)})")
    return f"Conversions: {'; '.join(parts)}"


def _directions(conversions: Iterable[Conversion]) -> str:
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[direction_words(conversion)] += conversion.count
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def _tensor_lines(counted: Sequence[Conversion]) -> Iterator[str]:
    tensors = count_by_tensor(counted)
    if tensors.keys() != {"unknown"}:
        named = [count_of(count, TENSOR_WORDS[kind]) for kind, count in tensors.items()]
        yield f"Tensors converted: {listing(named, None)}"
    words = sides_words(counted)
    if words:
        yield f"By launch grids: {words}"


def _round_trips_line(trial: Trial, terms: Terms) -> str:
    waste = waste_of(trial)
    if waste is None:
        if terms.file == "table":
            return "Round trips: not looked for, as a table of totals has no order"
        lacking = trial.kernels is not None and bool(trial.kernels.lacks)
        return f"Round trips: none found{' in what was recorded' if lacking else ''}"
    seconds = "" if waste.seconds is None else f", {format_seconds(waste.seconds)}"
    counts: Counter[str | None] = Counter(pair.confidence for pair in trial.redundant_pairs)
    rests = [f"{counts[confidence]} {words}" for confidence, words in PROOF_WORDS.items() if counts[confidence]]
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
        yield f"Costliest lines: {listing([f'{p} {format_seconds(cost[p])}' for p in ordered], MOST_SOURCE_LINES)}"


def _uncounted_lines(trial: Trial, terms: Terms) -> Iterator[str]:
    """What looks like a conversion and changes no memory format: named, so that nobody has to wonder."""
    padded = [c for c in trial.kernels.conversions if c.direction == "none"] if trial.kernels is not None else []
    if padded:
        count = count_of(launch_count(padded), f"library {terms.kernel}")
        yield f"Not counted: {count} padding or copying without a layout change{_seconds_clause(padded)}"
    permuted = [c for graph in trial.graphs for c in graph.conversions if c.direction == "none"]
    if permuted:
        count, seconds = count_of(launch_count(permuted), "copy", "copies"), _seconds_clause(permuted)
        yield f"Not counted: {count} into another order of dimensions, as attention makes them{seconds}"


def _seconds_clause(conversions: Iterable[Conversion]) -> str:
    """The time of some conversions with a comma before it; empty where one has no time."""
    seconds = sum_seconds(conversions)
    return "" if seconds is None else f", {format_seconds(seconds)}"
