"""Makes the tables of a report, with text cells: the configurations, or the costly places of a recorded run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from layoutdoctor.diagnosis import (
    Conversion,
    Diagnosis,
    Equivalence,
    Graph,
    KernelSummary,
    Ratio,
    Total,
    TotalKind,
    Trial,
)
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.advice.applying import compile_words
from layoutdoctor.examination.advice.choice import times_less_exact
from layoutdoctor.examination.counts import count_by_tensor, counted_conversions
from layoutdoctor.reports.sections.wording import (
    KERNEL_LENGTH,
    NAME_LENGTH,
    RecordedRun,
    clean,
    clean_name,
    direction_words,
    failure_clause,
    format_error,
    shown_name,
)
from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share, sum_if_all_known
from layoutdoctor.words import (
    NOT_RECORDED,
    TENSOR_WORDS,
    count_of,
    interval_words,
    joined,
    line_words,
    listing,
    phrase,
    shown,
)

UNKNOWN_CELL = "-"
_NUMBER = re.compile(r"[<~]?\d[\d.,]*( ?(ns|us|ms|s|B|KiB|MiB|GiB|TiB|%|x))?( \(.*\))?")
MOST_PLACES = 8
WORTH_A_MODULE = 0.5
"""Modules are shown instead of operations if they have at least this share of the operations' conversion time."""

_DIRECTIONS = {"inference": "", "forward": "forward ", "backward": "backward "}


