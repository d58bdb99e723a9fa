"""
The Markdown report: what people paste into an issue of PyTorch, by its template's headings, long lists folded away.

GitHub refuses a text of more than 65,536 characters, so this one stays below 60,000, and its UTF-8 below 65,536 bytes:
long lists are cut, and each says how many entries it left out. What was cut stands whole in a second text, for a file
beside the report. At its end is a block that tools can read.

In a Mermaid flowchart, what comes from a record stands in quoted labels, with every character but a few written as an
entity code: no name can end a label, start a directive or a comment, or be read as Markdown or HTML.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tabulate import tabulate

from layoutdoctor.examination.costs import counted_conversions, sum_seconds
from layoutdoctor.reports.flow.scenes import build_flows
from layoutdoctor.reports.sections.account import build_accounts
from layoutdoctor.reports.sections.details import build_details
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import (
    clean_if_known,
    clean_log,
    clean_name,
    failure_clause,
    find_ratio,
    finite,
    first_that_fits,
    is_recording,
)
from layoutdoctor.rules.evidence import main_trial
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial
    from layoutdoctor.reports.flow.graph import FlowFormat, FlowKind, FlowNode
    from layoutdoctor.reports.flow.scenes import Flow
    from layoutdoctor.reports.reproducer.report import Reproducer
    from layoutdoctor.reports.sections.account import AccountView
    from layoutdoctor.reports.sections.answer import Answer
    from layoutdoctor.reports.sections.details import Detail
    from layoutdoctor.reports.sections.rows import Overview, Table
    from layoutdoctor.reports.sections.view import FindingEntry, View

MOST_CHARACTERS = 60_000
MOST_BYTES = 65_536
"""GitHub refuses a text of more bytes, and one of more characters than the first says with some room to spare."""

USUAL_CHARACTERS = 10_000
"""What a reader of an issue scrolls through; lists are cut to it where that can be done."""

LIST_LENGTHS = (20, 12, 6, 3)
"""Tried from the longest: how many entries a list has."""

COMPARED_LENGTHS = (200, 100, 50, 25, 12, 6, 3, 1, 0)
WHOLE = sys.maxsize
MOST_ACCOUNT_ROWS = 5
MOST_LOGS = 2
MOST_SETTINGS = 12
MOST_SUMMARY_ENTRIES, FEWEST_SUMMARY_ENTRIES = 12, 3
_MOST_SUMMARY_FINDINGS = 5
_SUMMARY_DIGITS = 4
_LEGEND = (
    "Hexagons are layout conversions, redundant ones dashed in red; arrows name shape and memory format of a value. "
    "Green: channels_last, blue: contiguous, violet: blocked by a library, grey: not known."
)
_ERRORS = ("failed", "timed_out", "crashed")
_TORCH_DEFAULTS: frozenset[tuple[str, ...]] = frozenset(
    {
        ("torch.backends.mkldnn.enabled", "True"),
        ("torch.backends.cudnn.benchmark", "False"),
        ("torch.backends.cudnn.deterministic", "False"),
        ("torch.get_float32_matmul_precision", "highest"),
    }
)
MARKER = "<!-- layoutdoctor:v1 -->"
"""The line before the block; the number is that of the block's form."""

SUMMARY_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Material:
    """What a report is made of, whatever fits of it."""

    diagnosis: Diagnosis
    view: View
    flows: tuple[Flow, ...]
    accounts: tuple[AccountView, ...]
    reproducer: Reproducer | None


def render_markdown(diagnosis: Diagnosis) -> str:
    """The report as GitHub Markdown, as ``markdown_parts`` has it."""
    return markdown_parts(diagnosis)[0]


