"""
The HTML report: one page that needs no network, of the templates in ``page``, the shared view, tables and charts.

Every string of a record goes into the page through jinja2's escaping, or as JSON in a script element that no browser
runs. The page's own policy (Content-Security-Policy) lets no other script or style sheet act than those written here,
known by their hashes. Same diagnosis, same page: no clock, no random names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.reports.html.charts import build_bars, build_timelines, build_waterfalls
from layoutdoctor.reports.html.flow import build_flows
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.reports.rules_page import passages_of
from layoutdoctor.reports.sections.account import build_accounts, row_name
from layoutdoctor.reports.sections.details import Detail, build_details
from layoutdoctor.reports.sections.view import build_view
from layoutdoctor.reports.sections.wording import clean, clean_log, clean_name
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import joined

if TYPE_CHECKING:
    import jinja2

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.reports.html.charts import TimeBar, Timeline, Waterfall
    from layoutdoctor.reports.html.flow import Flow
    from layoutdoctor.reports.sections.rows import Overview
    from layoutdoctor.reports.sections.view import FindingEntry, View
    from layoutdoctor.rules import Rule

MOST_LISTED = 1_000
"""Rows of each long list; the JSON report has all."""
MOST_NAMED = 50
MOST_FINDINGS = 500

_CODE = re.compile(r"`(.+?)`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FindingCard:
    """
    One finding with what it rests on.

    Attributes:
        costs: Time and bytes.
        code: The line of code.
        named: Ids of conversions and nodes, cut.
    """

    number: int
    entry: FindingEntry
    costs: str
    code: str | None
    named: tuple[str, ...]


def build_lists(diagnosis: Diagnosis) -> tuple[Detail, ...]:
    """All long lists; the environment last."""
    details = build_details(diagnosis, MOST_LISTED)
    rows = [row for account in diagnosis.accounts for row in account.rows if row.source is not None]
    sources = {row.source: f"Generated kernel for {row_name(row)}" for row in rows}
    return (*details[:-1], *(Detail(title, log=source) for source, title in sources.items()), details[-1])


def build_cards(diagnosis: Diagnosis, view: View) -> tuple[FindingCard, ...]:
    """The findings with their evidence, in the view's order; at most ``MOST_FINDINGS``."""
    found = enumerate(zip(view.findings[:MOST_FINDINGS], diagnosis.findings, strict=False), 1)
    return tuple(_card(number, entry, finding) for number, (entry, finding) in found)


def _card(number: int, entry: FindingEntry, finding: Finding) -> FindingCard:
    time = None if finding.seconds is None else format_seconds(finding.seconds)
    moved = None if finding.bytes_moved is None else f"{format_bytes(finding.bytes_moved)} moved"
    return FindingCard(
        number,
        entry,
        joined((time, moved), " · "),
        clean(finding.location.code, 300) if finding.location is not None and finding.location.code else None,
        tuple(map(clean_name, dict.fromkeys(finding.evidence)))[:MOST_NAMED],
    )


def _passages(rule: Rule) -> list[tuple[str | None, list[list[str]]]]:
    """The parts of a rule's documentation, each paragraph as text and code in turn."""
    return [(heading, [_CODE.split(text) for text in paragraphs]) for heading, paragraphs in passages_of(rule)]


LIBRARY_FILE = "echarts/echarts.min.js"
STYLE_FILE = "style.css"
SCRIPT_FILE = "report.js"
CHARTS_FILE = "charts.js"
CHART_FILES = (LIBRARY_FILE, CHARTS_FILE)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class ChartData:
    """What all charts of a page draw; it stands in the page as JSON, named as here."""

    bars: tuple[TimeBar, ...]
    timelines: tuple[Timeline, ...]
    flows: tuple[Flow, ...]
    waterfalls: tuple[Waterfall, ...]

    @property
    def has_charts(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.bars or self.timelines or self.flows or self.waterfalls)


def render_html(diagnosis: Diagnosis) -> str:
    """The report as one HTML page."""
    view = build_view(diagnosis)
    data = ChartData(
        build_bars(diagnosis), build_timelines(diagnosis), build_flows(diagnosis), build_waterfalls(diagnosis)
    )
    *lists, environment = build_lists(diagnosis)
    cards = build_cards(diagnosis, view)
    rules = [rule for rule in ALL_RULES if any(rule.code == card.entry.code for card in cards)]
    style = read_page_file(STYLE_FILE)
    scripts = [read_page_file(name) for name in (SCRIPT_FILE, *(CHART_FILES if data.has_charts else ()))]
    return page_template("report.html.j2").render(
        view=view,
        data=data,
        accounts=[account.table for account in build_accounts(diagnosis)],
        json=json_for_script(data),
        tables=[table for table in view.tables if table.rows],
        lists=lists,
        environment=environment,
        cards=cards,
        cards_left_out=max(0, len(view.findings) - MOST_FINDINGS),
        rules=rules,
        documented={rule.code for rule in rules},
        passages_of=_passages,
        clean_log=clean_log,
        reproducer=build_reproducer(diagnosis),
        style=style,
        scripts=scripts,
        policy=_policy(style, scripts),
    )


def overview_html(view: Overview) -> str:
    """A report of tables as one HTML page."""
    style, script = read_page_file(STYLE_FILE), read_page_file(SCRIPT_FILE)
    return page_template("overview.html.j2").render(
        view=view,
        tables=[table for table in view.tables if table.rows],
        style=style,
        script=script,
        policy=_policy(style, [script]),
    )


def json_for_script(data: object) -> str:
    """JSON that can stand inside a script element: a name that holds ``</script>`` cannot end it."""
    text = msgspec.json.encode(data).decode()
    for character, escape in _UNSAFE.items():
        text = text.replace(character, escape)
    return text


@cache
def read_page_file(name: str) -> str:
    """A file that goes into the page."""
    return resources.files("layoutdoctor.reports.html").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def _policy(style: str, scripts: list[str]) -> str:
    """Nothing may be loaded, run or styled but what stands in the page and was written here."""
    return (
        f"default-src 'none'; script-src {' '.join(map(hash_source, scripts))}; style-src {hash_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def hash_source(text: str) -> str:
    """How the page's policy names a script or a style sheet that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def page_template(name: str) -> jinja2.Template:
    """A template of ``page``, with every string escaped."""
    import jinja2  # late: most commands write no page

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read_page_file),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    ).get_template(name)
