"""
Makes the Markdown report: a text for an issue of PyTorch, with the headings of PyTorch's template.

The report stays below 10,000 bytes: if not all parts fit, the less important parts are left out. A second text, for a
file beside the report, has everything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.reports.reproducer import build_reproducer
from layoutdoctor.reports.sections.account import account_table
from layoutdoctor.reports.sections.details import build_details, build_environment, log_of
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import clean_log, clean_name, failure_clause, shown_name
from layoutdoctor.words import STATUS_WORDS, count_of

if TYPE_CHECKING:
    from layoutdoctor.reports.reproducer import Reproducer
    from layoutdoctor.reports.sections.details import Detail
    from layoutdoctor.reports.sections.rows import Overview, Table
    from layoutdoctor.reports.sections.view import FindingEntry, View

MOST_ROWS = 25
"""Most rows of a table of a comparison or a scan. GitHub refuses an issue of more than 65,536 characters."""
USUAL_CHARACTERS = 10_000
"""Limit of the report's size in bytes: about as much as a reader of an issue scrolls through."""
MOST_FINDINGS = 5
MOST_REMARKS = 6
MOST_LOGS = 2
MOST_SETTINGS = 12
WHOLE = sys.maxsize
_BY_IMPORTANCE = ("how", "table", "script", "findings", "notes", "remarks", "log")
"""Parts of the report in the order in which they get room."""


def render_markdown(diagnosis: Diagnosis) -> str:
    """Returns the report as GitHub Markdown: the first text of ``markdown_parts``."""
    return markdown_parts(diagnosis)[0]


def markdown_parts(diagnosis: Diagnosis, details_name: str | None = None) -> tuple[str, str | None]:
    """
    Returns the report as GitHub Markdown, and a second text with everything in full.

    Args:
        details_name: Name, without folders, of the file for the second text; the report names this file. None if there
            will be no file; then the second text is not made.

    Returns:
        The report in fewer than 10,000 bytes, and the second text. The second text is None if there is no file for it,
        or if the report is short because layouts do not matter.
    """
    view, reproducer = build_view(diagnosis), build_reproducer(diagnosis)
    name = "" if details_name is None or view.answer.is_short else clean_name(details_name)
    parts = [*_bug(view), *_reproducer(reproducer, name), *_comparison(diagnosis, view), *_error_logs(diagnosis)]
    parts += [("", f"### Versions\n\n{_versions(diagnosis)}"), ("", _last_line(view, name))]
    kept, report = {""}, ""
    for added in ("", *_BY_IMPORTANCE):
        longer = _joined(text for kind, text in parts if kind in {added, *kept})
        if not added or len(longer.encode("utf-8", "replace")) < USUAL_CHARACTERS:
            kept, report = {added, *kept}, longer
    return report, _joined(_details(diagnosis, view, reproducer)) if name else None


def _title(title: Sequence[str]) -> str:
    return f"## {escape(' · '.join(title))}"


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _last_line(view: View, name: str) -> str:
    hints = view.hints[:-1]  # the last hint names this report
    made = f"Made by {escape(' · '.join((view.made_by, *hints)))}"
    if view.answer.is_short:
        return made
    rest = "every conversion, decision and difference"
    if not name:
        return f"{made} · `--output report.md` writes {rest} to a file beside the report"
    return f"{made} · {code_name(name)} has {rest}"


def _details(diagnosis: Diagnosis, view: View, reproducer: Reproducer) -> Iterator[str]:
    """Yields the parts of the second text, whose size is not limited: all lists in full, nothing folded."""
    yield _title(view.title)
    yield "Everything behind the report, in full."
    yield "### Findings"
    findings = (
        "\n".join((_finding(one), *(f"  - also {escape(text)}" for text in one.others))) for one in view.findings
    )
    yield "\n".join(findings) or "None."
    if reproducer.is_runnable:
        yield from (text for _, text in _reproducer(reproducer, ""))
    yield "### Tables"
    for table in (*view.tables, *map(account_table, diagnosis.accounts)):
        yield f"**{escape(table.title)}**"
        yield table_of(table)
    if view.remarks:
        yield bullets(view.remarks)
    for detail in (*build_details(diagnosis, WHOLE), build_environment(diagnosis, WHOLE)):
        yield f"### {escape(detail.title)}"
        yield from _detail_lines(detail)