def markdown_parts(diagnosis: Diagnosis, details_name: str | None = None) -> tuple[str, str | None]:
    """
    The report as GitHub Markdown, and what it has no room for.

    Args:
        details_name: Name of the file that the second text will be written to, without folders; the report names it.
            None where there will be no file, so that the second text is not made.

    Returns:
        10,000 characters where that can be, fewer than 60,000 and 65,536 bytes always; and None where no file was
        named, or there is nothing to put into it.
    """
    flows, accounts = build_flows(diagnosis), build_accounts(diagnosis, MOST_ACCOUNT_ROWS)
    material = _Material(diagnosis, build_view(diagnosis), flows, accounts, _reproducer_of(diagnosis))
    name = clean_name(details_name) if details_name is not None else None
    details = _joined(_details(material)) if name is not None and not material.view.answer.is_short else None
    without = (replace(material, flows=()), replace(material, flows=(), accounts=()))
    tried = [*((material, most) for most in LIST_LENGTHS), *((less, LIST_LENGTHS[-1]) for less in without)]
    # A script in the issue is worth more than a picture; elsewhere it stands only where it does not fit at all.
    script_names = [None] if details is None or material.reproducer is None else [None, name]
    reports = (_joined(_parts(of, most, name, script_name)) for script_name in script_names for of, most in tried)
    report = first_that_fits(reports, lambda report: len(report) < USUAL_CHARACTERS)
    return report if _fits(report) else _joined(_shortest(material, name)), details


def _title(view: View | Overview) -> str:
    return f"## {escape(' · '.join(view.title))}"


def _fits(report: str) -> bool:
    return len(report) < MOST_CHARACTERS and len(report.encode("utf-8", "replace")) < MOST_BYTES


def _joined(parts: Iterator[str]) -> str:
    return "\n\n".join(parts) + "\n"


def _parts(material: _Material, most: int, name: str | None, script_name: str | None) -> Iterator[str]:
    diagnosis, view = material.diagnosis, material.view
    yield _title(view)
    yield from _bug(view, most)
    if material.reproducer is not None:
        yield from _minimal_reproducer(material.reproducer, script_name)
    yield from _comparison(material, most)
    yield from _error_logs(diagnosis, most)
    yield "### Versions"
    yield _versions(diagnosis)
    yield _where_the_rest_is(view, name)
    yield summary_lines(diagnosis, min(most, MOST_SUMMARY_ENTRIES))


def _where_the_rest_is(view: View, name: str | None) -> str:
    hints = [hint for hint in view.hints if ".md" not in hint]  # this is the Markdown report already
    made = f"Made by {escape(view.title[0])}. More: {escape(' · '.join(hints))}"
    if view.answer.is_short:
        return made
    rest = "every conversion, decision and difference"
    if name is None:
        return f"{made} · `--output report.md` writes {rest} to a file beside the report"
    return f"{made} · {code_name(name)} has {rest}"


def _shortest(material: _Material, name: str | None) -> Iterator[str]:
    """For a record so long that even its table does not fit."""
    view = material.view
    yield _title(view)
    yield "### 🐛 Describe the bug"
    yield from _answer_lines(view.answer)
    counts = [f"{len(table.rows)} {table.head[0]}s" for table in view.tables]
    left_out = listing((*counts, f"{len(view.findings)} findings"), None)
    yield f"The rest is left out, as it would not fit into an issue: {left_out}."
    yield _where_the_rest_is(view, name)
    yield summary_lines(material.diagnosis, FEWEST_SUMMARY_ENTRIES)


def _details(material: _Material) -> Iterator[str]:
    """All lists in full, without folds, for a file that has no limit."""
    view, reproducer = material.view, material.reproducer
    yield _title(view)
    yield "Everything behind the report, in full."
    yield "### Findings"
    yield _findings_list(view.findings, len(view.findings))
    if reproducer is not None and reproducer.is_runnable:
        yield from _minimal_reproducer(reproducer, None)
    yield "### Tables"
    for table in (*view.tables, *(account.table for account in build_accounts(material.diagnosis))):
        yield f"**{escape(table.title)}**"
        yield table_of(table)
    if view.remarks:
        yield bullets(view.remarks, len(view.remarks))
    if material.flows:
        yield "### Layout flow"
    for flow in material.flows:
        yield from _flow(flow)
    for detail in build_details(material.diagnosis, WHOLE):
        yield f"### {escape(detail.title)}"
        yield from _detail_lines(detail)


