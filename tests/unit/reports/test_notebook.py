"""The fragment that notebooks show: complete, small, and unable to act or to leak into the page around it."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import html5lib
import msgspec
from builders import a_diagnosis, a_failed_trial, a_finding, a_recommendation, a_subject
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.reports.html import render_fragment
from layoutdoctor.reports.sections.view import build_view

HOSTILE = "</script><img src=x onerror=alert(1)> \"quoted\" 'single' </div></table> &lt; {{ 7*7 }} {% raw %} \x1b[31m\n"
KNOWN = {"br", "code", "div", "li", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
GAIN = STORIES["gain_with_findings"]()


class Elements(HTMLParser):
    """Every element with its attributes, the text, and whether all were closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


@for_each("story", STORIES)
def test_the_fragment_says_what_the_view_says(story: str) -> None:
    diagnosis = STORIES[story]()
    view, text = build_view(diagnosis), Elements(render_fragment(diagnosis)).text
    said = [" · ".join(view.title), view.answer.claim, *view.answer.how]
    said += [part for note in view.answer.notes for part in note]
    if not view.answer.is_short and story != "hostile_names":
        rows = [row for table in view.tables for row in table.narrow.rows[:8]]
        said += [cell for row in rows for cell in (row.cells if row.clause is None else (row.cells[0], row.clause))]
        said += [part for e in view.main_findings[:8] for part in (e.code, e.message, e.place, e.suggestion) if part]
        said += [*view.remarks, *view.not_understood, *([view.other_findings] if view.other_findings else [])]

    assert [part for part in said if " ".join(part.split()) not in text] == []


@for_each("diagnosis", [*(make() for make in STORIES.values())])
def test_the_fragment_is_strict_html_of_plain_elements_in_the_colours_of_the_page(diagnosis: object) -> None:
    fragment = render_fragment(diagnosis)
    elements = Elements(fragment)

    html5lib.HTMLParser(strict=True).parseFragment(fragment, container="body")
    assert elements.open == []
    assert elements.found[0] == ("div", {"class": "layoutdoctor", "style": elements.found[0][1]["style"]})
    assert {tag for tag, _ in elements.found} <= KNOWN
    assert {name for _, attributes in elements.found for name in attributes} <= {"class", "style", "scope", "colspan"}
    assert not re.search(r"url\(|@import|position|https?:", fragment)
    styles = " ".join(attributes.get("style") or "" for _, attributes in elements.found)
    assert not re.search(r"color|background|#[0-9a-f]{3}|rgb", styles)


def test_a_long_record_is_cut_and_no_name_in_it_acts() -> None:
    fields = {"rule": HOSTILE, "configuration": HOSTILE, "message": HOSTILE * 9, "suggestion": HOSTILE * 9}
    diagnosis = a_diagnosis(
        *(a_failed_trial(f"{number} {HOSTILE}") for number in range(300)),
        subject=a_subject(name=HOSTILE, notes=(HOSTILE,) * 300),
        findings=(a_finding(**fields),) * 300,
        recommendation=a_recommendation(configuration=HOSTILE, how=f"model = {HOSTILE}\n" * 300),
        interrupted=HOSTILE,
    )
    fragment = render_fragment(diagnosis)
    elements = Elements(fragment)

    html5lib.HTMLParser(strict=True).parseFragment(fragment, container="body")
    assert {tag for tag, _ in elements.found} <= KNOWN
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert "<img src=x onerror=alert(1)>" in elements.text  # as text
    assert "{{ 7*7 }}" in elements.text
    assert "\x1b" not in fragment
    assert len(fragment) < 40_000
    assert elements.text.count("LD101 warning") == 8
    assert "and 292 more" in elements.text


def test_lines_to_paste_are_shown_whole_or_not_at_all() -> None:
    longer = msgspec.structs.replace(GAIN.recommendation, how=f"x = {'1 + ' * 40}1\n" * 30)

    text = Elements(render_fragment(msgspec.structs.replace(GAIN, recommendation=longer))).text

    assert "31 lines, too many to show here: print(diagnosis.recommendation.how)" in text
    assert "1 + 1" not in text


def test_a_notebook_gets_html_and_the_text_report() -> None:
    assert GAIN._repr_mimebundle_() == {"text/html": render_fragment(GAIN), "text/plain": str(GAIN)}
    assert GAIN._repr_html_() == render_fragment(GAIN)


def test_the_configuration_of_a_finding_is_named_unless_it_is_the_baseline() -> None:
    name = "inductor-channels-last"  # which is recommended; of others the finding is only named
    about = [a_finding(rule="r", severity="warning", configuration=n, message="m") for n in (name, "eager")]
    text = Elements(render_fragment(msgspec.structs.replace(GAIN, findings=tuple(about)))).text

    assert "LD101 warning compiled + channels_last: m" in text
    assert "1 more: LD101" in text


def test_jinja2_and_pandas_are_loaded_with_the_first_fragment_or_table_only() -> None:
    code = "import sys, layoutdoctor.reports.html as _, layoutdoctor.reports.frames as _; print(*sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"jinja2", "pandas", "torch"} & set(result.stdout.split())
