"""Tables as text: plain ones that fit a width, and those of GitHub Markdown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tabulate import tabulate

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2
# Wide enough for "channels-last", which is not broken at its hyphen.
NARROWEST_COLUMN = 13


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
    first_column = max(len(row[0]) for row in (head, *rows))
    lines = []
    if ordinary:
        # The head goes in as a row: tabulate would make a column wider than a head of its own.
        padding = 0 if wraps_names else first_column
        body = [[row[0].ljust(padding), *row[1:]] for row in (head, *ordinary)]
        widths = _column_widths(body, width, first=0 if wraps_names else 1)
        narrowed = [widths[0] if wraps_names else None, *widths[1:]]
        table = tabulate(body, (), "plain", disable_numparse=True, maxcolwidths=narrowed, break_on_hyphens=False)
        lines = table.splitlines()
        if spanning:
            lines = _widen_first_column(lines, max(len(row[0]) for row in (head, *ordinary)), first_column)
    for name, clause in spanning:
        lines += _clause_lines(name, clause, first_column + GAP, width)
    return "\n".join(line.rstrip() for line in lines)


def _widen_first_column(lines: Sequence[str], now: int, wanted: int) -> list[str]:
    """Room in the first column for names that stand only in rows with a clause."""
    return [line[:now].ljust(wanted) + line[now:] for line in lines]


def _column_widths(rows: Sequence[Sequence[str]], width: int, first: int) -> list[int]:
    """Natural widths, with the widest columns from the given one on narrowed until the table fits."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(range(first, len(widths)), key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= NARROWEST_COLUMN:
            break
        widths[widest] -= 1
    return widths


def _clause_lines(name: str, clause: str, offset: int, width: int) -> list[str]:
    room = max(width - offset, 2 * NARROWEST_COLUMN)
    first, *rest = textwrap.wrap(clause, room) or [""]
    return [name.ljust(offset) + first, *(" " * offset + line for line in rest)]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    A table in GitHub Markdown.

    Args:
        head: Column heads, escaped.
        rows: Cells, escaped, so that none holds a bare ``|`` or a line break.
    """
    return tabulate([list(row) for row in rows], list(head), "github", disable_numparse=True)