def _bug(view: View, most: int) -> Iterator[str]:
    """What was found: the answer and the findings."""
    yield "### 🐛 Describe the bug"
    if view.interrupted:
        yield f"**{escape(view.interrupted)}.**"
    yield from _answer_lines(view.answer)
    yield "#### Findings"
    yield _findings_list(view.main_findings, most)
    if view.other_findings:
        yield paragraph(view.other_findings)


def _answer_lines(answer: Answer) -> Iterator[str]:
    yield f"**{escape(answer.headline)}**"
    if answer.how:
        yield code_block("\n".join(answer.how), "python")
    if answer.lines:
        yield bullets(answer.lines, len(answer.lines))


def _findings_list(findings: Sequence[FindingEntry], most: int) -> str:
    left_out = [f"- and {len(findings) - most} more"] if len(findings) > most else []
    return "\n".join([*map(_finding, findings[:most]), *left_out]) or "None."


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


def _comparison(material: _Material, most: int) -> Iterator[str]:
    """What was varied, what that changed, and the worst place as a picture; of a recorded run, where its time goes."""
    view = material.view
    yield "### Where the time goes" if is_recording(material.diagnosis) else "### Configurations"
    for table in view.tables:
        yield folded("All configurations", table_of(table)) if view.answer.is_short else table_of(table)
    measured = (f"Measured: {'; '.join(view.measurement)}.", f"Not understood: {'; '.join(view.not_understood)}.")
    remarks = [bullets(view.remarks, most)] if view.remarks else []
    yield "\n".join([*remarks, bullets(measured, len(measured))])
    for account in material.accounts[:1]:
        yield folded(account.heading, table_of(account.table))
    for flow in [flow for flow in material.flows if flow.is_main][:1]:
        yield folded(f"Layout flow: {flow.heading}", "\n\n".join((*_flow(flow), _LEGEND)))


def _detail_lines(detail: Detail) -> Iterator[str]:
    """One long list."""
    for sentence in detail.text:
        yield paragraph(sentence)
    if detail.rows:
        yield markdown_table(
            [escape(column) for column in detail.head], [[escape(cell) for cell in row] for row in detail.rows]
        )
    if detail.log:
        yield code_block(clean_log(detail.log), "text")


def _versions(diagnosis: Diagnosis) -> str:
    """The machine and its software, one fact a line, as torch's own script prints them."""
    *_, environment = build_details(diagnosis, MOST_SETTINGS)
    told = [row for row in environment.rows if row not in _TORCH_DEFAULTS]
    facts = [f"{name}: {value}" for name, value in told]
    others = ["other settings: torch's defaults"] if len(told) < len(environment.rows) else []
    return code_block("\n".join((*environment.text, *facts, *others)), "text")


def _reproducer_of(diagnosis: Diagnosis) -> Reproducer | None:
    """A script that shows the finding with torch alone, or why there is none; None for a file, which has no model."""
    if is_recording(diagnosis):
        return None
    from layoutdoctor.reports.reproducer.report import build_reproducer  # late: only where one is written

    return build_reproducer(diagnosis)


def _minimal_reproducer(reproducer: Reproducer, name: str | None) -> Iterator[str]:
    """The script, or the name of the file it stands in."""
    yield "### Minimal reproducer"
    if not reproducer.is_runnable:
        reason = (reproducer.reason or reproducer.title).removeprefix("no reproducer: ")
        yield f"None: {escape(reason)}."
    elif name is not None:
        lines = count_of(reproducer.script.count("\n"), "line")
        yield f"{paragraph(reproducer.title)}: {lines}, in {code_name(name)}."
    else:  # its first line is its title
        yield code_block(reproducer.script.rstrip("\n"), "python")
    if reproducer.printed:
        yield "It printed:"
        yield code_block(clean_log(reproducer.printed), "text")


