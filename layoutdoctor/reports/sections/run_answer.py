"""
The first lines of a report on a recorded run: what its layout conversions took, which undo each other, what to try.

They word what the record says and decide nothing; a file without kernels is never called healthy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import count_by_tensor, counted_conversions, launch_count, sum_seconds
from layoutdoctor.examination.kernels.host import OF_A_CPU
from layoutdoctor.examination.kernels.names import are_of_an_engine
from layoutdoctor.reports.sections.answer import Answer
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
from layoutdoctor.words import OWNER_WORDS, PROOF_WORDS, TENSOR_WORDS, count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, KernelSummary, Trial
    from layoutdoctor.reports.sections.wording import Terms

    Note = tuple[str, str]

MOST_SOURCE_LINES = 3

_LIBRARY_RULES = ("LD101", "LD111")
_TO_TRY = "model and inputs in channels_last (5-D: channels_last_3d), if they are not yet"
_TO_BUILD = (
    "build the TensorRT engine with the formats that its first and last layers want (allowed_formats of inputs and "
    "outputs, such as HWC8 or CHW32)"
)
_TO_DIAGNOSE = "python -m layoutdoctor model.py finds the fastest layout"
_WITH_ONEDNN = "run the model with ONEDNN_VERBOSE=1 and examine what it prints"
_RECORD = {
    "cpu": f"on a CPU, layout conversions run inside oneDNN, which writes them to its own log: {_WITH_ONEDNN}",
    "gpu": "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    "lost": (
        "the profiler got nothing from the GPU: it may need permission (NVreg_RestrictProfilingToAdminUsers=0, or "
        "root), another profiler may have held the GPU, WSL may not give access, or the recording ended first"
    ),
    "mps": (
        "torch.profiler records no kernels of MPS; Metal System Trace in Xcode's Instruments does, but its files are "
        "not read here"
    ),
    "nsight": "nsys profile --trace=cuda,nvtx, and nsys export --type sqlite of what it wrote",
    "log": _WITH_ONEDNN,
}
"""How to record what a file lacks."""


def build_run_answer(diagnosis: Diagnosis) -> Answer:
    """What layout conversions took in a recorded run, which undo each other, what to try."""
    terms, trial = terms_of(diagnosis), recorded_trial(diagnosis)
    if trial is None:
        failed = next((trial for trial in diagnosis.trials if trial.failure is not None), None)
        why = clean(failure_clause(failed), 300) if failed else "nothing was examined"
        return Answer(f"Nothing can be said: {why}")
    counted = counted_conversions(trial)
    if trial.kernels is None or not (trial.kernels.count or counted):
        return _no_kernels(diagnosis, trial, terms)
    notes = [*_waiting_notes(trial.kernels), *_convolution_notes(trial.kernels, terms)]
    if counted:
        notes += [*_conversion_notes(trial, terms, counted), *_unknown_notes(trial, terms)]
        return Answer(_conversions_claim(trial, terms), notes=(*notes, *_next_notes(diagnosis, trial, terms, counted)))
    seconds = "" if trial.kernels.seconds is None else f", {format_seconds(trial.kernels.seconds)} {terms.time}"
    shown = "No layout conversion can be shown" if trial.kernels.undecided_count else "No layout conversion"
    claim = f"{shown} in {count_of(trial.kernels.count, terms.kernel)}{seconds}"
    notes += [*_doubt_notes(trial.kernels, terms), *_unknown_notes(trial, terms)]
    return Answer(claim, notes=tuple(notes))


def _no_kernels(diagnosis: Diagnosis, trial: Trial, terms: Terms) -> Answer:
    device, sources = diagnosis.subject.device, trial.kernels.sources if trial.kernels is not None else ()
    if terms.file == "table":
        return Answer("Nothing can be said: the table holds no kernels")
    if terms.file == "log":
        return Answer("Nothing can be said: the log holds no primitive that ran", notes=(("Record", _RECORD["log"]),))
    if device not in ("cpu", "cuda", "xpu", "mps", None):
        return Answer(f"Nothing can be said: events of {clean(device, 60)} are not understood")
    claim = "Nothing can be said: the trace holds no device kernels"
    if any(source.startswith("Nsight") for source in sources):
        how = "nsight"
    elif device in ("mps", "cpu"):
        how = device
    elif trial.kernels is not None and device is not None:
        claim, how = f"{claim}, though they were launched", "lost"
    else:
        how = "gpu"
    return Answer(claim, notes=(("Record", _RECORD[how]), ("Next", _TO_DIAGNOSE)))


def _conversions_claim(trial: Trial, terms: Terms) -> str:
    """At least so much, as what is not understood may convert, too; at most only if every kernel is understood."""
    counted, kernels = counted_conversions(trial), trial.kernels
    seconds = sum_seconds(counted)
    if seconds is None:
        return f"{count_of(launch_count(counted), 'layout conversion')}, whose time was not recorded"
    if kernels is None or not kernels.seconds:
        return f"Layout conversions take {format_seconds(seconds)}; the time of all {terms.kernel}s was not recorded"
    waiting, is_complete = kernels.waiting, not (kernels.undecided_count or kernels.lacks)
    least = "" if is_complete and OF_A_CPU not in kernels.sources else "at least "
    if waiting is None:
        whole = f"{format_seconds(kernels.seconds)} {terms.time} ({precise_share(seconds, kernels.seconds)})"
        return f"Layout conversions take {least}{format_seconds(seconds)} of {whole}" + alone_clause(
            exposed_seconds(trial), seconds
        )
    compute = kernels.seconds - waiting.collective_seconds
    without = " without collectives" if waiting.collective_seconds else ""
    share = f" ({precise_share(seconds, compute)})" if seconds <= compute else ""
    claim = f"Layout conversions take {least}{format_seconds(seconds)} of {format_seconds(compute)} {terms.time}"
    bound, of = waiting.conversion_bound_seconds, waiting.step_seconds or waiting.span_seconds
    if not is_complete or not of:
        return f"{claim}{without}{share}"
    run = "a step" if waiting.step_seconds is not None else "the run"
    return f"{claim}{without}{share}, at most {format_seconds(bound)} of {run} ({precise_share(bound, of)})"


def _waiting_notes(kernels: KernelSummary) -> Iterator[Note]:
    """How busy the device was, what else ran on it, and what the run waited for."""
    waiting = kernels.waiting
    if waiting is None or not waiting.span_seconds:
        return
    busy = min(waiting.busy_seconds, waiting.span_seconds)
    share = precise_share(busy, waiting.span_seconds)
    parts = [f"busy {format_seconds(waiting.busy_seconds)} of {format_seconds(waiting.span_seconds)} ({share})"]
    if waiting.step_count is not None and waiting.step_count > 1:
        parts[0] += f" in {waiting.step_count} steps"
    if waiting.device_count > 1:
        parts[0] += f", the busiest of {waiting.device_count}"
    if waiting.collective_seconds:
        parts.append(f"collectives {format_seconds(waiting.collective_seconds)}")
    if waiting.copy_seconds:
        parts.append(f"copies by its own engines {format_seconds(waiting.copy_seconds)}")
    if waiting.waits_for == "host":
        lag = waiting.launch_lag_seconds
        start = f" (kernels start {format_seconds(lag)} after their launch)" if lag is not None else ""
        parts.append(f"the run waited for the host, which the profiler slows as well{start}")
    elif waiting.waits_for == "device":
        mostly = waiting.collective_seconds > waiting.busy_seconds / 2
        parts.append("collectives most of the time" if mostly else "the run waited for the GPU")
    yield "GPU", "; ".join(parts)


def _convolution_notes(kernels: KernelSummary, terms: Terms) -> Iterator[Note]:
    """How much ran for convolutions, and what of it the libraries' conversions are, which that time holds."""
    count, part, whole = kernels.convolution_count, kernels.conversion_seconds, kernels.convolution_seconds
    if count == 0:
        yield "Conv time", f"none: no {terms.kernel} ran for a convolution"
        return
    share = f"{precise_share(part, whole)} of that in layout conversions" if part and whole and part <= whole else None
    time = format_seconds(whole) if whole else None
    known = joined((None if count is None else count_of(count, terms.kernel), time, share), ", ")
    if known:
        yield "Conv time", known


