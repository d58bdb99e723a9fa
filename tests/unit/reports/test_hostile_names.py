"""Names come from outside: no report lets one of them act."""

from __future__ import annotations

import re

import msgspec
import pytest
from builders import (
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_location,
    a_pair,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    kernels,
)
from golden.stories import gain_with_findings

from layoutdoctor.diagnosis.records import Diagnosis, Failure, Finding
from layoutdoctor.reports import render
from layoutdoctor.reports.markdown import MOST_CHARACTERS, escape
from layoutdoctor.reports.sections.wording import clean

HOSTILE = "\x1b[31mred\x07\r\nnew | line `code` <script>alert(1)</script> </details> [x](y) *b* \u202e\u2028 ```"


def hostile_diagnosis(name: str = HOSTILE, count: int = 2) -> Diagnosis:
    location = a_location(file=name)
    conversions = tuple(
        a_conversion(f"{i}{name}", kernel=name, op=name, location=location, module=name) for i in range(count)
    )
    decision = a_decision(
        a_convolution(name, module=name, location=location),
        explanation=name,
        rule=name,
        deciding_nodes=(name,),
        log=name,
    )
    trial = a_trial(
        configuration=a_configuration(name, backend="inductor"),
        graphs=(a_graph(decision, name=name, hook_failure=name),),
        kernels=kernels(*conversions, lacks=(name,)),
        redundant_pairs=(a_pair(conversions[0].id, conversions[1].id, between=(name,), module=name, proof=name),),
        graph_break_reasons=(name,),
        notes=(name,),
    )
    finding = Finding(
        code="LD101",
        rule="round-trip-conversion",
        severity="warning",
        configuration=name,
        message=name,
        suggestion=name,
        location=location,
        module=name,
    )
    failure = Failure(kind=name, message=name, log=f"{name}\n</pre>\n")
    failed = msgspec.structs.replace(a_failed_trial("eager"), failure=failure)
    return a_diagnosis(
        trial,
        failed,
        subject=a_subject(name=name, model=name, notes=(name,)),
        environment=an_environment(command=name, settings={name: name}, torch=name),
        findings=(finding,),
        recommendation=a_recommendation(name, how=name),
        interrupted=name,
    )


def test_text_shows_no_control_character_and_no_line_of_a_name_as_a_line() -> None:
    report = render(hostile_diagnosis())

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", report)
    assert not [line for line in report.splitlines() if line.startswith("new |")]
    assert "\\x1b[31mred\\x07 new" in report


def test_markdown_keeps_its_tables_and_folds() -> None:
    report = render(hostile_diagnosis(), "markdown")

    outside_code = _without_code(report)
    assert "<script" not in outside_code
    assert outside_code.count("<details>") == outside_code.count("</details>")
    assert "<pre>" not in outside_code
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", report)
    assert _table_shapes(report) == [{6}, {9}, {7}, {10}, {7}, {2}, {3}]


def _without_code(report: str) -> str:
    return re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", report)


def _table_shapes(report: str) -> list[set[int]]:
    """For each table: in how many parts its borders cut each of its lines, code blocks left out."""
    shapes: list[set[int]] = []
    before = ""
    for line in _without_code(report).splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                shapes.append(set())
            shapes[-1].add(len(re.findall(r"(?<!\\)\|", line)))
        before = line
    return shapes


def test_a_fence_within_the_lines_to_paste_does_not_end_their_block() -> None:
    story = gain_with_findings()
    hostile = msgspec.structs.replace(story.recommendation, how="```\n<script>\n````")
    report = render(msgspec.structs.replace(story, recommendation=hostile), "markdown")

    assert "\n`````python\n```\n<script>\n````\n`````\n" in report


def test_json_keeps_every_name_as_it_is() -> None:
    assert msgspec.json.decode(render(hostile_diagnosis(), "json"))["subject"]["name"] == HOSTILE


@pytest.mark.parametrize("name", ["n" * 100_000, "<" * 5_000, "`" * 5_000, "\x1b" * 5_000, "\ud800"], ids=len)
def test_markdown_stays_short_whatever_the_names(name: str) -> None:
    report = render(hostile_diagnosis(name), "markdown")

    assert len(report) < MOST_CHARACTERS
    report.encode()


def test_five_hundred_conversions_in_nine_trials_fit_into_an_issue() -> None:
    conversions = tuple(a_conversion(f"reorder {i}") for i in range(500))
    trials = [
        a_trial(configuration=a_configuration(f"c{i}"), kernels=kernels(*conversions, seconds=1.0)) for i in range(9)
    ]
    report = render(a_diagnosis(*trials), "markdown")

    assert len(report) < MOST_CHARACTERS
    shown = report.count("| reorder ")
    left_out = sum(int(count) for count in re.findall(r"(\d+) more left out here", report))
    assert shown > 100
    assert shown + left_out == 4500


def test_so_many_configurations_that_no_table_fits_are_counted_instead() -> None:
    story = gain_with_findings()
    trials = tuple(a_trial(configuration=a_configuration(f"configuration {i} {'n' * 90}")) for i in range(600))
    report = render(msgspec.structs.replace(story, trials=(*story.trials, *trials)), "markdown")

    assert len(report) < MOST_CHARACTERS
    assert "606 configurations and 3 findings" in report


def test_what_cannot_be_printed_is_shown_as_its_escape() -> None:
    assert clean("a\x1b[0m\tb\n\nc\u202e") == "a\\x1b[0m b c\\u202e"
    assert clean("x" * 20, 10) == "xxxxxxx..."
    assert clean("Größe → 変換") == "Größe → 変換"


def test_markdown_shows_markup_as_text() -> None:
    assert escape("a|b `c` <d> *e* [f](g) _h_ i_j & \\") == (
        "a\\|b \\`c\\` &lt;d&gt; \\*e\\* \\[f\\](g) \\_h\\_ i_j &amp; \\\\"
    )
