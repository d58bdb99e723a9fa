"""
Makes the text report: the lines of one screen, each with its role, so that a terminal can colour it.

Everything else is in the Markdown and HTML reports.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.reports.sections.view import build_view, finding_codes
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from layoutdoctor.reports.sections.rows import Overview, Table
    from layoutdoctor.reports.sections.view import FindingEntry, View

LineRole = Literal[
    "title", "claim", "code", "note", "head", "row", "recommended", "failed", "finding", "to do", "more", ""
]
"""The kind of a line; a note begins with a label of ``LABEL_WIDTH`` characters, a finding with its code."""

DEFAULT_WIDTH = 100
NARROWEST = 40
LABEL_WIDTH = 10
SCREEN_LINES = 24
"""Lines of a screen; the first finding of a usual model begins within them."""
MOST_FINDINGS = 2
MOST_FINDING_LINES = 10
"""Most lines of all shown findings together; only the first finding may take more."""
MOST_REMARKS = 2
MOST_ROWS = 10
FEWEST_ROWS = 3
INDENT = "  "
MARK = "> "
"""Mark in front of the row of the recommended configuration."""
GAP = 2
_UNIT = re.compile(r"(?<=\d) (?=%|(?:ns|us|ms|s|B|KiB|MiB|GiB)\b)")
_UNBROKEN = "\u00a0"
# Wide enough for "channels_last".
NARROWEST_COLUMN = 13


def render_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """Returns the report as plain text, 100 characters wide if no width is given; lines to paste are never broken."""
    return "\n".join(line for _, line in text_lines(build_view(diagnosis), width)) + "\n"


def text_lines(view: View, width: int | None = None) -> Iterator[tuple[LineRole, str]]:
    """
    Yields the lines of the text report with their roles.

    Args:
        width: Characters per line; None for 100.
    """
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = [_first_lines(view, columns), _notes(view, columns)]
    if view.answer.is_short:
        codes = wrap(f"also noted: {finding_codes(view.findings)}", columns) if view.findings else []
        sections.append([("more", line) for line in codes])
    else:
        room = SCREEN_LINES - sum(len(section) + 1 for section in sections if section) - 1
        sections += [_fitted(table.narrow, columns, room) for table in view.tables]
        sections.append(_last_lines(view, columns))
    for number, section in enumerate(filter(None, sections)):
        if number:
            yield "", ""
        yield from section


def _first_lines(view: View, width: int) -> list[tuple[LineRole, str]]:
    lines: list[tuple[LineRole, str]] = [("title", line) for line in wrap(" · ".join(view.title), width)]
    if view.interrupted:
        lines += [("failed", line) for line in wrap(f"{view.interrupted}.", width)]
    lines += [("claim", line) for line in wrap(view.answer.claim, width)]
    return [*lines, *(("code", f"{2 * INDENT}{line}") for line in view.answer.how)]


def _notes(view: View, width: int) -> list[tuple[LineRole, str]]:
    return [
        ("note", line)
        for label, text in view.answer.notes
        for line in wrap(text, width, label.ljust(LABEL_WIDTH), " " * LABEL_WIDTH)
    ]


def table_lines(table: Table, width: int) -> list[tuple[LineRole, str]]:
    """Returns the lines of a table, and the lines below it."""
    below: list[tuple[LineRole, str]] = [("more", line) for text in table.below for line in wrap(text, width)]
    return _row_lines(table, width) + below


def _row_lines(table: Table, width: int) -> list[tuple[LineRole, str]]:
    return [(role, line) for role, own in _lines_of_rows(table, width) for line in own]


def _fitted(table: Table, width: int, room: int) -> list[tuple[LineRole, str]]:
    """Returns the lines of a table. If there are more than ``room``, slow configurations are left out, if possible."""
    lines, count = _row_lines(table, width), 0
    most = len(table.rows) - FEWEST_ROWS if any(row.is_baseline for row in table.rows) else 0
    while len(lines) > room and count < most:
        count += 1
        shown = table.without_slowest(count)
        lines = [*_row_lines(shown, width), ("more", f"{INDENT}{shown.left_out} more in report.html")]
    return lines


def _last_lines(view: View, width: int) -> list[tuple[LineRole, str]]:
    """Returns the first findings, each in full, then the remarks, the number of other findings, and the hints."""
    lines: list[tuple[LineRole, str]] = []
    shown: list[FindingEntry] = []
    for entry in view.main_findings[:MOST_FINDINGS]:
        own = list(_finding_lines(entry, width))
        if not shown or len(lines) + len(own) <= MOST_FINDING_LINES:
            lines, shown = lines + own, [*shown, entry]
    lines += [("", line) for remark in _remarks(view) for line in wrap(remark, width)]
    rest = [entry for entry in view.findings if entry not in shown]
    more = [f"{len(rest)} more: {finding_codes(rest)}"] if rest else []
    none = [] if view.findings else ["no findings"]
    return [*lines, *(("more", line) for line in wrap(" · ".join((*none, *more, *view.hints)), width))]


def _remarks(view: View) -> Iterator[str]:
    for table in view.tables:
        yield from table.below
    yield from view.remarks[:MOST_REMARKS]
    if len(view.remarks) > MOST_REMARKS:
        yield f"{count_of(len(view.remarks) - MOST_REMARKS, 'more remark')} in report.md or report.html"
    if view.not_understood:
        yield f"Not understood: {'; '.join(view.not_understood)}"


def _finding_lines(entry: FindingEntry, width: int) -> Iterator[tuple[LineRole, str]]:
    head = f"{entry.code} {entry.severity:<7}  "
    indent = " " * min(len(head), width // 3)
    where = ", ".join(part for part in (entry.configuration, entry.place) if part)
    message = f"{where}: {entry.message}" if where else entry.message
    yield from (("finding", line) for line in wrap(message, width, head, indent))
    if entry.suggestion:
        yield from (("to do", line) for line in wrap(f"-> {entry.suggestion}", width, indent, f"{indent}   "))


def wrap(text: str, width: int, first: str = "", further: str = INDENT) -> list[str]:
    """Wraps a text to ``width`` characters; indents lines after the first, and keeps a number and its unit together."""
    lines = textwrap.wrap(
        _UNIT.sub(_UNBROKEN, text),
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_on_hyphens=False,
    )
    return [line.replace(_UNBROKEN, " ") for line in lines]


def overview_text(view: Overview, width: int | None = None) -> str:
    """Returns the report of a comparison, a scan or a policy as plain text, with the first rows of each table."""
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = [wrap(" · ".join(view.title), columns)]
    sections.append([line for text in (view.headline, *view.lines) for line in wrap(text, columns)])
    for table in view.tables:
        shown = table.first(MOST_ROWS)
        more = [f"and {shown.left_out} more: --output report.json lists them"] if shown.left_out else []
        sections.append([table.title, plain_table(shown, columns), *more])
    sections.append([line for remark in view.remarks for line in wrap(remark, columns)])
    sections.append(list(view.code))
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def plain_table(table: Table, width: int) -> str:
    """
    Returns a table without rules between its cells; rows with a clause come last.

    Args:
        width: Characters per line. Text is wrapped within its cell to keep the table within this width, but no column
            becomes narrower than 13 characters.
    """
    return "\n".join(line for _, own in _lines_of_rows(table, width) for line in own)


def _lines_of_rows(table: Table, width: int) -> Iterator[tuple[LineRole, list[str]]]:
    """Yields the role and the lines of each row, without spaces at the end; the recommended row is marked."""
    if not any(row.is_recommended for row in table.rows):
        yield from _unmarked_lines(table, width)
        return
    for role, lines in _unmarked_lines(table, width - len(MARK)):
        first = MARK if role == "recommended" else INDENT
        yield role, [f"{INDENT if number else first}{line}" for number, line in enumerate(lines)]


def _unmarked_lines(table: Table, width: int) -> Iterator[tuple[LineRole, list[str]]]:
    ordinary = [row for row in table.rows if row.clause is None]
    names = [table.head[0], *(row.cells[0] for row in table.rows)]
    rows = [table.head if ordinary else table.head[:1], *(row.cells for row in ordinary)]
    rows += [row.cells[:1] for row in table.rows if row.clause is not None]
    columns = [[row[number] for row in rows if number < len(row)] for number in range(max(map(len, rows)))]
    widths = [max(map(len, column)) for column in columns]
    unbroken = [_unbroken_width(column, "" if number else INDENT) for number, column in enumerate(columns)]
    while sum(widths) + GAP * (len(widths) - 1) > width and max(widths) > NARROWEST_COLUMN:
        narrowed = min(range(len(widths)), key=lambda number: _price(rows, widths, unbroken, number))
        widths[narrowed] -= 1
    widths[0] = max(len(line) for name in names for line in _cell_lines(name, widths[0], INDENT))
    if ordinary:
        yield "head", _wrapped(table.head, widths)
    for row in ordinary:
        yield "recommended" if row.is_recommended else "row", _wrapped(row.cells, widths)
    room = max(width - widths[0] - GAP, 2 * NARROWEST_COLUMN)
    for row in table.rows:
        if row.clause is not None:
            role: LineRole = "recommended" if row.is_recommended else "row"
            yield role, _wrapped((row.cells[0], row.clause), (widths[0], room))


def _unbroken_width(column: Sequence[str], indent: str) -> int:
    """The width that a column needs so that no word is broken."""
    words = (cell.split() for cell in column)
    return max(
        (len(word) + (len(indent) if place else 0) for own in words for place, word in enumerate(own)), default=0
    )


def _price(
    rows: Sequence[Sequence[str]], widths: Sequence[int], unbroken: Sequence[int], narrowed: int
) -> tuple[bool, bool, int, int]:
    """A sort key: the column with the least key is narrowed. It breaks no word, adds few lines, and is the widest."""
    width = widths[narrowed]
    after = [*widths[:narrowed], width - 1, *widths[narrowed + 1 :]]
    return (
        width <= NARROWEST_COLUMN,
        width <= unbroken[narrowed],
        sum(len(_wrapped(row, after)) for row in rows),
        -width,
    )


def _wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    indents = (INDENT, *[""] * len(cells))
    lines = zip_longest(*map(_cell_lines, cells, widths, indents), fillvalue="")
    return [(GAP * " ").join(map(str.ljust, line, widths)).rstrip() for line in lines]


@lru_cache(maxsize=4096)
def _cell_lines(cell: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(cell, width, subsequent_indent=indent, break_on_hyphens=False)
