"""
The text report: what fits on the first screen, line by line, each with its role, so that a terminal may colour it.

Everything else is in the Markdown and HTML reports.
"""

from __future__ import annotations

import re
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from layoutdoctor.reports.sections.view import build_view, finding_codes
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.sections.rows import Table
    from layoutdoctor.reports.sections.view import FindingEntry, View

Role = Literal["title", "claim", "code", "note", "head", "row", "recommended", "failed", "finding", "to do", "more", ""]
"""What a line is; that of a note begins with a label of ``LABEL_WIDTH`` characters, that of a finding with its code."""

DEFAULT_WIDTH = 100
NARROWEST = 40
LABEL_WIDTH = 10
MOST_FINDINGS = 3
MOST_FINDING_LINES = 2
MOST_REMARKS = 3
INDENT = "  "
GAP = 2
_LONGEST_NAME = 36
_UNIT = re.compile(r"(?<=\d) (?=%|(?:ns|us|ms|s|B|KiB|MiB|GiB)\b)")
_UNBROKEN = "\u00a0"
# Wide enough for "channels_last".
NARROWEST_COLUMN = 13


def render_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """The report as plain text, 100 characters wide if no width is given; lines to paste are never broken."""
    return "\n".join(line for _, line in text_lines(build_view(diagnosis), width)) + "\n"


def text_lines(view: View, width: int | None = None) -> Iterator[tuple[Role, str]]:
    """
    The lines of the text report with their roles.

    Args:
        width: Characters per line; None for 100.
    """
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = [_first_lines(view, columns), _notes(view, columns)]
    if view.answer.is_short:
        codes = wrap(f"also noted: {finding_codes(view.findings)}", columns) if view.findings else []
        sections.append([("more", line) for line in codes])
    else:
        sections += [table_lines(table.narrow, columns) for table in view.tables]
        sections += [_remarks(view, columns), _last_lines(view, columns)]
    for number, section in enumerate(filter(None, sections)):
        if number:
            yield "", ""
        yield from section


def _first_lines(view: View, width: int) -> list[tuple[Role, str]]:
    lines: list[tuple[Role, str]] = [("title", line) for line in wrap(" · ".join(view.title), width)]
    if view.interrupted:
        lines += [("failed", line) for line in wrap(f"{view.interrupted}.", width)]
    lines += [("claim", line) for line in wrap(view.answer.claim, width)]
    return [*lines, *(("code", f"{2 * INDENT}{line}") for line in view.answer.how)]


def _notes(view: View, width: int) -> list[tuple[Role, str]]:
    return [
        ("note", line)
        for label, text in view.answer.notes
        for line in wrap(text, width, label.ljust(LABEL_WIDTH), " " * LABEL_WIDTH)
    ]


def table_lines(table: Table, width: int) -> list[tuple[Role, str]]:
    """A table with the lines below it."""
    rows, clauses = [row.cells for row in table.rows], [row.clause for row in table.rows]
    best = {row.cells[0] for row in table.rows if row.is_recommended}
    lines: list[tuple[Role, str]] = []
    for line in plain_table(table.head, rows, width, clauses, wraps_names=table.wraps_names).splitlines():
        is_best = any(line.startswith(f"{name}  ") for name in best)
        lines.append(("head" if line.startswith(f"{table.head[0]}  ") else "recommended" if is_best else "row", line))
    return [*lines, *(("more", line) for text in table.below for line in wrap(text, width))]


def _remarks(view: View, width: int) -> list[tuple[Role, str]]:
    remarks = list(view.remarks[:MOST_REMARKS])
    if len(view.remarks) > MOST_REMARKS:
        remarks.append(f"{count_of(len(view.remarks) - MOST_REMARKS, 'more remark')} in report.md or report.html")
    if view.not_understood:
        remarks.append(f"Not understood: {'; '.join(view.not_understood)}")
    return [("", line) for remark in remarks for line in wrap(remark, width)]


def _last_lines(view: View, width: int) -> list[tuple[Role, str]]:
    shown = view.main_findings[:MOST_FINDINGS]
    lines = [line for entry in shown for line in _finding_lines(entry, width)]
    rest = [entry for entry in view.findings if entry not in shown]
    more = [f"{len(rest)} more: {finding_codes(rest)}"] if rest else []
    none = [] if view.findings else ["no findings"]
    return [*lines, *(("more", line) for line in wrap(" · ".join((*none, *more, *view.hints)), width))]