class TableRow(NamedTuple):
    """
    One row of a table.

    Attributes:
        cells: One text for each head of the table; only the first text if there is a clause.
        clause: Text in place of all cells after the first; None for an ordinary row.
        is_recommended: Whether the row is the recommended configuration, which every format marks.
        is_baseline: Whether the row is the baseline, with which the other rows are compared; no format leaves it out.
    """

    cells: tuple[str, ...]
    clause: str | None = None
    is_recommended: bool = False
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of a report, the same for all formats.

    Attributes:
        is_long: Whether the table lists everything there is, so that a format may fold it away.
        left_out: Number of rows that were cut off.
        narrow_count: Number of columns that a terminal shows; None for all.
        below: Lines of text below the table.
    """

    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    title: str = ""
    is_long: bool = False
    left_out: int = 0
    narrow_count: int | None = None
    below: tuple[str, ...] = ()

    @property
    def narrow(self) -> Table:
        """The table with as many columns as fit on a terminal."""
        rows = tuple(row._replace(cells=row.cells[: self.narrow_count]) for row in self.rows)
        return replace(self, head=self.head[: self.narrow_count], rows=rows)

    def first(self, most: int) -> Table:
        """Returns the table cut to its first ``most`` rows."""
        return replace(self, rows=self.rows[:most], left_out=self.left_out + max(0, len(self.rows) - most))

    def without_slowest(self, count: int) -> Table:
        """Returns the table without its last ``count`` rows; the recommended row, the baseline and failures stay."""
        may_go = [row for row in self.rows if not (row.is_recommended or row.is_baseline or row.clause is not None)]
        gone = may_go[max(0, len(may_go) - count) :]
        kept = tuple(row for row in self.rows if row not in gone)
        return replace(self, rows=kept, left_out=self.left_out + len(gone))

    @property
    def is_number(self) -> list[bool]:
        """For each column, whether all its known cells are numbers; False if no cell is known."""
        columns = zip(*(row.cells for row in self.rows if row.clause is None), strict=True)
        known = [[cell for cell in column if cell not in (UNKNOWN_CELL, "")] for column in columns] or [[]] * len(
            self.head
        )
        return [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in known]


@dataclass(frozen=True, slots=True)
class Overview:
    """A report made of tables, before a format arranges it. Important rows come first; a format may drop the last."""

    title: tuple[str, ...]
    headline: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


def build_tables(diagnosis: Diagnosis, run: RecordedRun | None) -> tuple[Table, ...]:
    """Makes the table of configurations; for a recorded run, tables of the costliest places and of the steps."""
    if run is None:
        return (_configurations(diagnosis),)
    return _places_in_graphs(run.trial) if run.trial.kernels is None else _places(run.trial.kernels)


def _places_in_graphs(trial: Trial) -> tuple[Table, ...]:
    """Makes the table of a run without kernels: lines of code and their conversions, the most moved bytes first."""
    found: dict[str, list[Conversion]] = {}
    for conversion in counted_conversions(trial):
        place = clean_name(phrase("{}", conversion.location, line_words) or NOT_RECORDED)
        found.setdefault(place, []).append(conversion)
    rows = []
    for place, own in sorted(found.items(), key=lambda item: -_moved(item[1])):
        kinds = Counter((one.tensor, direction_words(one)) for one in own)
        words = listing(f"{count_of(count, TENSOR_WORDS[kind])} {way}" for (kind, way), count in kinds.items())
        rows.append(TableRow((place, str(len(own)), words, format_bytes(_moved(own)))))
    head, title = ("line", "conversions", "of", "moves"), "Conversions by line"
    is_read = rows and any(graph.buffers for graph in trial.graphs)
    return (Table(head, tuple(rows), title).first(MOST_PLACES),) if is_read else ()


def _moved(conversions: Sequence[Conversion]) -> int:
    return sum(conversion.bytes_moved or 0 for conversion in conversions)


def _configurations(diagnosis: Diagnosis) -> Table:
    """Makes the table of configurations, fastest first; configurations without a time come next, failures last."""
    is_timed = diagnosis.subject.target is None
    against = f"against {clean_name(shown(diagnosis.baseline_name))}"
    is_less_exact = any(times_less_exact(trial) for trial in diagnosis.trials if trial.is_right)
    cells: dict[str, Callable[[Trial], str]] = {
        "converted per call": conversions_cell,
        "layout optimization": decision_cell,
    }
    if is_timed:
        times: dict[str, Callable[[Trial], str]] = {
            "per call": lambda trial: phrase("{}", trial.seconds, format_seconds) or "not measured",
            against: partial(_ratio_cell, diagnosis),
        }
        errors: dict[str, Callable[[Trial], str]] = {"error": lambda trial: error_cell(trial.equivalence)}
        cells = {**times, **errors, **cells} if is_less_exact else {**times, **cells, **errors}
    rows = []
    for trial in sorted(diagnosis.trials, key=partial(_place_in_table, diagnosis)):
        name, is_ok = shown_name(trial.name), trial.status == "ok"
        if trial.name == BASELINE and (given := compile_words(trial.configuration)):
            name = f"compiled ({clean(given)})"
        if trial.status != "same_as":
            row = (name, *(cell(trial) for cell in cells.values())) if is_ok else (name,)
            is_recommended = trial.name == diagnosis.recommended_name
            is_baseline = trial.name == diagnosis.baseline_name
            rows.append(TableRow(row, None if is_ok else failure_clause(trial), is_recommended, is_baseline))
    same = dict.fromkeys(trial.same_as for trial in diagnosis.trials if trial.same_as is not None)
    return Table(
        ("configuration", *cells),
        tuple(rows),
        title="Configurations, fastest first",
        narrow_count=4 + is_less_exact if is_timed else None,
        below=tuple(_same_line(diagnosis, name) for name in same),
    )


def _place_in_table(diagnosis: Diagnosis, trial: Trial) -> tuple[int, float]:
    if trial.name in diagnosis.ratios:
        return 0, -diagnosis.ratios[trial.name].median
    if trial.name == diagnosis.compared_with:
        return 0, -1.0
    return (1, trial.seconds) if trial.seconds is not None else (2 + (trial.status != "ok"), 0.0)


def _same_line(diagnosis: Diagnosis, name: str) -> str:
    others = [trial for trial in diagnosis.trials if trial.same_as == name]
    alike = "the same code as" if all(trial.configuration.backend == "inductor" for trial in others) else "the same as"
    of = "the default" if name == diagnosis.baseline_name == BASELINE else shown_name(name)
    why = ", because torch.compile lowered no graph" if any(trial.ran_as_eager for trial in others) else ""
    return f"{alike} {of}{why}: {'; '.join(shown_name(trial.name) for trial in others)}"


def _ratio_cell(diagnosis: Diagnosis, trial: Trial) -> str:
    ratio = phrase("{}", diagnosis.ratios.get(trial.name), format_interval)
    cell = "1" if trial.name == diagnosis.compared_with else ratio or UNKNOWN_CELL
    return f"{cell}  outputs differ" if trial.is_wrong else cell


def format_interval(ratio: Ratio) -> str:
    """Formats a ratio with its interval: ``"1.28x  1.25 to 1.31"``."""
    return f"{format_ratio(ratio.median)}  {interval_words(ratio.low, ratio.high)}"


def error_cell(equivalence: Equivalence | None) -> str:
    """Formats the error against the reference: the relative error, else the largest difference."""
    if equivalence is None or equivalence.status == "not_checked":
        return "not checked"
    if equivalence.error is None:
        return equivalence.status
    return ("differs, " if equivalence.status == "different" else "") + format_error(equivalence.error)


def conversions_cell(trial: Trial) -> str:
    """
    Counts the conversions that run as kernels of their own, by kind of tensor.

    The cell is "nothing" if there are no such conversions. The cell also says if not all kernels were recorded.
    """
    text = ", ".join(tensors_in_short(trial))
    if trial.is_static:
        moved = sum_if_all_known(*(conversion.bytes_moved for conversion in counted_conversions(trial)))
        return f"{text or 'nothing'}{phrase(' ({})', moved, format_bytes)}"
    if trial.kernels is None:
        return f"{text} in graphs; kernels {NOT_RECORDED}" if text else f"kernels {NOT_RECORDED}"
    if not trial.kernels.is_complete or any(graph.hook_failure for graph in trial.graphs):
        return f"{text or 'nothing seen'} (incomplete)"
    return text or "nothing"


def trial_in_short(trial: Trial) -> str:
    """Describes a trial on one line as soon as it is ready: the decision, and the conversions."""
    name = shown_name(trial.name)
    if trial.status == "same_as":
        return f"{name}: the same as {shown_name(trial.same_as or 'another configuration')}"
    if trial.status != "ok":
        return f"{name}: {failure_clause(trial)}"
    if trial.kernels is not None or trial.is_static:
        return f"{name}: converted per call: {conversions_cell(trial)}"
    found = listing(tensors_in_short(trial))
    decision = decision_cell(trial)
    parts = ("ready", None if decision == UNKNOWN_CELL else f"layout optimization {decision}")
    return f"{name}: {joined((*parts, f'the compiler converts {found}' if found else None), ', ')}"


def tensors_in_short(trial: Trial) -> list[str]:
    """Counts conversions by kind of tensor: ``"2 activations"``, ``"1 other"``; ``"3 tensors"`` if no kind is known."""
    counts = count_by_tensor(counted_conversions(trial))
    if list(counts) == ["unknown"]:
        return [count_of(counts["unknown"], "tensor")]
    return [count_of(count, kind) if kind != "unknown" else f"{count} other" for kind, count in counts.items()]


def decision_cell(trial: Trial) -> str:
    """Describes Inductor's decision about layouts, in training for each direction."""
    if trial.configuration.backend != "inductor":
        return UNKNOWN_CELL
    by_direction = {direction: [g for g in trial.graphs if g.direction == direction] for direction in _DIRECTIONS}
    return "; ".join(_DIRECTIONS[key] + _decision_of(own) for key, own in by_direction.items() if own) or NOT_RECORDED


