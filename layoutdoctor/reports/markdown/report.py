"""
The Markdown report: what people paste into an issue of PyTorch, by its template's headings, long lists folded away.

GitHub refuses a text of more than 65,536 characters, so this one stays below 60,000, and its UTF-8 below 65,536 bytes:
long lists are cut, and each says how many entries it left out. What was cut stands whole in a second text, for a file
beside the report. Faces the view, the details, the flows and the reproducer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from layoutdoctor.reports.markdown.sections import (
    ablation,
    answer_lines,
    describe_bug,
    detail_lines,
    error_logs,
    findings_list,
    footer,
    gather,
    minimal_reproducer,
    title_of,
    versions,
)
from layoutdoctor.reports.markdown.summary import summary_lines
from layoutdoctor.reports.markdown.syntax import (
    LIST_LENGTHS,
    MOST_BYTES,
    MOST_CHARACTERS,
    bullets,
    code_name,
    escape,
    table_of,
)
from layoutdoctor.reports.sections.wording import clean_name, in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.markdown.sections import Material

WHOLE = sys.maxsize
# More entries than this cannot fit, as each takes a line of its own: cutting begins without trying.
MOST_ENTRIES = 1_500
MOST_SUMMARY_ENTRIES, FEWEST_SUMMARY_ENTRIES = 50, 3
OVERFLOW_SUFFIX = ".details.md"


def render_markdown(diagnosis: Diagnosis) -> str:
    """
    The report as GitHub Markdown.

    Args:
        diagnosis: Any diagnosis.

    Returns:
        Fewer than 60,000 characters and 65,536 bytes.
    """
    return markdown_parts(diagnosis)[0]


def overflow_of(diagnosis: Diagnosis) -> str | None:
    """
    Everything that did not fit into the report; None where all of it did.

    Args:
        diagnosis: Any diagnosis.
    """
    return markdown_parts(diagnosis, f"report{OVERFLOW_SUFFIX}")[1]


def markdown_parts(diagnosis: Diagnosis, overflow_name: str | None = None) -> tuple[str, str | None]:
    """
    The report as GitHub Markdown, and the lists that it cut, in full.

    Args:
        diagnosis: Any diagnosis.
        overflow_name: Name of the file that the second text will be written to, without folders; the report names it.
            None where there will be no file, so that the second text is not made.

    Returns:
        Fewer than 60,000 characters and 65,536 bytes; and None where nothing was cut.
    """
    material = gather(diagnosis)
    name = clean_name(overflow_name) if overflow_name is not None else None
    if _entry_count(diagnosis) <= MOST_ENTRIES:
        report = _report(material, WHOLE, name)
        if _fits(report):
            return report, None
    for most in LIST_LENGTHS:
        report = _report(material, most, name)
        if _fits(report):
            break
    else:
        report = _joined(_shortest(material, name))
    return report, _overflow(material) if name is not None else None


def _fits(report: str) -> bool:
    return len(report) < MOST_CHARACTERS and len(report.encode("utf-8", "replace")) < MOST_BYTES


def _entry_count(diagnosis: Diagnosis) -> int:
    """How many lines the lists would have at least."""
    trials = [trial for trial in diagnosis.trials if trial.status != "same_as"]
    in_kernels = sum(len(trial.kernels.conversions) for trial in trials if trial.kernels is not None)
    return in_kernels + sum(len(trial.redundant_pairs) for trial in trials) + len(diagnosis.findings)


def _report(material: Material, most: int, name: str | None) -> str:
    return _joined(_parts(material, most, name))


def _joined(parts: Iterator[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _parts(material: Material, most: int, name: str | None) -> Iterator[str]:
    where = _where(name)
    *lists, environment = material.details(most)
    logs = [detail for detail in lists if detail.log]
    yield title_of(material.view)
    if most != WHOLE:
        yield f"Lists are cut to fit into an issue: {_whole_report(name)}."
    yield from describe_bug(material, most)
    yield from ablation(material, [detail for detail in lists if not detail.log], most, where)
    yield from minimal_reproducer(material)
    yield from error_logs(material, logs, where, most)
    yield from versions(environment, where)
    yield footer(material.view)
    yield summary_lines(material.diagnosis, max(min(most, MOST_SUMMARY_ENTRIES), FEWEST_SUMMARY_ENTRIES))


def _where(name: str | None) -> str:
    return f"{code_name(name)} has them" if name is not None else "the JSON report has them"


def _whole_report(name: str | None) -> str:
    if name is not None:
        return f"{code_name(name)}, written beside this report, has all of them"
    return "the JSON report has all of them, and `--output report.md` writes them to a file beside it"


def _shortest(material: Material, name: str | None) -> Iterator[str]:
    """For a record so long that even its table does not fit."""
    view = material.view
    yield title_of(view)
    yield "### 🐛 Describe the bug"
    yield from answer_lines(view.answer)
    counts = [f"{len(table.rows)} {table.head[0]}s" for table in view.tables]
    yield (
        "The rest is left out, as it would not fit into an issue: "
        f"{in_words((*counts, f'{len(view.findings)} findings'))}; {_where(name)}."
    )
    if name is None:
        yield "`--output report.md` writes it to a file beside the report."
    yield summary_lines(material.diagnosis, FEWEST_SUMMARY_ENTRIES)


def _overflow(material: Material) -> str:
    """All lists in full, without folds, for a file that has no limit."""
    return _joined(_overflow_parts(material))


def _overflow_parts(material: Material) -> Iterator[str]:
    view = material.view
    yield title_of(view)
    yield "Everything behind the report, in full."
    yield "### Findings"
    yield findings_list(view.findings, len(view.findings))
    yield "### Tables"
    for table in view.tables:
        yield table_of(table)
    if view.remarks:
        yield bullets(view.remarks, len(view.remarks))
    for detail in material.details(WHOLE):
        yield f"### {escape(detail.title)}"
        yield from detail_lines(detail, "the JSON report has them")
