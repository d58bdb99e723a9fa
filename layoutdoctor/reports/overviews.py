"""The reports of comparisons and scans in every format; what is said is decided in ``sections``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import comparison_to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.compared import build_comparison_view
from layoutdoctor.reports.text import DEFAULT_WIDTH, INDENT, NARROWEST, plain_table, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.diagnosis.scan import Scan
    from layoutdoctor.reports.sections.rows import Overview, Table, TableRow

MOST_ROWS = 10

COMPARISON_FORMATS = ("json", "markdown", "text")


def render_comparison(
    comparison: TraceComparison | ModelComparison, report_format: str = "text", width: int | None = None
) -> str:
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
    if report_format == "json":
        return comparison_to_json(comparison).decode()
    view = build_comparison_view(comparison)
    if report_format == "text":
        return _text(view, max(width or DEFAULT_WIDTH, NARROWEST))
    from layoutdoctor.reports.markdown import overview_markdown  # late: the other formats need none of it

    return overview_markdown(view)


SCAN_FORMATS = ("html", "json", "markdown", "text")


def render_scan(scan: Scan, report_format: str = "text", width: int | None = None) -> str:
    """
    The report of a scan, without what says who ran it and where.

    Args:
        report_format: ``text``, ``markdown``, ``html`` or ``json``.
        width: Characters per line of the text; None for 100.

    Raises:
        UsageError: There is no such format.
    """
    if report_format not in SCAN_FORMATS:
        raise UsageError(f"cannot render a scan as {report_format!r}: expected one of {', '.join(SCAN_FORMATS)}")
    scan = scrub(scan)
    if report_format == "json":
        return scan.to_json().decode()
    from layoutdoctor.reports.sections.scanned import build_scan_view  # late: a comparison needs none of it

    view = build_scan_view(scan, in_full=report_format != "text")
    if report_format == "text":
        return _text(view, max(width or DEFAULT_WIDTH, NARROWEST))
    if report_format == "markdown":
        from layoutdoctor.reports.markdown import overview_markdown

        return overview_markdown(view)
    from layoutdoctor.reports.html.document import overview_html

    return overview_html(view)


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


def _text(view: Overview, width: int) -> str:
    sections = [wrap(" · ".join(view.title), width)]
    sections.append([*wrap(view.headline, width), *(line for text in view.lines for line in wrap(text, width))])
    sections += [_text_table(table, width) for table in view.tables]
    sections.append([line for remark in view.remarks for line in wrap(remark, width)])
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _text_table(table: Table, width: int) -> list[str]:
    shown = table.rows[:MOST_ROWS]
    cells, clauses = [row.cells for row in shown], [row.clause for row in shown]
    body = plain_table(table.head, cells, width, clauses, wraps_names=table.wraps_names)
    if max(map(len, body.splitlines())) > width:
        body = "\n".join(line for row in shown for line in _stacked(table.head, row, width))
    lines = [table.title, body]
    left_out = len(table.rows) - len(shown)
    left_out += table.left_out
    return [*lines, f"and {left_out} more: --output report.json lists them"] if left_out else lines


def _stacked(head: Sequence[str], row: TableRow, width: int) -> Iterator[str]:
    """One row below the other cells of its own, for a table that is too wide for the terminal."""
    if row.clause is not None:
        yield from wrap(f"{row.cells[0]}: {row.clause}", width)
        return
    yield from wrap(row.cells[0], width)
    cells = [f"{name} {' '.join(cell.split())}" for name, cell in zip(head[1:], row.cells[1:], strict=True)]
    yield from (f"{INDENT}{line}" for line in wrap(" · ".join(cells), width - len(INDENT)))
