"""
Makes the long lists behind a report: measurements, compiler decisions, conversions, round trips, totals, environment.

Formats may fold these lists away. A list is cut to a given length and says how many entries are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.diagnosis import (
    Conversion,
    Convolution,
    Decision,
    Diagnosis,
    Graph,
    Layout,
    LayoutBreaker,
    Measurement,
    RedundantPair,
    SourceLocation,
    TotalKind,
    Trial,
)
from layoutdoctor.examination.counts import all_conversions_of, counted_conversions, launch_count, sum_seconds
from layoutdoctor.reports.sections.rows import TOTAL_HEADS, UNKNOWN_CELL, Table, TableRow, error_cell, total_row
from layoutdoctor.reports.sections.wording import KERNEL_LENGTH, clean, clean_name, shown_name
from layoutdoctor.units import format_bytes, format_seconds, format_share
from layoutdoctor.words import NOT_RECORDED, SWITCH_WORDS, count_of, joined, line_words, listing, phrase

if TYPE_CHECKING:
    _Listed = Conversion | RedundantPair | LayoutBreaker | Convolution

LOG_LENGTH = 1500
_KINDS: tuple[TotalKind, ...] = ("operation", "module", "step", "kernel")
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class Detail:
    """
    One list that a format may fold away.

    Attributes:
        text: Sentences before the table.
        log: Raw lines of a log, not cleaned; empty if there is no log.
    """

    title: str
    table: Table | None = None
    text: tuple[str, ...] = ()
    log: str = ""


def build_details(diagnosis: Diagnosis, most: int) -> tuple[Detail, ...]:
    """Returns all long lists of a diagnosis except its environment, each cut to its first ``most`` entries."""
    details: list[Detail] = []
    ran = [(trial, trial.measurement) for trial in diagnosis.trials if trial.measurement is not None]
    details += _list("Measurements", ran, _MEASUREMENT_CELLS, most)
    for trial in diagnosis.own_trials:
        details += _trial_details(trial, "" if diagnosis.is_recording else f" under {shown_name(trial.name)}", most)
    return tuple(detail for detail in details if detail.table or detail.text or detail.log)


def _trial_details(trial: Trial, under: str, most: int) -> Iterator[Detail]:
    """Yields the lists of one trial; ``under`` names the trial, and is empty for a recorded run."""
    for graph in trial.graphs[:most]:
        if graph.decision is not None:
            yield _decision_card(under, graph, graph.decision, most)
    conversions = sorted(all_conversions_of(trial), key=lambda conversion: -(conversion.seconds or 0.0))
    counted = launch_count(counted_conversions(trial))
    others = launch_count(conversions) - counted
    more = f", and {others} more that are fused" if others else ""
    yield from _records(f"Conversions{under}: {counted}{more}", conversions, most)
    pairs = sorted(trial.redundant_pairs, key=lambda pair: -(pair.seconds or 0.0))
    yield from _records(f"Round trips{under}: {len(pairs)}", pairs, most)
    breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
    yield from _records(f"Layout breakers{under}: {len(breakers)}", breakers, most)
    reasons = trial.graph_break_reasons
    yield from _list(f"Graph breaks{under}: {len(reasons)}", reasons, {"reason": lambda it: clean(it, 300)}, most)
    for kind in _KINDS:
        totals = [total for total in trial.kernel_summary.totals if total.kind == kind]
        if totals:
            title = f"Totals by {kind}{under}: {len(totals)}"
            rows = tuple(TableRow(total_row(total)) for total in totals)
            yield Detail(title, Table((kind, *TOTAL_HEADS), rows, title).first(most))
    yield from log_of(trial)


def log_of(trial: Trial) -> Iterator[Detail]:
    """Yields the end of the log of a trial that failed, if there is one."""
    if trial.failure is not None and trial.failure.log:
        log = _important_part(trial.failure.log)
        yield Detail(f"Log of {shown_name(trial.name)}", text=(clean(trial.failure.message),), log=log)


def _list(
    title: str, entries: Sequence[_Entry], cells: Mapping[str, Callable[[_Entry], str]], most: int
) -> Iterator[Detail]:
    """Yields a list, without columns that are unknown or "no" for all entries; nothing if there is no entry."""
    if entries:
        columns = {name: [cell(entry) for entry in entries[:most]] for name, cell in cells.items()}
        known = {name: column for name, column in columns.items() if not set(column) <= {UNKNOWN_CELL, "no"}}
        rows = tuple(map(TableRow, zip(*known.values(), strict=True)))
        left_out = max(0, len(entries) - most)
        yield Detail(title, Table(tuple(known), rows, title, left_out=left_out) if rows else None)


def _important_part(log: str) -> str:
    """Returns the end of a log, which has the error; after a crash of Python, the innermost calls in the log."""
    stack = max(log.find("Current thread 0x"), log.rfind("\nThread 0x"))
    part = log[stack:][:LOG_LENGTH] if stack >= 0 else log[-LOG_LENGTH:]
    if len(part) == len(log):
        return log
    lines = part.splitlines()
    return "\n".join(lines[:-1] if stack >= 0 else lines[1:]) if len(lines) > 1 else part


def _conversion_time(trial: Trial) -> str:
    if trial.kernels is None:
        return NOT_RECORDED
    spent, whole = sum_seconds(counted_conversions(trial)), trial.kernels.seconds
    if spent is None:
        return UNKNOWN_CELL
    return format_seconds(spent) + (f" ({format_share(spent / whole)})" if whole else "")


def _decision_card(under: str, graph: Graph, decision: Decision, most: int) -> Detail:
    counts = f"{decision.channels_last_convolution_count} of {decision.convolution_count}"
    verdict = f"{SWITCH_WORDS[decision.applied]} ({clean_name(decision.rule)}): {clean(decision.explanation)}"
    text = [f"Layout optimization {verdict}. {counts} convolutions made channels-last."]
    if decision.log:
        text.append(f"torch's own log: {clean(decision.log, 300)}")
    title = f"Decision{under}: {clean_name(graph.name)}, {graph.direction}"
    listed = next(_records(title, decision.convolutions, most), Detail(title))
    return replace(listed, text=tuple(text))


def _shape(sizes: Sequence[int | str]) -> str:
    return clean_name(f"[{', '.join(str(size) for size in sizes)}]")


def _layout(layout: Layout) -> str:
    names = clean_name(layout.format or " or ".join(layout.memory_formats))
    if names:
        return f"{names} {_shape(layout.shape)}"
    return _shape(layout.shape) + phrase(" stride {}", layout.stride, _shape)


_NOT_SHOWN = frozenset(
    "bandwidth_share dilation evidence graph kind of_batch padding port required_by role source_value "
    "start_seconds stream stride value".split()
)
_HEADS = {"class_": "class", "exposed_seconds": "not overlapped", "seconds": "time", "seconds_source": "time is"}


def _records(title: str, records: Sequence[_Listed], most: int) -> Iterator[Detail]:
    """Yields a list with a column for each field of its records; most columns have the field's name in JSON."""
    if records:
        names = [name for name in records[0].__struct_fields__ if name not in _NOT_SHOWN]
        cells = {_HEADS.get(name, name.replace("_", " ")): partial(_field, name) for name in names}
        yield from _list(title, records, cells, most)


