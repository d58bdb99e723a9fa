"""The fragment that notebooks show: complete, small, and unable to act or to leak into the page around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import html5lib
import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_finding, a_recommendation, a_subject
from golden.stories import STORIES

from layoutdoctor.reports.html import render_fragment
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

HOSTILE = "</script><img src=x onerror=alert(1)> \"quoted\" 'single' </div></table> &lt; {{ 7*7 }} {% raw %} \x1b[31m\n"
KNOWN = {"br", "code", "div", "li", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
GAIN = STORIES["gain_with_findings"]()


def parsed(fragment: str) -> list[Element]:
    """The elements of a fragment, of which none is unknown, acts, or takes colours or files from elsewhere."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    (root,) = parser.parseFragment(fragment, container="body")
    elements = list(root.iter())
    assert (root.tag, root.get("class")) == ("div", "layoutdoctor")
    assert {element.tag for element in elements} <= KNOWN
    assert {name for element in elements for name in element.attrib} <= {"class", "style", "scope", "colspan"}
    styles = " ".join(element.get("style", "") for element in elements)
    assert not re.search(r"url\(|@import|position|https?:|color|background|#[0-9a-f]{3}|rgb", styles)
    return elements


def text_of(fragment: str) -> str:
    return " ".join(" ".join(parsed(fragment)[0].itertext()).split())


@pytest.mark.parametrize("story", STORIES)
def test_the_fragment_says_what_the_view_says_in_strict_html_of_plain_elements(story: str) -> None:
    diagnosis = STORIES[story]()
    view, text = build_view(diagnosis), text_of(render_fragment(diagnosis))
    said = [" · ".join(view.title), view.answer.claim, *view.answer.how]
    said += [part for note in view.answer.notes for part in note]
    if not view.answer.is_short and story != "hostile_names":
        rows = [row for table in view.tables for row in table.narrow.rows[:8]]
        said += [cell for row in rows for cell in (row.cells if row.clause is None else (row.cells[0], row.clause))]
        said += [part for e in view.main_findings[:8] for part in (e.code, e.message, e.place, e.suggestion) if part]
        said += [*view.remarks, *view.not_understood, *([view.other_findings] if view.other_findings else [])]

    assert [part for part in said if " ".join(part.split()) not in text] == []


def test_a_long_record_is_cut_and_no_name_in_it_acts() -> None:
    fields = {"rule": HOSTILE, "configuration": HOSTILE, "message": HOSTILE * 9}
    diagnosis = a_diagnosis(
        *(a_failed_trial(f"{number} {HOSTILE}") for number in range(300)),
        subject=a_subject(name=HOSTILE, notes=(HOSTILE,) * 300),
        findings=tuple(a_finding(suggestion=f"{number} {HOSTILE * 9}", **fields) for number in range(300)),
        recommendation=a_recommendation(configuration=HOSTILE, how=f"model = {HOSTILE}\n" * 300),
        interrupted=HOSTILE,
    )
    fragment = render_fragment(diagnosis)
    text = text_of(fragment)

    assert "<img src=x onerror=alert(1)>" in text
    assert "{{ 7*7 }}" in text
    assert "lines, too many to show here: print(diagnosis.recommendation.how)" in text  # whole or not at all
    assert "\x1b" not in fragment
    assert len(fragment) < 40_000
    assert text.count("LD101 warning") == 8
    assert "and 292 more" in text


def test_a_notebook_gets_html_and_the_text_report() -> None:
    assert GAIN._repr_mimebundle_() == {"text/html": render_fragment(GAIN), "text/plain": str(GAIN)}
    assert GAIN._repr_html_() == render_fragment(GAIN)


def test_the_configuration_of_a_finding_is_named_unless_it_is_the_baseline() -> None:
    name = "inductor-channels-last"  # the recommended one; a finding of another one is only counted
    about = [a_finding(rule="r", severity="warning", configuration=n, message="m") for n in (name, "eager")]
    text = text_of(render_fragment(msgspec.structs.replace(GAIN, findings=tuple(about))))

    assert "LD101 warning compiled + channels_last: m" in text
    assert "1 more: LD101" in text
