"""
The report as a terminal shows it: the same sections and sentences as the text report, set off by weight and colour.

What is said is decided in the view; here it is only laid out for the terminal's width.
"""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.text import (
    DEFAULT_WIDTH,
    FINDINGS,
    MOST_FINDINGS,
    NARROWEST,
    NO_FINDINGS,
    also_noted,
    findings_left_out,
    how_it_was_measured,
    where_to_go_on,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from layoutdoctor.diagnosis.records import Diagnosis
    from layoutdoctor.reports.sections.answer import Answer
    from layoutdoctor.reports.sections.rows import Table
    from layoutdoctor.reports.sections.view import FindingEntry, View

_SEVERITY_STYLES: Mapping[str, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_HEADLINE_STYLES = (
    (re.compile(r"Use\b|No layout conversion\b"), "bold green"),
    (re.compile(r"Nothing could be concluded\b|No recommendation\b|Not compared\b|Only\b"), "bold yellow"),
)
_LABEL = re.compile(r"[A-Z][A-Za-z ]{2,40}( \([^)]*\))?:(?= )")
_BAD_LABELS = ("Wasted in", "Not verified")
_GAP = 2


def render_terminal(diagnosis: Diagnosis, width: int | None, *, is_coloured: bool) -> str:
    """
    The report with headings, aligned tables and, if wanted, colours.

    Args:
        diagnosis: Any diagnosis.
        width: Characters per line, None for 100; lines to paste are never broken.
        is_coloured: Whether escape sequences may be used at all.

    Returns:
        Lines with a line break at the end; escape sequences of colours and weight only.
    """
    stream = StringIO()
    console = Console(
        file=stream,
        width=max(width or DEFAULT_WIDTH, NARROWEST),
        force_terminal=is_coloured,
        color_system="standard" if is_coloured else None,
        no_color=not is_coloured,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    view, page = build_view(diagnosis), _Page(console)
    for number, section in enumerate(_short_sections(view, page) if view.answer.is_short else _sections(view, page)):
        if number:
            console.print()
        for part in section:
            console.print(part, soft_wrap=isinstance(part, Text))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class _Page:
    """Paragraphs of one width; lines to copy are left as long as they are."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width = console.width

    def wrap(self, text: Text, indent: int = 0, further: int = 2) -> Iterator[Text]:
        """The lines of a paragraph, from the second on a little to the right, so that a new fact is seen as one."""
        first = text.wrap(self._console, self.width - indent, overflow="fold")[:1] if text else ()
        for line in first:
            line.rstrip()
            yield Text(" " * indent).append_text(line)
            rest = text[len(line) :]
            rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
            for other in rest.wrap(self._console, self.width - indent - further, overflow="fold") if rest else ():
                other.rstrip()
                yield Text(" " * (indent + further)).append_text(other)


def _short_sections(view: View, page: _Page) -> Iterator[list[RenderableType]]:
    end = () if view.answer.is_bare else (*_end(view, page, in_full=False), *page.wrap(Text(also_noted(view))))
    yield [*page.wrap(Text(" · ".join(view.title), "dim")), *_answer(view.answer, page), *end]


def _sections(view: View, page: _Page) -> Iterator[list[RenderableType]]:
    interruption = page.wrap(Text(f"{view.interrupted}.", "bold yellow")) if view.interrupted else ()
    yield [*page.wrap(Text(" · ".join(view.title), "dim")), *interruption]
    yield [*_answer(view.answer, page)]
    for table in view.tables:
        yield [*_table(table, page)]
    if view.remarks:
        yield [line for remark in view.remarks for line in page.wrap(Text(remark))]
    yield [*_findings(view, page)]
    yield [*_end(view, page, in_full=True), *page.wrap(Text(where_to_go_on(view), "dim"))]


def _answer(answer: Answer, page: _Page) -> Iterator[Text]:
    style = next((style for pattern, style in _HEADLINE_STYLES if pattern.match(answer.headline)), "bold")
    yield from page.wrap(Text(answer.headline, style))
    for line in answer.how:
        yield Text(f"  {line}", "cyan")
    for line in answer.lines:
        text = Text(line)
        label = _LABEL.match(line)
        if label is not None:
            text.stylize("bold yellow" if line.startswith(_BAD_LABELS) else "bold", 0, label.end())
        yield from page.wrap(text)


def _table(table: Table, page: _Page) -> Iterator[RenderableType]:
    ordinary = [row for row in table.rows if row.clause is None]
    names = max((len(row.cells[0]) for row in table.rows), default=0)
    widths = _widths(table, names, page.width) if ordinary else []
    if ordinary and not widths:
        yield from _stacked(table, page)
        return
    if ordinary:
        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for head, width in zip(table.head, widths, strict=True):
            grid.add_column(head, width=width, overflow="fold")
        for row in ordinary:
            grid.add_row(*(Text(cell) for cell in row.cells), style="bold green" if row.is_recommended else "")
        yield grid
    for row in table.rows:
        if row.clause is not None:
            line = Text(row.cells[0].ljust(names + _GAP)).append(row.clause, _clause_style(row.clause))
            yield from page.wrap(line, further=min(names + _GAP, page.width // 2))


def _widths(table: Table, names: int, width: int) -> list[int]:
    """
    A width for each column, so that the table fits and no word is broken; empty where there are none.

    The library's own way to narrow columns forgets the least widths it was given, and cuts what does not fit.
    """
    columns = list(zip(table.head, *(row.cells for row in table.rows if row.clause is None), strict=True))
    widths = [max(map(len, column)) for column in columns]
    narrowest = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    if not table.wraps_names:
        widths[0] = narrowest[0] = max(names, widths[0])
    too_wide = sum(widths) + _GAP * (len(widths) - 1) - width
    for _ in range(max(too_wide, 0)):
        spare = [number for number in range(len(widths)) if widths[number] > narrowest[number]]
        if not spare:
            return []
        widths[max(spare, key=lambda number: widths[number])] -= 1
    return widths


def _stacked(table: Table, page: _Page) -> Iterator[Text]:
    """A table too wide for the terminal, row by row: the name, and below it what its columns say."""
    yield Text(table.head[0], "dim")
    for row in table.rows:
        yield from page.wrap(Text(row.cells[0], "bold green" if row.is_recommended else "bold"))
        if row.clause is not None:
            yield from page.wrap(Text(row.clause, _clause_style(row.clause)), 2)
        else:
            cells = zip(table.head[1:], row.cells[1:], strict=True)
            yield from page.wrap(Text(" · ".join(f"{head} {cell}" for head, cell in cells if cell)), 2)


def _clause_style(clause: str) -> str:
    return "dim" if clause.startswith(("same code as", "the same as")) else "red"


def _findings(view: View, page: _Page) -> Iterator[Text]:
    shown = view.main_findings[:MOST_FINDINGS]
    yield Text(FINDINGS, "bold") if shown else Text(NO_FINDINGS)
    for entry in shown:
        yield from _finding(entry, page)
    for text in findings_left_out(view):
        yield from page.wrap(Text(text, "dim"))


def _finding(entry: FindingEntry, page: _Page) -> Iterator[Text]:
    head = f"{entry.code} {entry.severity:<7}  "
    indent = min(len(head), page.width // 3)
    about = (f"{entry.configuration}: ", "bold") if entry.configuration else ""
    yield from page.wrap(
        Text.assemble((head, _SEVERITY_STYLES.get(entry.severity, "")), about, entry.message), 0, indent
    )
    if entry.place:
        yield from page.wrap(Text(f"at {entry.place}", "blue"), indent, 0)
    if entry.suggestion:
        yield from page.wrap(Text(f"-> {entry.suggestion}", "green"), indent, 3)


def _end(view: View, page: _Page, *, in_full: bool) -> Iterator[Text]:
    understood = view.not_understood in ((), ("nothing",))
    yield from page.wrap(Text(how_it_was_measured(view, in_full=in_full), "dim" if understood else "yellow"))
