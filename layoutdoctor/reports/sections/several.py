"""The diagnoses of several models in one table: the configuration to use, its gain, and what breaks the format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.reports.sections.answer import situation_of
from layoutdoctor.reports.sections.rows import UNKNOWN, Table, TableRow, format_interval
from layoutdoctor.reports.sections.wording import baseline_phrase, clean, clean_name, shown_name
from layoutdoctor.words import count_of, joined, line_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

HEAD = ("model", "use", "against the default", "sure?", "breaks the format")


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
    """The configuration to use, its ratio, and how sure that is."""
    situation, advice = situation_of(diagnosis), diagnosis.recommendation
    if advice is None or advice.configuration is None:
        return UNKNOWN, UNKNOWN, situation.in_table or "nothing recommended"
    ratio = advice.speedup
    gain = UNKNOWN if ratio is None else format_interval(ratio)
    starts = len(ratio.start_ratios) if ratio is not None else 0
    sure = f"{count_of(starts, 'fresh process', 'fresh processes')} agree" if advice.verified else "one process"
    return baseline_phrase(advice.configuration), gain, situation.in_table or sure


def _breakers(diagnosis: Diagnosis) -> str:
    """The breaker that costs the default most; another configuration's if the default has none."""
    for trial in sorted(diagnosis.trials, key=lambda trial: trial.name != BASELINE):
        breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
        if breakers:
            worst = max(breakers, key=lambda breaker: breaker.bytes_moved or 0)
            place = worst.module if worst.location is None else line_words(worst.location)
            more = f", and {len(breakers) - 1} more" if len(breakers) > 1 else ""
            where = "" if trial.name == BASELINE else f" in {shown_name(trial.name)}"
            return f"{clean(joined((worst.op, place), ' at '))}{more}{where}"
    return UNKNOWN