def _field(name: str, record: _Listed | Measurement | Trial) -> str:
    value: object = getattr(record, name)
    if value in (None, (), ""):
        return UNKNOWN_CELL
    if isinstance(value, Layout):
        return _layout(value)
    if isinstance(value, SourceLocation):
        return clean(line_words(value, with_folders=True), 200)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):  # every shown float is a time: bandwidth_share is not shown
        return format_seconds(value)
    if isinstance(value, int) and "bytes" in name:
        return format_bytes(value)
    if isinstance(value, tuple):
        return _shape(value) if name.endswith("shape") else listing([clean_name(str(part)) for part in value], 6)
    return clean(str(value), KERNEL_LENGTH if name == "kernel" else 300)


_MEASUREMENT_CELLS: Mapping[str, Callable[[tuple[Trial, Measurement]], str]] = {
    "configuration": lambda it: shown_name(it[0].name),
    "rounds": lambda it: str(len(it[1].round_seconds)),
    "calls per round": lambda it: str(it[1].calls_per_round),
    "first call": lambda it: _field("compile_seconds", it[1]),
    "peak memory": lambda it: _field("peak_memory_bytes", it[1]),
    "kernel time": lambda it: _field("kernel_seconds", it[0]),
    "in conversions": lambda it: _conversion_time(it[0]),
    "outputs": lambda it: error_cell(it[0].equivalence),
}


def build_environment(diagnosis: Diagnosis, most: int) -> Detail:
    """Returns the subject, the machine and the versions, as far as known, with at most ``most`` inputs and settings."""
    environment, subject = diagnosis.environment, diagnosis.subject
    formats = (f"{count_of(count, 'tensor')} {name}" for name, count in subject.parameter_formats.items())
    inputs = {
        f"input {tensor.name or i}": f"{tensor.dtype} {_shape(tensor.shape)} "
        f"{' or '.join(tensor.memory_formats) or 'in no memory format'}"
        for i, tensor in enumerate(subject.inputs[:most])
    }
    hertz, limits = environment.clock_hertz, listing(environment.clock_limits, None)
    facts: dict[str, object] = {
        "model": subject.model,
        "parameters": subject.parameter_count,
        "parameter formats": ", ".join(formats),
        **inputs,
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
        "clock": f"{hertz / 1e6:.0f} MHz{f', limited by {limits}' if limits else ''}" if hertz else None,
        "cuDNN": environment.cudnn,
        "compiler": environment.compiler,
        **dict(list(environment.settings.items())[:most]),
    }
    known = [(clean_name(name), clean(str(fact), 200)) for name, fact in facts.items() if fact not in (None, "")]
    rows = tuple(map(TableRow, known))
    left_out = max(0, len(subject.inputs) - most) + max(0, len(environment.settings) - most)
    verb = "Examined" if diagnosis.is_recording else "Recorded"  # a trace hardly ever says when it was recorded
    table = Table(("what", "value"), rows, title="Environment", left_out=left_out)
    return Detail("Environment", table, (f"{verb} at {clean_name(diagnosis.created_at)}.",))
