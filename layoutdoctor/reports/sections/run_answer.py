"""
The first lines of a report on a recorded run: the cost of its layout conversions, and its round trips.

These lines describe the record and decide nothing. A file without kernels is never called healthy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Creations, Diagnosis, KernelSummary, Trial
from layoutdoctor.examination.counts import (
    all_conversions_of,
    count_by_tensor,
    counted_conversions,
    launch_count,
    of_convolutions,
    parts_of_pairs,
    sum_seconds,
)
from layoutdoctor.examination.kernels.names import are_of_an_engine
from layoutdoctor.reports.sections.account import decision_sentence
from layoutdoctor.reports.sections.answer import ReportAnswer
from layoutdoctor.reports.sections.wording import RecordedRun, clean, direction_words, failure_clause
from layoutdoctor.units import format_seconds, format_share, sum_if_all_known
from layoutdoctor.words import (
    OWNER_WORDS,
    PROOF_WORDS,
    TENSOR_WORDS,
    count_of,
    joined,
    listing,
    phrase,
)

MOST_SOURCE_LINES = 3
_LEAST_SHARE_OF_WORK = 0.02  # smallest share of the kernel time that is mentioned
_DEAR_CREATION = 0.1
"""Share of the kernel time: creating primitives is named first if it takes longer than this and than conversions."""

_REUSE = (
    "the first call creates each primitive, and a call with new sizes creates it again: use few input sizes",
    "the same primitives were created again: oneDNN's cache of them is too small or off "
    "(ONEDNN_PRIMITIVE_CACHE_CAPACITY, 1024 unless set)",
)
_WITH_ONEDNN = "run the model with ONEDNN_VERBOSE=1 and examine what it prints"
_EMPTY = {
    "trace": "the trace holds no device kernels",
    "table": "the table holds no kernels",
    "log": "the log holds no operation of oneDNN that ran",
}
_RECORD = {
    "cpu": f"on a CPU, layout conversions run inside oneDNN, which writes them to its own log: {_WITH_ONEDNN}",
    "lost": (
        "the profiler got nothing from the GPU. It may need permission (NVreg_RestrictProfilingToAdminUsers=0, or "
        "root), another profiler may use the GPU, WSL may give no access, or the recording ended too early"
    ),
    "mps": "torch.profiler records no kernels of MPS, and traces of Xcode's Instruments are not read here",
    "log": _WITH_ONEDNN,
}
"""Advice on recording kernels, by device or cause; the view lists everything else that a file lacks."""
_WITHOUT_OPERATIONS_BETWEEN = {
    "table": "a table of totals has no order",
    "log": "a log of oneDNN does not show what PyTorch ran between two reorders",
}


def build_run_answer(diagnosis: Diagnosis, run: RecordedRun) -> ReportAnswer:
    """Returns the cost of a recorded run's layout conversions, the round trips among them, and the next step."""
    kind, trial = run.kind, run.trial
    if trial.status != "ok":
        return ReportAnswer(f"Nothing can be said: {clean(failure_clause(trial), 300)}")
    kernels, counted = trial.kernel_summary, counted_conversions(trial)
    if kind == "compiles":
        return _of_compiles(trial, counted)
    if not kernels.count and not counted:
        return _no_kernels(diagnosis.subject.device, kernels, kind)
    first = _creation_claim(kernels, sum_seconds(counted) or 0.0)
    notes = [*_creation_notes(kernels.creations, first), *_waiting_note(kernels), *_convolution_note(kernels)]
    notes += _work_notes(kernels)
    if counted:
        from layoutdoctor.rules.evidence import has_backward  # late: no report of a model needs the rules

        is_of_torch = not are_of_an_engine(conversion.kernel for conversion in counted)
        mode = " --mode training" if has_backward(trial) else ""
        notes += [*_conversion_notes(trial, kind, counted), *(_to_diagnose(mode) if is_of_torch else ())]
        return ReportAnswer(first + _conversions_claim(kernels, counted), notes=tuple(notes))
    of_operations = "operation_averages" in kernels.sources  # one row per name; nested calls are in several rows
    ran = {total.name for total in kernels.totals if total.kind == "operation"} if of_operations else ()
    noun, count = ("operation", len(ran)) if of_operations else ("kernel", kernels.count)
    seconds = phrase(f", {{}} {_time_words(kernels)}", kernels.seconds, format_seconds)
    has_operations = kind == "log" or any(total.kind == "operation" for total in kernels.totals)
    can_tell = has_operations and kernels.is_complete and not kernels.not_understood_count
    start = "No layout conversion" if can_tell else "No layout conversion can be shown"
    claim = f"{first}{start} in {count_of(count, noun)}{seconds}{_possible_words(kernels)}"
    return ReportAnswer(claim, notes=tuple(notes))


