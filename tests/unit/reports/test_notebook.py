"""The fragment that notebooks show: complete, small, and unable to act or to leak into the page around it."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import html5lib
import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_finding, a_recommendation, a_subject
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.reports.notebook import LENGTHS, MOST_CHARACTERS, render_fragment
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis

HOSTILE = "</script><img src=x onerror=alert(1)> \"quoted\" 'single' </div></table> &lt; {{ 7*7 }} {% raw %} \x1b[31m\n"
VOID = {"br"}
KNOWN = {"br", "code", "div", "li", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}


class Elements(HTMLParser):
    """Every element with its attributes, the text, and whether all were closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())


def plain(text: str) -> str:
    return " ".join(text.split())


def hostile_diagnosis(count: int = 3) -> Diagnosis:
    fields = {"rule": HOSTILE, "configuration": HOSTILE, "message": HOSTILE * 9, "suggestion": HOSTILE * 9}
    findings = (a_finding(**fields),) * count
    trials = tuple(a_failed_trial(f"{number} {HOSTILE}") for number in range(count))
    return a_diagnosis(
        *trials,
        subject=a_subject(name=HOSTILE, notes=(HOSTILE,) * count),
        findings=findings,
        recommendation=a_recommendation(configuration=HOSTILE, how=f"model = {HOSTILE}\n" * count),
        interrupted=HOSTILE,
    )


@for_each("story", STORIES)
def test_the_fragment_says_what_the_view_says(story: str) -> None:
    diagnosis = STORIES[story]()
    view, fragment = build_view(diagnosis), render_fragment(diagnosis)
    is_short = view.answer.is_short
    text, findings = Elements(fragment).text, view.findings if is_short else view.main_findings
    said = [" · ".join(view.title), view.answer.claim, *view.answer.how]
    if re.search(r"<li>and \d+ more</li>", fragment):  # which entries are shown of a long record is tested below
        findings = findings[:1]
        said += [f"{entry.code} {entry.severity}" for entry in findings]
    else:
        said += [*(part for note in view.answer.notes for part in note), *view.not_understood]
        said += [f"{entry.code} {entry.severity} {entry.rule if is_short else ''}".strip() for entry in findings]
        if not is_short:
            rows = [row for table in view.tables for row in table.narrow.rows]
            said += [cell for row in rows for cell in (row.cells if row.clause is None else (row.cells[0], row.clause))]
            said += [part for e in findings for part in (e.message, e.place, e.suggestion, e.configuration) if part]
            said += [*view.remarks, *([view.other_findings] if view.other_findings else [])]

    assert [part for part in said if plain(part) not in text] == []


@for_each("story", STORIES)
def test_the_fragment_is_strict_html_of_plain_elements_with_styles_of_its_own(story: str) -> None:
    fragment = render_fragment(STORIES[story]())
    elements = Elements(fragment)

    html5lib.HTMLParser(strict=True).parseFragment(fragment, container="body")
    assert elements.open == []
    assert elements.found[0] == ("div", {"class": "layoutdoctor", "style": elements.found[0][1]["style"]})
    assert {tag for tag, _ in elements.found} <= KNOWN
    assert {name for _, attributes in elements.found for name in attributes} <= {"class", "style", "scope", "colspan"}
    assert not re.search(r"url\(|@import|position|https?:", fragment)
    styles = " ".join(attributes.get("style") or "" for _, attributes in elements.found)
    assert not re.search(r"color|background|#[0-9a-f]{3}|rgb", styles)  # its colours are those of the page
    assert len(fragment) < MOST_CHARACTERS


def test_nothing_in_a_name_acts() -> None:
    fragment = render_fragment(hostile_diagnosis())
    elements = Elements(fragment)

    html5lib.HTMLParser(strict=True).parseFragment(fragment, container="body")
    assert elements.open == []
    assert {tag for tag, _ in elements.found} <= KNOWN
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert "<img src=x onerror=alert(1)>" in elements.text  # as text
    assert "{{ 7*7 }}" in elements.text
    assert "\x1b" not in fragment


@pytest.mark.parametrize("count", [20, 300])
def test_a_long_record_is_cut_and_says_so(count: int) -> None:
    fragment = render_fragment(hostile_diagnosis(count))
    text = Elements(fragment).text

    assert len(fragment) < MOST_CHARACTERS
    shown = text.count("LD101 warning")
    assert 0 < shown < count
    assert f"and {count - shown} more" in text


def test_where_no_length_fits_the_shortest_fragment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutdoctor.reports.notebook.MOST_CHARACTERS", 10)
    shortest = Elements(render_fragment(hostile_diagnosis(20))).text

    assert shortest.count("LD101 warning") == LENGTHS[-1][0]
    assert f"and {20 - LENGTHS[-1][0]} more" in shortest


def test_lines_to_paste_are_shown_whole_or_not_at_all() -> None:
    diagnosis = STORIES["gain_with_findings"]()
    recommendation = diagnosis.recommendation
    assert recommendation is not None
    longer = msgspec.structs.replace(recommendation, how=f"x = {'1 + ' * 40}1\n" * 30)

    text = Elements(render_fragment(msgspec.structs.replace(diagnosis, recommendation=longer))).text

    assert "31 lines, too many to show here: print(diagnosis.recommendation.how)" in text
    assert "1 + 1" not in text


def test_a_notebook_gets_html_and_the_text_report() -> None:
    diagnosis = STORIES["gain_with_findings"]()

    bundle = diagnosis._repr_mimebundle_()

    assert bundle == {"text/html": render_fragment(diagnosis), "text/plain": str(diagnosis)}
    assert diagnosis._repr_html_() == bundle["text/html"]


def test_the_configuration_of_a_finding_stands_beside_it_unless_it_is_the_baseline() -> None:
    name = "inductor-channels-last"  # which is recommended; of others the finding is only named
    about = [a_finding(rule="r", severity="warning", configuration=n, message="m") for n in (name, "eager")]
    diagnosis = msgspec.structs.replace(STORIES["gain_with_findings"](), findings=tuple(about))
    text = Elements(render_fragment(diagnosis)).text

    assert "LD101 warning compiled + channels_last: m" in text
    assert "1 more: LD101" in text


def test_jinja2_and_pandas_are_loaded_with_the_first_fragment_or_table_only() -> None:
    code = "import sys, layoutdoctor.reports.notebook as _, layoutdoctor.reports.frames as _; print(*sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"jinja2", "pandas", "torch"} & set(result.stdout.split())
