"""
The sections of the Markdown report, in the order of PyTorch's template for a torch.compile bug.

Faces ``markdown``, which decides how much of each section fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from layoutdoctor.reports.flow.flows import build_flows
from layoutdoctor.reports.markdown.mermaid import render_mermaid
from layoutdoctor.reports.markdown.syntax import (
    bullets,
    code_block,
    escape,
    folded,
    log_block,
    paragraph,
    table_of,
)
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.reports.sections.details import build_details
from layoutdoctor.reports.sections.rows import failure_clause
from layoutdoctor.reports.sections.trace_details import build_trace_details
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import clean_name, count_of
from layoutdoctor.reports.tables import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Diagnosis
    from layoutdoctor.reports.flow.flows import Flow
    from layoutdoctor.reports.reproducer.report import Reproducer
    from layoutdoctor.reports.sections.answer import Answer
    from layoutdoctor.reports.sections.details import Detail
    from layoutdoctor.reports.sections.view import FindingEntry, View

FEWEST_FINDINGS = 3
MOST_FLOWS = 3
_LEGEND = (
    "Hexagons are layout conversions, redundant ones dashed in red; arrows name shape and memory format of a value. "
    "Blue: channels_last, orange: contiguous, violet: blocked by a library, grey: not known."
)
_ERRORS = ("failed", "timed_out", "crashed")


@dataclass(frozen=True, slots=True)
class Material:
    """
    What a report is made of, whatever fits of it.

    Attributes:
        diagnosis: The record.
        view: What all formats say.
        flows: The pictures, worst first.
        reproducer: The script.
    """

    diagnosis: Diagnosis
    view: View
    flows: tuple[Flow, ...]
    reproducer: Reproducer

    @property
    def is_trace(self) -> bool:
        """Whether a recorded trace was examined: nothing was varied, and there is no model to run."""
        return self.diagnosis.subject.mode == "trace"

    def details(self, most: int) -> tuple[Detail, ...]:
        """The long lists, each cut to a length."""
        return (build_trace_details if self.is_trace else build_details)(self.diagnosis, most)


def gather(diagnosis: Diagnosis) -> Material:
    """
    Everything that a report is made of.

    Args:
        diagnosis: Any diagnosis.
    """
    return Material(diagnosis, build_view(diagnosis), build_flows(diagnosis, MOST_FLOWS), build_reproducer(diagnosis))


def title_of(view: View) -> str:
    """
    The first line.

    Args:
        view: Any.
    """
    return f"## {escape(' · '.join(view.title))}"


def describe_bug(material: Material, most: int) -> Iterator[str]:
    """
    What was found: the answer, the findings, the layout flow around the worst of them.

    Args:
        material: Of the diagnosis.
        most: Entries of each list.
    """
    view = material.view
    yield "### 🐛 Describe the bug"
    if view.interrupted:
        yield f"**{escape(view.interrupted)}.**"
    yield from answer_lines(view.answer)
    yield "#### Findings"
    yield findings_list(view.findings, max(most, FEWEST_FINDINGS))
    flows = material.flows[: max(1, min(most, MOST_FLOWS))]
    if flows:
        yield "#### Layout flow"
        for number, flow in enumerate(flows):
            picture = "\n\n".join(_flow(flow))
            yield folded(flow.heading, picture) if number else picture
        yield _LEGEND


def answer_lines(answer: Answer) -> Iterator[str]:
    """
    The first lines of a report, with what to paste.

    Args:
        answer: Any.
    """
    yield f"**{escape(answer.headline)}**"
    if answer.how:
        yield code_block("\n".join(answer.how), "python")
    if answer.lines:
        yield bullets(answer.lines, len(answer.lines))


def findings_list(findings: Sequence[FindingEntry], most: int) -> str:
    """
    The findings as a list.

    Args:
        findings: Most severe first.
        most: How many to show.
    """
    if not findings:
        return "None."
    shown = [_finding(entry) for entry in findings[:most]]
    if len(findings) > most:
        shown.append(f"- and {len(findings) - most} more")
    return "\n".join(shown)


def _finding(entry: FindingEntry) -> str:
    about = f" \\[{escape(entry.configuration)}\\]" if entry.configuration else ""
    lines = [f"- **{escape(entry.code)} {entry.severity}** {escape(entry.rule)}{about}: {escape(entry.message)}"]
    if entry.place:
        lines.append(f"  - at {escape(entry.place)}")
    if entry.suggestion:
        lines.append(f"  - to do: {escape(entry.suggestion)}")
    return "\n".join(lines)


def _flow(flow: Flow) -> Iterator[str]:
    yield f"**{escape(flow.heading)}**: {escape(flow.about)}."
    yield code_block(render_mermaid(flow), "mermaid")
    if flow.left_out:
        steps = count_of(flow.left_out, "step")
        yield f"Not drawn: {steps} next to these (weights, statistics, further readers)."


def ablation(material: Material, details: Sequence[Detail], most: int, where: str) -> Iterator[str]:
    """
    What was varied and what that changed; of a trace, where its time goes.

    Args:
        material: Of the diagnosis.
        details: The long lists behind it.
        most: Entries of each list.
        where: Where the rest of a cut list is.
    """
    view = material.view
    yield "### Where the time goes" if material.is_trace else "### Ablation"
    for table in view.tables:
        yield folded("All configurations", table_of(table)) if view.answer.is_short else table_of(table)
    yield "\n".join(_remarks(view, max(most, FEWEST_FINDINGS)))
    for about, group in groupby(details, key=lambda detail: detail.about):
        together = list(group)
        if about is None or len(together) == 1:
            for detail in together:
                yield folded(detail.title, "\n\n".join(detail_lines(detail, where)))
        else:
            yield folded(f"{about}: {_contents(together)}", "\n\n".join(_together(together, where)))


def _remarks(view: View, most: int) -> Iterator[str]:
    if view.remarks:
        yield bullets(view.remarks, most)
    sentences = (f"Not understood: {'; '.join(view.not_understood)}.", f"Measurement: {'; '.join(view.measurement)}.")
    yield bullets(sentences, len(sentences))


def _contents(details: Sequence[Detail]) -> str:
    """What a fold holds, in a few words: the titles without the configuration's name."""
    return ", ".join(dict.fromkeys(detail.title.split(" under ")[0].split(" of ")[0].lower() for detail in details))