def _conversion_notes(trial: Trial, terms: Terms, counted: Sequence[Conversion]) -> Iterator[Note]:
    owners = [owner for owner in OWNER_WORDS if any(c.owner == owner for c in counted)]
    parts = []
    for owner in owners:
        own = [conversion for conversion in counted if conversion.owner == owner]
        seconds = _seconds_clause(own) if len(owners) > 1 else ""
        parts.append(f"{launch_count(own)} {OWNER_WORDS[owner]}{seconds} ({_directions(own)})")
    tensors = count_by_tensor(counted)
    if tensors.keys() != {"unknown"}:
        parts.append(listing([count_of(count, TENSOR_WORDS[kind]) for kind, count in tensors.items()], None))
    yield "Converts", joined(parts)
    yield "Undone", _round_trips(trial, terms)
    cost: dict[str, float] = {}  # the user's lines, if the Python stack was recorded
    for conversion in counted:
        if conversion.location is not None and conversion.seconds is not None:
            place = clean(str(conversion.location), 60)
            cost[place] = cost.get(place, 0.0) + conversion.seconds
    if cost:
        ordered = sorted(cost, key=lambda place: -cost[place])
        yield "Lines", listing([f"{p} {format_seconds(cost[p])}" for p in ordered], MOST_SOURCE_LINES)


