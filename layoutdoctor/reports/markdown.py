"""
The Markdown report: what fits into an issue on GitHub, long lists folded away.

Faces the view and the details. GitHub refuses a text of more than 65,536 characters, so this one stays below 60,000:
long lists are cut, and each says how many entries it left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.reports.details import build_details
from layoutdoctor.reports.tables import markdown_table
from layoutdoctor.reports.trace_details import build_trace_details
from layoutdoctor.reports.view import build_view
from layoutdoctor.reports.wording import clean, in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.answer import Answer
    from layoutdoctor.reports.details import Detail
    from layoutdoctor.reports.rows import Table
    from layoutdoctor.reports.view import FindingEntry, View

MOST_CHARACTERS = 60_000
# Tried from the longest: the first list length whose report is short enough is taken.
LIST_LENGTHS = (200, 100, 50, 25, 12, 6, 3, 1, 0)
FEWEST_FINDINGS = 3

_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render_markdown(diagnosis: Diagnosis) -> str:
    """
    The report as GitHub Markdown.

    Args:
        diagnosis: Any diagnosis.

    Returns:
        Fewer than 60,000 characters.
    """
    view = build_view(diagnosis)
    build = build_trace_details if diagnosis.subject.mode == "trace" else build_details
    for most in LIST_LENGTHS:
        report = "\n\n".join(_parts(view, build(diagnosis, most), most)) + "\n"
        if len(report) < MOST_CHARACTERS:
            return report
    return "\n\n".join(_shortest(view)) + "\n"


def escape(text: str) -> str:
    """
    Text that Markdown shows as it is, also within a table: no markup, no HTML, no cell border.

    Args:
        text: Printable text on one line.
    """
    without_markup = _SPECIAL.sub(lambda match: f"\\{match.group()}", text)
    return _without_html(without_markup)


def _parts(view: View, details: Sequence[Detail], most: int) -> Iterator[str]:
    yield f"## {escape(' · '.join(view.title))}"
    if view.interrupted:
        yield f"**{escape(view.interrupted)}.**"
    yield from _answer(view.answer)
    for table in view.tables:
        yield _folded("All configurations", _table(table)) if view.answer.is_short else _table(table)
    if view.remarks:
        yield _list(view.remarks, max(most, FEWEST_FINDINGS))
    yield from _findings(view.findings, max(most, FEWEST_FINDINGS))
    yield _list(
        (f"Not understood: {'; '.join(view.not_understood)}.", f"Measurement: {'; '.join(view.measurement)}."), 2
    )
    for detail in details:
        yield _folded(detail.title, "\n\n".join(_detail(detail)))
    yield f"More: {escape(' · '.join(view.hints))}"


def _shortest(view: View) -> Iterator[str]:
    """For a record so long that even its table does not fit."""
    yield f"## {escape(' · '.join(view.title))}"
    yield from _answer(view.answer)
    rows = [f"{len(table.rows)} {table.head[0]}s" for table in view.tables]
    yield (
        "The rest is left out, as it would not fit into an issue: "
        f"{in_words((*rows, f'{len(view.findings)} findings'))}; the JSON report has them."
    )


def _answer(answer: Answer) -> Iterator[str]:
    yield f"**{escape(answer.headline)}**"
    if answer.how:
        yield _code("\n".join(answer.how), "python")
    if answer.lines:
        yield _list(answer.lines, len(answer.lines))


def _code(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _list(lines: Sequence[str], most: int) -> str:
    shown = [f"- {escape(line)}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"- and {len(lines) - most} more")
    return "\n".join(shown)


def _table(table: Table) -> str:
    rows = []
    for row in table.rows:
        cells = list(row.cells)
        if row.clause is not None:
            cells = [cells[0], *[""] * (len(table.head) - 1)]
            cells[table.clause_column] = row.clause
        rows.append([escape(cell) for cell in cells])
    return markdown_table([escape(column) for column in table.head], rows)


def _findings(findings: Sequence[FindingEntry], most: int) -> Iterator[str]:
    yield "### Findings"
    if not findings:
        yield "None."
        return
    shown = [_finding(entry) for entry in findings[:most]]
    if len(findings) > most:
        shown.append(f"- and {len(findings) - most} more")
    yield "\n".join(shown)


def _finding(entry: FindingEntry) -> str:
    about = f" \\[{escape(entry.configuration)}\\]" if entry.configuration else ""
    lines = [f"- **{escape(entry.code)} {entry.severity}** {escape(entry.rule)}{about}: {escape(entry.message)}"]
    if entry.place:
        lines.append(f"  - at {escape(entry.place)}")
    if entry.suggestion:
        lines.append(f"  - to do: {escape(entry.suggestion)}")
    return "\n".join(lines)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{_without_html(title)}</summary>\n\n{body}\n\n</details>"


def _detail(detail: Detail) -> Iterator[str]:
    for sentence in detail.text:
        yield escape(sentence)
    if detail.rows:
        yield markdown_table(detail.head, [[escape(cell) for cell in row] for row in detail.rows])
    if detail.left_out:
        yield f"{detail.left_out} more left out here; the JSON report has them."
    if detail.log:
        yield f"<pre>\n{_without_html(_clean_lines(detail.log))}\n</pre>"


def _clean_lines(text: str) -> str:
    return "\n".join(clean(line, 300) for line in text.splitlines() if line.strip())


def _without_html(text: str) -> str:
    return re.sub(r"[&<>]", lambda match: _HTML[match.group()], text)