def _error_logs(diagnosis: Diagnosis, most: int) -> Iterator[str]:
    """Why configurations have no result, with the ends of their logs."""
    failed = [trial for trial in diagnosis.trials if trial.status in _ERRORS]
    if not failed:
        return
    yield "### Error logs"
    yield bullets([f"{clean_name(trial.name)}: {failure_clause(trial)}" for trial in failed], most)
    logs = [detail for detail in build_details(diagnosis, most) if detail.log]
    for detail in logs[:MOST_LOGS]:
        yield folded(detail.title, "\n\n".join(_detail_lines(detail)))


def summary_lines(diagnosis: Diagnosis, most: int) -> str:
    """
    The marker and a folded block of JSON, the same for the same diagnosis.

    The JSON is one object under ``layoutdoctor``, its keys sorted: ``schema_version`` (of this block), ``version`` (of
    layoutdoctor), ``torch``, ``device``, ``mode``, ``baseline`` and ``fastest`` (names of configurations, null where
    nothing was compared), ``speedup`` of the fastest against the baseline (low, median, high; null where the fastest is
    the baseline, or was not compared), ``verdicts`` by configuration (``baseline``; ``faster``, ``slower``, ``no
    measurable difference``; ``same as NAME``; ``not compared``; else the trial's status), ``configuration_count``,
    ``findings``, most severe first (code, severity, configuration, module, seconds), ``finding_count``,
    ``redundant_pair_count`` over all configurations, and ``conversion_seconds`` of the baseline per iteration, in a
    trace of all that was recorded. Of many verdicts and findings only the first are listed; the counts are of all.
    Names are printable and at most 100 characters long, numbers have four digits. A tool takes the last line that is
    the marker, and reads the fenced block after it.
    """
    facts = {"layoutdoctor": _summary(diagnosis, most)}
    text = json.dumps(facts, sort_keys=True, allow_nan=False, separators=(",", ":"))
    # Neither the fence nor any HTML around it can be ended by a name; JSON reads the escapes as the characters.
    for character in "`<>&~":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"{MARKER}\n<details><summary>Machine-readable summary</summary>\n\n```json\n{text}\n```\n\n</details>"


def _summary(diagnosis: Diagnosis, most: int) -> dict[str, object]:
    main, fastest = main_trial(diagnosis), diagnosis.fastest
    return {
        "schema_version": SUMMARY_VERSION,
        "version": clean_name(diagnosis.layoutdoctor_version),
        "torch": clean_if_known(diagnosis.environment.torch),
        "device": clean_if_known(diagnosis.subject.target or diagnosis.subject.device),
        "mode": diagnosis.subject.mode,
        "baseline": clean_if_known(diagnosis.comparison.baseline) if diagnosis.comparison else None,
        "fastest": clean_name(fastest.name) if fastest is not None else None,
        "speedup": _speedup(diagnosis),
        "verdicts": {clean_name(trial.name): _verdict(diagnosis, trial) for trial in diagnosis.trials[:most]},
        "configuration_count": len(diagnosis.trials),
        "finding_count": len(diagnosis.findings),
        "findings": [_finding_facts(finding) for finding in diagnosis.findings[: min(most, _MOST_SUMMARY_FINDINGS)]],
        "redundant_pair_count": len(diagnosis.redundant_pairs),
        "conversion_seconds": _conversion_seconds(main),
    }


def _speedup(diagnosis: Diagnosis) -> list[float | None] | None:
    fastest = diagnosis.fastest
    if fastest is None or diagnosis.comparison is None or fastest.name == diagnosis.comparison.baseline:
        return None
    advised = diagnosis.recommendation.speedup if diagnosis.recommendation is not None else None
    interval = advised or find_ratio(diagnosis, fastest.name)
    ends = () if interval is None else (interval.low, interval.median, interval.high)
    return [_rounded(end) for end in ends] if ends and all(map(math.isfinite, ends)) else None


def _verdict(diagnosis: Diagnosis, trial: Trial) -> str:
    if trial.same_as is not None:
        return f"same as {clean_name(trial.same_as)}"
    if trial.status != "ok":
        return trial.status
    if diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline:
        return "baseline"
    ratio = find_ratio(diagnosis, trial.name)
    return ratio.verdict if ratio is not None else "not compared"


