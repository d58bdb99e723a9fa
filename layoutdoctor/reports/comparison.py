"""The report of a comparison as text, Markdown and JSON; what is said is decided in ``sections``."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison, comparison_to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.markdown.syntax import LIST_LENGTHS, MOST_CHARACTERS, escape, table_of
from layoutdoctor.reports.sections.compared import build_trace_view
from layoutdoctor.reports.sections.compared_models import build_model_view
from layoutdoctor.reports.text import DEFAULT_WIDTH, INDENT, NARROWEST, plain_table, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutdoctor.reports.sections.compared import ComparisonView, TitledTable
    from layoutdoctor.reports.sections.rows import TableRow

MOST_ROWS = 10

COMPARISON_FORMATS = ("json", "markdown", "text")

Comparison = TraceComparison | ModelComparison


def render_comparison(comparison: Comparison, report_format: str = "text", width: int | None = None) -> str:
    """
    The report of a comparison, without what says who ran it and where.

    Args:
        report_format: ``text``, ``markdown`` or ``json``.
        width: Characters per line of the text; None for 100.

    Raises:
        UsageError: There is no such format.
    """
    check_format(report_format)
    comparison = scrub(comparison)
    if report_format == "text":
        return _text(build_comparison_view(comparison), max(width or DEFAULT_WIDTH, NARROWEST))
    return _RENDERERS[report_format](comparison)


def check_format(report_format: str) -> None:
    """
    Refuses a format that no comparison has.

    Raises:
        UsageError: There is no such format.
    """
    if report_format not in COMPARISON_FORMATS:
        raise UsageError(
            f"cannot render a comparison as {report_format!r}: expected one of {', '.join(COMPARISON_FORMATS)}"
        )


def build_comparison_view(comparison: Comparison) -> ComparisonView:
    """The report of a comparison, in sections."""
    return build_trace_view(comparison) if isinstance(comparison, TraceComparison) else build_model_view(comparison)


def _json(comparison: Comparison) -> str:
    return comparison_to_json(comparison).decode()


def _markdown(comparison: Comparison) -> str:
    view = build_comparison_view(comparison)
    for most in LIST_LENGTHS:
        report = "\n\n".join(_markdown_parts(view, most)) + "\n"
        if len(report) < MOST_CHARACTERS:
            break
    return report


_RENDERERS: Mapping[str, Callable[[Comparison], str]] = MappingProxyType({"json": _json, "markdown": _markdown})


def _text(view: ComparisonView, width: int) -> str:
    sections = [wrap(" · ".join(view.title), width)]
    sections.append([*wrap(view.headline, width), *(line for text in view.lines for line in wrap(text, width))])
    sections += [_text_table(titled, width) for titled in view.tables]
    sections.append([line for remark in view.remarks for line in wrap(remark, width)])
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _text_table(titled: TitledTable, width: int) -> list[str]:
    table, shown = titled.table, titled.table.rows[:MOST_ROWS]
    cells, clauses = [row.cells for row in shown], [row.clause for row in shown]
    body = plain_table(table.head, cells, width, clauses, wraps_names=table.wraps_names)
    if max(map(len, body.splitlines())) > width:
        body = "\n".join(line for row in shown for line in _stacked(table.head, row, width))
    lines = [titled.title, body]
    left_out = len(table.rows) - len(shown)
    return [*lines, f"and {left_out} more: --output report.json lists them"] if left_out else lines


def _stacked(head: Sequence[str], row: TableRow, width: int) -> Iterator[str]:
    """One row below the other cells of its own, for a table that is too wide for the terminal."""
    if row.clause is not None:
        yield from wrap(f"{row.cells[0]}: {row.clause}", width)
        return
    yield from wrap(row.cells[0], width)
    cells = [f"{name} {' '.join(cell.split())}" for name, cell in zip(head[1:], row.cells[1:], strict=True)]
    yield from (f"{INDENT}{line}" for line in wrap(" · ".join(cells), width - len(INDENT)))


def _markdown_parts(view: ComparisonView, most: int) -> Iterator[str]:
    yield f"## {escape(' · '.join(view.title))}"
    yield f"**{escape(view.headline)}**"
    if view.lines:
        yield "\n".join(f"- {escape(line)}" for line in view.lines)
    for titled in view.tables:
        table = _markdown_table(titled, most)
        if titled.is_long:
            yield f"<details><summary>{titled.title}: {len(titled.table.rows)}</summary>\n\n{table}\n\n</details>"
        else:
            yield f"### {titled.title}\n\n{table}"
    if view.remarks:
        yield "\n".join(f"- {escape(remark)}" for remark in view.remarks)


def _markdown_table(titled: TitledTable, most: int) -> str:
    table = titled.table
    left_out = len(table.rows) - most
    shown = table_of(replace(table, rows=table.rows[:most]))
    return f"{shown}\n\n{left_out} more left out here; the JSON report has them." if left_out > 0 else shown
