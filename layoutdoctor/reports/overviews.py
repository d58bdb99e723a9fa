"""The reports of comparisons and scans in every format; their sentences are made in ``sections``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import comparison_to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import scrub
from layoutdoctor.reports.sections.compared import build_comparison_view
from layoutdoctor.reports.text import DEFAULT_WIDTH, NARROWEST, plain_table, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.diagnosis.scan import Scan
    from layoutdoctor.reports.sections.rows import Overview, Table

MOST_ROWS = 10

COMPARISON_FORMATS = ("json", "markdown", "text")
SCAN_FORMATS = ("html", "json", "markdown", "text")


def render_comparison(
    comparison: TraceComparison | ModelComparison, report_format: str = "text", width: int | None = None
) -> str:
    """
    The report of a comparison, without user and host names and private paths.

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
    return _render(build_comparison_view(comparison), report_format, width)


def render_scan(scan: Scan, report_format: str = "text", width: int | None = None) -> str:
    """
    The report of a scan, without user and host names and private paths.

    Args:
        report_format: ``text``, ``markdown``, ``html`` or ``json``.
        width: Characters per line of the text; None for 100.

    Raises:
        UsageError: There is no such format.
    """
    check_format(report_format, SCAN_FORMATS, "scan")
    scan = scrub(scan)
    if report_format == "json":
        return scan.to_json().decode()
    from layoutdoctor.reports.sections.scanned import build_scan_view  # late: a comparison needs none of it

    return _render(build_scan_view(scan, in_full=report_format != "text"), report_format, width)


def check_format(report_format: str, formats: Sequence[str] = COMPARISON_FORMATS, what: str = "comparison") -> None:
    """
    Refuses a format that no comparison, or no scan, has.

    Raises:
        UsageError: There is no such format.
    """
    if report_format not in formats:
        raise UsageError(f"cannot render a {what} as {report_format!r}: expected one of {', '.join(formats)}")


def _render(view: Overview, report_format: str, width: int | None) -> str:
    if report_format == "markdown":
        from layoutdoctor.reports.markdown import overview_markdown  # late: the other formats need none of it

        return overview_markdown(view)
    if report_format == "html":
        from layoutdoctor.reports.html import overview_html

        return overview_html(view)
    columns = max(width or DEFAULT_WIDTH, NARROWEST)
    sections = [wrap(" · ".join(view.title), columns)]
    sections.append([line for text in (view.headline, *view.lines) for line in wrap(text, columns)])
    sections += [_table(table, columns) for table in view.tables]
    sections.append([line for remark in view.remarks for line in wrap(remark, columns)])
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _table(table: Table, width: int) -> list[str]:
    shown = table.rows[:MOST_ROWS]
    lines = [table.title, plain_table(table.head, [row.cells for row in shown], width, [row.clause for row in shown])]
    left_out = len(table.rows) - len(shown) + table.left_out
    return [*lines, f"and {left_out} more: --output report.json lists them"] if left_out else lines
