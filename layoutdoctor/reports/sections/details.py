"""
The long lists behind a report: measurements, decision cards, conversions, round trips, totals, environment.

For formats that can fold them away. Lists are cut to a given length and say how many entries are left out.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.examination.costs import counted_conversions, launch_count, sum_seconds
from layoutdoctor.reports.sections.rows import (
    UNKNOWN,
    Table,
    TableRow,
    error_cell,
    total_cells,
    total_heads,
    total_name,
)
from layoutdoctor.reports.sections.wording import (
    KERNEL_LENGTH,
    clean,
    clean_name,
    direction_words,
    is_recording,
    listed_conversions,
    place_of,
    shown_name,
)
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import CONFIDENCE_WORDS, NOT_RECORDED, SWITCH_WORDS, count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import (
        Conversion,
        Convolution,
        Decision,
        Diagnosis,
        Environment,
        Graph,
        InputTensor,
        LayoutBreaker,
        RedundantPair,
        Total,
        TotalKind,
        Trial,
    )

LOG_LENGTH = 1500
_STACK_HEAD = re.compile(r"(Current t|T)hread 0x[0-9a-f]+")  # as faulthandler writes it
_KINDS: tuple[TotalKind, ...] = ("operation", "module", "step", "kernel")
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Detail:
    """
    One list that a format may fold away.

    Attributes:
        text: Sentences before the table.
        log: Raw lines, as they were; None where there is no log.
    """

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left_out: int = 0
    text: tuple[str, ...] = ()
    log: str | None = None

    @property
    def table(self) -> Table | None:
        """The list as a table of a report; None if it is empty."""
        rows = tuple(TableRow(row) for row in self.rows)
        return Table(self.head, rows, title=self.title, left_out=self.left_out) if rows else None


def build_details(diagnosis: Diagnosis, most: int) -> tuple[Detail, ...]:
    """All long lists of a diagnosis, the costliest entries first, cut to so many."""
    details: list[Detail] = []
    ran = [trial for trial in diagnosis.trials if trial.measurement is not None]
    details += _list("Measurements", ran, _MEASUREMENT_CELLS, most)
    for trial in (trial for trial in diagnosis.trials if trial.status != "same_as"):
        details += _trial_details(trial, None if is_recording(diagnosis) else shown_name(trial.name), most)
    details.append(_environment(diagnosis, most))
    return tuple(detail for detail in details if detail.rows or detail.text or detail.log)


def _trial_details(trial: Trial, name: str | None, most: int) -> Iterator[Detail]:
    """The lists of one trial; a recorded run has no name."""
    under = "" if name is None else f" under {name}"
    for graph in trial.graphs[:most]:
        if graph.decision is not None:
            yield _decision_card(under, graph, graph.decision, most)
    conversions = sorted(listed_conversions(trial).values(), key=lambda conversion: -(conversion.seconds or 0.0))
    counted = launch_count(counted_conversions(trial))
    title = f"Conversions{under}: {counted}{_more(launch_count(conversions) - counted)}"
    yield from _list(title, conversions, _CONVERSION_CELLS, most)
    pairs = sorted(trial.redundant_pairs, key=lambda pair: -(pair.seconds or 0.0))
    yield from _list(f"Round trips{under}: {len(pairs)}", pairs, _PAIR_CELLS, most)
    breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
    yield from _list(f"Layout breakers{under}: {len(breakers)}", breakers, _BREAKER_CELLS, most)
    reasons = trial.graph_break_reasons
    yield from _list(f"Graph breaks{under}: {len(reasons)}", reasons, {"reason": lambda it: clean(it, 300)}, most)
    for kind in _KINDS:
        totals = [total for total in trial.kernels.totals if total.kind == kind] if trial.kernels is not None else []
        if totals:
            head = (kind, *(("library",) if kind == "kernel" else ()), *total_heads(kind))
            rows = tuple((total_name(total), *_library(total), *total_cells(total)) for total in totals[:most])
            yield Detail(f"Totals by {kind}{under}: {len(totals)}", head, rows, left_out_of(totals, most))
    if trial.failure is not None and trial.failure.log and most:
        yield Detail(f"Log of {name}", text=(clean(trial.failure.message),), log=_telling_part(trial.failure.log))


def _more(count: int) -> str:
    """How many are listed beside those that are counted, and why they are not."""
    return f", and {count} more that other kernels do on the way or that change no layout" if count > 0 else ""


def _list(
    title: str, entries: Sequence[_Entry], cells: Mapping[str, Callable[[_Entry], str]], most: int
) -> Iterator[Detail]:
    """A list with a column for each cell of which something is known; none if there is no entry."""
    if entries:
        columns = {name: [cell(entry) for entry in entries[:most]] for name, cell in cells.items()}
        known = {name: column for name, column in columns.items() if set(column) != {UNKNOWN}}
        yield Detail(title, tuple(known), tuple(zip(*known.values(), strict=True)), left_out_of(entries, most))


def _telling_part(log: str) -> str:
    """
    The part of a log that a report has room for, in whole lines: its end, where a traceback names its error.

    Of a stack that Python wrote as it died or hung it is the beginning, which is the last call; the main thread's
    stack comes last where none is called the current one.
    """
    if len(log) <= LOG_LENGTH:
        return log
    lines = log.splitlines()
    stacks = [number for number, line in enumerate(lines) if _STACK_HEAD.match(line)]
    current = [number for number in stacks if lines[number].startswith("Current")]
    ordered = lines[(current or stacks)[-1] :] if stacks else lines[::-1]
    lengths = itertools.accumulate(len(line) + 1 for line in ordered)
    kept = [line for line, length in zip(ordered, lengths, strict=True) if length <= LOG_LENGTH]
    kept = kept or [ordered[0][:LOG_LENGTH]]
    return "\n".join(kept if stacks else kept[::-1])


def left_out_of(entries: Sequence[object], most: int) -> int:
    """How many entries of a list are not shown."""
    return max(0, len(entries) - most)


def _conversion_time(trial: Trial) -> str:
    if trial.kernels is None:
        return NOT_RECORDED
    spent, whole = sum_seconds(counted_conversions(trial)), trial.kernels.seconds
    return seconds_cell(spent) + (f" ({format_share(spent / whole)})" if spent is not None and whole else "")


def seconds_cell(value: float | None) -> str:
    """A time in a table; None where not known."""
    return UNKNOWN if value is None else format_seconds(value)


def bytes_cell(value: int | None) -> str:
    """How many bytes in a table; None where not known."""
    return UNKNOWN if value is None else format_bytes(value)


def _decision_card(under: str, graph: Graph, decision: Decision, most: int) -> Detail:
    counts = f"{decision.channels_last_convolution_count} of {decision.convolution_count}"
    verdict = f"{SWITCH_WORDS[decision.applied]} ({clean_name(decision.rule)}): {clean(decision.explanation)}"
    text = [f"Layout optimization {verdict}. {counts} convolutions made channels-last."]
    if decision.deciding_nodes:
        text.append(f"Decided by {listing([clean_name(node) for node in decision.deciding_nodes], max(most, 1))}.")
    if decision.log:
        text.append(f"torch's own log: {clean(decision.log, 300)}")
    title = f"Decision{under}: {clean_name(graph.name)}, {graph.direction}"
    listed = next(_list(title, decision.convolutions, _CONVOLUTION_CELLS, most), Detail(title))
    return replace(listed, text=tuple(text))


def shape_cell(sizes: Sequence[int | str]) -> str:
    """A shape, or strides, in a table: ``"[4, 64, 56, 56]"``."""
    return clean_name(f"[{', '.join(str(size) for size in sizes)}]")


def _layout(layout: Layout | None) -> str:
    if layout is None:
        return UNKNOWN
    if layout.format is not None:
        return f"{clean_name(layout.format)} {shape_cell(layout.shape)}"
    formats = " or ".join(layout.memory_formats)
    if formats:
        return f"{formats} {shape_cell(layout.shape)}"
    return f"{shape_cell(layout.shape)}" + (f" stride {shape_cell(layout.stride)}" if layout.stride is not None else "")


def _tensor(conversion: Conversion) -> str:
    return conversion.tensor + (" (fused)" if conversion.fused else "")


def _target(conversion: Conversion) -> str:
    if conversion.target is None or conversion.direction == "none":
        return direction_words(conversion)
    return _layout(conversion.target)


def _time(entry: Conversion | RedundantPair) -> str:
    return seconds_cell(entry.seconds) + (" (estimated)" if entry.seconds_source == "estimated" else "")


def where_cell(conversion: Conversion) -> str:
    """Where a conversion is: its line and module, else its operation."""
    return place_of(conversion.location, conversion.module) or clean_name(conversion.op or UNKNOWN)


def _members(pair: RedundantPair) -> str:
    return ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also, pair.second))


def _between(pair: RedundantPair) -> str:
    return listing([clean_name(op) for op in pair.between], 6) or "nothing"


def _place(entry: RedundantPair | LayoutBreaker) -> str:
    return place_of(entry.location, entry.module) or UNKNOWN


_MEASUREMENT_CELLS: Mapping[str, Callable[[Trial], str]] = {
    "configuration": lambda trial: shown_name(trial.name),
    "rounds": lambda trial: str(len(trial.measurement.round_seconds)) if trial.measurement else UNKNOWN,
    "calls per round": lambda trial: str(trial.measurement.calls_per_round) if trial.measurement else UNKNOWN,
    "first call": lambda trial: seconds_cell(trial.measurement.compile_seconds if trial.measurement else None),
    "peak memory": lambda trial: bytes_cell(trial.measurement.peak_memory_bytes if trial.measurement else None),
    "kernel time": lambda trial: (
        NOT_RECORDED if trial.kernels is None or trial.kernels.seconds is None else seconds_cell(trial.kernels.seconds)
    ),
    "in conversions": _conversion_time,
    "outputs": lambda trial: error_cell(trial.equivalence),
}
_CONVOLUTION_CELLS: Mapping[str, Callable[[Convolution], str]] = {
    "convolution": lambda it: clean_name(it.node),
    "class": lambda it: it.class_,
    "weight": lambda it: UNKNOWN if it.weight_shape is None else shape_cell(it.weight_shape),
    "groups": lambda it: UNKNOWN if it.groups is None else str(it.groups),
    "channels-last": lambda it: {True: "yes", False: "no", None: NOT_RECORDED}[it.channels_last],
    "where": lambda it: place_of(it.location, it.module) or UNKNOWN,
}
_CONVERSION_CELLS: Mapping[str, Callable[[Conversion], str]] = {
    "id": lambda conversion: clean_name(conversion.id),
    "owner": lambda conversion: conversion.owner,
    "kernel": lambda conversion: clean(conversion.kernel, KERNEL_LENGTH) if conversion.kernel else UNKNOWN,
    "tensor": _tensor,
    "from": lambda conversion: _layout(conversion.source),
    "to": _target,
    "count": lambda conversion: str(conversion.count) if conversion.count > 1 else UNKNOWN,
    "time": _time,
    "alone": lambda conversion: seconds_cell(conversion.exposed_seconds),
    "bytes": lambda conversion: bytes_cell(conversion.bytes_moved),
    "rests on": lambda conversion: CONFIDENCE_WORDS[conversion.confidence] if conversion.confidence else UNKNOWN,
    "step": lambda conversion: clean_name(conversion.step) if conversion.step else UNKNOWN,
    "why": lambda conversion: clean(conversion.cause, 160) if conversion.cause else UNKNOWN,
    "where": where_cell,
}
"""``alone``: the part of the time in which nothing else ran on the device."""
_PAIR_CELLS: Mapping[str, Callable[[RedundantPair], str]] = {
    "conversions": _members,
    "tensor": lambda pair: shape_cell(pair.tensor_shape) if pair.tensor_shape else UNKNOWN,
    "between": _between,
    "time": _time,
    "alone": lambda pair: seconds_cell(pair.exposed_seconds),
    "bytes": lambda pair: bytes_cell(pair.bytes_moved),
    "rests on": lambda pair: CONFIDENCE_WORDS[pair.confidence] if pair.confidence else UNKNOWN,
    "why it may go": lambda pair: clean(pair.proof, 300) if pair.proof else UNKNOWN,
    "where": _place,
}
_BREAKER_CELLS: Mapping[str, Callable[[LayoutBreaker], str]] = {
    "operation": lambda breaker: clean_name(breaker.op),
    "given": lambda breaker: _layout(breaker.source),
    "returned": lambda breaker: _layout(breaker.target),
    "conversions": lambda breaker: listing([clean_name(id_) for id_ in breaker.conversions], 4) or UNKNOWN,
    "time": lambda breaker: seconds_cell(breaker.seconds),
    "bytes": lambda breaker: bytes_cell(breaker.bytes_moved),
    "where": _place,
}


def _library(total: Total) -> tuple[str, ...]:
    return (clean_name(total.library) if total.library else UNKNOWN,) if total.kind == "kernel" else ()


def _environment(diagnosis: Diagnosis, most: int) -> Detail:
    """What was diagnosed, on which machine, with which versions, as far as known; at most so many inputs, settings."""
    environment, subject = diagnosis.environment, diagnosis.subject
    facts: dict[str, object] = {
        "model": subject.model,
        "parameters": subject.parameter_count,
        "parameter formats": _counts(subject.parameter_formats),
        **{f"input {tensor.name or i}": _input(tensor) for i, tensor in enumerate(subject.inputs[:most])},
        "command": environment.command,
        "torch": environment.torch,
        "triton": environment.triton,
        "python": environment.python,
        "platform": environment.platform,
        "processor or GPU": environment.device_name,
        "threads": environment.thread_count,
        "oneDNN": joined((environment.onednn, environment.onednn_isa), " "),
        "CUDA": environment.cuda,
        "driver": environment.driver,
        "clock": _clock(environment),
        "cuDNN": environment.cudnn,
        "compiler": environment.compiler,
        **dict(list(environment.settings.items())[:most]),
    }
    rows = tuple((clean_name(name), clean(str(fact), 200)) for name, fact in facts.items() if fact not in (None, ""))
    left_out = left_out_of(subject.inputs, most) + left_out_of(tuple(environment.settings), most)
    verb = "Examined" if is_recording(diagnosis) else "Recorded"  # a trace hardly ever says when it was recorded
    return Detail("Environment", ("what", "value"), rows, left_out, (f"{verb} at {clean_name(diagnosis.created_at)}.",))


def _clock(environment: Environment) -> str | None:
    if environment.clock_hertz is None:
        return None
    limits = f", held down by {listing(environment.clock_limits, None)}" if environment.clock_limits else ""
    return f"{environment.clock_hertz / 1e6:.0f} MHz{limits}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count_of(count, 'tensor')} {name}" for name, count in counts.items())


def _input(tensor: InputTensor) -> str:
    formats = " or ".join(tensor.memory_formats) or "in no memory format"
    return f"{tensor.dtype} {shape_cell(tensor.shape)} {formats}"