def _bug(view: View) -> Iterator[tuple[str, str]]:
    """Yields the answer and the findings, each part with its kind; parts of the empty kind are never left out."""
    yield "", _title(view.title)
    yield "", "### 🐛 Describe the bug"
    if view.interrupted:
        yield "", f"**{escape(view.interrupted)}.**"
    yield "", f"**{escape(view.answer.claim)}**"
    if view.answer.how:
        yield "how", code_block("\n".join(view.answer.how), "python")
    if view.answer.notes:
        yield "notes", "\n".join(f"- **{escape(label)}** {escape(text)}" for label, text in view.answer.notes)
    shown = view.main_findings[:MOST_FINDINGS]
    left_out = len(view.findings) - len(shown)
    more = [f"- and {count_of(left_out, 'more finding')}"] if left_out else []
    yield "findings", "#### Findings\n\n" + ("\n".join([*map(_finding, shown), *more]) or "None.")


def _finding(entry: FindingEntry) -> str:
    about = f" \\[{escape(entry.configuration)}\\]" if entry.configuration else ""
    lines = [f"- **{escape(entry.code)} {entry.severity}** {escape(entry.rule)}{about}: {escape(entry.message)}"]
    if entry.place:
        lines.append(f"  - at {escape(entry.place)}")
    if entry.suggestion:
        lines.append(f"  - to do: {escape(entry.suggestion)}")
    return "\n".join(lines)


def _comparison(diagnosis: Diagnosis, view: View) -> Iterator[tuple[str, str]]:
    """Yields the configurations and their times, or the places where the time of a recorded run goes."""
    heading = "### Where the time goes" if diagnosis.is_recording else "### Configurations"
    tables = [folded("All configurations", table_of(t)) if view.answer.is_short else table_of(t) for t in view.tables]
    yield "table", "\n\n".join((heading, *tables))
    facts = [*view.remarks[:MOST_REMARKS], f"Measured: {'; '.join(view.measurement)}."]
    facts += [f"Not understood: {'; '.join(view.not_understood)}."] if view.not_understood else []
    yield "remarks", bullets(facts)


def _detail_lines(detail: Detail) -> Iterator[str]:
    yield from map(paragraph, detail.text)
    if detail.table is not None:
        yield table_of(detail.table)
    if detail.log:
        yield code_block(clean_log(detail.log), "text")


def _versions(diagnosis: Diagnosis) -> str:
    """Returns the machine and its software, one fact per line, as torch.utils.collect_env prints them."""
    environment = build_environment(diagnosis, MOST_SETTINGS)
    facts = [": ".join(row.cells) for row in environment.table.rows] if environment.table is not None else []
    return code_block("\n".join((*environment.text, *facts)), "text")


def _reproducer(reproducer: Reproducer, name: str) -> Iterator[tuple[str, str]]:
    """Yields the script, its output, and the name of the file with everything; or the reason for no script."""
    if not reproducer.is_runnable:
        yield "", f"### Minimal reproducer\n\nNone: {escape(reproducer.reason)}."
        return
    where = f" ({count_of(reproducer.script.count(chr(10)), 'line')}, also in {code_name(name)})" if name else ""
    yield "", f"### Minimal reproducer\n\n{paragraph(reproducer.title)}{where}."
    printed = code_block(clean_log(reproducer.printed), "text") if reproducer.printed else ""
    yield "script", code_block(reproducer.script.rstrip("\n"), "python") + (printed and f"\n\nIt printed:\n\n{printed}")