def _directions(conversions: Iterable[Conversion]) -> str:
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[direction_words(conversion)] += conversion.count
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def _round_trips(trial: Trial, terms: Terms) -> str:
    """Which conversions undo each other, and how sure that is."""
    waste = waste_of(trial)
    if waste is None:
        if terms.file == "table":
            return "not looked for, as a table of totals has no order"
        lacking = trial.kernels is not None and bool(trial.kernels.lacks)
        return f"no round trip found{' in what was recorded' if lacking else ''}"
    seconds = "" if waste.seconds is None else f", {format_seconds(waste.seconds)}"
    counts: Counter[str | None] = Counter(pair.confidence for pair in trial.redundant_pairs)
    rests = [f"{counts[confidence]} {words}" for confidence, words in PROOF_WORDS.items() if counts[confidence]]
    alone = alone_clause(waste.exposed_seconds, waste.seconds)
    trips = f"{count_of(waste.pair_count, 'round trip')}{seconds}{alone}"
    return "; ".join((trips, *rests))


def _unknown_notes(trial: Trial, terms: Terms) -> Iterator[Note]:
    """What may be a conversion though nothing says so, and what looks like one and changes no memory format."""
    kernels = trial.kernels
    if kernels is not None and kernels.undecided_count:
        seconds = "" if kernels.undecided_seconds is None else f", {format_seconds(kernels.undecided_seconds)},"
        yield (
            "Not known",
            f"{count_of(kernels.undecided_count, terms.kernel)}{seconds} may convert a layout, too: see below",
        )
    padded = [c for c in kernels.conversions if c.direction == "none"] if kernels is not None else []
    permuted = [c for graph in trial.graphs for c in graph.conversions if c.direction == "none"]
    parts = []
    if padded:
        count = count_of(launch_count(padded), f"library {terms.kernel}")
        parts.append(f"{count} padding or copying without a layout change{_seconds_clause(padded)}")
    if permuted:
        count = count_of(launch_count(permuted), "copy", "copies")
        parts.append(f"{count} into another order of dimensions, as attention makes them{_seconds_clause(permuted)}")
    if parts:
        yield "Others", f"not counted: {'; '.join(parts)}"


def _doubt_notes(kernels: KernelSummary, terms: Terms) -> Iterator[Note]:
    """How sure it is that there is no conversion, if something that could show one is missing."""
    if terms.file != "log" and not any(total.kind == "operation" for total in kernels.totals):
        yield (
            "Sure?",
            f"looked for by kernel name alone: the {terms.file} does not say which operations ran, so copies outside "
            "libraries were not judged",
        )
    elif kernels.lacks or kernels.not_understood_count:
        yield "Sure?", f"as far as the {terms.file} shows; see below what it lacks"


def _next_notes(diagnosis: Diagnosis, trial: Trial, terms: Terms, counted: Sequence[Conversion]) -> Iterator[Note]:
    if are_of_an_engine(conversion.kernel for conversion in counted):
        yield "Try", _TO_BUILD
        return
    if terms.file != "log" and _wants_channels_last(diagnosis, counted):
        yield "Try", _TO_TRY
    if trial.kernels is not None and OF_A_CPU in trial.kernels.sources:
        yield "Record", f"to see conversions within oneDNN as well, {_WITH_ONEDNN}"
    yield "Next", _TO_DIAGNOSE


def _wants_channels_last(diagnosis: Diagnosis, counted: Sequence[Conversion]) -> bool:
    """Whether a rule found that libraries convert much, and most of it is on the way into channels_last."""
    if not any(finding.code in _LIBRARY_RULES for finding in diagnosis.findings):
        return False
    own = [conversion for conversion in counted if conversion.owner == "library"]
    ways = [sum(c.count for c in own if c.direction == way) for way in ("to_channels_last", "to_contiguous")]
    return ways[0] >= ways[1]


def _seconds_clause(conversions: Iterable[Conversion]) -> str:
    """The time of some conversions with a comma before it; empty where one has no time."""
    seconds = sum_seconds(conversions)
    return "" if seconds is None else f", {format_seconds(seconds)}"
