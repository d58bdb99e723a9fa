"""The HTML report in a real browser: nothing is fetched, nothing planted runs, and everybody can read it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from builders import a_conversion, a_diagnosis, a_measurement, a_pair, a_trial, kernels
from golden.stories import STORIES
from hostile_records import hostile_diagnosis

from layoutdoctor.diagnosis.kernel import Kernel
from layoutdoctor.reports.html import render_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install layoutdoctor[test])")

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}
PLANTED = (
    "</script><img src=x onerror=\"window.ran='img'\">",
    '"><svg onload="window.ran=\'svg\'">',
    "{{7*7}}",
    "javascript:window.ran='link'",
    "<style>*{display:none}</style>",
)
KERNEL_COUNT = 5_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: no chromium or google-chrome on the PATH")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


class Visit:
    """An opened report, with all that the browser said and asked for meanwhile."""

    def __init__(self, browser: Browser, path: Path, diagnosis: Diagnosis, planted: str = "", **options: Any) -> None:
        path.write_text(render_html(diagnosis).replace("<main", f"{planted}<main", 1), encoding="utf-8")
        self.address = path.as_uri()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address)
        if self.page.locator(".chart").count() and options.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-charts=drawn]", state="attached")

    def check(self) -> None:
        """Nothing was said, and nothing but the file itself was asked for."""
        assert self.said == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def open_report(diagnosis: Diagnosis, **options: Any) -> Visit:
        visits.append(Visit(browser, tmp_path / f"report{len(visits)}.html", diagnosis, **options))
        return visits[-1]

    yield open_report
    for opened in visits:
        opened.check()
        opened.page.context.close()


def many_kernels() -> Diagnosis:
    """A diagnosis of 5,000 kernels, every fifth one a conversion, in two configurations."""
    listed, conversions = [], []
    for number in range(KERNEL_COUNT):
        start = 1e-4 * number
        listed.append(Kernel(name=f"kernel {number % 50}", seconds=8e-5, start_seconds=start, stream=number % 2))
        if number % 5 == 0:
            conversions.append(
                a_conversion(
                    f"conversion {number}", kernel=listed[-1].name, start_seconds=start, seconds=8e-5, stream=number % 2
                )
            )
    summary = kernels(*conversions, kernels=tuple(listed), count=KERNEL_COUNT, seconds=0.4)
    pairs = tuple(a_pair(f"conversion {i}", f"conversion {i + 5}") for i in range(0, KERNEL_COUNT // 2, 10))
    return a_diagnosis(
        a_trial("inductor", kernels=summary, redundant_pairs=pairs, measurement=a_measurement(*[0.5, 0.51] * 20)),
        a_trial("eager", kernels=summary, measurement=a_measurement(*[0.6, 0.61] * 20)),
    )


@pytest.mark.parametrize("story", STORIES)
def test_every_story_opens_without_a_word_and_fits_a_phone(visit: Any, story: str) -> None:
    page = visit(STORIES[story](), viewport=PHONE).page

    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("h1").is_visible()


@pytest.mark.parametrize(("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["light", "dark"])
@pytest.mark.parametrize("story", ["gain_with_findings", "trace_with_round_trips"])
def test_axe_finds_no_violation(visit: Any, story: str, viewport: dict[str, int], scheme: str) -> None:
    page = visit(STORIES[story](), viewport=viewport, color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")

    found = axe.Axe().run(page).response["violations"]

    assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []


@pytest.mark.parametrize("name", PLANTED, ids=range(len(PLANTED)))
def test_a_planted_name_is_shown_and_does_nothing(visit: Any, name: str) -> None:
    page = visit(hostile_diagnosis("trace_with_round_trips", name)).page
    page.mouse.move(600, 400)
    # Across the middle of each chart, so that tooltips show what they can show.
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        for part, down in ((0.2, 0.1), (0.5, 0.15), (0.5, 0.6), (0.7, 0.3)):
            page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] * down)

    assert page.evaluate("window.ran") is None
    assert page.locator("img, svg").count() == 0
    assert page.locator("h1").inner_text().startswith(name)
    assert page.locator("a:not([href^='#'])").count() == 0
    assert page.locator("style").count() == 1


def test_the_policy_stops_what_got_into_the_page_after_all(visit: Any) -> None:
    planted = (
        "<script>window.ran = 'script'</script><img src=x onerror=\"window.ran = 'image'\"><p style='opacity:0'>p</p>"
    )
    opened = visit(STORIES["round_trip_by_hand"](), planted=planted)
    opened.page.wait_for_timeout(200)

    assert opened.page.locator("img").count() == 1
    assert opened.page.evaluate("window.ran") is None
    assert len(opened.said) >= 3
    assert all("Content Security Policy" in line for line in opened.said)
    opened.said.clear()
    del opened.requests[1:]  # of the image: asked for, and stopped


def test_a_table_is_sorted_by_keyboard_and_by_what_times_are_and_a_long_one_filtered(visit: Any) -> None:
    seconds = (2e-3, 9e-6, 1e-3, 50e-6, 1.5)
    page = visit(with_conversions(*(a_conversion(f"reorder {i}", seconds=s) for i, s in enumerate(seconds)))).page
    table = opened_conversions(page)
    table.get_by_role("button", name="time").focus()
    column = [head.inner_text().strip() for head in table.locator("thead th").all()].index("time") + 1
    page.keyboard.press("Enter")
    cells = table.locator(f"tbody tr > :nth-child({column})")
    descending = ["1.50 s", "2.00 ms", "1.00 ms", "50.0 us", "9.00 us"]

    assert cells.all_inner_texts() == descending
    page.keyboard.press("Space")
    assert cells.all_inner_texts() == descending[::-1]
    assert table.locator("thead th").nth(column - 1).get_attribute("aria-sort") == "ascending"
    assert "sorted by time, ascending" in page.locator("body > [role=status]").inner_text()

    page = visit(with_conversions(*(a_conversion(f"conversion {i}") for i in range(200)))).page
    table = opened_conversions(page)
    page.get_by_role("searchbox", name="Filter Conversions under compiled").fill("conversion 195")
    assert table.locator("tbody tr:visible").count() == 1


def with_conversions(*conversions: Conversion) -> Diagnosis:
    return a_diagnosis(a_trial("inductor", kernels=kernels(*conversions)))


def opened_conversions(page: Page) -> Any:
    title = "Conversions under compiled (the default)"
    page.locator("summary", has_text=title).click()
    return page.locator("table", has=page.locator("caption", has_text=title))


def test_five_thousand_kernels_open_at_once_and_are_walked_by_keyboard(visit: Any) -> None:
    page = visit(many_kernels()).page
    milliseconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < milliseconds < 5000  # below 1000 on a quiet machine
    assert len(page.content()) < 4_000_000

    status = page.locator("#timeline-status")

    page.get_by_role("button", name="Next conversion").focus()
    page.keyboard.press("Enter")
    first = status.inner_text()
    page.keyboard.press("Enter")
    second = status.inner_text()
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Later").click()

    assert first.startswith("Conversion 1 of 1000: conversion 0 ")
    assert second.startswith("Conversion 2 of 1000: conversion 5 ")
    assert status.inner_text() == "Shown: 250 ms to 500 ms of 500 ms."
    page.locator("#timeline-choice").select_option(label="eager")
    assert status.inner_text() == "Shown: 0 us to 500 ms of 500 ms."


def test_lines_are_copied_as_shown_and_a_link_to_a_rule_opens_its_text(visit: Any) -> None:
    page = visit(STORIES["gain_with_findings"](), permissions=["clipboard-read", "clipboard-write"]).page
    page.get_by_role("button", name="Copy lines to paste").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("link", name="What LD205 means").click()

    assert copied == STORIES["gain_with_findings"]().recommendation.how
    page.wait_for_selector("#rule-LD205[open]")


def test_both_colour_schemes_are_used_also_by_the_charts_and_paper_is_light(visit: Any) -> None:
    page = visit(STORIES["gain_with_findings"](), color_scheme="dark").page
    ground = "getComputedStyle(document.body).backgroundColor"
    pixels = "document.querySelector('#chart-bars canvas').toDataURL()"
    dark, dark_chart = page.evaluate(ground), page.evaluate(pixels)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert until(page, lambda: page.evaluate(pixels) != dark_chart)
    paper, paper_chart = page.evaluate(ground), page.evaluate(pixels)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert until(page, lambda: page.evaluate(pixels) == dark_chart)
    page.emulate_media(color_scheme="light")
    assert until(page, lambda: page.evaluate(pixels) == paper_chart)

    assert (dark, page.evaluate(ground), paper) == ("rgb(15, 20, 25)", "rgb(255, 255, 255)", "rgb(255, 255, 255)")


def until(page: Any, holds: Callable[[], bool]) -> bool:
    """Whether something comes true within some seconds, as a browser redraws when it has the time."""
    for _ in range(100):
        if holds():
            return True
        page.wait_for_timeout(50)
    return False


def test_every_fact_is_there_without_scripts(visit: Any) -> None:
    page = visit(STORIES["gain_with_findings"](), viewport=PHONE, java_script_enabled=False).page

    assert page.locator(".chart:visible").count() == 0
    assert page.locator("button:visible").count() == 0
    assert page.locator("#table-1 tbody tr").count() == 5
    assert page.locator(".finding").count() == 3