def _possible_words(kernels: KernelSummary, more: str = "") -> str:
    if not kernels.undecided_count:
        return ""
    noun = "call" if "operation_averages" in kernels.sources else "kernel"
    seconds = phrase(f": {{}}{more}", kernels.undecided_seconds, format_seconds)
    return f"; {count_of(kernels.undecided_count, noun)} may convert a layout{seconds}"


def _to_diagnose(mode: str = "") -> tuple[tuple[str, str], ...]:
    return (("Next", f"python -m layoutdoctor model.py{mode} finds the fastest layout"),)


def _creation_claim(kernels: KernelSummary, conversion_seconds: float) -> str:
    """Returns a first sentence if creating primitives took long; else an empty text."""
    creations, ran = kernels.creations, kernels.seconds or 0.0
    if creations is None or creations.seconds <= max(_DEAR_CREATION * ran, conversion_seconds):
        return ""
    beside = phrase(", running them {}", ran or None, format_seconds)
    return f"Creating primitives took {format_seconds(creations.seconds)}{beside}. "


def _creation_notes(creations: Creations | None, claim: str) -> Iterator[tuple[str, str]]:
    """Yields the number of creations and the slowest one; if ``claim`` is not empty, also how to create fewer."""
    if creations is None:
        return
    count, different = creations.count, creations.distinct_count
    several = f" ({different} different)" if different < count else ""
    parts = [
        f"{count_of(count, 'primitive')}{several} in {format_seconds(creations.seconds)}",
        f"{creations.hit_count} found in the cache" if creations.hit_count else None,
        f"longest {format_seconds(creations.longest_seconds)}: {clean(creations.longest, 100)}",
    ]
    yield "Created", joined(parts)
    if count and claim:
        yield "Reuse", _REUSE[different < count]


def _of_compiles(trial: Trial, counted: Sequence[Conversion]) -> ReportAnswer:
    """Returns the answer about graphs that were compiled elsewhere: their conversions, and the compiler's decision."""
    graphs = count_of(len(trial.graphs), "graph")
    if not any(graph.buffers for graph in trial.graphs):
        return ReportAnswer(f"Nothing can be said: no buffer of {graphs} could be read", notes=_to_diagnose())
    conversions = count_of(len(counted), "conversion")
    per_call = "" if trial.recompile_count else " per call"  # a graph that is compiled again replaces the earlier one
    claim = f"{graphs}, {conversions}{per_call} in compiled code; no times were recorded"
    decision = decision_sentence(trial, in_full=True)
    notes = [("Decision", decision)] if decision else []
    notes += _conversion_notes(trial, "compiles", counted) if counted else []
    return ReportAnswer(claim, notes=(*notes, *_to_diagnose()))


