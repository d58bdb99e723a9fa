"""
Small pieces of GitHub Markdown: escaped text, lists, tables, code, folds, and flowcharts as GitHub draws them.

In a Mermaid flowchart, what comes from a record stands in quoted labels, with every character but a few written as an
entity code: no name can end a label, start a directive or a comment, or be read as Markdown or HTML.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tabulate import tabulate

from layoutdoctor.reports.sections.wording import clean_log
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.reports.flow.graph import FlowFormat, FlowKind, FlowNode
    from layoutdoctor.reports.flow.scenes import Flow
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
LINE_LENGTH = 70
"""Characters of one line of a box; Mermaid draws no box narrower than its longest line."""

# Mermaid cuts "style ...: ... #...;" short, decodes "#...;", and reads labels as Markdown: none of these signs stays.
_PLAIN = re.compile(r"[A-Za-z0-9 ,()/=+]|(?<=[A-Za-z0-9])[._-](?=[A-Za-z0-9])")
# Once decoded, Mermaid would still read a backslash with an n, two dollars, and "fa:fa-": nothing visible parts them.
_PARTED = re.compile(r"\\(?=n)|\$(?=\$)|:(?=fa-)")
_FOLDERS = re.compile(r"^[^ ]*[/\\]")
_NOT_FOR_TITLES = re.compile(r"[^A-Za-z0-9 ,.()_-]+")
_SHAPES: dict[FlowKind, tuple[str, str]] = {
    "convolution": ("[", "]"),
    "operation": ("(", ")"),
    "conversion": ("{{", "}}"),
    "input": ("([", "])"),
    "output": ("([", "])"),
}
# Dark text on light boxes, so that both of GitHub's themes show them alike.
_CLASSES: dict[FlowFormat, str] = {
    "channels_last": "fill:#d7ecff,stroke:#1f5fa8,color:#0b2545",
    "contiguous": "fill:#ffe9c7,stroke:#a86a00,color:#3d2600",
    "blocked": "fill:#e7defa,stroke:#6b45b0,color:#2a1650",
    "unknown": "fill:#eeeeee,stroke:#6b6b6b,color:#222222",
}
_REDUNDANT = "stroke:#c1121f,stroke-width:3px,stroke-dasharray:6 4"


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
    """Text in which nothing is HTML, and nobody is called."""
    text = _MENTION.sub(f"@{_ZERO_WIDTH_SPACE}", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code_name(name: str) -> str:
    """A file's name within a sentence, as code where that can be."""
    return escape(name) if "`" in name else f"`{name}`"


def bullets(lines: Sequence[str], most: int) -> str:
    """
    A list of plain sentences.

    Args:
        lines: Not escaped.
    """
    shown = [f"- {paragraph(line)}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- and {len(lines) - most} more")
    return "\n".join(shown)


def table_of(table: Table) -> str:
    """A table of the view; a clause stands in the column that the table names."""
    rows = []
    for row in table.rows:
        cells = list(row.cells)
        if row.clause is not None:
            cells = [cells[0], *[""] * (len(table.head) - 1)]
            cells[table.clause_column] = row.clause
        rows.append([escape(cell) for cell in cells])
    return markdown_table([escape(column) for column in table.head], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    A table in GitHub Markdown.

    Args:
        head: Column heads, escaped.
        rows: Cells, escaped, so that none holds a bare ``|`` or a line break.
    """
    return tabulate([list(row) for row in rows], list(head), "github", disable_numparse=True)


def folded(title: str, body: str) -> str:
    """
    What GitHub shows only on a click.

    Args:
        title: Plain text.
        body: Markdown.
    """
    return f"<details><summary>{without_html(title)}</summary>\n\n{body}\n\n</details>"


def log_block(log: str) -> str:
    """The lines of a log, each cleaned and cut, in a fenced block."""
    return code_block(clean_log(log, LOG_LINE_LENGTH), "text")


def render_mermaid(flow: Flow) -> str:
    """
    A flow as the source of a Mermaid flowchart.

    Returns:
        Lines without a fence around them, no line break at the end.
    """
    names = {node.key: f"n{number}" for number, node in enumerate(flow.nodes)}
    lines = ["flowchart TD", f"    accTitle: {_chart_title(flow)}"]
    for node in flow.nodes:
        opening, closing = _SHAPES[node.kind]
        lines.append(f"    {names[node.key]}{opening}{_quoted(*_box_lines(node))}{closing}")
    for edge in flow.edges:
        label = f"|{_quoted(edge.label)}|" if edge.label else ""
        lines.append(f"    {names[edge.source]} -->{label} {names[edge.target]}")
    for name, style in _CLASSES.items():
        members = [names[node.key] for node in flow.nodes if node.memory_format == name]
        if members:
            lines += [f"    classDef {name} {style}", f"    class {','.join(members)} {name}"]
    redundant = [names[node.key] for node in flow.nodes if node.is_redundant]
    if redundant:
        lines += [f"    classDef redundant {_REDUNDANT}", f"    class {','.join(redundant)} redundant"]
    return "\n".join(lines)


def _chart_title(flow: Flow) -> str:
    words = _NOT_FOR_TITLES.sub(" ", flow.heading).split()
    return " ".join(words)[: 2 * LINE_LENGTH] or "Layout flow"


def _box_lines(node: FlowNode) -> tuple[str, ...]:
    redundant = "redundant conversion" if node.is_redundant else None
    seconds = None if node.seconds is None else format_seconds(node.seconds)
    place = _FOLDERS.sub("", node.place) if node.place and node.kind in ("convolution", "conversion") else None
    lines = (redundant, node.label, node.detail, place, seconds)
    return tuple(_shortened(line) for line in lines if line)


def _shortened(line: str) -> str:
    """A line that fits a box; of a long one both ends, as names differ at either."""
    half = (LINE_LENGTH - 3) // 2
    return line if len(line) <= LINE_LENGTH else f"{line[:half].rstrip()}...{line[-half:].lstrip()}"


def _quoted(*lines: str) -> str:
    return f'"{"<br/>".join(_entity_codes(line) for line in lines)}"'


def _entity_codes(text: str) -> str:
    """Text in which only harmless characters stand for themselves."""
    parted = _PARTED.sub(lambda match: match.group() + _ZERO_WIDTH_SPACE, text)
    return "".join(
        character if _PLAIN.match(parted, place) else f"#{ord(character)};" for place, character in enumerate(parted)
    )