def _finding_lines(entry: FindingEntry, width: int) -> Iterator[tuple[Role, str]]:
    head = f"{entry.code} {entry.severity:<7}  "
    indent = " " * min(len(head), width // 3)
    where = ", ".join(part for part in (entry.configuration, entry.place) if part)
    message = f"{where}: {entry.message}" if where else entry.message
    yield from (("finding", line) for line in wrap(message, width, head, indent, MOST_FINDING_LINES))
    if entry.suggestion:
        suggestion = wrap(f"-> {entry.suggestion}", width, indent, f"{indent}   ", MOST_FINDING_LINES)
        yield from (("to do", line) for line in suggestion)


def wrap(text: str, width: int, indent: str = "", further: str | None = None, most: int | None = None) -> list[str]:
    """Lines of at most ``width`` characters, at most so many; further lines are indented."""
    hanging = further if further is not None else indent or INDENT
    lines = textwrap.wrap(
        _UNIT.sub(_UNBROKEN, text),
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
        drop_whitespace=True,
        max_lines=most,
        placeholder=" ...",
    )
    return [line.replace(_UNBROKEN, " ") for line in lines]


def plain_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    clauses: Sequence[str | None] = (),
    *,
    wraps_names: bool = False,
) -> str:
    """
    A table without lines that wraps inside its cells rather than exceed a width.

    Args:
        head: Column heads.
        rows: Cells, as many in each row as there are heads.
        width: Characters per line, if the first column allows it at all.
        clauses: For each row: text that stands in place of all cells after the first; None for an ordinary row.
        wraps_names: Whether the first column is narrowed like the others; no row may have a clause then.

    Returns:
        Ordinary rows first, in their order, then those with a clause; no line ends in a space.
    """
    taken = [*clauses, *([None] * (len(rows) - len(clauses)))]
    ordinary = [row for row, clause in zip(rows, taken, strict=True) if clause is None]
    spanning = [(row[0], clause) for row, clause in zip(rows, taken, strict=True) if clause is not None]
    names_of = {row[0]: row[0] if wraps_names else _broken_name(row[0]) for row in (head, *rows)}
    first_column = max(map(_width, names_of.values()))
    lines = []
    if ordinary:
        names = 0 if wraps_names else first_column
        body = [[names_of[row[0]].ljust(names), *row[1:]] for row in (head, *ordinary)]
        lines = _wrapped_rows(body, _column_widths(body, width, first=0 if wraps_names else 1), names)
    for name, clause in spanning:
        lines += _clause_lines(names_of[name], clause, first_column + GAP, width)
    return "\n".join(line.rstrip() for line in lines)


def _broken_name(name: str) -> str:
    """A long name on several lines."""
    lines = textwrap.wrap(name, _LONGEST_NAME, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) if len(name) > _LONGEST_NAME else name


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _cell_lines(cell: str, most: int) -> list[str]:
    lines = (textwrap.wrap(part, most, break_on_hyphens=False) for part in cell.split("\n"))
    return [line for wrapped in lines for line in wrapped] or [""]


def _wrapped_rows(rows: Sequence[Sequence[str]], widths: Sequence[int], names: int) -> list[str]:
    """The lines of rows whose cells are wrapped; the first column is at least as wide as ``names``."""
    wrapped = [[_cell_lines(cell, most) for cell, most in zip(row, widths, strict=True)] for row in rows]
    columns = [max(len(line) for cell in column for line in cell) for column in zip(*wrapped, strict=True)]
    columns[0] = max(columns[0], names)
    return [
        (GAP * " ").join(part.ljust(room) for part, room in zip(parts, columns, strict=True))
        for row in wrapped
        for parts in zip_longest(*row, fillvalue="")
    ]


def _column_widths(rows: Sequence[Sequence[str]], width: int, first: int) -> list[int]:
    """Natural widths, with the widest columns from the given one on narrowed until the table fits."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(range(first, len(widths)), key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= NARROWEST_COLUMN:
            break
        widths[widest] -= 1
    return widths


def _clause_lines(name: str, clause: str, offset: int, width: int) -> list[str]:
    room = max(width - offset, 2 * NARROWEST_COLUMN)
    clauses = textwrap.wrap(clause, room) or [""]
    return [part.ljust(offset) + line for part, line in zip_longest(name.split("\n"), clauses, fillvalue="")]