def _no_kernels(device: str | None, kernels: KernelSummary, kind: str) -> ReportAnswer:
    if kernels.not_understood_count and device not in (None, "cpu", "cuda", "mps", "xpu"):
        return ReportAnswer(
            f"Nothing can be said of conversions: events of the device {clean(device, 20)} are not understood",
            notes=_to_diagnose(),
        )
    if kernels.creations is not None:
        first = _creation_claim(kernels, 0.0)
        notes = tuple(_creation_notes(kernels.creations, first))
        return ReportAnswer(f"{first}Nothing can be said of conversions: {_EMPTY[kind]}", notes=notes)
    how = _RECORD["log"] if kind == "log" else ""
    if kind == "trace" and device is not None:
        is_lost = all(lack.part != "kernels" for lack in kernels.lacks)
        how = _RECORD.get(device, _RECORD["lost"] if is_lost else "")
    notes = ((("Record", how),) if how else ()) + (_to_diagnose() if kind == "trace" else ())
    return ReportAnswer(f"Nothing can be said: {_EMPTY[kind]}", notes=notes)


def _time_words(kernels: KernelSummary) -> str:
    return "own time" if "operation_averages" in kernels.sources else "kernel time"


def _conversions_claim(kernels: KernelSummary, counted: Sequence[Conversion]) -> str:
    """Says how long conversions take: "at least" if some may be missing; "at most" counts kernels that may convert."""
    seconds = sum_seconds(counted)
    if seconds is None:
        return f"{count_of(launch_count(counted), 'layout conversion')}, whose time was not recorded"
    if not kernels.seconds:
        return f"Layout conversions take {format_seconds(seconds)}; the time of all kernels was not recorded"
    waiting = kernels.waiting
    least = "" if kernels.is_complete and "kineto_operations" not in kernels.sources else "at least "
    compute = _compute_seconds(kernels)
    claim = (
        f"Layout conversions take {least}{format_seconds(seconds)} of {format_seconds(compute)} {_time_words(kernels)}"
    )
    claim += " without collectives" if compute < kernels.seconds else ""
    claim += f" ({format_share(seconds / compute)})" if seconds <= compute else ""
    claim += _possible_words(kernels, " more")
    if waiting is None or kernels.lacks or not (of := waiting.step_seconds or waiting.span_seconds):
        return claim
    bound, run = waiting.conversion_bound_seconds, "the run" if waiting.step_seconds is None else "a step"
    what = "both" if kernels.undecided_count else "them"
    return f"{claim}. Without {what} {run} is at most {format_seconds(bound)} shorter ({format_share(bound / of)})"


def _compute_seconds(kernels: KernelSummary) -> float:
    """Returns the time of all kernels except collectives."""
    return (kernels.seconds or 0.0) - (kernels.waiting.collective_seconds if kernels.waiting is not None else 0.0)


def _waiting_note(kernels: KernelSummary) -> Iterator[tuple[str, str]]:
    """Yields how busy the device was, what else ran on it, and what the run waited for."""
    waiting = kernels.waiting
    if waiting is None or not waiting.span_seconds:
        return
    busy, span = waiting.busy_seconds, waiting.span_seconds
    steps = f" in {waiting.step_count} steps" if (waiting.step_count or 0) > 1 else ""
    devices = f", the busiest of {waiting.device_count} devices" if waiting.device_count > 1 else ""
    share = format_share(min(busy / span, 1.0))
    parts = [f"busy {format_seconds(busy)} of {format_seconds(span)} ({share}){steps}{devices}"]
    others = {"collectives": waiting.collective_seconds, "copies by copy engines": waiting.copy_seconds}
    parts += [f"{name} {format_seconds(seconds)}" for name, seconds in others.items() if seconds]
    if waiting.waits_for == "host":
        start = phrase(" (kernels start {} after their launch)", waiting.launch_lag_seconds, format_seconds)
        parts.append(f"the run waited for the host, which the profiler itself slows{start}")
    elif waiting.waits_for == "device":
        mostly = waiting.collective_seconds > busy / 2
        parts.append("collectives most of the time" if mostly else "the run waited for the GPU")
    yield "GPU", "; ".join(parts)


