"""
What a table of a report is, and the table of configurations: one row per trial, fastest first, every cell as text.

Faces the view; imports records, units and the sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.configurations import BASELINE
from layoutdoctor.records import NO_DIFFERENCE
from layoutdoctor.reports.sections.costs import count_by_tensor
from layoutdoctor.reports.sections.wording import NOT_RECORDED, STATUS_WORDS, clean, clean_name, count_of
from layoutdoctor.units import format_bytes, format_ratio, format_seconds

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Graph, RatioInterval, Trial

CLAUSE_LENGTH = 160
_DIRECTION_WORDS = {"inference": "", "forward": "fwd ", "backward": "bwd "}


@dataclass(frozen=True, slots=True)
class TableRow:
    """
    One row of a table, ready to be laid out.

    Attributes:
        cells: As many as the table has heads.
        clause: In place of all cells after the first; None for an ordinary row.
        is_recommended: Whether it is the configuration to use, which a format may set off.
    """

    cells: tuple[str, ...]
    clause: str | None = None
    is_recommended: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of a report, the same for all formats.

    Attributes:
        head: Heads of the columns.
        rows: The rows.
        clause_column: Where a format that cannot let a clause span the other columns puts it.
        wraps_names: Whether names in the first column may be broken over several lines where they are long.
    """

    head: tuple[str, ...]
    rows: tuple[TableRow, ...]
    clause_column: int = 1
    wraps_names: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """
    One configuration in the table.

    Attributes:
        name: The configuration.
        median: Its median time.
        ratio: Against the baseline, with the interval.
        conversions: How many layout conversions run on their own, by kind of tensor.
        decision: What Inductor decided.
        clause: In place of all cells: why there is no result, or which configuration it is the same as.
        is_static: True where nothing was run, so that the table has no times.
    """

    name: str
    median: str = ""
    ratio: str = ""
    conversions: str = ""
    decision: str = ""
    clause: str | None = None
    is_static: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands behind the name, under the heads of ``build_columns``."""
        recorded = (self.conversions, self.decision)
        return recorded if self.is_static else (self.median, self.ratio, *recorded)


def build_table(diagnosis: Diagnosis) -> Table:
    """
    The table of configurations.

    Args:
        diagnosis: One of a model.
    """
    recommended = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    best = clean_name(recommended) if recommended is not None else None
    rows = tuple(TableRow((row.name, *row.cells), row.clause, row.name == best) for row in build_rows(diagnosis))
    # A clause stands under "vs default" in a table of times, as the first cell else.
    return Table(build_columns(diagnosis), rows, clause_column=2 if diagnosis.subject.target is None else 1)


def build_columns(diagnosis: Diagnosis) -> tuple[str, ...]:
    """
    The heads of the table.

    Args:
        diagnosis: Any diagnosis.
    """
    if diagnosis.subject.target is not None:
        return ("configuration", "conversions", "decision")
    baseline = diagnosis.comparison.baseline if diagnosis.comparison else BASELINE
    against = "vs default" if baseline == BASELINE else f"vs {clean_name(baseline)}"
    return ("configuration", "median", against, "conversions", "decision")


def build_rows(diagnosis: Diagnosis) -> tuple[Row, ...]:
    """
    One row per trial: the measured ones by their median, then those without a time, then the same ones.

    Args:
        diagnosis: Any diagnosis.
    """
    ordered = sorted(diagnosis.trials, key=_place_in_table)
    return tuple(_build_row(diagnosis, trial) for trial in ordered)


def _place_in_table(trial: Trial) -> tuple[int, float]:
    if trial.status == "same_as":
        return (1, 0.0)
    if trial.status != "ok":
        return (2, 0.0)
    return (0, trial.measurement.median_seconds if trial.measurement else float("inf"))


def _build_row(diagnosis: Diagnosis, trial: Trial) -> Row:
    name, is_static = clean_name(trial.name), diagnosis.subject.target is not None
    if trial.status == "same_as":
        same = "same code as" if trial.configuration.backend == "inductor" else "the same as"
        clause = f"{same} {clean_name(trial.same_as or 'another configuration')}"
        return Row(name, clause=clause, is_static=is_static)
    if trial.status != "ok":
        return Row(name, clause=failure_clause(trial), is_static=is_static)
    return Row(
        name,
        median=format_seconds(trial.measurement.median_seconds) if trial.measurement else "not measured",
        ratio=_ratio_cell(diagnosis, trial),
        conversions=conversions_cell(trial),
        decision=decision_cell(trial),
        is_static=is_static,
    )


def failure_clause(trial: Trial) -> str:
    """
    Why a trial has no result, in one clause.

    Args:
        trial: A trial whose status is neither ``ok`` nor ``same_as``.
    """
    word = STATUS_WORDS[trial.status]
    if trial.failure is None:
        return f"{word}: the reason was not recorded"
    stage = "" if trial.status == "skipped" else f" ({clean_name(trial.failure.kind)})"
    return f"{word}{stage}: {clean(trial.failure.message, CLAUSE_LENGTH)}"


def find_ratio(diagnosis: Diagnosis, name: str) -> RatioInterval | None:
    """
    The ratio of a configuration against the baseline; None where there is none.

    Args:
        diagnosis: Any diagnosis.
        name: A configuration's name.
    """
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    return next((ratio for ratio in ratios if ratio.name == name), None)


def format_interval(ratio: RatioInterval) -> str:
    """
    A ratio with its interval: ``"1.28x  1.25..1.31"``.

    Args:
        ratio: Any ratio.
    """
    return f"{format_ratio(ratio.median)}  {ratio.low:.2f}..{ratio.high:.2f}"


def _ratio_cell(diagnosis: Diagnosis, trial: Trial) -> str:
    differs = trial.equivalence is not None and trial.equivalence.status == "different"
    remark = "  outputs differ" if differs else ""
    if diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline:
        return ("default" if trial.name == BASELINE else "baseline") + remark
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is None:
        return ("-" if trial.measurement else "") + remark
    tie = "  tie" if ratio.verdict == NO_DIFFERENCE and not ratio.lacks_rounds else ""
    return format_interval(ratio) + tie + remark


def conversions_cell(trial: Trial) -> str:
    """
    The conversions of a trial that run on their own, by kind of tensor; never "none" where nothing was recorded.

    Args:
        trial: A trial that ran.
    """
    counts = count_by_tensor(counted_conversions(trial))
    text = ", ".join(f"{count} {kind if kind != 'unknown' else 'other'}" for kind, count in counts.items())
    if trial.is_static:
        return f"{text or 'none'}{_moved(trial)}"
    if trial.kernels is None:
        return f"{text} in graphs; kernels {NOT_RECORDED}" if text else f"kernels {NOT_RECORDED}"
    incomplete = bool(trial.kernels.lacks) or any(graph.hook_failure for graph in trial.graphs)
    if incomplete:
        return f"{text or 'none seen'} (incomplete)"
    return text or "none"


def _moved(trial: Trial) -> str:
    """Bytes that the conversions of a static trial move, in brackets; empty where not known for every one."""
    moved = [conversion.bytes_moved for conversion in counted_conversions(trial)]
    known = [count for count in moved if count is not None]
    return f" ({format_bytes(sum(known))})" if moved and len(known) == len(moved) else ""


def decision_cell(trial: Trial) -> str:
    """
    What Inductor decided about layouts, per direction in training.

    Args:
        trial: A trial that ran.
    """
    if trial.configuration.backend != "inductor":
        return "-"
    by_direction: dict[str, list[Graph]] = {}
    for graph in trial.graphs:
        by_direction.setdefault(graph.direction, []).append(graph)
    if not by_direction:
        return NOT_RECORDED
    parts = []
    for direction, words in _DIRECTION_WORDS.items():
        if direction in by_direction:
            parts.append(words + _decision_of(by_direction[direction], in_full=not words))
    return "; ".join(parts)


def _decision_of(graphs: list[Graph], *, in_full: bool) -> str:
    """One direction in a few words; several graphs are added up, as graph breaks cut one model into many."""
    cards = [graph.decision for graph in graphs if graph.decision is not None]
    known = [card for card in cards if card.applied is not None]
    if not known:
        return NOT_RECORDED
    relevant = [card for card in known if card.convolution_count] or known
    applied = [card for card in relevant if card.applied]
    total = sum(card.convolution_count for card in relevant)
    forced = sum(card.channels_last_convolution_count for card in relevant)
    rules = dict.fromkeys(clean_name(card.rule) for card in relevant if not card.applied)
    if not applied:
        return "off" if set(rules) <= {"config-off"} else f"off ({', '.join(rules)})"
    where = "on" if len(applied) == len(relevant) else f"on in {len(applied)} of {len(relevant)} graphs"
    convolutions = f"{forced} of {total}" + (" convs channels-last" if in_full else "")
    unrecorded = len(graphs) - len(known)
    return f"{where}, {convolutions}" + (f", {count_of(unrecorded, 'graph')} {NOT_RECORDED}" if unrecorded else "")