def _together(details: Sequence[Detail], where: str) -> Iterator[str]:
    for detail in details:
        yield f"**{escape(detail.title)}**"
        yield from detail_lines(detail, where)


def detail_lines(detail: Detail, where: str) -> Iterator[str]:
    """
    One long list.

    Args:
        detail: Any.
        where: Where the rest of a cut list is, as the end of a sentence in Markdown.
    """
    for sentence in detail.text:
        yield paragraph(sentence)
    if detail.rows:
        yield markdown_table(
            [escape(column) for column in detail.head], [[escape(cell) for cell in row] for row in detail.rows]
        )
    if detail.left_out:
        yield f"{detail.left_out} more left out here; {where}."
    if detail.log:
        yield log_block(detail.log)


def minimal_reproducer(material: Material) -> Iterator[str]:
    """
    A script that shows the finding with torch alone, or why there is none; nothing for a trace without one.

    Args:
        material: Of the diagnosis.
    """
    reproducer = material.reproducer
    if material.is_trace and not reproducer.is_runnable:
        return
    yield "### Minimal reproducer"
    if reproducer.is_runnable:
        yield f"{paragraph(reproducer.title)}:"
        yield code_block(reproducer.script.rstrip("\n"), "python")
    else:
        reason = (reproducer.reason or reproducer.title).removeprefix("no reproducer: ")
        yield f"None: {escape(reason)}."


def error_logs(material: Material, details: Sequence[Detail], where: str, most: int) -> Iterator[str]:
    """
    Why configurations have no result, with the ends of their logs.

    Args:
        material: Of the diagnosis.
        details: Those with a log.
        where: Where the rest is.
        most: Configurations to name.
    """
    yield "### Error logs"
    failed = [trial for trial in material.diagnosis.trials if trial.status in _ERRORS]
    if not failed and not details:
        yield "None."
    if failed:
        yield bullets(
            [f"{clean_name(trial.name)}: {failure_clause(trial)}" for trial in failed], max(most, FEWEST_FINDINGS)
        )
    for detail in details:
        yield folded(detail.title, "\n\n".join(detail_lines(detail, where)))


def versions(detail: Detail, where: str) -> Iterator[str]:
    """
    What the verdict is true on: versions, device, settings, inputs.

    Args:
        detail: The environment.
        where: Where the rest is.
    """
    yield "### Versions"
    yield from detail_lines(detail, where)


def footer(view: View) -> str:
    """
    How the report was made, and where to go on.

    Args:
        view: Any.
    """
    hints = [hint for hint in view.hints if ".md" not in hint]  # this is the Markdown report already
    return f"Made by {escape(view.title[0])}. More: {escape(' · '.join(hints))}"