def _convolution_note(kernels: KernelSummary) -> Iterator[tuple[str, str]]:
    """Yields how long convolutions took, and which part of that time the libraries' conversions took."""
    count, whole = kernels.convolution_count, kernels.convolution_seconds
    part = sum_seconds(of_convolutions(kernels, [c for c in kernels.conversions if c.direction != "none"]))
    if count == 0:
        yield "Conv time", "none: no kernel ran for a convolution"
        return
    share = part / whole if part and whole and part <= whole else None
    noun = "convolution" if "operation_averages" in kernels.sources else "kernel"
    known = (
        phrase("{}", count, lambda number: count_of(number, noun)),
        phrase("{}", whole or None, format_seconds),
        phrase("{} of that time in layout conversions", share, format_share),
    )
    if any(known):
        yield "Conv time", joined(known, ", ")


def _work_notes(kernels: KernelSummary) -> Iterator[tuple[str, str]]:
    """Yields other work inside convolutions, and copies that are no layout conversions, if they take much time."""
    compute = _compute_seconds(kernels)
    for kind in ("beside", "moved"):
        found = [total for total in kernels.totals if total.kind == kind]
        seconds = sum(total.seconds for total in found)
        if not compute or seconds < _LEAST_SHARE_OF_WORK * compute:
            continue
        work = listing([f"{total.name} {format_seconds(total.seconds)}" for total in found], 3)
        share = format_share(seconds / compute)
        beside = f"{work} ({share}): work in convolutions besides convolving and layout conversions"
        yield ("Beside", beside) if kind == "beside" else ("Moved", f"{work}, for reasons other than memory formats")


def _conversion_notes(trial: Trial, kind: str, counted: Sequence[Conversion]) -> Iterator[tuple[str, str]]:
    owners = [owner for owner in OWNER_WORDS if any(c.owner == owner for c in counted)]
    parts = []
    for owner in owners:
        own = [conversion for conversion in counted if conversion.owner == owner]
        time = phrase(", {}", sum_seconds(own) if len(owners) > 1 else None, format_seconds)
        ways: Counter[str] = Counter()
        for conversion in own:
            ways[direction_words(conversion)] += conversion.count
        directions = ", ".join(f"{count} {words}" for words, count in ways.most_common())
        parts.append(f"{launch_count(own)} {OWNER_WORDS[owner]}{time} ({directions})")
    tensors = count_by_tensor(counted)
    if tensors.keys() != {"unknown"}:
        parts.append(listing([count_of(count, TENSOR_WORDS[kind]) for kind, count in tensors.items()], None))
    yield "Converts", joined(parts)
    yield "Undone", _round_trips(trial, kind)
    cost: defaultdict[str, float] = defaultdict(float)  # by the user's lines, if the Python stack was recorded
    for conversion in counted:
        if conversion.location is not None and conversion.seconds is not None:
            cost[clean(str(conversion.location), 60)] += conversion.seconds
    if cost:
        costliest = sorted(cost, key=lambda place: -cost[place])
        yield "Lines", listing([f"{place} {format_seconds(cost[place])}" for place in costliest], MOST_SOURCE_LINES)


def _round_trips(trial: Trial, kind: str) -> str:
    """Says how many conversions undo each other, and how certain the round trips are."""
    if not trial.redundant_pairs:
        if kind in _WITHOUT_OPERATIONS_BETWEEN:
            return f"not looked for, because {_WITHOUT_OPERATIONS_BETWEEN[kind]}"
        lacking = trial.kernels is not None and not trial.kernels.is_complete
        return f"no round trip found{' in what was recorded' if lacking else ''}"
    wasted = parts_of_pairs(trial.redundant_pairs, all_conversions_of(trial))  # each conversion once
    seconds = phrase(", {}", sum_if_all_known(*(part.seconds for part in wasted)), format_seconds)
    counts: Counter[str | None] = Counter(pair.confidence for pair in trial.redundant_pairs)
    proofs = [f"{counts[confidence]} {words}" for confidence, words in PROOF_WORDS.items() if counts[confidence]]
    return "; ".join((f"{count_of(len(trial.redundant_pairs), 'round trip')}{seconds}", *proofs))
