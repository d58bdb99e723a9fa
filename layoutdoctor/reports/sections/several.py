"""The diagnoses of several models in one table: what to use, what it brings, and what breaks the format."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.reports.sections.answer import situation_of
from layoutdoctor.reports.sections.rows import Table, TableRow, format_interval
from layoutdoctor.reports.sections.wording import baseline_phrase, clean, clean_name, shown_name
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.sections.answer import Situation

HEAD = ("model", "use", "against the default", "sure?", "breaks the format")
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
    """What to use, its ratio, and how sure that is."""
    situation, advice, comparison = situation_of(diagnosis), diagnosis.recommendation, diagnosis.comparison
    if situation == "static":
        return _NOTHING, _NOTHING, f"static, lowered for {clean_name(diagnosis.subject.target or '')}"
    if comparison is None or advice is None or advice.configuration is None:
        return _NOTHING, _NOTHING, _WORDS.get(situation, "nothing compared")
    ratio = advice.speedup
    gain = _NOTHING if ratio is None else format_interval(ratio)
    starts = len(ratio.start_ratios) if ratio is not None else 0
    sure = f"{count_of(starts, 'fresh process', 'fresh processes')} agree" if advice.verified else "one process"
    return baseline_phrase(advice.configuration), gain, _WORDS.get(situation, sure)


_WORDS: Mapping[Situation, str] = {
    "all differ": "all outputs differ",
    "default differs": "the default computes something else",
    "irrelevant": "layouts do not matter",
    "looks faster": "something looks faster, not certain",
    "no convolution": "no convolution",
    "nothing faster": "nothing is faster",
}


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
                "" if trial.name == BASELINE else f" in {shown_name(trial.name)}"
            )
    return _NOTHING
