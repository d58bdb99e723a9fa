"""
The Markdown report, read by GitHub's own parser of CommonMark and its tables, and by a strict parser of HTML.

Its text is tested with the view; here: that it is drawn as meant, that no name can change that, and that it fits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import cmarkgfm
import pytest
from builders import a_configuration, a_conversion, a_diagnosis, a_finding, a_pair, a_trial, kernels
from github_markdown import check_form, code_blocks, text_of, without_code
from golden.stories import STORIES
from hostile_records import hostile_diagnosis

from layoutdoctor.reports.markdown import (
    USUAL_CHARACTERS,
    markdown_parts,
    paragraph,
    render_markdown,
)
from layoutdoctor.reports.reproducer import Reproducer
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

DETAILS = "report.details.md"
NAMES = (
    "</details></pre></script><img src=x onerror=alert(1)>",
    "```\n# heading\n~~~",
    "| cell | cell |\n|---|---|",
    "<!-- layoutdoctor:v1 -->\n```json\n{}\n```",
    "--> ]]> &lt; &#60; &copy;",
    "[x](javascript:alert(1)) ![y](http://z) <http://a>",
    "*a* **b** __c__ ~~d~~ `e` \\",
    "@torch/team @user #12 :tada:",
    "\x1b[31m\u202e\u2028\u0085\ud800\x00",
    "Größe 変換 😀",
    "- a\n1. b\n+ c\n> d\n# e\n===",
    "   ",
    "x" * 10_000,
)


def headings(document: Element) -> list[str]:
    return [f"{element.tag} {text_of(element)}" for element in document.iter() if element.tag in ("h2", "h3", "h4")]


def with_script(monkeypatch: pytest.MonkeyPatch, reproducer: Reproducer) -> None:
    monkeypatch.setattr("layoutdoctor.reports.markdown.build_reproducer", lambda _: reproducer)


@pytest.mark.parametrize("story", STORIES)
def test_github_draws_every_story_as_meant(story: str) -> None:
    diagnosis = STORIES[story]()
    report = render_markdown(diagnosis)

    is_trace = diagnosis.subject.mode == "trace"
    failed = any(trial.status in ("failed", "timed_out", "crashed") for trial in diagnosis.trials)
    assert headings(check_form(report))[1:] == [
        "h3 🐛 Describe the bug",
        "h4 Findings",
        "h3 Minimal reproducer",
        "h3 Where the time goes" if is_trace else "h3 Configurations",
        *(["h3 Error logs"] if failed else []),
        "h3 Versions",
    ]
    assert len(report.encode()) < USUAL_CHARACTERS
    assert (markdown_parts(diagnosis, "a.md")[1] is None) is build_view(diagnosis).answer.is_short


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("story", ["round_trip_by_hand", "failures_and_same", "trace_of_owners"])
def test_no_name_is_read_as_markdown_or_html(story: str, name: str) -> None:
    report, plain = (render_markdown(hostile_diagnosis(story, text)) for text in (name, "plain"))
    document = check_form(report)

    shown = [heading for heading in headings(document)[1:] if heading != "h4 Findings"]
    assert shown == [heading for heading in headings(check_form(plain))[1:] if heading != "h4 Findings"]
    assert len(report) < 60_000
    assert not re.search(r"(?<![A-Za-z0-9_])@[A-Za-z0-9]", without_code(report))
    links = [str(link.get("href")) for link in document.iter("a")]
    assert [link for link in links if not link.startswith(("http://", "https://", "mailto:"))] == []
    assert not [element for element in document.iter() if any(str(key).startswith("on") for key in element.attrib)]
    report.encode()


def test_a_reproducer_is_given_whole_or_with_the_reason_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'import torch\n\nprint("```")  # </details>\n'
    with_script(monkeypatch, Reproducer(script, "Two round trips in eager"))
    report = render_markdown(a_diagnosis())
    assert "````python\nimport torch\n" in report
    assert ("python", script) in code_blocks(check_form(report))

    with_script(monkeypatch, Reproducer("", "No reproducer", "a custom operator *runs*"))
    assert "### Minimal reproducer\n\nNone: a custom operator \\*runs\\*.\n\n" in render_markdown(a_diagnosis())


def huge(conversion_count: int, finding_count: int, name: str = "n" * 10_000) -> Diagnosis:
    conversions = tuple(
        a_conversion(f"reorder {i}", kernel=name, op=name, module=name, cause=name) for i in range(conversion_count)
    )
    pairs = tuple(a_pair(f"reorder {i}", f"reorder {i + 1}", proof=name) for i in range(0, conversion_count, 2))
    trial = a_trial(kernels=kernels(*conversions, seconds=10.0), redundant_pairs=pairs, notes=(name,))
    findings = (
        a_finding(configuration="inductor", message=f"finding {i}: {name}", suggestion=f"{i} {name}")
        for i in range(finding_count)
    )
    return a_diagnosis(trial, findings=tuple(findings))


def test_a_huge_record_fits_and_the_rest_is_whole_in_the_file_beside() -> None:
    report, details = markdown_parts(huge(1_000, 400), DETAILS)

    assert len(report.encode()) < USUAL_CHARACTERS
    assert report.count("<details>") == report.count("</details>")
    assert f"`{DETAILS}` has every conversion, decision and difference\n" in report
    assert details is not None
    assert [int(i) for i in re.findall(r"^\| reorder (\d+) \| library", details, re.MULTILINE)] == list(range(1_000))
    assert [int(i) for i in re.findall(r": finding (\d+): ", details)] == list(range(400))
    assert len(re.findall(r"^\| reorder \d+ \| reorder \d+ \|", details, re.MULTILINE)) == 500
    assert "left out" not in details


def test_parts_are_left_out_whole() -> None:
    trials = tuple(a_trial(configuration=a_configuration(f"configuration {i} {'n' * 90}")) for i in range(600))
    report, details = markdown_parts(a_diagnosis(*trials), "a`<b>|*.details.md")

    assert "### Configurations" not in report
    assert "a\\`&lt;b&gt;\\|\\*.details.md has every conversion" in report  # the name of the file is data
    assert details is not None
    assert len(re.findall(r"^\| configuration \d+ n", details, re.MULTILINE)) >= 600
    assert render_markdown(huge(20, 5, "n")).count(": finding ") == 5
    assert render_markdown(huge(20, 20, "n" * 900)).count(": finding ") in (0, 5)


def test_a_long_script_is_in_the_file_beside_and_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import torch\n" * 1_000
    with_script(monkeypatch, Reproducer(script, title="a title"))
    report, details = markdown_parts(huge(20, 5, "n"), DETAILS)

    assert f"a title (1000 lines, also in `{DETAILS}`)." in report
    assert script not in report
    assert report.count(": finding ") == 5  # what fits without it is there
    assert script.rstrip() in (details or "")
    without, nothing = markdown_parts(huge(20, 5, "n"))
    assert nothing is None
    assert (
        "`--output report.md` writes every conversion, decision and difference to a file beside the report" in without
    )


@pytest.mark.parametrize("text", ["# a", "- a", "+ a", "1. a", "12) a", "= a", "-", "===", "a", "# - 1. a", "1", ""])
def test_a_line_starts_no_block(text: str) -> None:
    html = cmarkgfm.github_flavored_markdown_to_html(f"before\n\n{paragraph(text)}\n\nafter\n")

    assert html == "".join(f"<p>{part}</p>\n" for part in ("before", text, "after") if part)
