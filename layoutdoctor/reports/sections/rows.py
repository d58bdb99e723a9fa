"""The tables of a report, every cell as text: configurations, fastest first; of a recorded run, costly places."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import Total
from layoutdoctor.examination.costs import count_by_tensor, counted_conversions
from layoutdoctor.reports.sections.wording import (
    KERNEL_LENGTH,
    NAME_LENGTH,
    clean,
    clean_name,
    failure_clause,
    find_ratio,
    format_error,
    is_recording,
    precise_share,
    recorded_trial,
    shown_name,
)
from layoutdoctor.units import format_bytes, format_ratio, format_seconds
from layoutdoctor.words import NOT_RECORDED, count_of, joined, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Equivalence, Graph, KernelSummary, Ratio, TotalKind, Trial

UNKNOWN = "-"
_NUMBER = re.compile(r"[<~]?\d[\d.,]*( ?(ns|us|ms|s|B|KiB|MiB|GiB|TiB|%|x))?( \(.*\))?")
MOST_PLACES = 8
WORTH_A_MODULE = 0.5
"""Modules are shown in place of operations where they hold at least this part of the operations' conversion time."""

_DIRECTIONS = {"inference": "", "forward": "forward ", "backward": "backward "}


@dataclass(frozen=True, slots=True)
class TableRow:
    """
    One row of a table, ready to be laid out.

    Attributes:
        cells: As many as the table has heads; with a clause, the first alone.
        clause: In place of all cells after the first; None for an ordinary row.
    """

    cells: tuple[str, ...]
    clause: str | None = None
    is_recommended: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of a report, the same for all formats.

    Attributes:
        clause_column: Where a format that cannot let a clause span the other columns puts it.
        wraps_names: Whether names in the first column may be broken over several lines where they are long.
        is_long: Whether it lists everything there is, so that a format may fold it away.
        left_out: How many rows it was cut by.
        narrow_count: How many columns a terminal shows; None for all.
        below: Lines to set below it.
    """

    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    clause_column: int = 1
    wraps_names: bool = False
    title: str = ""
    is_long: bool = False
    left_out: int = 0
    narrow_count: int | None = None
    below: tuple[str, ...] = ()

    @property
    def narrow(self) -> Table:
        """The table with as many columns as fit on a terminal."""
        rows = tuple(replace(row, cells=row.cells[: self.narrow_count]) for row in self.rows)
        return replace(self, head=self.head[: self.narrow_count], rows=rows)

    @property
    def is_number(self) -> list[bool]:
        """Of each column, whether its cells are numbers."""
        columns = zip(*(row.cells for row in self.rows if row.clause is None), strict=True)
        known = [[cell for cell in column if cell not in (UNKNOWN, "")] for column in columns] or [[]] * len(self.head)
        return [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in known]


@dataclass(frozen=True, slots=True)
class Overview:
    """A report of tables before it is laid out; what matters most comes first, and a format may show some rows only."""

    title: tuple[str, ...]
    headline: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]


def build_tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """
    The configurations; of a recorded run, the places where conversions cost most, the costliest first, and the steps in
    their order where there are several, and nothing where no place has a conversion.
    """
    if not is_recording(diagnosis):
        return (_configurations(diagnosis),)
    trial = recorded_trial(diagnosis)
    return _places(trial.kernels) if trial is not None and trial.kernels is not None else ()


def _configurations(diagnosis: Diagnosis) -> Table:
    """The configurations by their ratio to the baseline, then those without a time, then those without a result."""
    is_timed = diagnosis.subject.target is None
    baseline = diagnosis.comparison.baseline if diagnosis.comparison else BASELINE
    recommended = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    against = f"against {'the default' if baseline == BASELINE else shown_name(baseline)}"
    cells: dict[str, Callable[[Trial], str]] = {
        "converted per call": conversions_cell,
        "layout optimization": decision_cell,
    }
    if is_timed:
        times: dict[str, Callable[[Trial], str]] = {"per call": _time_cell, against: partial(_ratio_cell, diagnosis)}
        cells = {**times, **cells, "error": lambda trial: error_cell(trial.equivalence)}
    rows = []
    for trial in sorted(diagnosis.trials, key=partial(_place_in_table, diagnosis)):
        name, is_ok = shown_name(trial.name), trial.status == "ok"
        if trial.status != "same_as":
            row = (name, *(cell(trial) for cell in cells.values())) if is_ok else (name,)
            rows.append(TableRow(row, None if is_ok else failure_clause(trial), recommended == trial.name))
    same = dict.fromkeys(trial.same_as for trial in diagnosis.trials if trial.same_as is not None)
    return Table(
        ("configuration", *cells),
        tuple(rows),
        clause_column=2 if is_timed else 1,
        title="Configurations, fastest first",
        narrow_count=4 if is_timed else None,
        below=tuple(_same_line(diagnosis, name, baseline) for name in same),
    )


def _place_in_table(diagnosis: Diagnosis, trial: Trial) -> tuple[int, float]:
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is not None or (diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline):
        return 0, -ratio.median if ratio is not None else -1.0
    return (1, trial.measurement.median_seconds) if trial.measurement is not None else (2 + (trial.status != "ok"), 0.0)


def _same_line(diagnosis: Diagnosis, name: str, baseline: str) -> str:
    others = [trial for trial in diagnosis.trials if trial.same_as == name]
    alike = "the same code as" if all(trial.configuration.backend == "inductor" for trial in others) else "the same as"
    of = "the default" if name == baseline == BASELINE else shown_name(name)
    return f"{alike} {of}: {'; '.join(shown_name(trial.name) for trial in others)}"


def _time_cell(trial: Trial) -> str:
    return format_seconds(trial.measurement.median_seconds) if trial.measurement else "not measured"


def _ratio_cell(diagnosis: Diagnosis, trial: Trial) -> str:
    differs = trial.equivalence is not None and trial.equivalence.status == "different"
    remark = "  outputs differ" if differs else ""
    if diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline:
        return f"1{remark}"
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is None:
        return (UNKNOWN if trial.measurement else "") + remark
    return format_interval(ratio) + remark


def format_interval(ratio: Ratio) -> str:
    """A ratio with its interval: ``"1.28x  1.25 to 1.31"``."""
    return f"{format_ratio(ratio.median)}  {ratio.low:.2f} to {ratio.high:.2f}"


def error_cell(equivalence: Equivalence | None) -> str:
    """The error against the reference: relative, else the largest difference and what is allowed."""
    if equivalence is None or equivalence.status == "not_checked":
        return "not checked"
    differs = "differs, " if equivalence.status == "different" else ""
    relative = equivalence.relative_error
    if relative is not None:
        return f"{differs}{format_error(relative)}"
    if equivalence.max_abs_error is None:
        return equivalence.status
    allowed = "" if equivalence.tolerance is None else f" of {format_error(equivalence.tolerance)} allowed"
    return f"{differs}{format_error(equivalence.max_abs_error)}{allowed}"


def conversions_cell(trial: Trial) -> str:
    """The conversions of a trial that run on their own, by tensor; never "nothing" where nothing was recorded."""
    text = ", ".join(tensors_in_short(trial))
    if trial.is_static:
        return f"{text or 'nothing'}{_moved(trial)}"
    if trial.kernels is None:
        return f"{text} in graphs; kernels {NOT_RECORDED}" if text else f"kernels {NOT_RECORDED}"
    incomplete = bool(trial.kernels.lacks) or any(graph.hook_failure for graph in trial.graphs)
    if incomplete:
        return f"{text or 'nothing seen'} (incomplete)"
    return text or "nothing"


def trial_in_short(trial: Trial) -> str:
    """What is known of a trial as soon as it is ready, on one line: the decision, and what is converted."""
    name = shown_name(trial.name)
    if trial.status == "same_as":
        return f"{name}: the same as {shown_name(trial.same_as or 'another configuration')}"
    if trial.status != "ok":
        return f"{name}: {failure_clause(trial)}"
    if trial.kernels is not None or trial.is_static:
        return f"{name}: converted per call: {conversions_cell(trial)}"
    found = listing(tensors_in_short(trial))
    decision = decision_cell(trial)
    parts = ("ready", None if decision == "-" else f"layout optimization {decision}")
    return f"{name}: {joined((*parts, f'the compiler converts {found}' if found else None), ', ')}"


def tensors_in_short(trial: Trial) -> list[str]:
    """How many conversions there are of each kind of tensor: ``"2 activations"``, ``"1 other"``."""
    counts = count_by_tensor(counted_conversions(trial))
    return [count_of(count, kind) if kind != "unknown" else f"{count} other" for kind, count in counts.items()]


def _moved(trial: Trial) -> str:
    """Bytes that the conversions of a static trial move, in brackets; empty where not known for every one."""
    moved = [conversion.bytes_moved for conversion in counted_conversions(trial)]
    known = [count for count in moved if count is not None]
    return f" ({format_bytes(sum(known))})" if moved and len(known) == len(moved) else ""


def decision_cell(trial: Trial) -> str:
    """What Inductor decided about layouts, per direction in training."""
    if trial.configuration.backend != "inductor":
        return "-"
    parts = []
    for direction, words in _DIRECTIONS.items():
        graphs = [graph for graph in trial.graphs if graph.direction == direction]
        if graphs:
            parts.append(words + _decision_of(graphs, in_full=not words))
    return "; ".join(parts) or NOT_RECORDED


def _decision_of(graphs: list[Graph], *, in_full: bool) -> str:
    """
    One direction in a few words; several graphs are added up, as graph breaks cut one model into many.

    Args:
        in_full: With what is counted and why it is off; a cell has no room for that twice.
    """
    cards = [graph.decision for graph in graphs if graph.decision is not None]
    known = [card for card in cards if card.applied is not None]
    if not known:
        return NOT_RECORDED
    relevant = [card for card in known if card.convolution_count] or known
    applied = [card for card in relevant if card.applied]
    total = sum(card.convolution_count for card in relevant)
    forced = sum(card.channels_last_convolution_count for card in relevant)
    rules = dict.fromkeys(clean_name(card.rule).replace("-", " ") for card in relevant if not card.applied)
    if not applied:
        return "off" if set(rules) <= {"config off"} or not in_full else f"off ({', '.join(rules)})"
    where = "on" if len(applied) == len(relevant) else f"on in {len(applied)} of {len(relevant)} graphs"
    convolutions = f"{forced} of {count_of(total, 'convolution') if in_full else total}"
    unrecorded = len(graphs) - len(known)
    return f"{where}, {convolutions}" + (f", {count_of(unrecorded, 'graph')} {NOT_RECORDED}" if unrecorded else "")


def _places(kernels: KernelSummary) -> tuple[Table, ...]:
    """Where conversions cost most; the steps side by side."""
    kind = _kind_to_show(kernels.totals)
    tables = []
    if kind is not None:
        ordered = sorted(_with_conversions(kernels.totals, kind), key=lambda total: -total.conversion_seconds)
        tables.append(_totals_table(kernels, kind, ordered))
    steps = [total for total in kernels.totals if total.kind == "step"]
    if len(steps) > 1 and any(step.conversion_count for step in steps):
        tables.append(_totals_table(kernels, "step", sorted(steps, key=lambda step: _natural_order(step.name))))
    return tuple(tables)


def _kind_to_show(totals: Sequence[Total]) -> TotalKind | None:
    """Modules are what a reader can change; but only where enough of the kernels could be laid to them."""
    cost = {kind: sum(t.conversion_seconds for t in totals if t.kind == kind) for kind in ("module", "operation")}
    if _with_conversions(totals, "module") and cost["module"] >= WORTH_A_MODULE * cost["operation"]:
        return "module"
    kinds: tuple[TotalKind, ...] = ("operation", "kernel")
    return next((kind for kind in kinds if _with_conversions(totals, kind)), None)


def _with_conversions(totals: Iterable[Total], kind: TotalKind) -> list[Total]:
    return [total for total in totals if total.kind == kind and total.conversion_count]


def _natural_order(name: str) -> list[tuple[int, str]]:
    """``ProfilerStep#10`` after ``ProfilerStep#9``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]{1,18})", name)]


