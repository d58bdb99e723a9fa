"""The text report: the first screen, without colours; whoever prints it may add them."""

from __future__ import annotations

import re
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.sections.answer import Answer
    from layoutdoctor.reports.sections.view import FindingEntry, View

DEFAULT_WIDTH = 100
NARROWEST = 40
MOST_FINDINGS = 20
INDENT = "  "
FINDINGS, NO_FINDINGS = "Findings", "Findings: none."
GAP = 2
_LONGEST_NAME = 32  # as long as the names that are built in
_UNIT = re.compile(r"(?<=\d) (?=%|(?:ns|us|ms|s|B|KiB|MiB|GiB)\b)")
_UNBROKEN = "\u00a0"
# Wide enough for "channels-last", which is not broken at its hyphen.
NARROWEST_COLUMN = 13


def render_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """The report as plain text, 100 characters wide unless told; lines to paste are never broken."""
    view = build_view(diagnosis)
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = _short_sections(view, columns) if view.answer.is_short else _all_sections(view, columns)
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def also_noted(view: View) -> str:
    """The findings of a report that ends before them, by name; empty where there are none."""
    noted = ", ".join(f"{entry.code} {entry.rule}" for entry in view.findings[:MOST_FINDINGS])
    return f"Also noted: {noted}." if noted else ""


def findings_left_out(view: View) -> tuple[str, ...]:
    """How many findings are not shown, and where they are; what others there are; empty where all are shown."""
    left_out = len(view.main_findings) - MOST_FINDINGS
    more = [f"and {left_out} more: --output report.html lists them"] if left_out > 0 else []
    return (*more, *([view.other_findings] if view.other_findings else []))


def how_it_was_measured(view: View, *, in_full: bool) -> str:
    """How well it was measured, and what could not be recorded or read."""
    measured = "; ".join(view.measurement if in_full else view.measurement[:1])
    return f"Measured: {measured}. Not understood: {'; '.join(view.not_understood)}."


def where_to_go_on(view: View) -> str:
    """The hints at the end."""
    return f"More: {' · '.join(view.hints)}"


def _short_sections(view: View, width: int) -> Iterable[list[str]]:
    lines = [*wrap(" · ".join(view.title), width), *_answer_lines(view.answer, width)]
    if not view.answer.is_bare:
        lines += [*wrap(how_it_was_measured(view, in_full=False), width), *wrap(also_noted(view), width)]
    yield lines


def _all_sections(view: View, width: int) -> Iterable[list[str]]:
    interruption = wrap(f"{view.interrupted}.", width) if view.interrupted else []
    yield [*wrap(" · ".join(view.title), width), *interruption]
    yield _answer_lines(view.answer, width)
    for table in view.tables:
        rows, clauses = [row.cells for row in table.rows], [row.clause for row in table.rows]
        yield [plain_table(table.head, rows, width, clauses, wraps_names=table.wraps_names)]
    yield [line for remark in view.remarks for line in wrap(remark, width)]
    yield _findings_section(view, width)
    yield [*wrap(how_it_was_measured(view, in_full=True), width), *wrap(where_to_go_on(view), width)]


def _answer_lines(answer: Answer, width: int) -> list[str]:
    details = [line for text in answer.lines for line in wrap(text, width)]
    return [*wrap(answer.headline, width), *(INDENT + line for line in answer.how), *details]


def _findings_section(view: View, width: int) -> list[str]:
    shown = view.main_findings[:MOST_FINDINGS]
    lines = [FINDINGS if shown else NO_FINDINGS]
    for entry in shown:
        lines += _finding_lines(entry, width)
    return [*lines, *(line for text in findings_left_out(view) for line in wrap(text, width))]


def _finding_lines(entry: FindingEntry, width: int) -> list[str]:
    head = f"{entry.code} {entry.severity:<7}  "
    indent = " " * min(len(head), width // 3)
    about = f"{entry.configuration}: " if entry.configuration else ""
    lines = wrap(f"{about}{entry.message}", width, head, indent)
    if entry.place:
        lines += wrap(f"at {entry.place}", width, indent)
    if entry.suggestion:
        lines += wrap(f"-> {entry.suggestion}", width, indent, indent + "   ")
    return lines


def wrap(text: str, width: int, indent: str = "", further: str | None = None) -> list[str]:
    """Lines of at most ``width`` characters; further lines are indented, so that a new fact is seen as one."""
    hanging = further if further is not None else indent or INDENT
    lines = textwrap.wrap(
        _UNIT.sub(_UNBROKEN, text),
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
        drop_whitespace=True,
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
    """A long name of a configuration made of another one with what was added on lines of its own."""
    base, *added = name.split("+")
    return "\n".join((base, *(f"  +{part}" for part in added))) if len(name) > _LONGEST_NAME else name


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