def _decision_of(graphs: list[Graph]) -> str:
    """Describes the decision for one direction. Graph breaks make several graphs, whose counts are added up."""
    cards = [graph.decision for graph in graphs if graph.decision is not None and graph.decision.applied is not None]
    cards = [card for card in cards if card.convolution_count] or cards
    if not cards:
        return NOT_RECORDED
    applied = [card for card in cards if card.applied]
    if not applied:
        rules = dict.fromkeys(clean_name(card.rule).replace("-", " ") for card in cards)
        return "off" if set(rules) == {"config off"} else f"off ({', '.join(rules)})"
    where = "on" if len(applied) == len(cards) else f"on in {len(applied)} of {len(cards)} graphs"
    count = count_of(sum(card.convolution_count for card in cards), "convolution")
    return f"{where}, {sum(card.channels_last_convolution_count for card in cards)} of {count}"


TOTAL_HEADS = ("launches", "time", "conversions", "in conversions", "share")
"""Heads of a table of totals, after the head of the first column, which has the names of the totals."""


def total_row(total: Total) -> tuple[str, ...]:
    """Returns the name of a total, and its cells under ``TOTAL_HEADS``."""
    return (
        clean(total.name, KERNEL_LENGTH if total.kind == "kernel" else NAME_LENGTH),
        str(total.count),
        format_seconds(total.seconds),
        str(total.conversion_count),
        format_seconds(total.conversion_seconds),
        format_share(total.conversion_seconds / total.seconds) if total.seconds else "",
    )


def _places(kernels: KernelSummary) -> tuple[Table, ...]:
    """Makes a table of the modules, operations or kernels in which conversions cost most, and a table of the steps."""
    kinds: tuple[TotalKind, ...] = ("module", "operation", "kernel", "step")
    converting = [total for total in kernels.totals if total.conversion_count]
    found = {kind: [total for total in converting if total.kind == kind] for kind in kinds}
    cost = {kind: sum(total.conversion_seconds for total in own) for kind, own in found.items()}
    if cost["module"] < WORTH_A_MODULE * cost["operation"]:
        del found["module"]
    steps = found.pop("step")
    tables = [_totals_table(kernels, kind, own) for kind, own in found.items() if own][:1]
    if len(steps) > 1:
        steps.sort(key=lambda step: (len(step.name), step.name))  # ProfilerStep#9 before ProfilerStep#10
        tables.append(_totals_table(kernels, "step", steps))
    return tuple(tables)


def _totals_table(kernels: KernelSummary, kind: TotalKind, totals: Sequence[Total]) -> Table:
    """Makes a table of the first totals; a last row has the remaining conversions, so that the table adds up."""
    if kind != "step":
        totals = sorted(totals, key=lambda total: -total.conversion_seconds)
    shown = totals[:MOST_PLACES]
    rows = [TableRow(total_row(total)) for total in shown]
    count = kernels.conversion_count - sum(total.conversion_count for total in shown)
    if count > 0 and kernels.conversion_seconds is not None:
        seconds = max(0.0, kernels.conversion_seconds - sum(total.conversion_seconds for total in shown))
        rows.append(TableRow(("elsewhere", "", "", str(count), format_seconds(seconds), "")))
    title = "Steps" if kind == "step" else f"Conversions by {kind}, costliest first"
    return Table((kind, *TOTAL_HEADS), tuple(rows), title=title)