def _totals_table(kernels: KernelSummary, kind: TotalKind, totals: Sequence[Total]) -> Table:
    rows = [TableRow((total_name(total), *total_cells(total))) for total in totals[:MOST_PLACES]]
    rest = totals[MOST_PLACES:]
    if rest:
        rows.append(TableRow((f"{len(rest)} more", *total_cells(_sum(kind, rest)))))
    rows += _unplaced(kernels, kind, totals)
    title = "Steps" if kind == "step" else f"Conversions by {kind}, costliest first"
    return Table((kind, *total_heads(kind)), tuple(rows), wraps_names=True, title=title)


def total_heads(kind: TotalKind) -> tuple[str, ...]:
    """The heads of a table of totals, without that of the names; a kernel converts or does not, so it has no share."""
    if kind == "kernel":
        return ("launches", "time", "conversions")
    return ("kernels", "time", "conversions", "in conversions", "share")


def total_name(total: Total) -> str:
    """The name of a total, cut where it is long."""
    return clean(total.name, KERNEL_LENGTH if total.kind == "kernel" else NAME_LENGTH)


def total_cells(total: Total) -> tuple[str, ...]:
    """What stands behind a total's name, under ``total_heads``."""
    cells = (str(total.count), format_seconds(total.seconds), str(total.conversion_count))
    if total.kind == "kernel":
        return cells
    share = precise_share(total.conversion_seconds, total.seconds) if total.seconds else ""
    return (*cells, format_seconds(total.conversion_seconds), share)


def _unplaced(kernels: KernelSummary, kind: TotalKind, totals: Sequence[Total]) -> list[TableRow]:
    """The conversions of which the place was not recorded, so that the table adds up."""
    count = kernels.conversion_count - sum(total.conversion_count for total in totals)
    if count <= 0 or kernels.conversion_seconds is None:
        return []
    seconds = max(0.0, kernels.conversion_seconds - sum(total.conversion_seconds for total in totals))
    text = format_seconds(seconds)
    cells = (str(count), text, str(count)) if kind == "kernel" else ("", "", str(count), text, "")
    return [TableRow((f"no {kind} known", *cells))]


def _sum(kind: TotalKind, totals: Sequence[Total]) -> Total:
    return Total(
        kind=kind,
        name="",
        count=sum(total.count for total in totals),
        seconds=sum(total.seconds for total in totals),
        conversion_count=sum(total.conversion_count for total in totals),
        conversion_seconds=sum(total.conversion_seconds for total in totals),
    )