def _finding_facts(finding: Finding) -> dict[str, object]:
    return {
        "code": clean_name(finding.code),
        "severity": finding.severity,
        "configuration": clean_if_known(finding.configuration),
        "module": clean_if_known(finding.module),
        "seconds": _rounded(finite(finding.seconds)),
    }


def _conversion_seconds(trial: Trial | None) -> float | None:
    """Time of the conversions that run on their own; None where kernels, or one of these times, were not recorded."""
    if trial is None or trial.kernels is None:
        return None
    return _rounded(finite(sum_seconds(counted_conversions(trial))))


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{_SUMMARY_DIGITS}g}")


def overview_markdown(view: Overview) -> str:
    """The report of a comparison or a scan, short enough for an issue where that can be."""
    reports = (_joined(_overview(view, most)) for most in COMPARED_LENGTHS)
    return first_that_fits(reports, lambda report: len(report) < MOST_CHARACTERS)


def _overview(view: Overview, most: int) -> Iterator[str]:
    yield _title(view)
    yield f"**{escape(view.headline)}**"
    if view.lines:
        yield "\n".join(f"- {escape(line)}" for line in view.lines)
    for table in view.tables:
        left_out = len(table.rows) - most
        shown = table_of(replace(table, rows=table.rows[:most]))
        shown += f"\n\n{left_out} more left out here; the JSON report has them." if left_out > 0 else ""
        yield folded(f"{table.title}: {len(table.rows)}", shown) if table.is_long else f"### {table.title}\n\n{shown}"
    if view.remarks:
        yield "\n".join(f"- {escape(remark)}" for remark in view.remarks)


# ---------------------------------------------------------------------------------- GitHub Markdown in small pieces
_RULE = re.compile(r"-{4,}(?=[-|]*\|$)", re.MULTILINE)
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
# The colours of the HTML page; dark text on light boxes, so that both of GitHub's themes show them alike.
_CLASSES: dict[FlowFormat, str] = {
    "channels_last": "fill:#d3efe6,stroke:#0d7a5f,color:#06382c",
    "contiguous": "fill:#dbe6fa,stroke:#3565b5,color:#122a55",
    "blocked": "fill:#e9defa,stroke:#7c4bb0,color:#2a1650",
    "unknown": "fill:#eeeeee,stroke:#75808c,color:#222222",
}
_REDUNDANT = "stroke:#c1121f,stroke-width:3px,stroke-dasharray:6 4"


def escape(text: str) -> str:
    """Printable text on one line that Markdown shows as it is, also in a table: no markup, no HTML, no cell border."""
    return without_html(_SPECIAL.sub(lambda match: f"\\{match.group()}", text))


def paragraph(text: str) -> str:
    """The same where a line begins: no heading, no list."""
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
    """A list of plain sentences, which are not escaped yet."""
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
    """A table; what is in it is escaped, so that no cell holds a bare ``|`` or a line break; nothing is filled up."""
    return _RULE.sub(
        "---", tabulate([list(row) for row in rows], list(head), "github", disable_numparse=True, stralign=None)
    )


def folded(title: str, body: str) -> str:
    """What GitHub shows only on a click; the title is plain text, the body Markdown."""
    return f"<details><summary>{without_html(title)}</summary>\n\n{body}\n\n</details>"


def render_mermaid(flow: Flow) -> str:
    """A flow as the source of a Mermaid flowchart, without a fence around it or a line break at its end."""
    lines = ["flowchart TD", f"    accTitle: {_chart_title(flow)}"]
    for node in flow.nodes:
        opening, closing = _SHAPES[node.kind]
        lines.append(f"    {node.key}{opening}{_quoted(*_box_lines(node))}{closing}")
    for edge in flow.edges:
        label = f"|{_quoted(edge.label)}|" if edge.label else ""
        lines.append(f"    {edge.source} -->{label} {edge.target}")
    for name, style in _CLASSES.items():
        members = [node.key for node in flow.nodes if node.memory_format == name]
        if members:
            lines += [f"    classDef {name} {style}", f"    class {','.join(members)} {name}"]
    redundant = [node.key for node in flow.nodes if node.is_redundant]
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
