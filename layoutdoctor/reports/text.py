"""
The text report: the first screen, without colours; whoever prints it may add them.

Faces the view.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.tables import plain_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.sections.answer import Answer
    from layoutdoctor.reports.sections.view import FindingEntry, View

DEFAULT_WIDTH = 100
NARROWEST = 40
MOST_FINDINGS = 20
INDENT = "  "
NO_FINDINGS = "Findings: none."


def render_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """
    The report as plain text.

    Args:
        diagnosis: Any diagnosis.
        width: Characters per line; None for 100. Lines to paste are never broken.

    Returns:
        Lines with a line break at the end, without escape sequences.
    """
    view = build_view(diagnosis)
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = _short_sections(view, columns) if view.answer.is_short else _all_sections(view, columns)
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def also_noted(view: View) -> str:
    """
    The findings of a report that ends before them, by name; empty where there are none.

    Args:
        view: The report.
    """
    noted = ", ".join(f"{entry.code} {entry.rule}" for entry in view.findings[:MOST_FINDINGS])
    return f"Also noted: {noted}." if noted else ""


def findings_left_out(findings: tuple[FindingEntry, ...]) -> str:
    """
    How many findings are not shown, and where they are; empty where all are.

    Args:
        findings: All of them.
    """
    left_out = len(findings) - MOST_FINDINGS
    return f"and {left_out} more: --output report.md lists them" if left_out > 0 else ""


def what_is_not_understood(view: View) -> str:
    """
    What could not be recorded or read, as a sentence.

    Args:
        view: The report.
    """
    return f"Not understood: {'; '.join(view.not_understood)}."


def how_it_was_measured(view: View, *, in_full: bool) -> str:
    """
    How well it was measured, as a sentence.

    Args:
        view: The report.
        in_full: Whether to say more than the first fact.
    """
    return f"Measurement: {'; '.join(view.measurement if in_full else view.measurement[:1])}."


def where_to_go_on(view: View) -> str:
    """
    The hints at the end.

    Args:
        view: The report.
    """
    return f"More: {' · '.join(view.hints)}"


def _short_sections(view: View, width: int) -> Iterable[list[str]]:
    yield _wrap(" · ".join(view.title), width)
    lines = [*_answer_lines(view.answer, width), *_measurement_lines(view, width, in_full=False)]
    yield [*lines, *_wrap(also_noted(view), width)]


def _all_sections(view: View, width: int) -> Iterable[list[str]]:
    interruption = _wrap(f"{view.interrupted}.", width) if view.interrupted else []
    yield [*_wrap(" · ".join(view.title), width), *interruption]
    yield _answer_lines(view.answer, width)
    for table in view.tables:
        rows, clauses = [row.cells for row in table.rows], [row.clause for row in table.rows]
        yield [plain_table(table.head, rows, width, clauses, wraps_names=table.wraps_names)]
    yield [line for remark in view.remarks for line in _wrap(remark, width)]
    yield _findings_section(view.findings, width)
    yield [*_measurement_lines(view, width), *_wrap(where_to_go_on(view), width)]


def _answer_lines(answer: Answer, width: int) -> list[str]:
    details = [line for text in answer.lines for line in _wrap(text, width)]
    return [*_wrap(answer.headline, width), *(INDENT + line for line in answer.how), *details]


def _findings_section(findings: tuple[FindingEntry, ...], width: int) -> list[str]:
    if not findings:
        return [NO_FINDINGS]
    lines = ["Findings"]
    for entry in findings[:MOST_FINDINGS]:
        lines += _finding_lines(entry, width)
    return [*lines, *_wrap(findings_left_out(findings), width)]


def _finding_lines(entry: FindingEntry, width: int) -> list[str]:
    about = f"  [{entry.configuration}]" if entry.configuration else ""
    lines = [f"{entry.code} {entry.severity:<7}  {entry.rule}{about}", *_wrap(entry.message, width, INDENT)]
    if entry.place:
        lines += _wrap(f"at {entry.place}", width, INDENT)
    if entry.suggestion:
        lines += _wrap(f"-> {entry.suggestion}", width, INDENT, INDENT + "   ")
    return lines


def _measurement_lines(view: View, width: int, *, in_full: bool = True) -> list[str]:
    return [*_wrap(what_is_not_understood(view), width), *_wrap(how_it_was_measured(view, in_full=in_full), width)]


def _wrap(text: str, width: int, indent: str = "", further: str | None = None) -> list[str]:
    """Lines of at most ``width`` characters; further lines are indented, so that a new fact is seen as one."""
    hanging = further if further is not None else indent or INDENT
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False, drop_whitespace=True
    )
