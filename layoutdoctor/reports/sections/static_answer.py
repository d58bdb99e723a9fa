"""
The first lines of a static report: what was lowered for which GPU, what the compiler decided, what the graphs prove.

Nothing was run, so nothing here may sound measured. Faces the view; imports records, units and the sums only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.configurations import BASELINE
from layoutdoctor.reports.sections.answer import Answer, baseline_phrase
from layoutdoctor.reports.sections.costs import count_by_tensor, waste_of
from layoutdoctor.reports.sections.rows import decision_cell, failure_clause
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of, in_words
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Conversion, Decision, Diagnosis, Trial

MOST_FAILURES = 6
MOST_REASONS = 4


def build_static_answer(diagnosis: Diagnosis) -> Answer:
    """
    The answer that a diagnosis for a GPU that is not there holds.

    Args:
        diagnosis: One with a target, also an interrupted one.
    """
    target = clean_name(diagnosis.subject.target or "a GPU")
    lowered = [trial for trial in diagnosis.trials if trial.status == "ok"]
    failed = [trial for trial in diagnosis.trials if trial.status not in ("ok", "same_as", "skipped")]
    failures = tuple(f"No result: {clean_name(t.name)} {failure_clause(t)}" for t in failed[:MOST_FAILURES])
    if not lowered:
        return Answer(f"Nothing could be concluded: no graph was lowered for {target}", lines=failures)
    graphs = sum(len(trial.graphs) for trial in lowered)
    headline = (
        f"Nothing was run on {target}: {count_of(graphs, 'graph')} of {count_of(len(lowered), 'configuration')} "
        "lowered for it without the device, so no time is known"
    )
    shown = next((trial for trial in lowered if trial.name == BASELINE), lowered[0])
    lines = [*_decision_lines(shown), _conversion_line(shown), _pair_line(shown)]
    elsewhere = [_pair_line(trial) for trial in lowered if trial is not shown and trial.redundant_pairs]
    return Answer(headline, lines=(*lines, *elsewhere[:1], *failures))


def _decision_lines(trial: Trial) -> list[str]:
    """Inductor's decision, with its reason for every direction in which it decided."""
    who = baseline_phrase(trial.name)
    lines = [f"Layout optimization under {who}: {decision_cell(trial)}"]
    reasons = [f"{_direction(g.direction)}: {_reason(g.decision)}" for g in trial.graphs if g.decision is not None]
    different = list(dict.fromkeys(reasons))
    more = len(different) - MOST_REASONS
    return [*lines, *different[:MOST_REASONS], *([f"and {more} more: --output report.md has them"] if more > 0 else [])]


def _direction(direction: str) -> str:
    return direction[:1].upper() + direction[1:]


def _reason(decision: Decision) -> str:
    applied = {True: "on", False: "off", None: "not recorded"}[decision.applied]
    return f"{applied} ({clean_name(decision.rule)}), as {clean(decision.explanation)}"


def _conversion_line(trial: Trial) -> str:
    who = baseline_phrase(trial.name)
    counted = counted_conversions(trial)
    fused = sum(c.fused and c.direction != "none" for graph in trial.graphs for c in graph.conversions)
    more = f"; {fused} more fused into kernels that compute as well" if fused else ""
    if not counted:
        return f"Conversions that the graphs of {who} prove: none of their own{more}"
    kinds = count_by_tensor(counted)
    parts = in_words(f"{count} {kind if kind != 'unknown' else 'other'}" for kind, count in kinds.items())
    return f"Conversions that the graphs of {who} prove: {parts}{_moved(counted)}{more}"


def _moved(conversions: Sequence[Conversion]) -> str:
    known = [conversion.bytes_moved for conversion in conversions if conversion.bytes_moved is not None]
    if not known:
        return ""
    least = "at least " if len(known) < len(conversions) else ""
    return f", {least}{format_bytes(sum(known))} to move in each iteration"


def _pair_line(trial: Trial) -> str:
    who = baseline_phrase(trial.name)
    waste = waste_of(trial)
    if waste is None:
        return f"Redundant pairs that the graphs of {who} prove: none"
    moved = "" if waste.bytes_moved is None else f", {format_bytes(waste.bytes_moved)} to move in each iteration"
    return f"Redundant pairs that the graphs of {who} prove: {waste.pair_count}{moved}"
