"""The HTML report: one page, valid, self-contained, with the numbers of the record; no name in it can act."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import html5lib
import pytest
import reviewed
from builders import (
    a_conversion,
    a_diagnosis,
    a_location,
    a_pair,
    a_trial,
    kernels,
)
from golden.stories import STORIES
from hostile_records import hostile_diagnosis

from layoutdoctor.diagnosis.answer import Finding
from layoutdoctor.diagnosis.kernel import Kernel
from layoutdoctor.reports.charts import MOST_KERNELS, build_timelines
from layoutdoctor.reports.html import (
    MOST_LISTED,
    json_for_script,
    read_page_file,
    render_html,
)
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from xml.etree import ElementTree

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "{{7*7}}",
    "{% raw %}",
    "javascript:alert(1)",
    "<!--",
    "]]>",
    "' onmouseover='alert(1)",
    "{a|rich}\u2028\u2029",
    "\ud800\x00\x1b[31m\u202e",
)


def parse(page: str) -> ElementTree.Element:
    """The page's tree; anything that HTML's standard calls a parse error is an error here."""
    return html5lib.HTMLParser(strict=True).parse(reviewed.without_library(page))


def elements(tree: ElementTree.Element, *tags: str) -> list[ElementTree.Element]:
    wanted = {HTML + tag for tag in tags}
    return [element for element in tree.iter() if element.tag in wanted]


def text_of(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def chart_data(page: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


@pytest.mark.thorough
@pytest.mark.parametrize("story", STORIES)
def test_a_page_is_valid_html_that_needs_nothing_from_elsewhere_and_allows_its_own_scripts_only(story: str) -> None:
    page = render_html(STORIES[story]())
    tree = parse(page)
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    levels = [int(element.tag[-1]) for element in elements(tree, "h1", "h2", "h3", "h4", "h5", "h6")]

    assert len(ids) == len(set(ids))
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for element in tree.iter():
        for attribute in ("aria-labelledby", "aria-describedby", "for"):
            assert set(element.attrib.get(attribute, "").split()) <= set(ids)
        if element.attrib.get("href", "").startswith("#"):
            assert element.attrib["href"][1:] in ids

    assert [element.attrib["href"] for element in elements(tree, "link")] == ["data:,"]
    assert not [e for e in tree.iter() if {"src", "srcset", "data", "poster", "action"} & set(e.attrib)]
    assert not [e for e in tree.iter() if any(name.startswith("on") or name == "style" for name in e.attrib)]
    assert not re.search(r"@import|url\(", read_page_file("style.css"))
    assert {e.attrib["href"][0] for e in elements(tree, "a")} == {"#"}

    (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="(.*?)">', page)
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)

    assert html.unescape(policy) == (
        f"default-src 'none'; script-src {' '.join(map(sha256_of, scripts))}; style-src {sha256_of(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert page.count("<script") == len(scripts) + 1


def sha256_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("story", STORIES)
def test_a_page_says_all_that_the_shared_view_says(story: str) -> None:
    diagnosis = STORIES[story]()
    view, page = build_view(diagnosis), " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body_of(diagnosis))).split())
    answer, findings = view.answer, view.findings
    said = [
        *view.title,
        *([view.interrupted] if view.interrupted else []),
        *(answer.claim, *answer.how, *(part for note in answer.notes for part in note)),
        *(cell for table in view.tables for row in table.rows for cell in (*row.cells, row.clause or "")),
        *view.remarks,
        *(part for entry in findings for part in (entry.code, entry.severity, entry.rule, entry.message)),
        *(part for entry in findings for part in (entry.place, entry.suggestion, entry.configuration) if part),
        *(*view.not_understood, *view.measurement, *view.hints),
    ]

    assert [text for text in said if " ".join(text.split()) not in page] == []


def body_of(diagnosis: Diagnosis) -> str:
    page = render_html(diagnosis)
    return page[page.index("<body>") : page.index('<script type="application/json"')]


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("story", ["gain_with_findings", "failures_and_same", "trace_with_round_trips"])
def test_no_name_changes_what_the_page_is_made_of(story: str, name: str) -> None:
    plain, hostile = (parse(render_html(hostile_diagnosis(story, text))) for text in ("plain", name))

    assert [(e.tag, sorted(e.attrib)) for e in hostile.iter()] == [(e.tag, sorted(e.attrib)) for e in plain.iter()]


def test_a_hostile_name_is_shown_as_it_is() -> None:
    name = HOSTILE[0] + HOSTILE[1] + HOSTILE[2]
    page = render_html(hostile_diagnosis("gain_with_findings", name))

    assert name not in page
    assert name in text_of(parse(page))


def test_json_for_a_script_has_nothing_that_could_end_it_and_stays_the_same_data() -> None:
    data = [*(name for name in HOSTILE if "\ud800" not in name), "&lt;"]
    text = json_for_script(data)

    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == data


def a_list(count: int, **changes: Any) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(name=f"kernel {i % 7}", seconds=1e-5 * (1 + i % 3), start_seconds=1e-4 * i, stream=i % 2, **changes)
        for i in range(count)
    )


def with_kernels(count: int, *conversions: Any, **changes: Any) -> Diagnosis:
    summary = kernels(*conversions, kernels=a_list(count), count=count)
    return a_diagnosis(a_trial("inductor", kernels=summary, **changes))


def placed(id_: str, number: int, seconds: float = 1e-5, **changes: Any) -> Conversion:
    """The conversion that one of the listed kernels is."""
    fields = {"kernel": f"kernel {number} blk", "stream": number % 2, "start_seconds": 1e-4 * number}
    return a_conversion(id_, **{**fields, "seconds": seconds, **changes})


UNSTARTED = tuple(Kernel(name="k", seconds=1e-3) for _ in range(3))
PARTS = tuple(a_conversion(f"part {i}", owner="compiler", kernel="cpp_fused_0", seconds=None) for i in range(2))
TIMELINES = {
    "conversions and a round trip": with_kernels(
        10,
        placed("a", 3),
        placed("b", 5, 3e-5),
        placed("c", 0, direction="none"),
        redundant_pairs=(a_pair("a", "b", seconds=4e-5),),
    ),
    "kernels without a start": a_diagnosis(
        a_trial("eager", kernels=kernels(a_conversion(), kernels=UNSTARTED, count=5))
    ),
    "parts of compiled kernels": with_kernels(3, *PARTS),
    "conversions alone": with_kernels(0, placed("a", 3), placed("b", 5)),
}


def test_timelines_are_as_reviewed(update_golden: bool) -> None:
    lines = {name: chart_data(render_html(case))["timelines"] for name, case in TIMELINES.items()}

    reviewed.check("timelines", {name: json.dumps(line) for name, line in lines.items()}, update=update_golden)


def test_of_too_many_kernels_the_shortest_are_left_out_and_counted() -> None:
    short = a_conversion("short", kernel="kernel 0", stream=0, start_seconds=0.0, seconds=1e-5)
    (line,) = build_timelines(with_kernels(MOST_KERNELS + 10, short))

    assert len(line["starts"]) == MOST_KERNELS
    assert line["conversions"][0][0] == 0
    assert line["notes"] == ["10 shorter kernels not drawn; all conversions are drawn"]
    assert min(line["lengths"][1:]) == 10_000
    assert line["starts"] == sorted(line["starts"])


def test_a_finding_has_its_line_its_cost_and_what_it_names_and_long_lists_are_cut() -> None:
    conversions = tuple(a_conversion(f"reorder {i}") for i in range(MOST_LISTED + 7))
    finding = Finding(
        code="LD101",
        rule="round-trip-conversion",
        severity="warning",
        configuration="inductor",
        message="m",
        location=a_location(3, code="y = x.contiguous()"),
        seconds=2.1e-2,
        bytes_moved=1024,
        evidence=("reorder 1", "relu_1", "reorder 1"),
    )
    findings = (finding,)
    page = render_html(a_diagnosis(a_trial("inductor", kernels=kernels(*conversions)), findings=findings))
    text = text_of(parse(page))

    assert "y = x.contiguous()" in text
    assert "21.0 ms, 1.00 KiB moved" in text
    assert "Named reorder 1, relu_1" in text
    assert text.count("7 more left out here; the JSON report has them.") == 1


def test_the_chart_library_is_the_one_that_its_readme_names() -> None:
    home = resources.files("layoutdoctor.reports").joinpath("page", "echarts")
    library, readme = (
        home.joinpath("echarts.min.js").read_bytes(),
        home.joinpath("README.md").read_text(encoding="utf-8"),
    )

    assert f"`{hashlib.sha256(library).hexdigest()}`" in readme
    assert b"</script" not in library
    assert b"<!--" not in library
    assert b"\r" not in library
    for name in ("LICENSE", "NOTICE", "LICENSE-d3", "LICENSE-zrender"):
        assert home.joinpath(name).read_text(encoding="utf-8")
