"""
The Markdown report, read by GitHub's own parser of CommonMark and its tables, and by a strict parser of HTML.

What stands in the text is tested with the view; here: that it is drawn as meant, and that no name can change that.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import cmarkgfm
import msgspec
from builders import (
    a_diagnosis,
    a_failed_trial,
    a_trial,
)
from github_markdown import check_form, code_blocks, text_of, without_code
from golden.stories import STORIES
from hostile_records import hostile_diagnosis
from loops import for_each

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.reports.markdown import (
    USUAL_CHARACTERS,
    code_block,
    code_name,
    escape,
    markdown_parts,
    paragraph,
    render_markdown,
)
from layoutdoctor.reports.reproducer import report as reproducers
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import pytest

NAMES = (
    "</details></pre></script><img src=x onerror=alert(1)>",
    "```\n# heading\n~~~",
    "| cell | cell |\n|---|---|",
    "<!-- layoutdoctor:v1 -->\n```json\n{}\n```",
    "--> ]]> &lt; &#60; &copy;",
    "[x](javascript:alert(1)) ![y](http://z) <http://a>",
    "*a* **b** __c__ ~~d~~ `e` \\",
    "@torch/team @user #12 :tada:",
    '"]} end; click n0 call f() #quot; %%{init: {}}%%',
    "\x1b[31m\u202e\u2028\u0085\ud800\x00",
    "Größe 変換 😀",
    "- a\n1. b\n+ c\n> d\n# e\n===",
    "   ",
    "x" * 10_000,
)


def headings(document: Element) -> list[str]:
    return [f"{element.tag} {text_of(element)}" for element in document.iter() if element.tag in ("h2", "h3", "h4")]


@for_each("story", STORIES)
def test_github_draws_every_story_as_meant(story: str) -> None:
    diagnosis = STORIES[story]()
    report = render_markdown(diagnosis)
    document = check_form(report)

    is_trace = diagnosis.subject.mode == "trace"
    failed = any(trial.status in ("failed", "timed_out", "crashed") for trial in diagnosis.trials)
    _, *rest = headings(document)
    assert rest == [
        "h3 🐛 Describe the bug",
        "h4 Findings",
        *([] if is_trace else ["h3 Minimal reproducer"]),
        "h3 Where the time goes" if is_trace else "h3 Configurations",
        *(["h3 Error logs"] if failed else []),
        "h3 Versions",
    ]
    assert report.count("```mermaid\n") <= 1
    assert len(report) < USUAL_CHARACTERS
    assert (markdown_parts(diagnosis, "a.md")[1] is None) is build_view(diagnosis).answer.is_short


@for_each("name", NAMES)
@for_each("story", ["round_trip_by_hand", "crashed_and_timed_out", "trace_of_owners"])
def test_no_name_is_read_as_markdown_or_html(story: str, name: str) -> None:
    report, plain = (render_markdown(hostile_diagnosis(story, text)) for text in (name, "plain"))
    document = check_form(report)

    assert headings(document)[1:] == headings(check_form(plain))[1:]
    assert len(report) < 60_000
    assert not re.search(r"(?<![A-Za-z0-9_])@[A-Za-z0-9]", without_code(report))
    links = [str(link.get("href")) for link in document.iter("a")]
    assert [link for link in links if not link.startswith(("http://", "https://", "mailto:"))] == []
    assert not [element for element in document.iter() if any(str(key).startswith("on") for key in element.attrib)]
    report.encode()


def test_a_failed_configuration_has_its_log_under_error_logs() -> None:
    failure = Failure(kind="compile", message="CompileError: boom", log="one\n\n```\n</details>\ntwo")
    failed = msgspec.structs.replace(a_failed_trial(), failure=failure)
    skipped = msgspec.structs.replace(a_failed_trial("eager"), status="skipped")
    report = render_markdown(a_diagnosis(a_trial(), failed, skipped))
    document = check_form(report)

    logs = report.partition("### Error logs")[2].partition("### Versions")[0]
    assert "- compiled, layout optimization on: failed (compile): CompileError: boom" in logs
    assert "eager" not in logs
    assert ("text", "one\n```\n</details>\ntwo\n") in code_blocks(document)


def test_a_reproducer_that_runs_is_given_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'import torch\n\nprint("```")  # </details>\n'
    found = reproducers.Reproducer(script, True, "Two round trips in eager")
    monkeypatch.setattr("layoutdoctor.reports.reproducer.report.build_reproducer", lambda _: found)
    report = render_markdown(a_diagnosis())

    assert "````python\nimport torch\n" in report
    assert ("python", script) in code_blocks(check_form(report))


def test_why_there_is_no_reproducer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reproducers.Reproducer("", False, "No reproducer", "no reproducer: a custom operator *runs*")
    monkeypatch.setattr("layoutdoctor.reports.reproducer.report.build_reproducer", lambda _: found)

    assert "### Minimal reproducer\n\nNone: a custom operator \\*runs\\*.\n\n" in render_markdown(a_diagnosis())


@for_each("text", ["# a", "- a", "+ a", "1. a", "12) a", "= a", "-", "===", "a", "# - 1. a", "1", ""])
def test_a_line_starts_no_block(text: str) -> None:
    html = cmarkgfm.github_flavored_markdown_to_html(f"before\n\n{paragraph(text)}\n\nafter\n")

    assert html == "".join(f"<p>{part}</p>\n" for part in ("before", text, "after") if part)


def test_a_mention_calls_nobody_and_an_address_stays() -> None:
    assert escape("@torch.compile of x@y.z (@me)") == "@\u200btorch.compile of x@y.z (@\u200bme)"


def test_a_fence_is_longer_than_what_is_within() -> None:
    assert code_block("a ```` b", "python") == "`````python\na ```` b\n`````"
    assert code_name("report.md") == "`report.md`"
    assert code_name("a`b") == "a\\`b"
