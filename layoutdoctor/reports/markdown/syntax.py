"""
Small pieces of GitHub Markdown: escaped text, lists, tables, code, folds.

Faces the Markdown report; knows nothing of a diagnosis.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.wording import clean_line
from layoutdoctor.reports.tables import markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.reports.sections.rows import Table

MOST_CHARACTERS = 60_000
MOST_BYTES = 65_536
"""GitHub refuses a text of more bytes, and one of more characters than the first says with some room to spare."""

LIST_LENGTHS = (200, 100, 50, 25, 12, 6, 3, 1, 0)
"""Tried from the longest: the first list length whose report is short enough is taken."""

LOG_LINE_LENGTH = 300
_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# GitHub would call the user of that name to the issue; nothing else keeps it from that, not even an entity.
_MENTION = re.compile(r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9])")
_ZERO_WIDTH_SPACE = "\u200b"
# What starts a heading, a list or a rule where a line begins.
_BLOCK_START = re.compile(r"^(?:[#+=-]|\d{1,9}(?=[.)]))")


def escape(text: str) -> str:
    """
    Text that Markdown shows as it is, also within a table: no markup, no HTML, no cell border.

    Args:
        text: Printable text on one line.
    """
    without_markup = _SPECIAL.sub(lambda match: f"\\{match.group()}", text)
    return without_html(without_markup)


def paragraph(text: str) -> str:
    """
    The same where a line begins: no heading, no list.

    Args:
        text: Printable text on one line.
    """
    start = _BLOCK_START.match(text)
    if start is None:
        return escape(text)
    number, sign = (start.group(), text[start.end()]) if start.group().isdigit() else ("", start.group())
    return f"{number}\\{sign}{escape(text[len(number) + 1 :])}"


def without_html(text: str) -> str:
    """
    Text in which nothing is HTML, and nobody is called.

    Args:
        text: Any.
    """
    text = _MENTION.sub(f"@{_ZERO_WIDTH_SPACE}", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str, language: str = "") -> str:
    """
    A fenced block whose fence is longer than any run of backticks within.

    Args:
        text: Any lines.
        language: What GitHub is to colour it as.
    """
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code_name(name: str) -> str:
    """
    A file's name within a sentence, as code where that can be.

    Args:
        name: Printable text on one line.
    """
    return escape(name) if "`" in name else f"`{name}`"


def bullets(lines: Sequence[str], most: int) -> str:
    """
    A list of plain sentences.

    Args:
        lines: Not escaped.
        most: How many to show; the list says how many it leaves out.
    """
    shown = [f"- {paragraph(line)}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- and {len(lines) - most} more")
    return "\n".join(shown)


def table_of(table: Table) -> str:
    """
    A table of the view; a clause stands in the column that the table names.

    Args:
        table: Any.
    """
    rows = []
    for row in table.rows:
        cells = list(row.cells)
        if row.clause is not None:
            cells = [cells[0], *[""] * (len(table.head) - 1)]
            cells[table.clause_column] = row.clause
        rows.append([escape(cell) for cell in cells])
    return markdown_table([escape(column) for column in table.head], rows)


def folded(title: str, body: str) -> str:
    """
    What GitHub shows only on a click.

    Args:
        title: Plain text.
        body: Markdown.
    """
    return f"<details><summary>{without_html(title)}</summary>\n\n{body}\n\n</details>"


def log_block(log: str) -> str:
    """
    The lines of a log, each cleaned and cut, in a fenced block.

    Args:
        log: As recorded.
    """
    return code_block("\n".join(clean_line(line, LOG_LINE_LENGTH) for line in log.splitlines() if line.strip()), "text")
