"""The diagnoses of several models in one table: what to use, what it brings, and what breaks the format."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.choice import eligible_names, undecided, wrong_baseline
from layoutdoctor.examination.costs import irrelevance
from layoutdoctor.reports.sections.answer import is_verified
from layoutdoctor.reports.sections.rows import Table, TableRow
from layoutdoctor.reports.sections.wording import baseline_phrase, clean, clean_name, wrong_clause
from layoutdoctor.units import format_ratio
from layoutdoctor.words import joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.records import Diagnosis

HEAD = ("model", "use", "faster than the default", "certainty", "breaks the format")
_NOTHING = "-"


def build_table_of_models(found: Mapping[str, Diagnosis | str]) -> Table:
    """
    The table of several models, in their order.

    Args:
        found: By target its diagnosis, or why there is none.
    """
    return Table(HEAD, tuple(build_row_of_model(target, one) for target, one in found.items()))


def build_row_of_model(target: str, found: Diagnosis | str) -> TableRow:
    """One model's row."""
    name = clean_name(target)
    if isinstance(found, str):
        return TableRow((name,), clause=clean(found, 200))
    return TableRow((name, *_answer(found), _breakers(found)))


def _answer(diagnosis: Diagnosis) -> tuple[str, str, str]:
    """What to use, what it brings, and how sure that is."""
    advice, comparison = diagnosis.recommendation, diagnosis.comparison
    if diagnosis.subject.target is not None:
        return _NOTHING, _NOTHING, f"static, lowered for {clean_name(diagnosis.subject.target)}"
    if advice is None or comparison is None:
        return _NOTHING, _NOTHING, "nothing compared"
    default = baseline_phrase(comparison.baseline)
    if undecided(diagnosis):
        return default, _NOTHING, "undecided"
    if not eligible_names(diagnosis.trials):
        return _NOTHING, _NOTHING, "all outputs differ"
    if advice.configuration in (None, comparison.baseline):
        return default, _NOTHING, "layouts do not matter" if irrelevance(diagnosis) else "nothing is faster"
    gain = _NOTHING
    if advice.speedup is not None:
        low, middle, high = advice.speedup.low, advice.speedup.median, advice.speedup.high
        gain = f"{format_ratio(middle)} ({low:.2f} to {high:.2f})"
    certainty = "verified" if is_verified(diagnosis, advice) else "not verified"
    wrong = wrong_baseline(diagnosis)
    if wrong is not None:
        certainty += f"; {wrong_clause(wrong)}"
    return clean_name(advice.configuration or ""), gain, certainty


def _breakers(diagnosis: Diagnosis) -> str:
    """What costs the default most of its format; where it has nothing of the kind, another configuration."""
    trials = sorted(diagnosis.trials, key=lambda trial: trial.name != BASELINE)
    for trial in trials:
        breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
        if breakers:
            worst = max(breakers, key=lambda breaker: breaker.bytes_moved or 0)
            at = worst.location  # its file's name alone: the table is narrow
            where = worst.module if at is None else f"{PurePosixPath(at.file).name}:{at.line}"
            place = joined((worst.op, where), " at ")
            more = f", and {len(breakers) - 1} more" if len(breakers) > 1 else ""
            return f"{clean(place or worst.op)}{more}" + (
                "" if trial.name == BASELINE else f" in {clean_name(trial.name)}"
            )
    return _NOTHING