def _error_logs(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yields the reasons why configurations have no result, and the ends of their logs."""
    failed = [trial for trial in diagnosis.trials if trial.status in STATUS_WORDS and trial.status != "skipped"]
    if not failed:
        return
    reasons = [f"{shown_name(trial.name)}: {failure_clause(trial)}" for trial in failed]
    yield "", f"### Error logs\n\n{bullets(reasons[:MOST_FINDINGS])}"
    logs = [log for trial in failed for log in log_of(trial)]
    for detail in logs[:MOST_LOGS]:
        yield "log", folded(detail.title, "\n\n".join(_detail_lines(detail)))


def overview_markdown(view: Overview) -> str:
    """Returns the report of a comparison, a scan or a policy, short enough for an issue."""
    return _joined(_overview(view))


def _overview(view: Overview) -> Iterator[str]:
    yield _title(view.title)
    yield f"**{escape(view.headline)}**"
    if view.lines:
        yield "\n".join(f"- {escape(line)}" for line in view.lines)
    for table in view.tables:
        shown = table_of(table.first(MOST_ROWS))
        yield folded(f"{table.title}: {len(table.rows)}", shown) if table.is_long else f"### {table.title}\n\n{shown}"
    if view.remarks:
        yield "\n".join(f"- {escape(remark)}" for remark in view.remarks)
    if view.code:
        yield code_block("\n".join(view.code), "python")


# ---------------------------------------------------------------------------------- GitHub Markdown in small pieces
_RULE = re.compile(r"-{4,}(?=[-|]*\|$)", re.MULTILINE)
_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# GitHub notifies a user whose name follows an @. Only a character after the @ prevents this; an HTML entity does not.
_MENTION = re.compile(r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9])")
_ZERO_WIDTH_SPACE = "\u200b"
# The start of a heading, a list or a rule at the beginning of a line.
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)]))?([#+=.)-])")


def escape(text: str) -> str:
    """Escapes a line of printable text, so that Markdown shows it as it is, also in a cell of a table."""
    return without_html(_SPECIAL.sub(lambda match: f"\\{match.group()}", text))


def paragraph(text: str) -> str:
    """Escapes a line of text that begins a paragraph, so that it becomes no heading and no list."""
    start = _BLOCK_START.match(text)
    return escape(text) if start is None else f"{start[1] or ''}\\{start[2]}{escape(text[start.end() :])}"


def without_html(text: str) -> str:
    """Escapes HTML in a text, and mentions of users, whom GitHub would notify."""
    text = _MENTION.sub(f"@{_ZERO_WIDTH_SPACE}", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str, language: str) -> str:
    """Returns a fenced block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code_name(name: str) -> str:
    """Returns a file's name for use within a sentence: as code, unless the name has a backtick."""
    return escape(name) if "`" in name else f"`{name}`"


def bullets(lines: Sequence[str]) -> str:
    """Escapes plain sentences, and makes a list of them."""
    return "\n".join(f"- {paragraph(line)}" for line in lines)


def table_of(table: Table) -> str:
    """Returns a table as Markdown. Every cell is escaped, so that none has a bare ``|`` or a line break."""
    blank = ("",) * (len(table.head) - 2)
    rows = [row.cells if row.clause is None else (row.cells[0], row.clause, *blank) for row in table.rows]
    escaped = [[escape(cell) for cell in row] for row in (table.head, *rows)]
    for row, cells in zip(table.rows, escaped[1:], strict=True):
        if row.is_recommended:
            cells[0] = f"**{cells[0]}**"
    text = tabulate(escaped[1:], escaped[0], "github", disable_numparse=True, stralign=None)
    left_out = [f"{table.left_out} more left out here; the JSON report has them."] if table.left_out else []
    return "\n\n".join((_RULE.sub("---", text), *map(paragraph, table.below), *left_out))


def folded(title: str, body: str) -> str:
    """Returns a part that GitHub shows only after a click; the title is plain text, the body is Markdown."""
    return f"<details><summary>{without_html(title)}</summary>\n\n{body}\n\n</details>"
