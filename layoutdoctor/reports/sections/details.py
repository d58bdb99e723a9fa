"""
The long lists behind a report: measurements, decision cards, conversions, round trips, graph breaks, environment.

For formats that can fold them away. Lists are cut to a given length and say how many entries are left out.
Faces the formats; imports records, units and the sums only.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, sum_seconds
from layoutdoctor.reports.sections.wording import (
    NOT_RECORDED,
    clean,
    clean_name,
    count_of,
    cut_list,
    format_error,
    place_of,
)
from layoutdoctor.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import (
        Conversion,
        Decision,
        Diagnosis,
        Equivalence,
        Graph,
        InputTensor,
        LayoutBreaker,
        RedundantPair,
        Trial,
    )

LOG_LENGTH = 1500
_STACK_HEAD = re.compile(r"(Current t|T)hread 0x[0-9a-f]+")  # as faulthandler writes it
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Detail:
    """
    One list that a format may fold away.

    Attributes:
        title: What it lists, for which configuration.
        head: Column heads; empty where there is no table.
        rows: Cells.
        left_out: Entries that are not in ``rows``.
        text: Sentences before the table.
        log: Raw lines, as they were; None where there is no log.
        about: The configuration it is about, for a format that puts these together; None where it is about several.
    """

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left_out: int = 0
    text: tuple[str, ...] = ()
    log: str | None = None
    about: str | None = None


def build_details(diagnosis: Diagnosis, most: int) -> tuple[Detail, ...]:
    """
    All long lists of a diagnosis.

    Args:
        diagnosis: Any diagnosis.
        most: Entries to keep of each list.
    """
    details = [_measurements(diagnosis, most)] if diagnosis.subject.target is None else []
    for trial in (trial for trial in diagnosis.trials if trial.status != "same_as"):
        details += [replace(detail, about=clean_name(trial.name)) for detail in _trial_details(trial, most)]
    details.append(environment_detail(diagnosis, most))
    return tuple(detail for detail in details if detail.rows or detail.text or detail.log)


def _trial_details(trial: Trial, most: int) -> Iterator[Detail]:
    name = clean_name(trial.name)
    for graph in trial.graphs[:most]:
        if graph.decision is not None:
            yield _decision_card(name, graph, graph.decision, most)
    conversions = tuple({c.id: c for c in _listed_conversions(trial)}.values())
    if conversions:
        yield Detail(
            f"Conversions under {name}: {len(conversions)} listed, {len(counted_conversions(trial))} counted",
            ("id", "owner", "tensor", "from", "to", "time", "bytes", "why", "where"),
            tuple(_conversion_row(conversion) for conversion in conversions[:most]),
            left_out_of(conversions, most),
        )
    if trial.redundant_pairs:
        yield Detail(
            f"Round trips under {name}: {len(trial.redundant_pairs)}",
            ("conversions", "between", "time", "bytes", "why it may go", "where"),
            tuple(_pair_row(pair) for pair in trial.redundant_pairs[:most]),
            left_out_of(trial.redundant_pairs, most),
        )
    breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
    if breakers:
        yield Detail(
            f"Layout breakers under {name}: {len(breakers)}",
            ("operation", "given", "returned", "conversions", "time", "bytes", "where"),
            tuple(_breaker_row(breaker) for breaker in breakers[:most]),
            left_out_of(breakers, most),
        )
    if trial.graph_break_reasons:
        reasons = tuple((clean(reason, 300),) for reason in trial.graph_break_reasons[:most])
        left_out = left_out_of(trial.graph_break_reasons, most)
        yield Detail(f"Graph breaks under {name}: {len(trial.graph_break_reasons)}", ("reason",), reasons, left_out)
    if trial.failure is not None and trial.failure.log and most:
        yield Detail(f"Log of {name}", text=(clean(trial.failure.message),), log=_telling_part(trial.failure.log))


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
    """
    How many entries of a list are not shown.

    Args:
        entries: The whole list.
        most: Entries to show.
    """
    return max(0, len(entries) - most)


def _listed_conversions(trial: Trial) -> Iterable[Conversion]:
    if trial.kernels is not None:
        yield from trial.kernels.conversions
    for graph in trial.graphs:
        yield from graph.conversions


def _measurements(diagnosis: Diagnosis, most: int) -> Detail:
    trials = [trial for trial in diagnosis.trials if trial.status == "ok"]
    return Detail(
        "Measurements",
        (
            "configuration",
            "rounds",
            "calls per round",
            "first call",
            "peak memory",
            "kernel time",
            "in conversions",
            "outputs",
        ),
        tuple(_measurement_row(trial) for trial in trials[:most]),
        left_out_of(trials, most),
    )


def _measurement_row(trial: Trial) -> tuple[str, ...]:
    measurement, kernels = trial.measurement, trial.kernels
    spent = sum_seconds(counted_conversions(trial)) if kernels else None
    known = kernels.seconds if kernels else None
    share = f" ({format_share(spent / known)})" if spent is not None and known else ""
    return (
        clean_name(trial.name),
        str(len(measurement.round_seconds)) if measurement else UNKNOWN,
        str(measurement.calls_per_round) if measurement else UNKNOWN,
        seconds_cell(measurement.compile_seconds if measurement else None),
        _bytes(measurement.peak_memory_bytes if measurement else None),
        seconds_cell(known) if known is not None else NOT_RECORDED,
        seconds_cell(spent) + share if kernels else NOT_RECORDED,
        _equivalence_cell(trial.equivalence),
    )


def seconds_cell(value: float | None) -> str:
    """
    A time in a table.

    Args:
        value: In seconds; None where not known.
    """
    return UNKNOWN if value is None else format_seconds(value)


def _bytes(value: int | None) -> str:
    return UNKNOWN if value is None else format_bytes(value)


def _equivalence_cell(equivalence: Equivalence | None) -> str:
    if equivalence is None or equivalence.status == "not_checked":
        return "not checked"
    if equivalence.max_abs_error is None:
        return equivalence.status
    allowed = "" if equivalence.tolerance is None else f" of {format_error(equivalence.tolerance)} allowed"
    return f"{equivalence.status}, {format_error(equivalence.max_abs_error)}{allowed}"


def _decision_card(name: str, graph: Graph, decision: Decision, most: int) -> Detail:
    applied = {True: "on", False: "off", None: NOT_RECORDED}[decision.applied]
    counts = (
        f"{decision.channels_last_convolution_count} of {decision.convolution_count} convolutions made channels-last"
    )
    text = [f"Layout optimization {applied} ({clean_name(decision.rule)}): {clean(decision.explanation)}. {counts}."]
    if decision.deciding_nodes:
        text.append(f"Decided by {cut_list([clean_name(node) for node in decision.deciding_nodes], max(most, 1))}.")
    if decision.log:
        text.append(f"torch's own log: {clean(decision.log, 300)}")
    return Detail(
        f"Decision under {name}: {clean_name(graph.name)}, {graph.direction}",
        ("convolution", "class", "weight", "groups", "channels-last", "where"),
        tuple(
            (
                clean_name(convolution.node),
                convolution.class_,
                UNKNOWN if convolution.weight_shape is None else shape_cell(convolution.weight_shape),
                UNKNOWN if convolution.groups is None else str(convolution.groups),
                {True: "yes", False: "no", None: NOT_RECORDED}[convolution.channels_last],
                place_of(convolution.location, convolution.module) or UNKNOWN,
            )
            for convolution in decision.convolutions[:most]
        ),
        left_out_of(decision.convolutions, most),
        tuple(text),
    )


def shape_cell(sizes: tuple[int | str, ...]) -> str:
    """
    A shape, or strides, in a table: ``"[4, 64, 56, 56]"``.

    Args:
        sizes: As recorded.
    """
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


def _conversion_row(conversion: Conversion) -> tuple[str, ...]:
    remark = "" if conversion.direction != "none" else " (no layout change)"
    fused = " (fused)" if conversion.fused else ""
    return (
        clean_name(conversion.id),
        conversion.owner,
        conversion.tensor + remark + fused,
        _layout(conversion.source),
        _layout(conversion.target),
        seconds_cell(conversion.seconds) + (" (estimated)" if conversion.seconds_source == "estimated" else ""),
        _bytes(conversion.bytes_moved),
        clean(conversion.cause, 160) if conversion.cause else UNKNOWN,
        place_of(conversion.location, conversion.module) or clean_name(conversion.op or UNKNOWN),
    )


def _breaker_row(breaker: LayoutBreaker) -> tuple[str, ...]:
    return (
        clean_name(breaker.op),
        _layout(breaker.source),
        _layout(breaker.target),
        cut_list([clean_name(id_) for id_ in breaker.conversions], 4) or UNKNOWN,
        seconds_cell(breaker.seconds),
        _bytes(breaker.bytes_moved),
        place_of(breaker.location, breaker.module) or UNKNOWN,
    )


def _pair_row(pair: RedundantPair) -> tuple[str, ...]:
    return (
        ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also, pair.second)),
        cut_list([clean_name(op) for op in pair.between], 6) or "nothing",
        seconds_cell(pair.seconds) + (" (estimated)" if pair.seconds_source == "estimated" else ""),
        _bytes(pair.bytes_moved),
        clean(pair.proof, 300) if pair.proof else NOT_RECORDED,
        place_of(pair.location, pair.module) or UNKNOWN,
    )


def environment_detail(diagnosis: Diagnosis, most: int) -> Detail:
    """
    What was diagnosed, on which machine, with which versions, as far as known.

    Args:
        diagnosis: Any diagnosis.
        most: Inputs and settings to keep.
    """
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
        "oneDNN": " ".join(part for part in (environment.onednn, environment.onednn_isa) if part),
        "CUDA": environment.cuda,
        "cuDNN": environment.cudnn,
        "compiler": environment.compiler,
        **dict(list(environment.settings.items())[:most]),
    }
    rows = tuple((clean_name(name), clean(str(fact), 200)) for name, fact in facts.items() if fact not in (None, ""))
    left_out = left_out_of(subject.inputs, most) + left_out_of(tuple(environment.settings), most)
    return Detail(
        "Environment", ("what", "value"), rows, left_out, (f"Recorded at {clean_name(diagnosis.created_at)}.",)
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count_of(count, 'tensor')} {name}" for name, count in counts.items())


def _input(tensor: InputTensor) -> str:
    formats = " or ".join(tensor.memory_formats) or "in no memory format"
    return f"{tensor.dtype} {shape_cell(tensor.shape)} {formats}"
